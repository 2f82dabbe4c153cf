"""Catalogs, schemas (databases of Fluss), tables and keys, as clients list them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.flight import flight_messages_pb2 as pb
from fluss_df.flight.refusals import invalid
from fluss_df.flight.sessions import Session
from fluss_df.flight.statements import CATALOG
from fluss_df.flight.wire import schema_bytes
from fluss_df.metadata import TablePath
from fluss_df.schema import TableInfo

TABLE: Final = "TABLE"
# rows in a batch of the list of tables, whose schemas may be large
_ROWS: Final = 64
# the most characters of a pattern; names have at most 200
_MOST_PATTERN: Final = 1000

CATALOGS: Final = pa.schema([pa.field("catalog_name", pa.string(), False)])
SCHEMAS: Final = pa.schema(
    [("catalog_name", pa.string()), pa.field("db_schema_name", pa.string(), False)]
)
TABLE_TYPES: Final = pa.schema([pa.field("table_type", pa.string(), False)])
TABLES: Final = pa.schema(
    [
        ("catalog_name", pa.string()),
        ("db_schema_name", pa.string()),
        pa.field("table_name", pa.string(), False),
        pa.field("table_type", pa.string(), False),
    ]
)
TABLES_WITH_SCHEMAS: Final = TABLES.append(pa.field("table_schema", pa.binary(), False))
PRIMARY_KEYS: Final = pa.schema(
    [
        ("catalog_name", pa.string()),
        ("db_schema_name", pa.string()),
        pa.field("table_name", pa.string(), False),
        pa.field("column_name", pa.string(), False),
        ("key_name", pa.string()),
        pa.field("key_sequence", pa.int32(), False),
    ]
)
FOREIGN_KEYS: Final = pa.schema(
    [
        ("pk_catalog_name", pa.string()),
        ("pk_db_schema_name", pa.string()),
        pa.field("pk_table_name", pa.string(), False),
        pa.field("pk_column_name", pa.string(), False),
        ("fk_catalog_name", pa.string()),
        ("fk_db_schema_name", pa.string()),
        pa.field("fk_table_name", pa.string(), False),
        pa.field("fk_column_name", pa.string(), False),
        pa.field("key_sequence", pa.int32(), False),
        ("fk_key_name", pa.string()),
        ("pk_key_name", pa.string()),
        pa.field("update_rule", pa.uint8(), False),
        pa.field("delete_rule", pa.uint8(), False),
    ]
)
# errors for a table that was dropped, that may not be seen, or that cannot exist
_GONE: Final = (
    ErrorCode.INVALID_TABLE_EXCEPTION,
    ErrorCode.INVALID_DATABASE_EXCEPTION,
    ErrorCode.TABLE_NOT_EXIST,
    ErrorCode.DATABASE_NOT_EXIST,
    ErrorCode.AUTHORIZATION_EXCEPTION,
)


def catalogs(_: Session, __: pb.CommandGetCatalogs) -> Iterator[pa.RecordBatch]:
    """Return the one catalog."""
    yield _batch(CATALOGS, [(CATALOG,)])


def schemas(session: Session, asked: pb.CommandGetDbSchemas) -> Iterator[pa.RecordBatch]:
    """Return the databases."""
    there = set(session.connection.get_admin().list_databases())
    names = [n for n in _databases(session, asked, asked.db_schema_filter_pattern) if n in there]
    yield _batch(SCHEMAS, [(CATALOG, name) for name in names])


def table_types(_: Session, __: pb.CommandGetTableTypes) -> Iterator[pa.RecordBatch]:
    """Return the one type of tables."""
    yield _batch(TABLE_TYPES, [(TABLE,)])


def tables(session: Session, asked: pb.CommandGetTables) -> Iterator[pa.RecordBatch]:
    """Return the tables; with their columns, where they are asked for."""
    if asked.table_types and TABLE not in asked.table_types:
        return
    fits = _like(asked, "table_name_filter_pattern")
    admin = session.connection.get_admin()
    schema = TABLES_WITH_SCHEMAS if asked.include_schema else TABLES
    rows: list[tuple[Any, ...]] = []
    for database in _databases(session, asked, asked.db_schema_filter_pattern):
        try:
            names = fits(admin.list_tables(database))
        except FlussError as error:
            if error.error_code not in _GONE:
                raise
            continue
        for name in names:
            row: tuple[Any, ...] = (CATALOG, database, name, TABLE)
            if asked.include_schema:
                info = _info(session, database, name)
                if info is None:
                    continue
                row = (*row, schema_bytes(described(info)))
            rows.append(row)
            if len(rows) >= _ROWS:
                yield _batch(schema, rows)
                rows = []
    if rows:
        yield _batch(schema, rows)


def primary_keys(session: Session, asked: pb.CommandGetPrimaryKeys) -> Iterator[pa.RecordBatch]:
    """Return the columns of a primary key."""
    database = asked.db_schema or session.backend.current_database
    info = _info(session, database, asked.table) if _is_catalog(asked, "catalog") else None
    keys = [] if info is None else info.get_primary_keys()
    rows = [
        (CATALOG, database, asked.table, column, None, number)
        for number, column in enumerate(keys, 1)
    ]
    yield _batch(PRIMARY_KEYS, rows)


def no_keys(_: Session, __: object) -> Iterator[pa.RecordBatch]:
    """Return no row: Fluss has no foreign keys."""
    yield _batch(FOREIGN_KEYS, [])


def described(info: TableInfo) -> pa.Schema:
    """Return the columns of a table, with what clients show of their types."""
    fields = []
    path = info.table_path
    for column, field in zip(info.schema.columns, info.schema.arrow_schema, strict=True):
        kind = field.type
        about = {
            "ARROW:FLIGHT:SQL:CATALOG_NAME": CATALOG,
            "ARROW:FLIGHT:SQL:SCHEMA_NAME": path.database_name,
            "ARROW:FLIGHT:SQL:TABLE_NAME": path.table_name,
            "ARROW:FLIGHT:SQL:TYPE_NAME": str(column.type).upper().removesuffix(" NOT NULL"),
            "ARROW:FLIGHT:SQL:IS_READ_ONLY": "0",
            "ARROW:FLIGHT:SQL:IS_SEARCHABLE": "1",
        }
        if pa.types.is_decimal(kind):
            about["ARROW:FLIGHT:SQL:PRECISION"] = str(kind.precision)
            about["ARROW:FLIGHT:SQL:SCALE"] = str(kind.scale)
        if column.comment:
            about["ARROW:FLIGHT:SQL:REMARKS"] = column.comment
        fields.append(field.with_metadata(about))
    return pa.schema(fields)


def _info(session: Session, database: str, name: str) -> TableInfo | None:
    try:
        table = session.connection.get_table(TablePath(database, name))
    except FlussError as error:
        if error.error_code in _GONE:
            return None
        raise
    found: TableInfo = table.get_table_info()
    return found


def _is_catalog(asked: Any, field: str) -> bool:
    return not asked.HasField(field) or getattr(asked, field) in ("", CATALOG)


def _databases(session: Session, asked: Any, pattern: str) -> list[str]:
    if not _is_catalog(asked, "catalog"):
        return []
    fits = _like(asked, "db_schema_filter_pattern")
    plain = re.sub(r"\\(.)", r"\1", pattern)
    if plain and not re.search(r"(?<!\\)[%_]", pattern):
        # a user may see a table without the right to see its database
        return [plain]
    return fits(session.connection.get_admin().list_databases())


def _like(asked: Any, field: str) -> Callable[[list[str]], list[str]]:
    """Return a function that keeps the names which fit a pattern of LIKE.

    A backslash makes the next character plain. The time that matching takes grows only linearly
    with the length of the names, whatever the pattern is.
    """
    if not asked.HasField(field):
        return sorted
    pattern = getattr(asked, field)
    if len(pattern) > _MOST_PATTERN:
        raise invalid(
            f"{field} has {len(pattern):,} characters: a pattern has at most {_MOST_PATTERN:,}"
        )
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    made = "".join(wild.get(part) or re.escape(part.removeprefix("\\") or part) for part in parts)
    # Arrow uses RE2 for regular expressions, which takes linear time for any pattern
    whole = rf"\A(?s:{made})\z"

    def fitting(names: list[str]) -> list[str]:
        there = pa.array(sorted(names), pa.string())
        found: list[str] = there.filter(pc.match_substring_regex(there, whole)).to_pylist()
        return found

    return fitting


def _batch(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(list(c), field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
