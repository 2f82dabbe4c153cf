"""Errors of fluss_df: one table from error code to name and retriability.

The codes and names are those of Apache Fluss (``Errors.java``, 1.0). ``CLIENT_ERROR`` (-2) marks
what was found on this side of the wire; every other code was reported by a server.
"""

from __future__ import annotations

from typing import ClassVar

_RETRIABLE = True
_FINAL = False

# code, name, may the same request succeed later (RetriableException in the server's source; and
# by what they say 51 and 65, which a coordinator that has just taken over answers)
_TABLE: tuple[tuple[int, str, bool], ...] = (
    (-2, "CLIENT_ERROR", _FINAL),
    (-1, "UNKNOWN_SERVER_ERROR", _FINAL),
    (0, "NONE", _FINAL),
    (1, "NETWORK_EXCEPTION", _RETRIABLE),
    (2, "UNSUPPORTED_VERSION", _FINAL),
    (3, "CORRUPT_MESSAGE", _RETRIABLE),
    (4, "DATABASE_NOT_EXIST", _FINAL),
    (5, "DATABASE_NOT_EMPTY", _FINAL),
    (6, "DATABASE_ALREADY_EXIST", _FINAL),
    (7, "TABLE_NOT_EXIST", _FINAL),
    (8, "TABLE_ALREADY_EXIST", _FINAL),
    (9, "SCHEMA_NOT_EXIST", _RETRIABLE),
    (10, "LOG_STORAGE_EXCEPTION", _RETRIABLE),
    (11, "KV_STORAGE_EXCEPTION", _RETRIABLE),
    (12, "NOT_LEADER_OR_FOLLOWER", _RETRIABLE),
    (13, "RECORD_TOO_LARGE_EXCEPTION", _FINAL),
    (14, "CORRUPT_RECORD_EXCEPTION", _RETRIABLE),
    (15, "INVALID_TABLE_EXCEPTION", _FINAL),
    (16, "INVALID_DATABASE_EXCEPTION", _FINAL),
    (17, "INVALID_REPLICATION_FACTOR", _FINAL),
    (18, "INVALID_REQUIRED_ACKS", _FINAL),
    (19, "LOG_OFFSET_OUT_OF_RANGE_EXCEPTION", _FINAL),
    (20, "NON_PRIMARY_KEY_TABLE_EXCEPTION", _FINAL),
    (21, "UNKNOWN_TABLE_OR_BUCKET_EXCEPTION", _RETRIABLE),
    (22, "INVALID_UPDATE_VERSION_EXCEPTION", _FINAL),
    (23, "INVALID_COORDINATOR_EXCEPTION", _FINAL),
    (24, "FENCED_LEADER_EPOCH_EXCEPTION", _FINAL),
    (25, "REQUEST_TIME_OUT", _RETRIABLE),
    (26, "STORAGE_EXCEPTION", _RETRIABLE),
    (27, "OPERATION_NOT_ATTEMPTED_EXCEPTION", _FINAL),
    (28, "NOT_ENOUGH_REPLICAS_AFTER_APPEND_EXCEPTION", _RETRIABLE),
    (29, "NOT_ENOUGH_REPLICAS_EXCEPTION", _RETRIABLE),
    (30, "SECURITY_TOKEN_EXCEPTION", _FINAL),
    (31, "OUT_OF_ORDER_SEQUENCE_EXCEPTION", _FINAL),
    (32, "DUPLICATE_SEQUENCE_EXCEPTION", _FINAL),
    (33, "UNKNOWN_WRITER_ID_EXCEPTION", _FINAL),
    (34, "INVALID_COLUMN_PROJECTION", _FINAL),
    (35, "INVALID_TARGET_COLUMN", _FINAL),
    (36, "PARTITION_NOT_EXISTS", _FINAL),
    (37, "TABLE_NOT_PARTITIONED_EXCEPTION", _FINAL),
    (38, "INVALID_TIMESTAMP_EXCEPTION", _FINAL),
    (39, "INVALID_CONFIG_EXCEPTION", _FINAL),
    (40, "LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION", _FINAL),
    (41, "KV_SNAPSHOT_NOT_EXIST", _FINAL),
    (42, "PARTITION_ALREADY_EXISTS", _FINAL),
    (43, "PARTITION_SPEC_INVALID_EXCEPTION", _FINAL),
    (44, "LEADER_NOT_AVAILABLE_EXCEPTION", _RETRIABLE),
    (45, "PARTITION_MAX_NUM_EXCEPTION", _FINAL),
    (46, "AUTHENTICATE_EXCEPTION", _FINAL),
    (47, "SECURITY_DISABLED_EXCEPTION", _FINAL),
    (48, "AUTHORIZATION_EXCEPTION", _FINAL),
    (49, "BUCKET_MAX_NUM_EXCEPTION", _FINAL),
    (50, "FENCED_TIERING_EPOCH_EXCEPTION", _FINAL),
    (51, "RETRIABLE_AUTHENTICATE_EXCEPTION", _RETRIABLE),
    (52, "INVALID_SERVER_RACK_INFO_EXCEPTION", _FINAL),
    (53, "LAKE_SNAPSHOT_NOT_EXIST", _FINAL),
    (54, "LAKE_TABLE_ALREADY_EXIST", _FINAL),
    (55, "INELIGIBLE_REPLICA_EXCEPTION", _FINAL),
    (56, "INVALID_ALTER_TABLE_EXCEPTION", _FINAL),
    (57, "DELETION_DISABLED_EXCEPTION", _FINAL),
    (58, "SERVER_NOT_EXIST_EXCEPTION", _FINAL),
    (59, "SERVER_TAG_ALREADY_EXIST_EXCEPTION", _FINAL),
    (60, "SERVER_TAG_NOT_EXIST_EXCEPTION", _FINAL),
    (61, "REBALANCE_FAILURE_EXCEPTION", _FINAL),
    (62, "NO_REBALANCE_IN_PROGRESS_EXCEPTION", _FINAL),
    (63, "INVALID_PRODUCER_ID_EXCEPTION", _FINAL),
    (64, "CONFIG_EXCEPTION", _FINAL),
    (65, "NOT_COORDINATOR_LEADER_EXCEPTION", _RETRIABLE),
    (66, "SCANNER_EXPIRED", _FINAL),
    (67, "UNKNOWN_SCANNER_ID", _FINAL),
    (68, "INVALID_SCAN_REQUEST", _FINAL),
    (69, "TOO_MANY_SCANNERS", _FINAL),
    (70, "DISK_WRITE_LOCKED", _RETRIABLE),
    (71, "INSUFFICIENT_KV_LEADER_REPLICA_CAPACITY", _FINAL),
    (72, "STORAGE_BACKPRESSURE_EXCEPTION", _RETRIABLE),
    (73, "HISTORICAL_PARTITION_THROTTLED", _RETRIABLE),
    (74, "STALE_METADATA", _RETRIABLE),
    (75, "TABLET_METADATA_NOT_READY", _RETRIABLE),
)

_NAMES = {code: name for code, name, _ in _TABLE}
_RETRIABLE_CODES = frozenset(code for code, _, retriable in _TABLE if retriable)


class ErrorCode:
    """Named constants for the error codes of Fluss.

    A code that a newer server adds arrives as its plain number in :attr:`FlussError.error_code`.

    Examples
    --------
    >>> ErrorCode.TABLE_NOT_EXIST
    7
    """

    CLIENT_ERROR: ClassVar[int] = -2
    UNKNOWN_SERVER_ERROR: ClassVar[int] = -1
    NONE: ClassVar[int] = 0
    NETWORK_EXCEPTION: ClassVar[int] = 1
    UNSUPPORTED_VERSION: ClassVar[int] = 2
    CORRUPT_MESSAGE: ClassVar[int] = 3
    DATABASE_NOT_EXIST: ClassVar[int] = 4
    DATABASE_NOT_EMPTY: ClassVar[int] = 5
    DATABASE_ALREADY_EXIST: ClassVar[int] = 6
    TABLE_NOT_EXIST: ClassVar[int] = 7
    TABLE_ALREADY_EXIST: ClassVar[int] = 8
    SCHEMA_NOT_EXIST: ClassVar[int] = 9
    LOG_STORAGE_EXCEPTION: ClassVar[int] = 10
    KV_STORAGE_EXCEPTION: ClassVar[int] = 11
    NOT_LEADER_OR_FOLLOWER: ClassVar[int] = 12
    RECORD_TOO_LARGE_EXCEPTION: ClassVar[int] = 13
    CORRUPT_RECORD_EXCEPTION: ClassVar[int] = 14
    INVALID_TABLE_EXCEPTION: ClassVar[int] = 15
    INVALID_DATABASE_EXCEPTION: ClassVar[int] = 16
    INVALID_REPLICATION_FACTOR: ClassVar[int] = 17
    INVALID_REQUIRED_ACKS: ClassVar[int] = 18
    LOG_OFFSET_OUT_OF_RANGE_EXCEPTION: ClassVar[int] = 19
    NON_PRIMARY_KEY_TABLE_EXCEPTION: ClassVar[int] = 20
    UNKNOWN_TABLE_OR_BUCKET_EXCEPTION: ClassVar[int] = 21
    INVALID_UPDATE_VERSION_EXCEPTION: ClassVar[int] = 22
    INVALID_COORDINATOR_EXCEPTION: ClassVar[int] = 23
    FENCED_LEADER_EPOCH_EXCEPTION: ClassVar[int] = 24
    REQUEST_TIME_OUT: ClassVar[int] = 25
    STORAGE_EXCEPTION: ClassVar[int] = 26
    OPERATION_NOT_ATTEMPTED_EXCEPTION: ClassVar[int] = 27
    NOT_ENOUGH_REPLICAS_AFTER_APPEND_EXCEPTION: ClassVar[int] = 28
    NOT_ENOUGH_REPLICAS_EXCEPTION: ClassVar[int] = 29
    SECURITY_TOKEN_EXCEPTION: ClassVar[int] = 30
    OUT_OF_ORDER_SEQUENCE_EXCEPTION: ClassVar[int] = 31
    DUPLICATE_SEQUENCE_EXCEPTION: ClassVar[int] = 32
    UNKNOWN_WRITER_ID_EXCEPTION: ClassVar[int] = 33
    INVALID_COLUMN_PROJECTION: ClassVar[int] = 34
    INVALID_TARGET_COLUMN: ClassVar[int] = 35
    PARTITION_NOT_EXISTS: ClassVar[int] = 36
    TABLE_NOT_PARTITIONED_EXCEPTION: ClassVar[int] = 37
    INVALID_TIMESTAMP_EXCEPTION: ClassVar[int] = 38
    INVALID_CONFIG_EXCEPTION: ClassVar[int] = 39
    LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION: ClassVar[int] = 40
    KV_SNAPSHOT_NOT_EXIST: ClassVar[int] = 41
    PARTITION_ALREADY_EXISTS: ClassVar[int] = 42
    PARTITION_SPEC_INVALID_EXCEPTION: ClassVar[int] = 43
    LEADER_NOT_AVAILABLE_EXCEPTION: ClassVar[int] = 44
    PARTITION_MAX_NUM_EXCEPTION: ClassVar[int] = 45
    AUTHENTICATE_EXCEPTION: ClassVar[int] = 46
    SECURITY_DISABLED_EXCEPTION: ClassVar[int] = 47
    AUTHORIZATION_EXCEPTION: ClassVar[int] = 48
    BUCKET_MAX_NUM_EXCEPTION: ClassVar[int] = 49
    FENCED_TIERING_EPOCH_EXCEPTION: ClassVar[int] = 50
    RETRIABLE_AUTHENTICATE_EXCEPTION: ClassVar[int] = 51
    INVALID_SERVER_RACK_INFO_EXCEPTION: ClassVar[int] = 52
    LAKE_SNAPSHOT_NOT_EXIST: ClassVar[int] = 53
    LAKE_TABLE_ALREADY_EXIST: ClassVar[int] = 54
    INELIGIBLE_REPLICA_EXCEPTION: ClassVar[int] = 55
    INVALID_ALTER_TABLE_EXCEPTION: ClassVar[int] = 56
    DELETION_DISABLED_EXCEPTION: ClassVar[int] = 57
    SERVER_NOT_EXIST_EXCEPTION: ClassVar[int] = 58
    SERVER_TAG_ALREADY_EXIST_EXCEPTION: ClassVar[int] = 59
    SERVER_TAG_NOT_EXIST_EXCEPTION: ClassVar[int] = 60
    REBALANCE_FAILURE_EXCEPTION: ClassVar[int] = 61
    NO_REBALANCE_IN_PROGRESS_EXCEPTION: ClassVar[int] = 62
    INVALID_PRODUCER_ID_EXCEPTION: ClassVar[int] = 63
    CONFIG_EXCEPTION: ClassVar[int] = 64
    NOT_COORDINATOR_LEADER_EXCEPTION: ClassVar[int] = 65
    SCANNER_EXPIRED: ClassVar[int] = 66
    UNKNOWN_SCANNER_ID: ClassVar[int] = 67
    INVALID_SCAN_REQUEST: ClassVar[int] = 68
    TOO_MANY_SCANNERS: ClassVar[int] = 69
    DISK_WRITE_LOCKED: ClassVar[int] = 70
    INSUFFICIENT_KV_LEADER_REPLICA_CAPACITY: ClassVar[int] = 71
    STORAGE_BACKPRESSURE_EXCEPTION: ClassVar[int] = 72
    HISTORICAL_PARTITION_THROTTLED: ClassVar[int] = 73
    STALE_METADATA: ClassVar[int] = 74
    TABLET_METADATA_NOT_READY: ClassVar[int] = 75


class FlussError(Exception):
    """What went wrong, with its Fluss error code.

    Parameters
    ----------
    message
        What happened, what it happened to, and the way out.
    error_code
        A code of :class:`ErrorCode`; -2 (``CLIENT_ERROR``) when no server was involved.

    Examples
    --------
    >>> error = FlussError("table db.t does not exist", ErrorCode.TABLE_NOT_EXIST)
    >>> error.error_code, error.is_retriable
    (7, False)
    """

    def __init__(self, message: str, error_code: int = ErrorCode.CLIENT_ERROR) -> None:
        super().__init__(message, error_code)
        self.message = message
        self.error_code = error_code

    @property
    def code_name(self) -> str:
        """The name of the code, or its number where this version does not know it."""
        return _NAMES.get(self.error_code, str(self.error_code))

    @property
    def is_retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.error_code in _RETRIABLE_CODES

    def __str__(self) -> str:
        if self.error_code == ErrorCode.CLIENT_ERROR:
            return self.message
        return f"{self.message} [{self.code_name}, code {self.error_code}]"


class SchemaMismatchError(FlussError):
    """Data that does not fit the schema of its table; the message names column, type and row.

    Attributes
    ----------
    rows_before
        How many rows a writer had sent before the first of those among which that row is; None
        where they are the rows of one call.
    """

    rows_before: int | None = None


class ProtocolError(FlussError):
    """Bytes from the peer that are not what the protocol allows (``CORRUPT_MESSAGE``)."""

    def __init__(self, message: str, error_code: int = ErrorCode.CORRUPT_MESSAGE) -> None:
        super().__init__(message, error_code)


class NetworkError(FlussError):
    """The connection could not be made, or broke before the answer came."""

    def __init__(self, message: str, error_code: int = ErrorCode.NETWORK_EXCEPTION) -> None:
        super().__init__(message, error_code)


class DeadlineExceededError(FlussError, TimeoutError):
    """No answer within the deadline (``REQUEST_TIME_OUT``)."""

    def __init__(self, message: str, error_code: int = ErrorCode.REQUEST_TIME_OUT) -> None:
        super().__init__(message, error_code)
