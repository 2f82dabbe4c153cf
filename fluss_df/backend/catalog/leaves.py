"""Fluss tables inside Ibis expressions, and what they become when a query is compiled.

In expressions a table is a plain ``ops.DatabaseTable``, so that all of Ibis works on it; its
namespace holds the database. Only on the way to Polars it becomes a :class:`FlussLeaf`, which is
translated to a scan.
"""

from __future__ import annotations

from typing import Any

import ibis.expr.operations as ops
import polars as pl
import pyarrow as pa
from ibis.common.patterns import replace
from ibis.expr.datatypes import DataType
from ibis.expr.schema import Schema
from ibis.formats.polars import PolarsType
from ibis.formats.pyarrow import PyArrowType

from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.record.change_tables import split_virtual


class FlussLeaf(ops.DatabaseTable):  # type: ignore[misc]
    """A table of the cluster, in an expression that is being compiled."""


@replace(ops.DatabaseTable)  # type: ignore[untyped-decorator]
def bind_fluss_tables(_: ops.DatabaseTable, **kwargs: Any) -> ops.Node:
    """Replace tables of the cluster by leaves; those that live in the Ibis connection stay."""
    if isinstance(_, FlussLeaf) or _.namespace.database is None:
        return _
    return FlussLeaf(name=_.name, schema=_.schema, source=_.source, namespace=_.namespace)


@replace(ops.UnboundTable)  # type: ignore[untyped-decorator]
def bind_unbound_tables(_: ops.UnboundTable, backend: Any, **kwargs: Any) -> ops.Node:
    """Replace each unbound table by this backend's table of the same name, found by ``table``."""
    name, database = _.name, _.namespace.database
    if backend.is_local(name, database):
        require_types(backend._tables[name], _.schema, f"table {name}")
        return ops.DatabaseTable(name, _.schema, backend)
    base, suffix = split_virtual(name)
    path = backend.path(base, database)
    name = f"{path.table_name}{suffix}"
    return ops.DatabaseTable(name, _.schema, backend, ops.Namespace(database=path.database_name))


def _known_type(kind: pl.DataType) -> DataType | None:
    """Return Ibis's type for one of Polars; None where it has none, as for maps."""
    try:
        made: DataType = PolarsType.to_ibis(kind)
    except (KeyError, NotImplementedError):
        return None
    return made


def ibis_schema(frame: pl.LazyFrame, columns: pa.Schema) -> Schema:
    """Return the Ibis types of a scan's columns, with NOT NULL where Fluss says so."""
    found: dict[str, DataType] = {}
    for name, kind in frame.collect_schema().items():
        column = columns.field(name)
        made = _known_type(kind) or PyArrowType.to_ibis(column.type)
        found[name] = made.copy(nullable=column.nullable)
    return Schema(found)


def require_types(frame: pl.LazyFrame, schema: Schema, where: str) -> None:
    """Check that a table still has the column types it had when an expression was made.

    Raises SchemaMismatchError where a column is missing or has another type: a cast to the old type
    could change its values.
    """
    now = frame.collect_schema()
    for name, then in schema.items():
        if name not in now:
            raise SchemaMismatchError(f"{where} has no column '{name}'; it has {', '.join(now)}")
        kind = _known_type(now[name])
        if kind is not None and kind.copy(nullable=then.nullable) != then:
            raise SchemaMismatchError(
                f"{where}: column '{name}' was {then} when the expression was made and is {kind}"
                " now: the table was changed, or created again; make the expression again"
            )


def plain_schema(frame: pl.LazyFrame) -> Schema:
    """Return the Ibis types of a frame's columns.

    Raises FlussError for a type of Polars that Ibis has none for, naming the column.
    """
    found: dict[str, DataType] = {}
    for name, kind in frame.collect_schema().items():
        made = _known_type(kind)
        if made is None:
            raise FlussError(
                f"column '{name}' is {kind}, which expressions of Ibis do not know: cast it to"
                " another type, or run the query with raw_sql"
            )
        found[name] = made
    return Schema(found)
