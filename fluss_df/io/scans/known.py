"""Remembers the table of a frame, so that not every query asks for it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fluss_df.client.cluster.table_requests import changes
from fluss_df.schema import TableInfo

# how long queries use what an earlier query learned of the table, without asking again
_KNOWN_S = 0.5


@dataclass(frozen=True, slots=True)
class Moment:
    """When a table was asked for: by the clock, and by what this process changed before."""

    time: float = field(default_factory=time.monotonic)
    changes: int = field(default_factory=lambda: changes())


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table as it was when it was looked up.

    What this process dropped or altered is looked at again; what others did is seen within half a
    second, and at once where servers have no such table any more. ``since`` is a moment before it
    was asked for.
    """

    info: TableInfo
    since: Moment

    @property
    def fresh(self) -> bool:
        """Whether a query may use it without asking again."""
        return time.monotonic() - self.since.time <= _KNOWN_S and self.since.changes == changes()
