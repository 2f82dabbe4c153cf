"""The ``fluss-df`` command."""

from fluss_df.cli.main import app

__all__ = ["app"]
