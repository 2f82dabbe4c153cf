"""Ibis over Fluss: the module that Ibis finds by the entry point group ``ibis.backends``."""

from fluss_df.errors import FlussError

try:
    from fluss_df.backend.backend import Backend
except ImportError as error:
    # an ImportError would make Ibis say that ibis-framework[fluss] is missing, which does not exist
    raise FlussError(
        f"the Ibis backend of Fluss cannot be imported ({error}): pip install 'fluss-df[ibis]'"
    ) from error

__all__ = ["Backend"]
