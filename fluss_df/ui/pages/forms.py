"""Forms to create, alter and drop: each shows the statement that it will run, then runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlglot
from sqlglot import exp
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from fluss_df.backend.sql.ddl import create_statement
from fluss_df.backend.sql.dialect import Fluss
from fluss_df.backend.sql.sql_types import commented, fluss_type, literal, quoted, sql_type
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TablePath, check_name, require_columns
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.types import Column, DataType
from fluss_df.ui.shown import texts
from fluss_df.ui.state import State, asks, form_of, number, path_of, table_url

#: Rows for columns in the form of a new table.
COLUMNS: Final = 12
_MOST_COLUMNS: Final = 200
# fields that say which table or partition a form was made for
_SEEN: Final = ("database", "table", "table_id", "partition", "newest_partition")
_TYPES: Final = (
    "STRING", "INT", "BIGINT", "DOUBLE", "BOOLEAN", "DATE", "TIMESTAMP(6)", "TIMESTAMP_LTZ(6)",
    "DECIMAL(10, 2)", "BYTES", "SMALLINT", "TINYINT", "FLOAT", "TIME", "ARRAY<STRING>",
    "MAP<STRING, STRING>", "ROW<a INT, b STRING>",
)  # fmt: skip


@asks
def create(state: State, request: Request) -> Response:
    """Return the page to create a table or a database."""
    return state.page(
        request,
        "create.html",
        databases=state.admin.list_databases(),
        database=request.query_params.get("database", ""),
        columns=number(request.query_params.get("columns"), COLUMNS, _MOST_COLUMNS),
        types=_TYPES,
    )


@asks
def change_table(state: State, request: Request) -> Response:
    """Return the page to alter or drop a table."""
    path = path_of(request)
    info = state.watch.info(path)
    partitions = state.admin.list_partition_infos(path) if info.is_partitioned() else []
    return state.page(
        request,
        "change.html",
        path=path,
        info=info,
        here="change",
        types=_TYPES,
        partition_keys=info.get_partition_keys(),
        partitions=[p.partition_name for p in partitions[:1000]],
        newest_partition=max((p.partition_id for p in partitions), default=-1),
        properties=texts.properties({**info.get_properties(), **info.get_custom_properties()}),
    )


@asks
def preview(state: State, request: Request) -> Response:
    """Return the page that shows the statement of a form, before it is run."""
    form = form_of(request)
    statement = statement_of(state, form)
    _require_same(state, form)
    return state.page(
        request,
        "preview.html",
        statement=statement,
        seen={field: form[field] for field in _SEEN if form.get(field)},
        drops=form.get("what", "").startswith("drop"),
        back=_back(form),
    )


@asks
def run(state: State, request: Request) -> Response:
    """Run the statement that was shown, and lead to what became of it."""
    form = form_of(request)
    _require_same(state, form)
    started = state.queries.start(form.get("statement", ""))
    started.wait(1.0)
    return RedirectResponse(f"/sql/run/{started.id}", 303)


def statement_of(state: State, form: Mapping[str, str]) -> str:
    """Return the statement that a form describes.

    Raises FlussError for what cannot be a statement, naming the field.
    """
    what = form.get("what", "")
    if what == "create-database":
        name = check_name(_given(form, "name"), "database")
        return f"CREATE DATABASE {quoted(name)}{commented(form.get('comment', '').strip())}"
    if what == "drop-database":
        name = check_name(_given(form, "name"), "database")
        _confirmed(form, name)
        return f"DROP DATABASE {quoted(name)}" + (" CASCADE" if form.get("cascade") else "")
    path = TablePath.parse(TablePath(_given(form, "database"), _given(form, "table")))
    if what == "create-table":
        return _create_table(path, form)
    made = _MADE.get(what)
    if made is None:
        raise FlussError(f"there is no form {what[:40]!r}")
    name = f"{quoted(path.database_name)}.{quoted(path.table_name)}"
    found: str = made(state, path, name, form)
    return found


def _require_same(state: State, form: Mapping[str, str]) -> None:
    """Raise FlussError where a table or partition was made again since its page was opened.

    Statements go by name, and would change the new one.
    """
    seen = form.get("table_id", "")
    if not seen:
        return
    path = TablePath.parse(TablePath(_given(form, "database"), _given(form, "table")))
    now = state.admin.get_table_info(path).table_id
    if str(now) != seen:
        raise FlussError(
            f"table {path} was dropped and created again since its page was opened (its id was"
            f" {seen[:20]}, and is {now}): nothing was changed; open the page again",
            ErrorCode.TABLE_NOT_EXIST,
        )
    wanted, newest = form.get("partition", "").strip(), form.get("newest_partition", "")
    if wanted and newest.isascii() and newest.isdigit():
        there = {p.partition_name: p.partition_id for p in state.admin.list_partition_infos(path)}
        if there.get(wanted, -1) > int(newest[:20]):
            raise FlussError(
                f"partition {wanted!r} of table {path} was created since the page was opened:"
                " nothing was changed; open the page again",
                ErrorCode.PARTITION_NOT_EXISTS,
            )


def _add_column(state: State, path: TablePath, name: str, form: Mapping[str, str]) -> str:
    column = _given(form, "column")
    kind = type_of(column, _given(form, "type"))
    comment = commented(form.get("comment", "").strip())
    return f"ALTER TABLE {name} ADD COLUMN {quoted(column)} {sql_type(kind)}{comment}"


def _set_property(state: State, path: TablePath, name: str, form: Mapping[str, str]) -> str:
    key, value = _given(form, "key"), form.get("value", "").strip()
    return f"ALTER TABLE {name} SET ({literal(key)} = {literal(value)})"


def _reset_property(state: State, path: TablePath, name: str, form: Mapping[str, str]) -> str:
    key = _given(form, "key")
    if "'" in key:
        raise FlussError(f"a property whose name has a quote, {key!r}, cannot be reset by SQL")
    return f"ALTER TABLE {name} RESET ({literal(key)})"


def _add_partition(state: State, path: TablePath, name: str, form: Mapping[str, str]) -> str:
    keys = state.admin.get_table_info(path).get_partition_keys()
    if not keys:
        raise FlussError(f"table {path} has no partitions")
    pairs = ", ".join(f"{quoted(k)} = {literal(_given(form, f'partition.{k}'))}" for k in keys)
    return f"ALTER TABLE {name} ADD PARTITION ({pairs})"


def _drop_partition(state: State, path: TablePath, name: str, form: Mapping[str, str]) -> str:
    wanted = _given(form, "partition")
    there = {p.partition_name: p.spec for p in state.admin.list_partition_infos(path)}
    if wanted not in there:
        raise FlussError(f"table {path} has no partition {wanted[:80]!r}")
    _confirmed(form, wanted)
    pairs = ", ".join(f"{quoted(k)} = {literal(v)}" for k, v in there[wanted].items())
    return f"ALTER TABLE {name} DROP PARTITION ({pairs})"


def _drop_table(state: State, path: TablePath, name: str, form: Mapping[str, str]) -> str:
    _confirmed(form, path.table_name)
    return f"DROP TABLE {name}"


_MADE: Final[Mapping[str, Any]] = {
    "add-column": _add_column,
    "set-property": _set_property,
    "reset-property": _reset_property,
    "add-partition": _add_partition,
    "drop-partition": _drop_partition,
    "drop-table": _drop_table,
}


def _create_table(path: TablePath, form: Mapping[str, str]) -> str:
    columns: list[Column] = []
    primary: list[str] = []
    partitioned: list[str] = []
    for index in range(_MOST_COLUMNS):
        name = form.get(f"column.{index}", "").strip()
        if not name:
            continue
        kind = type_of(name, form.get(f"type.{index}", "").strip() or "STRING")
        if form.get(f"primary.{index}"):
            primary.append(name)
            kind = kind.with_nullable(False)
        if form.get(f"partition.{index}"):
            partitioned.append(name)
        columns.append(Column(name, kind, form.get(f"comment.{index}", "").strip() or None))
    if not columns:
        raise FlussError(f"table {path} needs at least one column: write a name and a type")
    buckets = form.get("buckets", "").strip()
    if buckets and not (buckets.isascii() and buckets.isdigit() and 0 < int(buckets) < 10**6):
        raise FlussError(f"{buckets[:20]!r} is no number of buckets: write one from 1 on")
    bucket_keys = [key.strip() for key in form.get("bucket_keys", "").split(",") if key.strip()]
    require_columns(bucket_keys, [c.name for c in columns], f"table {path}: bucket key")
    descriptor = TableDescriptor(
        Schema.from_columns(columns, primary),
        partition_keys=partitioned or None,
        bucket_count=int(buckets) if buckets else None,
        bucket_keys=bucket_keys or None,
        comment=form.get("comment", "").strip() or None,
        properties=_pairs(form.get("properties", "")),
    )
    return create_statement(path, descriptor)


def type_of(column: str, text: str) -> DataType:
    """Return the type that a text in SQL names.

    Raises FlussError for a text that is no type, naming the column.
    """
    try:
        kind = exp.DataType.build(text, dialect=Fluss)
    except (sqlglot.errors.SqlglotError, ValueError, RecursionError):
        raise FlussError(
            f"column '{column}': {text[:80]!r} is no type: write one as in {', '.join(_TYPES[:8])}"
        ) from None
    return fluss_type(kind, column)


def _pairs(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise FlussError(f"properties are lines as in table.log.ttl = 7d, not {line[:80]!r}")
        found[key.strip()] = value.strip()
    return found


def _given(form: Mapping[str, str], field: str) -> str:
    found = form.get(field, "").strip()
    if not found:
        raise FlussError(f"the field '{field}' is empty: fill it in")
    return found


def _confirmed(form: Mapping[str, str], name: str) -> None:
    if form.get("confirm", "").strip() != name:
        raise FlussError(f"to drop it with all its rows, write its name, {name}, into the field")


def _back(form: Mapping[str, str]) -> str:
    database, table = form.get("database", "").strip(), form.get("table", "").strip()
    if form.get("what", "").startswith("create") or not table:
        return "/create"
    return table_url(TablePath(database, table), "change")
