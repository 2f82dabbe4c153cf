"""Results of the admin about a cluster: settings, health, balance, snapshots, producers."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final, TypeVar

from fluss_df.errors import FlussError, ProtocolError
from fluss_df.metadata import TableBucket, nearest
from fluss_df.ready import Ready

E = TypeVar("E", bound="Named")

HIDDEN: Final = "***"
# texts in the keys of settings whose values are secret, as Fluss has them
_SECRET: Final = (
    "password", "secret", "jaas", "credential", "token", "apikey", "access-key", "access.key",
    "account.key", "service-key", "auth-params", "basic-auth", "http-headers",
)  # fmt: skip


def member(kind: type[E], value: E | str | int) -> E:
    """Return the member of an enumeration that a user names, also by a text or number.

    Raises FlussError, naming those that there are.
    """
    names = [each.name for each in kind]
    if isinstance(value, str):
        if value.upper() in names:
            return kind[value.upper()]
    elif not isinstance(value, bool) and value in list(kind):
        return kind(value)
    shown = value if isinstance(value, str) else repr(value)
    near = nearest(value.upper(), names) if isinstance(value, str) else ""
    raise FlussError(f"there is no {kind.__name__} {shown}: there are {', '.join(names)}{near}")


def answered(kind: type[E], number: int) -> E:
    """Return the member of an enumeration that a server sent.

    Raises ProtocolError for one that this client does not know.
    """
    try:
        return kind(number)
    except ValueError:
        raise ProtocolError(
            f"the server answers {kind.__name__} {number}, which this client does not know"
        ) from None


class Named(enum.IntEnum):
    """Numbers of the protocol, shown by their names."""

    def __str__(self) -> str:
        return self.name


# ---- settings and health


class ConfigSource(enum.Enum):
    """Where a setting of the cluster comes from."""

    DYNAMIC_SERVER_CONFIG = "DYNAMIC_SERVER_CONFIG"
    """It was changed while the servers ran, and holds for all of them."""
    INITIAL_SERVER_CONFIG = "INITIAL_SERVER_CONFIG"
    """The server was started with it (``server.yaml``)."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting of the cluster.

    Parameters
    ----------
    key, value
        Its name and value; None for one without a value. Servers of 0.9 tell passwords, too, which
        are not shown when an entry is printed.
    source
        Where it comes from.
    """

    key: str
    value: str | None
    source: ConfigSource

    @property
    def shown(self) -> str:
        """The value as it may be shown: not that of a secret."""
        if self.value is None:
            return ""
        return HIDDEN if any(word in self.key.lower() for word in _SECRET) else self.value

    def __repr__(self) -> str:
        return f"ConfigEntry({self.key!r}, {self.shown!r}, {self.source.name})"


class ClusterHealthStatus(Named):
    """How a cluster is."""

    GREEN = 0
    """All replicas are in sync, and all leaders are active."""
    YELLOW = 1
    """All leaders are active, and some replicas are not in sync."""
    RED = 2
    """Some leaders are not active: their buckets can be neither read nor written."""
    UNKNOWN = 3
    """The coordinator cannot tell."""


@dataclass(frozen=True, slots=True)
class ClusterHealth(Ready):
    """How a cluster is: its replicas, which are copies of buckets, counted.

    Parameters
    ----------
    num_replicas, in_sync_replicas
        All replicas, and those that have what their leader has.
    num_leader_replicas, active_leader_replicas
        The replicas that lead a bucket, and those of them that answer.
    status
        What that means.
    """

    num_replicas: int
    in_sync_replicas: int
    num_leader_replicas: int
    active_leader_replicas: int
    status: ClusterHealthStatus


# ---- tags and balance


class ServerTag(Named):
    """The tag of a tablet server that is going offline; a rebalance moves buckets away from it."""

    PERMANENT_OFFLINE = 0
    """It goes offline for good: no new bucket is placed on it."""
    TEMPORARY_OFFLINE = 1
    """It goes offline for a while, as for an upgrade."""


class GoalType(Named):
    """The goal of a rebalance."""

    REPLICA_DISTRIBUTION = 0
    """Each tablet server has about as many replicas as the others."""
    LEADER_DISTRIBUTION = 1
    """Each tablet server leads about as many buckets as the others."""
    RACK_AWARE = 2
    """The replicas of a bucket are on different racks."""


class RebalanceStatus(Named):
    """How far a rebalance is, as a whole or for one bucket."""

    NOT_STARTED = 0
    REBALANCING = 1
    FAILED = 2
    COMPLETED = 3
    CANCELED = 4
    TIMEOUT = 5

    @property
    def final(self) -> bool:
        """Whether it stays so."""
        return self not in (RebalanceStatus.NOT_STARTED, RebalanceStatus.REBALANCING)


@dataclass(frozen=True, slots=True)
class RebalanceResultForBucket:
    """The moves of a bucket in a rebalance.

    Parameters
    ----------
    original_leader, new_leader
        The server that led the bucket before, and the one that is to lead it; None where the server
        did not say.
    original_replicas, new_replicas
        The servers that had a replica, and those that are to have one.
    status
        How far it is.
    """

    original_leader: int | None
    new_leader: int | None
    original_replicas: tuple[int, ...]
    new_replicas: tuple[int, ...]
    status: RebalanceStatus


@dataclass(frozen=True, slots=True)
class RebalanceProgress:
    """How far a rebalance is.

    Parameters
    ----------
    rebalance_id
        Its id, as ``rebalance`` returned it.
    status
        How far it is as a whole.
    progress_for_buckets
        What it does with each bucket that it moves; empty where it moves none.
    """

    rebalance_id: str
    status: RebalanceStatus
    progress_for_buckets: dict[TableBucket, RebalanceResultForBucket] = field(
        default_factory=dict, hash=False
    )

    @property
    def progress(self) -> float | None:
        """The part of the buckets that is done, from 0 to 1; None where none is moved."""
        buckets = self.progress_for_buckets.values()
        return sum(each.status.final for each in buckets) / len(buckets) if buckets else None


# ---- producers


class RegisterResult(Named):
    """Whether a producer's offsets were registered."""

    CREATED = 0
    """The offsets were registered."""
    ALREADY_EXISTS = 1
    """The producer has offsets from an earlier start; those stay."""


@dataclass(frozen=True, slots=True)
class ProducerOffsetsResult:
    """Where logs ended when a producer began.

    Parameters
    ----------
    producer_id
        The producer.
    offsets
        The offset of each bucket.
    expiration_time
        When servers may forget them (ms since 1970).
    """

    producer_id: str
    offsets: dict[TableBucket, int] = field(hash=False)
    expiration_time: int


# ---- snapshots and remote logs


@dataclass(frozen=True, slots=True)
class KvSnapshots(Ready):
    """The newest snapshots of a primary-key table, or of a partition of it.

    Parameters
    ----------
    table_id, partition_id
        What they are of; None for a table without partitions.
    snapshot_ids
        Bucket -> id of its newest snapshot; None where there is none yet.
    log_offsets
        Bucket -> the offset from which on its changelog goes on behind the snapshot; None where
        there is none yet, and the log is read from its beginning.
    """

    table_id: int
    partition_id: int | None
    snapshot_ids: dict[int, int | None] = field(hash=False)
    log_offsets: dict[int, int | None] = field(hash=False)

    def get_table_buckets(self) -> list[TableBucket]:
        """Return the buckets, also those without a snapshot."""
        return [TableBucket(self.table_id, each, self.partition_id) for each in self.snapshot_ids]


@dataclass(frozen=True, slots=True)
class KvSnapshotMetadata(Ready):
    """The files of a snapshot.

    Parameters
    ----------
    log_offset
        The changes below this offset of the bucket's changelog are in it, and no others.
    snapshot_files
        Name of each file in RocksDB -> its URI or path in remote storage.
    """

    log_offset: int
    snapshot_files: dict[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class ActiveKvSnapshots(Ready):
    """All snapshots that servers keep of a primary-key table, or of a partition of it.

    Parameters
    ----------
    table_id, partition_id
        What they are of; None for a table without partitions.
    snapshot_ids
        Bucket -> the ids of its snapshots, those that somebody has a lease of included.
    """

    table_id: int
    partition_id: int | None
    snapshot_ids: dict[int, frozenset[int]] = field(hash=False)


@dataclass(frozen=True, slots=True)
class AcquireKvSnapshotLeaseResult(Ready):
    """What became of a lease.

    Parameters
    ----------
    unavailable_snapshots
        Bucket -> the snapshot that was asked for and is not there, or not any more.
    """

    unavailable_snapshots: dict[TableBucket, int] = field(hash=False)


@dataclass(frozen=True, slots=True)
class RemoteLogManifestInfo:
    """Where the list of the log segments is that a bucket has in remote storage.

    Parameters
    ----------
    table_bucket
        The bucket.
    remote_log_manifest_path
        Where the list is: a URI, or a path that all servers have.
    remote_log_end_offset
        The offset behind the last record in remote storage.
    """

    table_bucket: TableBucket
    remote_log_manifest_path: str
    remote_log_end_offset: int


# ---- databases


@dataclass(frozen=True, slots=True)
class DatabaseSummary:
    """A database, as a list of them has it.

    Parameters
    ----------
    database_name
        Its name.
    created_time
        When it was created (ms since 1970).
    table_count
        How many tables it has.
    """

    database_name: str
    created_time: int
    table_count: int
