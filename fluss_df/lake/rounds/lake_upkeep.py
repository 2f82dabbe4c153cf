"""The interface of lake tables for their upkeep, whatever the format."""

from __future__ import annotations

from typing import Protocol


class LakeUpkeep(Protocol):
    """Expires old snapshots of a lake table, and removes files that no snapshot has."""

    def expire(self, age_s: float) -> tuple[int, int] | None:
        """Expire old snapshots; return how many, and how many files were deleted.

        A snapshot stays for ``age_s`` seconds after queries began to read a newer one. Returns None
        where there is nothing to expire.
        """

    def remove_orphans(self, age_s: float) -> int:
        """Delete files that no snapshot has, of this age at the least; return how many."""
