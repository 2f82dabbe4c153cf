"""Ibis over Fluss: the module that Ibis finds by the entry point group ``ibis.backends``."""

from fluss_df.backend.backend import Backend

__all__ = ["Backend"]
