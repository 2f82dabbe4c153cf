"""Settings of a connection."""

from fluss_df.config.options import Option
from fluss_df.config.settings import Config

__all__ = ["Config", "Option"]
