"""A single-node Fluss in Python: durable tables in a folder, without a server to run."""

from fluss_df.embedded.engine import EngineOptions
from fluss_df.embedded.listener import Limits
from fluss_df.embedded.server import EmbeddedFluss

__all__ = ["EmbeddedFluss", "EngineOptions", "Limits"]
