"""What a cluster keeps beside its tables: producers' offsets, servers' tags, the last rebalance.

One JSON file, kept twice and replaced atomically, so that each change happens wholly or not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fluss_df.embedded.files import damage_in
from fluss_df.embedded.kept_json import KeptJson
from fluss_df.embedded.tables import now_ms
from fluss_df.embedded.validation import name_problem
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket

_DEFAULT_TTL_MS: Final = 24 * 3600 * 1000
_MAX_TIME: Final = 2**63 - 1
# of all producers: they are in memory, and in one file that each change writes
_MOST_PRODUCERS: Final = 10_000
_MOST_OFFSETS: Final = 500_000


@dataclass(frozen=True, slots=True)
class ProducerOffsets:
    """Where the logs ended when a producer began, and when that may be forgotten (ms)."""

    expires: int
    offsets: dict[TableBucket, int]

    def to_json(self) -> dict[str, Any]:
        """Return it as the file has it."""
        buckets = [
            [bucket.table_id, bucket.partition_id, bucket.bucket_id, offset]
            for bucket, offset in self.offsets.items()
        ]
        return {"expires": self.expires, "offsets": buckets}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ProducerOffsets:
        """Read what :meth:`to_json` returned."""
        offsets = {
            TableBucket(table, bucket, partition): int(offset)
            for table, partition, bucket, offset in value["offsets"]
        }
        return cls(int(value["expires"]), offsets)


State = tuple[dict[str, ProducerOffsets], dict[int, int], str | None]


def read_state(value: Mapping[str, Any]) -> State:
    """Return what is stored: offsets by producer, tags by server, the last rebalance."""
    producers = {
        name: ProducerOffsets.from_json(entry) for name, entry in value["producers"].items()
    }
    tags = {int(server): int(tag) for server, tag in value["tags"].items()}
    return producers, tags, value["rebalance"]


class ClusterState:
    """The state of a cluster of one server; thread safe, durable before a change is answered.

    Parameters
    ----------
    kept
        Its file; created with the first change.

    Raises
    ------
    FlussError
        :class:`~fluss_df.embedded.files.DamagedError` for a file that cannot be read.
    """

    def __init__(self, kept: KeptJson) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._producers: dict[str, ProducerOffsets] = {}
        self._tags: dict[int, int] = {}
        self._rebalance: str | None = None
        value = kept.load()
        if value is not None:
            with damage_in(kept.first):
                self._producers, self._tags, self._rebalance = read_state(value)

    def _save(
        self,
        producers: dict[str, ProducerOffsets] | None = None,
        tags: dict[int, int] | None = None,
        rebalance: str | None = None,
    ) -> None:
        """Bring a change to the disk, then to memory."""
        producers = self._producers if producers is None else producers
        tags = self._tags if tags is None else tags
        rebalance = rebalance or self._rebalance
        value = {
            "producers": {name: entry.to_json() for name, entry in producers.items()},
            "tags": tags,
            "rebalance": rebalance,
        }
        self._kept.save(value)
        self._producers, self._tags, self._rebalance = producers, tags, rebalance

    # ---- producers

    def register(self, name: str, offsets: dict[TableBucket, int], ttl_ms: int | None) -> bool:
        """Keep the offsets of a producer; False where it has some that have not expired.

        Raises
        ------
        FlussError
            ``INVALID_PRODUCER_ID_EXCEPTION``; ``STORAGE_EXCEPTION`` where the disk refuses;
            ``RECORD_TOO_LARGE_EXCEPTION`` where all producers together would have too many.
        """
        _check_producer(name)
        now = now_ms()
        expires = min(now + (_DEFAULT_TTL_MS if ttl_ms is None else ttl_ms), _MAX_TIME)
        with self._lock:
            known = self._producers.get(name)
            if known is not None and known.expires > now:
                return False
            producers = {key: one for key, one in self._producers.items() if one.expires > now}
            producers[name] = ProducerOffsets(expires, offsets)
            total = sum(len(one.offsets) for one in producers.values())
            if len(producers) > _MOST_PRODUCERS or total > _MOST_OFFSETS:
                raise FlussError(
                    f"with producer '{name}' there would be {len(producers):,} producers with"
                    f" {total:,} offsets, where {_MOST_PRODUCERS:,} and {_MOST_OFFSETS:,} may be:"
                    " delete the offsets of producers that ended",
                    ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
                )
            self._save(producers=producers)
            return True

    def producer(self, name: str) -> ProducerOffsets | None:
        """Return the offsets of a producer, also expired ones that are not removed yet.

        Raises
        ------
        FlussError
            ``INVALID_PRODUCER_ID_EXCEPTION``.
        """
        _check_producer(name)
        return self._producers.get(name)

    def forget(self, name: str) -> None:
        """Remove the offsets of a producer, if there are any.

        Raises
        ------
        FlussError
            As :meth:`register`.
        """
        _check_producer(name)
        with self._lock:
            if name in self._producers:
                rest = {key: entry for key, entry in self._producers.items() if key != name}
                self._save(producers=rest)

    def expire(self) -> int:
        """Remove the offsets that have expired; return of how many producers."""
        now = now_ms()
        with self._lock:
            rest = {key: entry for key, entry in self._producers.items() if entry.expires > now}
            expired = len(self._producers) - len(rest)
            if expired:
                self._save(producers=rest)
            return expired

    # ---- servers

    def tag(self, server: int) -> int | None:
        """Return the tag of a server."""
        return self._tags.get(server)

    def add_tag(self, server: int, tag: int) -> None:
        """Tag a server.

        Raises
        ------
        FlussError
            ``STORAGE_EXCEPTION`` where the disk refuses.
        """
        with self._lock:
            if self._tags.get(server) != tag:
                self._save(tags={**self._tags, server: tag})

    def remove_tag(self, server: int) -> None:
        """Take the tag from a server, if it has one.

        Raises
        ------
        FlussError
            As :meth:`add_tag`.
        """
        with self._lock:
            if server in self._tags:
                self._save(tags={key: tag for key, tag in self._tags.items() if key != server})

    @property
    def rebalance(self) -> str | None:
        """The id of the last rebalance."""
        return self._rebalance

    def rebalanced(self, rebalance: str) -> None:
        """Keep the id of a rebalance.

        Raises
        ------
        FlussError
            As :meth:`add_tag`.
        """
        with self._lock:
            self._save(rebalance=rebalance)


def _check_producer(name: str) -> None:
    problem = name_problem(name, reserved=False)
    if problem:
        raise FlussError(
            f"Invalid producer ID '{name}': {problem}", ErrorCode.INVALID_PRODUCER_ID_EXCEPTION
        )
