"""Checks of log batches that clients send, before they are appended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.record.layout.headers import LogHeaders, scan_headers, verify_crcs
from fluss_df.record.log.claims import check_claims
from fluss_df.record.log.cut import ColumnLayout, read_message

# all clients write magic 0; clients of 1.0 write magic 1 for batches with statistics
_MAX_MAGIC: Final = 1
#: bytes that the columns of one batch may have when they are decompressed
MOST_BYTES: Final = 1 << 30
# the most batches of one bucket in one request
_MOST_BATCHES: Final = 16 << 10
# bytes of the smallest record of a row format: its length (4) and its change type (1)
_LEAST_ROW: Final = 5


@dataclass(frozen=True, slots=True)
class Appended:
    """Where the batches of a request are in the log.

    ``base_offset`` is that of the first record; -1 if there were no records. The log must be synced
    up to ``durable_at`` before the request is acknowledged. ``records`` is how many were appended;
    0 for batches that had been appended before.
    """

    base_offset: int
    durable_at: int
    records: int = 0


def check_batches(
    name: str, records: memoryview, layouts: Mapping[int, ColumnLayout | None]
) -> LogHeaders:
    """Check batches that a client appends; return their headers.

    ``name`` is the name of the bucket, for errors. ``records`` has one or more whole batches.
    ``layouts`` has the Arrow layout of each schema id of the table; None for a log format that is
    not Arrow.

    Raises ``CORRUPT_RECORD_EXCEPTION`` for a batch that is not valid, ``SCHEMA_NOT_EXIST`` for a
    schema id that the table does not have.
    """
    try:
        headers = scan_headers(records, ascending=False, most=_MOST_BATCHES)
        if headers.consumed != len(records):
            raise ProtocolError(
                f"{len(records) - headers.consumed} bytes behind the last whole batch"
            )
        if (headers.magic > _MAX_MAGIC).any():
            raise ProtocolError(f"magic {headers.magic.max()} is not supported")
        verify_crcs(records, headers)
        if (headers.record_count != headers.last_offset_delta + 1).any():
            raise ProtocolError("the number of records differs from the offsets they take")
        if not headers.append_only.all():
            raise ProtocolError("change types belong to the log of a primary-key table")
        for i in range(len(headers)):
            _check_payload(name, records, headers, i, layouts)
    except FlussError as error:
        if error.error_code == ErrorCode.SCHEMA_NOT_EXIST:
            raise
        raise corrupt(name, error) from error
    return headers


def corrupt(name: str, error: FlussError) -> FlussError:
    """Return the error for a batch that is not valid."""
    return FlussError(
        f"Record is corrupt in table bucket {name}: {error.message}",
        ErrorCode.CORRUPT_RECORD_EXCEPTION,
    )


def _check_payload(
    name: str,
    records: memoryview,
    headers: LogHeaders,
    i: int,
    layouts: Mapping[int, ColumnLayout | None],
) -> None:
    schema_id = int(headers.schema_id[i])
    if schema_id not in layouts:
        raise FlussError(
            f"Schema with id {schema_id} does not exist for table bucket {name}.",
            ErrorCode.SCHEMA_NOT_EXIST,
        )
    layout = layouts[schema_id]
    start, end = int(headers.payload[i]), int(headers.position[i] + headers.size[i])
    rows = int(headers.record_count[i])
    if layout is None:
        if rows * _LEAST_ROW > end - start:
            raise ProtocolError(f"{end - start} bytes are too few for {rows} rows")
        return
    message = read_message(records, start, end, layout)
    layout.check(message, rows)
    check_claims(message, layout, records, MOST_BYTES)
