"""Tiering without Flink: moves tables from Fluss into their lake tables."""

from fluss_df.lake.tiering.service import TieringService
from fluss_df.lake.tiering.table_round import TieringRound

__all__ = ["TieringRound", "TieringService"]
