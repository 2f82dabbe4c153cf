"""Bulk ingestion: the rows that a client sends, into a log or key table, some MB at a time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

import polars as pl
import pyarrow as pa

from fluss_df.backend.catalog.replacing import Replacing
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.flight import flight_messages_pb2 as pb
from fluss_df.flight.refusals import invalid, partly, unsupported
from fluss_df.flight.sessions import Session
from fluss_df.flight.statements import CATALOG, no_transactions
from fluss_df.flight.wire import Upload
from fluss_df.io.sinks.sink import write_fluss
from fluss_df.io.sinks.target import TableLayout, describe
from fluss_df.metadata import TablePath

# rows are gathered up to this size before they are written and acknowledged
_WRITTEN_BYTES: Final = 16 << 20
# a limit on rows, too, because nulls take no bytes here, and take some where they are written
_WRITTEN_ROWS: Final = 1 << 20
_Options = pb.CommandStatementIngest.TableDefinitionOptions
_OPTIONS: Final = ("primary_key", "partition_by", "bucket_by", "buckets")


def replaces(command: object) -> bool:
    """Whether a command ingests rows in place of those that a table has."""
    if not isinstance(command, pb.CommandStatementIngest):
        return False
    return command.table_definition_options.if_exists == _Options.EXISTS_REPLACE


def ingest(session: Session, asked: pb.CommandStatementIngest, upload: Upload) -> int:
    """Write the rows of a client; return how many there were.

    Raises FlussError before anything is written, for what the table or the client's wish does not
    allow; later, with how many rows are written by then.
    """
    path = _path(session, asked)
    batches = iter(upload)
    # read before a table is replaced: the client may be gone, or send something else than rows
    first = next(batches, None)
    _require_names(path, upload.schema)
    _prepare_table(session, path, asked, upload.schema)
    written = 0
    held: list[pa.RecordBatch] = []
    size = rows = 0

    def write() -> int:
        table = pa.Table.from_batches(held, upload.schema)
        write_fluss(table, path, connection=session.connection, create_partitions=True)
        held.clear()
        return int(table.num_rows)

    try:
        for batch in itertools.chain(() if first is None else (first,), batches):
            if not batch.num_rows:
                continue
            held.append(batch)
            size += batch.nbytes
            rows += batch.num_rows
            if size >= _WRITTEN_BYTES or rows >= _WRITTEN_ROWS:
                written += write()
                size = rows = 0
        if held or not written:
            # called without rows, too, so that columns that do not fit are an error
            written += write()
    except FlussError as error:
        if not written:
            raise
        raise partly(error, written, f" to table {path}") from error
    return written


def _path(session: Session, asked: pb.CommandStatementIngest) -> TablePath:
    if asked.transaction_id:
        raise no_transactions("ingestion in a transaction")
    if asked.temporary:
        raise unsupported("there are no temporary tables for ingestion: leave 'temporary' out")
    if asked.catalog not in ("", CATALOG):
        raise invalid(f"there is no catalog {asked.catalog!r}: there is {CATALOG!r} alone")
    if not asked.table:
        raise invalid("ingestion needs the name of a table")
    found: TablePath = session.backend.path(asked.table, asked.schema or None)
    return found


def _require_names(path: TablePath, schema: pa.Schema) -> None:
    """Raise RefusalError for rows with two columns of one name, which no table has."""
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise invalid(
                f"table {path}: the rows to ingest have more than one column '{name}': give each"
                " column a name of its own"
            )


def _prepare_table(
    session: Session, path: TablePath, asked: pb.CommandStatementIngest, schema: pa.Schema
) -> None:
    """Have the table be there, as the client wishes."""
    wish = asked.table_definition_options
    admin = session.connection.get_admin()
    exists = admin.table_exists(path)
    creates = wish.if_not_exist == _Options.NOT_EXIST_CREATE
    layout = _layout(asked.options)
    if exists and wish.if_exists == _Options.EXISTS_APPEND:
        return
    if exists and wish.if_exists != _Options.EXISTS_REPLACE:
        raise FlussError(
            f"table {path} exists: append to it (mode 'append'), or replace it (mode 'replace')",
            ErrorCode.TABLE_ALREADY_EXIST,
        )
    if not exists and not creates:
        raise FlussError(
            f"table {path} does not exist: create it first, or by mode 'create'",
            ErrorCode.TABLE_NOT_EXIST,
        )
    made = describe(path, pl.DataFrame(schema.empty_table()).schema, layout)
    if exists:
        session.backend.require_table(path, "another name, or DROP VIEW first")
        # nothing is dropped before the server has accepted the new definition
        Replacing(session.connection, path, made).prove()
        admin.drop_table(path)
    admin.create_table(path, made, ignore_if_exists=False)


def _layout(options: Mapping[str, str]) -> TableLayout:
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise invalid(f"ingestion has no option {unknown[0]!r}; there are {', '.join(_OPTIONS)}")
    names = {
        name: [part.strip() for part in options[name].split(",") if part.strip()] or None
        for name in _OPTIONS[:3]
        if name in options
    }
    count = options.get("buckets")
    if count is not None and not (count.isdigit() and int(count)):
        raise invalid(f"ingestion: option 'buckets' is {count!r}: expected a number above 0")
    return TableLayout(
        names.get("primary_key"),
        names.get("partition_by"),
        names.get("bucket_by"),
        None if count is None else int(count),
        None,
    )
