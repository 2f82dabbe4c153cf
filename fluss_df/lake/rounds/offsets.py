"""The newest snapshot that a tiering service made: what decides how far a table is tiered."""

from __future__ import annotations

from dataclasses import dataclass

from fluss_df.lake.offsets import Offsets

# who commits, in every lake
COMMIT_USER = "__fluss_lake_tiering"


@dataclass(frozen=True, slots=True)
class TieredSnapshot:
    """The newest snapshot of a lake table that a tiering service made.

    Parameters
    ----------
    snapshot_id
        Its id.
    offsets_path
        The file with its offsets.
    offsets
        The offsets, where a service of fluss_df made it; None where Flink's did.
    committed_ms
        When it was committed, in milliseconds since 1970, by the clock of the service.
    """

    snapshot_id: int
    offsets_path: str | None
    offsets: Offsets | None
    committed_ms: int
