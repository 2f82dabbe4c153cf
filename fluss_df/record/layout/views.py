"""Strings and binary data in the layout of views, which Polars works on."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.memory import data_pool

# by the id of the type, as the hash of a type takes a microsecond
_VIEWS = {pa.string().id: pa.string_view(), pa.binary().id: pa.binary_view()}


def _can_view() -> bool:
    try:
        pa.nulls(1, pa.string()).cast(pa.string_view())
        pa.nulls(1, pa.binary()).cast(pa.binary_view())
    except pa.ArrowNotImplementedError:
        return False
    return True


# what releases of Arrow cannot do yet
_CAN_VIEW = _can_view()


class ViewLayout:
    """The columns of a schema that views take the place of, found once for many tables.

    Examples
    --------
    >>> layout = ViewLayout(pa.schema([("s", pa.string())]))
    >>> layout.of(pa.table({"s": ["a"]})).schema.field("s").type
    DataType(string_view)
    """

    def __init__(self, schema: pa.Schema) -> None:
        found = ((i, _VIEWS.get(field.type.id)) for i, field in enumerate(schema))
        views = {i: view for i, view in found if view is not None} if _CAN_VIEW else {}
        self._casts = [(i, pc.CastOptions(view)) for i, view in views.items()]
        fields = [f.with_type(views.get(i, f.type)) for i, f in enumerate(schema)]
        self._schema = pa.schema(fields, schema.metadata)

    def of(self, table: pa.Table) -> pa.Table:
        """Return a table of the schema with views in it.

        Arrow makes them in a fifth of the time that Polars takes, and in half of that right after
        the values were decoded, while a cache has them. Columns within columns stay as they are.
        """
        if not self._casts:
            return table
        columns = table.columns
        # all at once: setting one column of a wide table copies the list of all of them
        for i, options in self._casts:
            columns[i] = _cast(columns[i], options)
        return pa.Table.from_arrays(columns, schema=self._schema)


def _cast(column: pa.ChunkedArray, options: pc.CastOptions) -> pa.ChunkedArray:
    # pc.cast makes the options for every column, which is half of its price for a few rows
    return pc.call_function("cast", [column], options, data_pool())


def with_views(table: pa.Table) -> pa.Table:
    """Return a table with its columns of strings and binary data as views, where Arrow can."""
    if _VIEWS.keys().isdisjoint(kind.id for kind in table.schema.types):
        return table
    return ViewLayout(table.schema).of(table)
