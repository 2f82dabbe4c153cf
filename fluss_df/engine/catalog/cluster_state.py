"""The state of a cluster beside its tables: producers' offsets, tags, settings, last rebalance.

One JSON file, kept twice and replaced atomically, and the changes since then, one record for each
(:mod:`~fluss_df.engine.catalog.cluster_changes`): each change happens wholly or not at all, and
costs its own bytes. When the records have as many bytes as the file, it is written again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fluss_df.engine.catalog.cluster_changes import Change, ClusterChanges, new_epoch
from fluss_df.engine.files.files import damage_in
from fluss_df.engine.files.kept_json import KeptJson
from fluss_df.engine.tables.names import name_problem
from fluss_df.engine.tables.tables import now_ms
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket

logger = logging.getLogger(__name__)

_DEFAULT_TTL_MS: Final = 24 * 3600 * 1000
_MAX_TIME: Final = 2**63 - 1
# the file is written again only when the records have at least this many bytes
_COMPACTED_BYTES: Final = 4 << 20
# the most producers, and offsets of all of them: they are in memory
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


@dataclass(slots=True)
class State:
    """The state: offsets by producer, tags by server, the last rebalance, changed settings."""

    producers: dict[str, ProducerOffsets] = field(default_factory=dict)
    tags: dict[int, int] = field(default_factory=dict)
    rebalance: str | None = None
    configs: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return everything as the file has it."""
        return {
            "producers": {name: entry.to_json() for name, entry in self.producers.items()},
            "tags": self.tags,
            "rebalance": self.rebalance,
            "configs": self.configs,
        }

    def apply(self, change: Change) -> None:
        """Change it, as a record says."""
        for name, entry in change.get("producers", {}).items():
            if entry is None:
                self.producers.pop(name, None)
            else:
                self.producers[name] = ProducerOffsets.from_json(entry)
        for server, tag in change.get("tags", {}).items():
            if tag is None:
                self.tags.pop(int(server), None)
            else:
                self.tags[int(server)] = int(tag)
        if "rebalance" in change:
            self.rebalance = change["rebalance"]
        for key, value in change.get("configs", {}).items():
            if value is None:
                self.configs.pop(key, None)
            else:
                self.configs[key] = str(value)


def read_state(value: Mapping[str, Any], changes: Iterable[Change] = ()) -> State:
    """Return what is stored in the file, and in the changes since then."""
    producers = {
        name: ProducerOffsets.from_json(entry) for name, entry in value["producers"].items()
    }
    tags = {int(server): int(tag) for server, tag in value["tags"].items()}
    # earlier versions could change no settings
    configs = dict(value.get("configs", {}))
    if not all(isinstance(text, str) for text in configs.values()):
        raise ValueError(f"settings that are no texts: {configs}")
    state = State(producers, tags, value["rebalance"], configs)
    for change in changes:
        state.apply(change)
    return state


def epoch_of(value: Mapping[str, Any] | None) -> int:
    """Return which changes go on from a file; 0 where there is no file.

    One without, of an earlier version, has none: 1 is the epoch of no changes.
    """
    return 0 if value is None else int(value.get("changes", 1))


class ClusterState:
    """The state of a cluster of one server; thread safe, durable before a change is answered.

    Raises :class:`~fluss_df.engine.files.files.DamagedError` for a file that cannot be read.
    """

    def __init__(self, kept: KeptJson, changes: ClusterChanges) -> None:
        self._kept = kept
        self._changes = changes
        self._lock = threading.Lock()
        self._state = State()
        # how many offsets all producers have together
        self._offsets = 0
        self._compact_at = _COMPACTED_BYTES
        # the file has to be written before the next change
        self._due = True
        value = kept.load()
        epoch = epoch_of(value)
        records, problems = changes.read(epoch)
        if value is None:
            return
        with damage_in(kept.first):
            self._state = read_state(value, records)
        self._offsets = sum(len(each.offsets) for each in self._state.producers.values())
        for problem in problems:
            logger.warning("%s: its copy is taken", problem)
        if not changes.sound:
            self._try_to_compact()
        elif "changes" in value:
            changes.go_on(epoch, len(records))
            self._due = False

    def _change(self, change: Change) -> None:
        """Bring a change to the disk, then to memory."""
        if self._due or not self._changes.sound:
            # the file is written with the change in it
            state = State(
                dict(self._state.producers),
                dict(self._state.tags),
                self._state.rebalance,
                dict(self._state.configs),
            )
            state.apply(change)
            self._write(state)
            self._state = state
        else:
            self._changes.add(change)
            self._state.apply(change)
            if self._changes.size > self._compact_at:
                self._try_to_compact()

    def _write(self, state: State) -> None:
        """Replace the file; the changes that there were are in it."""
        value, epoch = state.to_json(), new_epoch()
        self._due = True
        self._kept.save({**value, "changes": epoch})
        self._changes.go_on(epoch, 0)
        self._compact_at = max(_COMPACTED_BYTES, self._kept.first.stat().st_size)
        self._due = False

    def _try_to_compact(self) -> None:
        try:
            self._write(self._state)
        except FlussError as error:
            # what is on the disk is complete; the next change tries again
            logger.warning("%s", error.message)

    def compact(self) -> None:
        """Have everything in the file, and no changes beside it.

        Raises ``STORAGE_EXCEPTION`` where the disk refuses.
        """
        with self._lock:
            if self._changes.size:
                self._write(self._state)

    def close(self) -> None:
        """Have everything in the file, which earlier versions read alone."""
        with self._lock:
            if self._changes.size:
                self._try_to_compact()

    # ---- producers

    def register(self, name: str, offsets: dict[TableBucket, int], ttl_ms: int | None) -> bool:
        """Keep the offsets of a producer; False where it has some that have not expired.

        Raises ``INVALID_PRODUCER_ID_EXCEPTION``; ``STORAGE_EXCEPTION`` where the disk refuses;
        ``RECORD_TOO_LARGE_EXCEPTION`` where all producers together would have too many.
        """
        _check_producer(name)
        now = now_ms()
        expires = min(now + (_DEFAULT_TTL_MS if ttl_ms is None else ttl_ms), _MAX_TIME)
        with self._lock:
            known = self._state.producers.get(name)
            if known is not None and known.expires > now:
                return False
            count, total = self._with(name, len(offsets))
            if count > _MOST_PRODUCERS or total > _MOST_OFFSETS:
                self._expire(now)
                count, total = self._with(name, len(offsets))
            if count > _MOST_PRODUCERS or total > _MOST_OFFSETS:
                raise FlussError(
                    f"with producer '{name}' there would be {count:,} producers with"
                    f" {total:,} offsets, where {_MOST_PRODUCERS:,} and {_MOST_OFFSETS:,} may be:"
                    " delete the offsets of producers that ended",
                    ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
                )
            entry = ProducerOffsets(expires, offsets)
            self._change({"producers": {name: entry.to_json()}})
            self._offsets = total
            return True

    def _with(self, name: str, offsets: int) -> tuple[int, int]:
        """Return how many producers and offsets there are when one has registered."""
        known = self._state.producers.get(name)
        if known is None:
            return len(self._state.producers) + 1, self._offsets + offsets
        return len(self._state.producers), self._offsets + offsets - len(known.offsets)

    def _remove(self, names: list[str]) -> None:
        removed = sum(len(self._state.producers[name].offsets) for name in names)
        self._change({"producers": dict.fromkeys(names)})
        self._offsets -= removed

    def producer(self, name: str) -> ProducerOffsets | None:
        """Return the offsets of a producer, also expired ones that are not removed yet.

        Raises ``INVALID_PRODUCER_ID_EXCEPTION``.
        """
        _check_producer(name)
        return self._state.producers.get(name)

    def forget(self, name: str) -> None:
        """Remove the offsets of a producer, if there are any.

        Raises FlussError as :meth:`register`.
        """
        _check_producer(name)
        with self._lock:
            if name in self._state.producers:
                self._remove([name])

    def expire(self) -> int:
        """Remove the offsets that have expired; return of how many producers."""
        with self._lock:
            return self._expire(now_ms())

    def _expire(self, now: int) -> int:
        producers = self._state.producers
        expired = [name for name, entry in producers.items() if entry.expires <= now]
        if expired:
            self._remove(expired)
        return len(expired)

    # ---- servers

    def tag(self, server: int) -> int | None:
        """Return the tag of a server."""
        return self._state.tags.get(server)

    def add_tag(self, server: int, tag: int) -> None:
        """Tag a server.

        Raises ``STORAGE_EXCEPTION`` where the disk refuses.
        """
        with self._lock:
            if self._state.tags.get(server) != tag:
                self._change({"tags": {server: tag}})

    def remove_tag(self, server: int) -> None:
        """Take the tag from a server, if it has one.

        Raises FlussError as :meth:`add_tag`.
        """
        with self._lock:
            if server in self._state.tags:
                self._change({"tags": {server: None}})

    @property
    def rebalance(self) -> str | None:
        """The id of the last rebalance."""
        return self._state.rebalance

    def rebalanced(self, rebalance: str) -> None:
        """Keep the id of a rebalance.

        Raises FlussError as :meth:`add_tag`.
        """
        with self._lock:
            self._change({"rebalance": rebalance})

    # ---- settings

    @property
    def configs(self) -> dict[str, str]:
        """The settings that were changed since the folder was made."""
        with self._lock:
            return dict(self._state.configs)

    def alter_configs(
        self, altered: Callable[[Mapping[str, str]], Mapping[str, str | None]]
    ) -> None:
        """Change settings.

        ``altered`` is given the settings that were changed before, and returns those to change now:
        key -> value, None where it is to be as at the start.

        Raises what ``altered`` raises; ``STORAGE_EXCEPTION`` where the disk refuses.
        """
        with self._lock:
            changes = altered(self._state.configs)
            if changes:
                self._change({"configs": dict(changes)})


def _check_producer(name: str) -> None:
    problem = name_problem(name, reserved=False)
    if problem:
        raise FlussError(
            f"Invalid producer ID '{name}': {problem}", ErrorCode.INVALID_PRODUCER_ID_EXCEPTION
        )
