"""What the upkeep wants of a lake table, whatever its format."""

from __future__ import annotations

from typing import Protocol


class LakeUpkeep(Protocol):
    """A lake table whose old snapshots go, and files that no snapshot has."""

    def expire(self, age_s: float) -> tuple[int, int] | None:
        """Expire old snapshots; return how many, and how many files were deleted.

        A snapshot stays for ``age_s`` seconds after queries began to read a newer one. Returns None
        where there is nothing to expire.
        """

    def remove_orphans(self, age_s: float) -> int:
        """Delete files that no snapshot has, of this age at the least; return how many."""
