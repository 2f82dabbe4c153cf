"""Rows with the columns of a schema, where those that they lack are null."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def with_columns(rows: pa.Table | pa.RecordBatch, schema: pa.Schema) -> Any:
    """Return rows with the columns and types of a schema, as a table or batch like the one given.

    A column that the rows lack is null, others are cast. A column that the schema lacks is left
    out. The schema has one column at least: without any, Arrow forgets how many rows there are.
    """
    there = frozenset(rows.schema.names)
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in there
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return type(rows).from_arrays(columns, schema=schema)


def without_columns(rows: int) -> pa.Table:
    """Return a table of rows without columns."""
    return pa.table({"": pa.nulls(rows)}).select([])
