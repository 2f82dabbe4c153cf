"""Arrow data of Fluss as Polars frames."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

_VIEWS = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}


def _can_view() -> bool:
    try:
        for kind, view in _VIEWS.items():
            pa.nulls(1, kind).cast(view)
    except pa.ArrowNotImplementedError:
        return False
    return True


# what releases of Arrow cannot do yet
_CAN_VIEW = _can_view()


def polars_schema(schema: pa.Schema) -> pl.Schema:
    """Return the Polars types that Arrow data of a schema is read with."""
    return to_polars(schema.empty_table()).schema


def to_polars(table: pa.Table) -> pl.DataFrame:
    """Return Arrow data as a frame, without a copy where Polars has the same layout."""
    if _CAN_VIEW:
        # Arrow makes the views that Polars wants in a fifth of the time that Polars takes
        for i, field in enumerate(table.schema):
            view = _VIEWS.get(field.type)
            if view is not None:
                table = table.set_column(i, field.with_type(view), table.column(i).cast(view))
    frame = pl.from_arrow(table, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    return frame
