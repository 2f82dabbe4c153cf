"""Paths, buckets, partitions, offsets, servers and databases of a cluster, and checks of names."""

from __future__ import annotations

import contextlib
import difflib
import enum
import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.ready import Ready
from fluss_df.texts.secret_texts import shown_option

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1

DEFAULT_DATABASE = "fluss"

# metadata columns, which scans compute; they are never stored
PARTITION_COLUMN = "_partition"
BUCKET_COLUMN = "_bucket"
LOG_OFFSET_COLUMN = "_log_offset"
COMMIT_TIMESTAMP_COLUMN = "_commit_timestamp"
METADATA_COLUMNS = (PARTITION_COLUMN, BUCKET_COLUMN, LOG_OFFSET_COLUMN, COMMIT_TIMESTAMP_COLUMN)
# metadata columns of the changelog of a primary-key table
CHANGE_TYPE_COLUMN = "_change_type"
#: The custom property of a table that stands for a view, with what the view is.
VIEW_PROPERTY = "fluss_df.view"
CHANGELOG_COLUMNS = (CHANGE_TYPE_COLUMN, LOG_OFFSET_COLUMN, COMMIT_TIMESTAMP_COLUMN)

_INT64 = 2**63
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_NAME_MAX = 200
# the characters that ZooKeeper allows in a path
_NODE = re.compile("[^\\0-\\x1f\\x7f-\\x9f\\ud800-\\uf8ff\\ufff0-\\uffff]+")


def check_name(name: str, kind: str) -> str:
    """Return the name of a database, table or partition if Fluss allows it.

    Raises ``INVALID_DATABASE_EXCEPTION``, ``INVALID_TABLE_EXCEPTION`` or
    ``PARTITION_SPEC_INVALID_EXCEPTION``, with the rule that the name breaks.
    """
    code = {
        "database": ErrorCode.INVALID_DATABASE_EXCEPTION,
        "table": ErrorCode.INVALID_TABLE_EXCEPTION,
    }.get(kind, ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION)
    if not isinstance(name, str):
        raise FlussError(f"invalid {kind} name {name!r}: expected a string", code)
    if not name:
        problem = "it is empty"
    elif name in (".", ".."):
        problem = "'.' and '..' are not allowed"
    elif len(name) > _NAME_MAX:
        problem = f"it has {len(name)} characters; at most {_NAME_MAX} are allowed"
    elif not _NAME.fullmatch(name):
        problem = "only letters, digits, '_' and '-' are allowed"
    elif name.startswith("__"):
        problem = "names that begin with '__' are reserved"
    else:
        return name
    raise FlussError(f"invalid {kind} name {name!r}: {problem}", code)


def lease_problem(name: str) -> str | None:
    """Return why servers cannot keep a lease with this id; None if they can.

    Servers keep a lease in a node of ZooKeeper, and the id is a part of the node's path.
    """
    if not name:
        return "it is empty"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "neither it nor what stands between slashes may be empty, '.' or '..'"
    if not _NODE.fullmatch(name):
        return "it has a control character, or another one that ZooKeeper does not allow"
    return None


def property_texts(values: Mapping[str, object] | None, what: str) -> dict[str, str]:
    """Return properties with their values as texts, as servers keep them.

    Raises FlussError for what is no mapping, and for values that are neither texts nor numbers.
    """
    if not isinstance(values, Mapping | None):
        raise FlussError(f"expected a dict of key to value for {what}, not {values!r}")
    texts = {}
    for key, value in (values or {}).items():
        if not isinstance(value, (str, int, float)):
            shown = shown_option(str(key), repr(value))
            raise FlussError(f"invalid value {shown} of {what} '{key}': expected a string")
        texts[str(key)] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts


def key_columns_of(keys: object, what: str) -> tuple[str, ...]:
    """Return the names of key columns, which are given as a list.

    Raises FlussError for what is no list, such as a single name.
    """
    if isinstance(keys, str) or not isinstance(keys, Iterable | None):
        shown = f"the string {keys!r}" if isinstance(keys, str) else repr(keys)
        raise FlussError(f"{what} columns: expected a list of names, not {shown}")
    return tuple(keys or ())


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn errors of reading a server's JSON, ``what``, into a ProtocolError."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"{what} from the server cannot be read: {error!r}") from error


@dataclass(frozen=True, slots=True, order=True, init=False)
class TablePath:
    """The database and the name of a table.

    Examples
    --------
    >>> str(TablePath("fluss", "events"))
    'fluss.events'
    """

    database_name: str
    table_name: str

    @overload
    def __init__(self, database: str, table: str) -> None: ...
    @overload
    def __init__(self, *, database_name: str, table_name: str) -> None: ...
    def __init__(
        self,
        database: str | None = None,
        table: str | None = None,
        *,
        database_name: str | None = None,
        table_name: str | None = None,
    ) -> None:
        # the official client's documentation and its release have different names for these
        database = database if database_name is None else database_name
        table = table if table_name is None else table_name
        if database is None or table is None:
            raise TypeError("TablePath takes a database and a table")
        object.__setattr__(self, "database_name", database)
        object.__setattr__(self, "table_name", table)

    def table_path_str(self) -> str:
        """Return ``database.table``."""
        return f"{self.database_name}.{self.table_name}"

    @classmethod
    def parse(cls, source: str | TablePath, default_database: str | None = None) -> TablePath:
        """Read ``"table"`` or ``"database.table"``, and check both names."""
        if isinstance(source, TablePath):
            path = source
        elif isinstance(source, str):
            if "/" in source or "\\" in source:
                raise FlussError(
                    f"invalid table {source!r}: expected 'table' or 'database.table'; a folder of"
                    " data is where a connection leads: connection='...'",
                    ErrorCode.INVALID_TABLE_EXCEPTION,
                )
            database, dot, table = source.rpartition(".")
            path = cls(database if dot else default_database or DEFAULT_DATABASE, table)
        else:
            raise FlussError(
                f"invalid table {source!r}: expected 'table', 'database.table' or a TablePath",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        check_name(path.database_name, "database")
        check_name(path.table_name, "table")
        return path

    def __str__(self) -> str:
        return self.table_path_str()

    def __repr__(self) -> str:
        return f"TablePath({self.database_name!r}, {self.table_name!r})"


@dataclass(frozen=True, slots=True, order=True, init=False)
class TableBucket:
    """One bucket of a table, or of a partition of a table."""

    table_id: int
    bucket_id: int
    partition_id: int | None

    def __init__(self, table_id: int, bucket: int, partition_id: int | None = None) -> None:
        object.__setattr__(self, "table_id", table_id)
        object.__setattr__(self, "bucket_id", bucket)
        object.__setattr__(self, "partition_id", partition_id)

    @staticmethod
    def with_partition(table_id: int, partition_id: int, bucket: int) -> TableBucket:
        """Return a bucket of a partition."""
        return TableBucket(table_id, bucket, partition_id)

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        partition = "" if self.partition_id is None else f", partition_id={self.partition_id}"
        return f"TableBucket(table_id={self.table_id}{partition}, bucket={self.bucket_id})"


class ChangeType(enum.IntEnum):
    """The kind of change that a record of a log is."""

    AppendOnly = 0
    Insert = 1
    UpdateBefore = 2
    UpdateAfter = 3
    Delete = 4

    def short_string(self) -> str:
        """Return ``+A``, ``+I``, ``-U``, ``+U`` or ``-D``."""
        return ("+A", "+I", "-U", "+U", "-D")[self.value]


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """The offset of a bucket that is asked for: the first, the last, or that of a time.

    Examples
    --------
    >>> OffsetSpec.timestamp(1704067200000)
    OffsetSpec.timestamp(1704067200000)
    """

    type: int
    timestamp_ms: int | None = None

    @staticmethod
    def earliest() -> OffsetSpec:
        """Return the spec of the first record that has not expired."""
        return OffsetSpec(0)

    @staticmethod
    def latest() -> OffsetSpec:
        """Return the spec of the offset behind the last record that readers may see."""
        return OffsetSpec(1)

    @staticmethod
    def timestamp(ts: int) -> OffsetSpec:
        """Return the spec of the first record committed at or after ``ts`` (ms since 1970)."""
        try:
            time = operator.index(ts)
        except TypeError:
            time = _INT64
        if not -_INT64 <= time < _INT64:
            raise FlussError(f"invalid timestamp {ts!r}: expected an integer, in ms since 1970")
        return OffsetSpec(2, time)

    def __repr__(self) -> str:
        if self.timestamp_ms is not None:
            return f"OffsetSpec.timestamp({self.timestamp_ms})"
        return "OffsetSpec.latest()" if self.type else "OffsetSpec.earliest()"


class OffsetType:
    """The older names of :class:`OffsetSpec`, for ``list_offsets``."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"


def require_columns(names: Iterable[str], existing: Sequence[str], what: str) -> None:
    """Raise FlussError for the first of ``names`` that does not exist, with the nearest name."""
    known = frozenset(existing)
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise FlussError(
                f"{what} column '{name}' does not exist; there are {', '.join(existing)}"
                f"{nearest(str(name), existing)}"
            )


def names_at(indices: Iterable[int], existing: Sequence[str], table: object) -> list[str]:
    """Return the names of columns at indexes, from 0; raise FlussError for what is no index."""
    if not isinstance(indices, Iterable):
        raise FlussError(f"expected a list of column indexes, not {indices!r}")
    names = []
    for index in indices:
        if isinstance(index, bool) or not isinstance(index, int):
            raise FlussError(f"invalid column index {index!r}: expected an integer")
        if not 0 <= index < len(existing):
            raise FlussError(
                f"table {table} has no column {index}: its columns are 0 to {len(existing) - 1}",
                ErrorCode.INVALID_COLUMN_PROJECTION,
            )
        names.append(existing[index])
    return names


def require_bucket(bucket_id: int, count: int, table: object) -> None:
    """Raise FlussError for the number of a bucket that a table or partition does not have."""
    if not 0 <= bucket_id < count:
        raise FlussError(
            f"table {table} has no bucket {bucket_id}: its buckets are 0 to {count - 1}",
            ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        )


def bucket_text(table: object, partition_name: str | None, bucket: TableBucket) -> str:
    """Return the name of a bucket for error messages."""
    partition = f", partition '{partition_name}'" if partition_name else ""
    return f"table {table}{partition}, bucket {bucket.bucket_id}"


def nearest(name: str, existing: Sequence[str]) -> str:
    """Return the end of an error message with the name that may be meant, or an empty string."""
    near = difflib.get_close_matches(name, existing, n=1)
    near = near or [other for other in existing if other.lower() == name.lower()]
    return f"; did you mean '{near[0]}'?" if near else ""


class ViewError(FlussError):
    """A name is that of a view where a table is expected.

    ``definition`` is the view's, as the table that keeps it has it.
    """

    def __init__(self, path: TablePath, definition: str) -> None:
        super().__init__(
            f"{path} is a view, and has no rows of its own: SQL and Ibis read it",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
        self.path = path
        self.definition = definition


def require_table(path: TablePath, custom_properties: Mapping[str, str]) -> None:
    """Raise ViewError, with the definition, for a view of SQL or Ibis.

    A view is kept as a table with nothing but its definition.
    """
    definition = custom_properties.get(VIEW_PROPERTY)
    if definition is not None:
        raise ViewError(path, definition)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition of a table.

    Parameters
    ----------
    partition_id
        Unique in the cluster.
    partition_name
        Its values, joined with ``$``.
    spec
        Partition column -> value, as strings.
    num_buckets
        How many buckets it has. None for servers on which each partition has as many buckets as
        its table.
    """

    partition_id: int
    partition_name: str
    spec: dict[str, str] = field(default_factory=dict, compare=False, hash=False)
    num_buckets: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ServerNode:
    """A server of the cluster."""

    id: int
    host: str
    port: int
    server_type: str

    @property
    def uid(self) -> str:
        """``cs-0`` for a coordinator, ``ts-1`` for a tablet server."""
        return f"{'cs' if self.server_type == 'CoordinatorServer' else 'ts'}-{self.id}"

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"


class DatabaseDescriptor:
    """The definition of a database: what it is created from."""

    def __init__(
        self, comment: str | None = None, custom_properties: Mapping[str, str] | None = None
    ) -> None:
        self._comment = comment
        self._custom_properties = property_texts(custom_properties, "the custom property")

    @property
    def comment(self) -> str | None:
        """The comment, or None."""
        return self._comment

    def get_custom_properties(self) -> dict[str, str]:
        """Return the properties."""
        return dict(self._custom_properties)

    def to_json(self) -> bytes:
        """Return the descriptor as the server's JSON (version 1)."""
        value: dict[str, Any] = {"version": 1, "custom_properties": self._custom_properties}
        if self._comment is not None:
            value["comment"] = self._comment
        return json.dumps(value).encode()

    @classmethod
    def from_json(cls, text: bytes) -> DatabaseDescriptor:
        """Read the server's JSON."""
        with reading("a database descriptor"):
            value = json.loads(text)
            return cls(value.get("comment"), value.get("custom_properties"))

    def __repr__(self) -> str:
        return f"DatabaseDescriptor(comment={self._comment!r})"


@dataclass(frozen=True, slots=True)
class DatabaseInfo(Ready):
    """A database as a server describes it; times in ms since 1970."""

    database_name: str
    database_descriptor: DatabaseDescriptor
    created_time: int
    modified_time: int

    def get_database_descriptor(self) -> DatabaseDescriptor:
        """Return the descriptor."""
        return self.database_descriptor


@dataclass(frozen=True, slots=True)
class LakeSnapshot(Ready):
    """The newest snapshot of a table in the data lake."""

    snapshot_id: int
    table_buckets_offset: dict[TableBucket, int] = field(default_factory=dict, hash=False)

    def get_bucket_offset(self, bucket: TableBucket) -> int | None:
        """Return the log offset up to which the bucket is in the lake."""
        return self.table_buckets_offset.get(bucket)

    def get_table_buckets(self) -> list[TableBucket]:
        """Return the buckets in the snapshot."""
        return list(self.table_buckets_offset)


@dataclass(frozen=True, slots=True)
class TableStats(Ready):
    """How many rows a table has, as its servers count them.

    Parameters
    ----------
    bucket_row_counts
        Rows of each bucket: records of a log, or rows of a primary-key table; None where the
        server does not count them.
    """

    bucket_row_counts: dict[TableBucket, int | None] = field(hash=False)

    @property
    def row_count(self) -> int | None:
        """All rows; None where a server does not count them."""
        counts = list(self.bucket_row_counts.values())
        return None if None in counts else sum(count for count in counts if count is not None)
