"""What is looked at in batches before they are stored, and where they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.record.layout.headers import LogHeaders, scan_headers, verify_crcs
from fluss_df.record.log.claims import check_claims
from fluss_df.record.log.cut import ColumnLayout, read_message

# 0 is what all clients write, 1 what those of 1.0 write where a batch has statistics
_MAX_MAGIC: Final = 1
#: what the columns of one batch may have when they are decompressed
MOST_BYTES: Final = 1 << 30
# of one bucket, in one request
_MOST_BATCHES: Final = 16 << 10
# the length of a row of a row format, and its change type
_LEAST_ROW: Final = 5


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a request's batches are in the log.

    Attributes
    ----------
    base_offset
        Of the first; -1 where there were no records.
    end_offset
        What must be synced before the request is acknowledged.
    records
        How many are new: none of batches that were written before.
    """

    base_offset: int
    end_offset: int
    records: int = 0


def check_batches(
    name: str,
    records: memoryview,
    layouts: Mapping[int, ColumnLayout | None],
    most_bytes: int = MOST_BYTES,
) -> LogHeaders:
    """Return the headers of batches that a client appends.

    Parameters
    ----------
    name
        Of the bucket, for messages.
    records
        One or more batches, and nothing else.
    layouts
        The Arrow layout of each schema id of the table; None for batches that are not Arrow.
    most_bytes
        What the columns of a batch may have when they are decompressed.

    Raises
    ------
    FlussError
        ``CORRUPT_RECORD_EXCEPTION``, or ``SCHEMA_NOT_EXIST`` for a schema id that the table has
        not.
    """
    try:
        headers = scan_headers(records, ascending=False, most=_MOST_BATCHES)
        if headers.consumed != len(records):
            raise ProtocolError(f"{len(records) - headers.consumed} bytes are left over")
        if (headers.magic > _MAX_MAGIC).any():
            raise ProtocolError(f"magic {headers.magic.max()} is not supported")
        verify_crcs(records, headers)
        if (headers.record_count != headers.last_offset_delta + 1).any():
            raise ProtocolError("the number of records differs from the offsets they take")
        if not headers.append_only.all():
            raise ProtocolError("change types belong to the log of a primary-key table")
        for i in range(len(headers)):
            _check_payload(name, records, headers, i, layouts, most_bytes)
    except FlussError as error:
        if error.error_code == ErrorCode.SCHEMA_NOT_EXIST:
            raise
        raise FlussError(
            f"Record is corrupt in table bucket {name}: {error.message}",
            ErrorCode.CORRUPT_RECORD_EXCEPTION,
        ) from error
    return headers


def _check_payload(
    name: str,
    records: memoryview,
    headers: LogHeaders,
    i: int,
    layouts: Mapping[int, ColumnLayout | None],
    most_bytes: int,
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
            raise ProtocolError(f"{end - start} bytes do not hold {rows} rows")
        return
    message = read_message(records, start, end, layout)
    layout.check(message, rows)
    check_claims(message, layout, records, most_bytes)
