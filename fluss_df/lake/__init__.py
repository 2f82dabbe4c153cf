"""The data lake behind Fluss: the tables that hold what a tiering service moved there."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluss_df.lake.tiering import TieringRound, TieringService

__all__ = ["TieringRound", "TieringService"]


def __getattr__(name: str) -> Any:
    """Import the tiering service when it is asked for: lakes need extras."""
    if name not in __all__:
        raise AttributeError(f"module 'fluss_df.lake' has no attribute {name!r}")
    from fluss_df.lake import tiering

    return getattr(tiering, name)
