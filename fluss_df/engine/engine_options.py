"""The options of an engine: durability, sizes and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fluss_df.errors import ErrorCode, FlussError

Durability = Literal["commit", "interval", "none"]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine keeps its data.

    Parameters
    ----------
    durability
        When a write is acknowledged. ``"commit"``: when it is on the disk; it survives the loss of
        power. ``"interval"``: when it is written; it survives the end of the process, and the loss
        of power takes at most about a second of writes. ``"none"``: the same, and the operating
        system alone decides when data goes to the disk.
    segment_bytes
        A file of a log that has grown over this size is followed by a new one.
    default_buckets
        Buckets of tables that do not say.
    answer_bytes
        The most that one request may look up or scan by a limit, and that the rows may have which
        one batch of keys replaces, removes or makes; more is refused, as it would be in memory at
        once. In Arrow, where nulls may be wide, these rows may take twice as much.
    open_files
        How many files the buckets may have open, about; those that were not used for the longest
        time give theirs back. ``None``: half of what the process may have, whose own limit is
        raised where it is low and the user may do so.
    lake_tiering
        Whether the process that has the folder moves tables with ``table.datalake.enabled`` into
        the folder's lake, in the background. False leaves that to ``fluss-df tier``.
    lake_snapshots_s
        For how many seconds a snapshot of the folder's lake stays after queries began to read a
        newer one: longer than a query may take. Older ones are expired by who tiers here, and their
        files deleted. None keeps all.
    """

    durability: Durability = "commit"
    segment_bytes: int = 1 << 30
    default_buckets: int = 1
    answer_bytes: int = 256 << 20
    open_files: int | None = None
    lake_tiering: bool = True
    lake_snapshots_s: float | None = 3600.0

    def __post_init__(self) -> None:
        if self.durability not in ("commit", "interval", "none"):
            raise FlussError(
                f"durability {self.durability!r}: it is 'commit', 'interval' or 'none'",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
        files = 1 if self.open_files is None else self.open_files
        if min(self.segment_bytes, self.default_buckets, self.answer_bytes, files) < 1:
            raise FlussError(
                "segment_bytes, default_buckets, answer_bytes and open_files are positive",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
        if self.lake_snapshots_s is not None and not self.lake_snapshots_s >= 0:
            raise FlussError(
                f"lake_snapshots_s {self.lake_snapshots_s!r}: it is at least 0, or None",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
