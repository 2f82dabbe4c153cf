"""Frames into exactly the Arrow types of a table, without losing anything.

Columns are matched by name. What each Fluss type takes, besides the type that
:func:`fluss_df.types.to_arrow` gives for it:

=================== ========================================= =====================================
Fluss type          also taken                                refused by type, whatever the values
=================== ========================================= =====================================
STRING              large and view strings                    binaries, numbers
CHAR(n)             strings of at most n characters           binaries, numbers
BYTES               large, view and fixed-size binaries       strings
BINARY(n)           binaries of exactly n bytes               strings
BOOLEAN             (bool only)                               integers
TINYINT .. BIGINT   signed, unsigned integers in range        bool, floats, decimals, durations
FLOAT               float16; float64, integers that are exact bool, decimals
DOUBLE              float16/32; integers that are exact       bool, decimals
DECIMAL(p, s)       decimals, integers that fit without loss  floats
DATE                date64 of whole days                      timestamps
TIME(p)             other units without lost digits           timestamps, durations
TIMESTAMP(p)        other units without lost digits           timestamps with a time zone, dates
TIMESTAMP_LTZ(p)    other units and zones, the same instant   timestamps without a time zone, dates
ARRAY               large, view and fixed-size lists          other types
MAP                 lists of structs of key and value         maps or lists with a null key
ROW                 structs, by field name, in any order      an unknown field
=================== ========================================= =====================================

Everywhere: dictionaries (Categorical, Enum) and run-end encoded arrays stand for their values, an
extension type for its storage, and the null type for nulls of any type. A digit, an element or a
null is never dropped: the first value that does not fit is an error that names table, column, both
types, row and value. So is one that its own Arrow type does not allow, such as text that is not
UTF-8 or a time beyond the day: readers refuse the batch that it is in, with all other rows of it.
NaN fits FLOAT and DOUBLE. Missing columns are an error unless
``allow_missing``, which fills nullable ones with nulls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.errors import SchemaMismatchError
from fluss_df.metadata import nearest
from fluss_df.record.layout.chunks import joined
from fluss_df.record.python.allowed import check_allowed, first_refused
from fluss_df.types import Column, DataType, TypeRoot, arrow_schema, to_arrow

_R = TypeRoot
_INTEGERS = frozenset({_R.TINYINT, _R.SMALLINT, _R.INTEGER, _R.BIGINT})
_FLOATS = frozenset({_R.FLOAT, _R.DOUBLE})
_TIMESTAMPS = frozenset({_R.TIMESTAMP_WITHOUT_TIME_ZONE, _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE})
_DIGITS = frozenset({*_TIMESTAMPS, _R.TIME_WITHOUT_TIME_ZONE})
_NESTED = frozenset({_R.ARRAY, _R.MAP, _R.ROW})

#: The range of times that an int64 of nanoseconds can hold, as text for errors.
NANOSECONDS: Final = (
    "1677-09-21 to 2262-04-11, which is what nanoseconds hold (a precision of 6 or less holds more)"
)
_IN_NANOSECONDS: Final = (pa.timestamp("ns"), pa.timestamp("ns", "UTC"))


def coerce(
    data: pa.Table | pa.RecordBatch,
    columns: Sequence[Column],
    *,
    table: str,
    allow_missing: bool = False,
    upserts: bool = False,
) -> pa.Table | pa.RecordBatch:
    """Return the rows with exactly the table's Arrow types, in the table's order.

    The rows may have their columns in any order. Columns that already have their type are not
    copied, unless they have many small chunks: these are put together. With ``allow_missing``,
    nullable columns that the rows lack are filled with nulls. ``upserts`` says whether the rows are
    upserted: only the advice in errors depends on it.

    Raises SchemaMismatchError for data that does not fit, as the module says; rows are counted
    from 0.
    """
    names = data.schema.names
    wanted = [column.name for column in columns]
    _check_names(names, columns, table, allow_missing, upserts)
    schema = arrow_schema(columns)
    result: list[pa.Array | pa.ChunkedArray] = []
    same = names == wanted and data.schema.equals(schema)
    there = frozenset(names)
    for column, field in zip(columns, schema, strict=True):
        if column.name not in there:
            nulls = pa.nulls(data.num_rows, field.type)
            result.append(pa.chunked_array([nulls]) if isinstance(data, pa.Table) else nulls)
            continue
        given = data.column(column.name)
        # each chunk is converted by itself, which takes as long as a thousand rows
        source = joined(given) if isinstance(given, pa.ChunkedArray) else given
        made = _column(source, column, field.type, table)
        check_allowed(made, column, table)
        same = same and made is given
        result.append(made)
    if same:
        return data
    return type(data).from_arrays(result, schema=schema)


def _check_names(
    names: list[str], columns: Sequence[Column], table: str, allow_missing: bool, upserts: bool
) -> None:
    # for a key or a partial update, columns is a part of the table's: errors list that part
    wanted = [column.name for column in columns]
    known = set(wanted)
    given: set[str] = set()
    for name in names:
        if name not in known:
            raise SchemaMismatchError(
                f"table {table}: column '{name}' is none of {', '.join(wanted)}"
                f"{nearest(name, wanted) or ': drop it'}"
            )
        if name in given:
            raise SchemaMismatchError(f"table {table}: column '{name}' is in the data twice")
        given.add(name)
    for column in columns:
        if column.name in given or (allow_missing and column.type.nullable):
            continue
        way = "add it, as nulls if need be"
        if not column.type.nullable:
            way = "it is NOT NULL, so rows need a value for it"
        elif upserts:
            way = (
                "an upsert replaces whole rows: add it, or leave it as it is by a partial update"
                " (mode='partial_update', new_upsert([columns]))"
            )
        raise SchemaMismatchError(
            f"table {table}: column '{column.name}' ({column.type}) is missing in the data: {way}"
        )


def _column(
    source: pa.Array | pa.ChunkedArray, column: Column, target: pa.DataType, table: str
) -> pa.Array | pa.ChunkedArray:
    t = column.type
    if source.type == target and _needs_no_look(t):
        if source.null_count and not t.nullable:
            row = pc.index(source.is_null(), True).as_py()
            raise SchemaMismatchError(_null_message(table, column.name, t, row))
        return source
    if isinstance(source, pa.Array):
        return _Place(table, column.name, 0, None).convert(source, t)
    chunks = []
    row = 0
    same = True
    for chunk in source.chunks:
        made = _Place(table, column.name, row, None).convert(chunk, t)
        same = same and made is chunk
        chunks.append(made)
        row += len(chunk)
    return source if same else pa.chunked_array(chunks, target)


def _null_message(table: str, path: str, t: DataType, row: int) -> str:
    return f"table {table}, column '{path}' ({t}): null in row {row}"


def _odd_digits(t: DataType) -> int:
    """Return how many decimal digits the Arrow unit has beyond the type's precision.

    Arrow has units of 0, 3, 6 and 9 digits: TIMESTAMP(4) is kept in microseconds, with 2 too many.
    """
    return -(t.precision or 0) % 3 if t.root in _DIGITS else 0


def _needs_no_look(t: DataType) -> bool:
    """Return whether every array of the right Arrow type is valid, whatever its values are.

    NOT NULL of the column itself is left aside: callers check that.
    """
    if t.root is _R.CHAR or _odd_digits(t):
        return False
    children = [c for c in (t.element, t.key, t.value) if c is not None]
    children += [field.type for field in t.fields]
    # NOT NULL of nested values has to be checked value by value: Arrow does not enforce it
    return all((c.nullable and _needs_no_look(c)) for c in children)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an array stands in the data, for errors.

    Attributes
    ----------
    path
        The column, with the way to a nested value: ``a.b[]`` is the elements of field b of a.
    first_row
        How many rows of the data stand before this chunk.
    locate
        Maps an index of the array to a row of the chunk; None where the two are the same.
    """

    table: str
    path: str
    first_row: int
    locate: Callable[[int], int] | None

    def row(self, index: int) -> int:
        return self.first_row + (index if self.locate is None else self.locate(index))

    def inner(self, suffix: str, locate: Callable[[int], int] | None = None) -> _Place:
        outer = self.locate
        if locate is None:
            composed = outer
        elif outer is None:
            composed = locate
        else:
            inner_locate = locate

            def composed(index: int) -> int:
                return outer(inner_locate(index))

        return _Place(self.table, self.path + suffix, self.first_row, composed)

    def refuse(self, source: pa.DataType, t: DataType, why: str) -> SchemaMismatchError:
        return SchemaMismatchError(
            f"table {self.table}, column '{self.path}': {source} does not go into {t}: {why}"
        )

    def misfit(
        self, array: pa.Array, index: int, t: DataType, why: str = "would lose data"
    ) -> SchemaMismatchError:
        kind = array.type
        if pa.types.is_timestamp(kind) and kind.unit != "ns" and to_arrow(t) in _IN_NANOSECONDS:
            # casting a coarser unit to nanoseconds fails only for times out of their range
            why = f"is beyond {NANOSECONDS}: it cannot be stored"
        try:
            value = repr(array[index].as_py())
        except (ValueError, OverflowError):
            # Python's own types cannot hold the value: datetime has no nanoseconds
            value = str(pc.cast(array.slice(index, 1), pa.string())[0])
        if len(value) > 100:
            value = value[:97] + "..."
        return SchemaMismatchError(
            f"table {self.table}, column '{self.path}': row {self.row(index)}: {value} "
            f"({array.type}) {why} as {t}"
        )

    # ---- conversion ------------------------------------------------------------------------

    def convert(self, source: pa.Array, t: DataType, hidden: pa.Array | None = None) -> pa.Array:
        """Convert one array, checking its nulls and values.

        ``hidden`` is true where a value is null only because the ROW around it is. Such a null does
        not violate NOT NULL.
        """
        array = _plain(source)
        target = to_arrow(t)
        nulls = array.is_null() if array.null_count and not t.nullable else None
        if nulls is not None and hidden is not None:
            nulls = pc.and_not(nulls, hidden)
        if nulls is not None and pc.any(nulls).as_py():
            index = pc.index(nulls, True).as_py()
            raise SchemaMismatchError(_null_message(self.table, self.path, t, self.row(index)))
        if pa.types.is_null(array.type):
            return pa.nulls(len(array), target)
        if array.type == target and _needs_no_look(t):
            return array
        if t.root in _NESTED:
            return self._nested(array, t, target)
        why = _refusal(array.type, t)
        if why is not None:
            raise self.refuse(array.type, t, why)
        made = array if array.type == target else self._leaf(array, t, target)
        self._check_values(array, made, t)
        return made

    def _leaf(self, array: pa.Array, t: DataType, target: pa.DataType) -> pa.Array:
        source = array.type
        if t.root in _FLOATS and source != target:
            made = pc.cast(array, target, safe=False)
            if not pa.types.is_float16(source) and source != pa.float32():
                self._check_round_trip(array, made, t)
            return made
        if t.root is _R.DECIMAL and pa.types.is_integer(source):
            # Arrow refuses int64 to decimal(p, s) unless every int64 would fit; by way of
            # decimal(20, 0), which holds every integer, only the actual values have to
            return self._cast(pc.cast(array, pa.decimal128(20, 0)), t, target)
        if t.root is _R.BINARY and not pa.types.is_fixed_size_binary(source):
            self._first_false(
                array, pc.equal(pc.binary_length(array), t.length), t, "has another length"
            )
        return self._cast(array, t, target)

    def _cast(self, array: pa.Array, t: DataType, target: pa.DataType) -> pa.Array:
        try:
            return pc.cast(array, target, safe=True)
        except pa.ArrowInvalid:
            low, _ = first_refused(array, lambda part: pc.cast(part, target, safe=True))
            raise self.misfit(array, low, t) from None

    def _check_round_trip(self, array: pa.Array, made: pa.Array, t: DataType) -> None:
        back = pc.cast(made, array.type, safe=False)
        equal = pc.equal(back, array)
        if pa.types.is_floating(array.type):
            equal = pc.or_(equal, pc.is_nan(array))
        elif pa.types.is_integer(array.type) and len(array):
            # 2**63 and 2**64 come back from a float as the largest integer, which then looks equal
            top = 2.0 ** (63 if pa.types.is_signed_integer(array.type) else 64)
            equal = pc.and_(equal, pc.less(made, pa.scalar(top, made.type)))
        self._first_false(array, equal, t, "is not exact")

    def _first_false(self, array: pa.Array, good: pa.Array, t: DataType, why: str) -> None:
        if len(good) and pc.all(good).as_py() is False:
            raise self.misfit(array, pc.index(good, False).as_py(), t, why)

    def _check_values(self, array: pa.Array, made: pa.Array, t: DataType) -> None:
        if t.root is _R.CHAR:
            good = pc.less_equal(pc.utf8_length(made), t.length)
            self._first_false(array, good, t, "is too long")
        digits = _odd_digits(t)
        if digits:
            kind = pa.int32() if made.type.bit_width == 32 else pa.int64()
            values = made.view(kind)
            step = pa.scalar(10**digits, kind)
            good = pc.equal(pc.multiply(pc.divide(values, step), step), values)
            self._first_false(array, good, t, "has more digits of a second")

    def _nested(self, array: pa.Array, t: DataType, target: pa.DataType) -> pa.Array:
        source = array.type
        if t.element is not None:
            if not _is_list(source):
                raise self.refuse(source, t, "it is no list")
            offsets, values, place = self._elements(array)
            made = place.convert(values, t.element)
            return pa.ListArray.from_arrays(offsets, made, target, mask=_mask(array))
        if t.key is not None and t.value is not None:
            return self._map(array, t, target)
        if not pa.types.is_struct(source):
            raise self.refuse(source, t, "it is no struct")
        return self._row(array, t, target)

    def _elements(self, array: pa.Array) -> tuple[pa.Array, pa.Array, _Place]:
        """Return offsets and values of a list array, without the values below null lists."""
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        offsets = np.zeros(len(array) + 1, np.int64)
        np.cumsum(lengths.to_numpy(zero_copy_only=False), out=offsets[1:])
        if offsets[-1] >= 2**31:
            raise SchemaMismatchError(
                f"table {self.table}, column '{self.path}': {offsets[-1]} elements in one chunk "
                "are too many: write fewer rows at a time"
            )

        def locate(index: int) -> int:
            return int(np.searchsorted(offsets, index, side="right")) - 1

        return pa.array(offsets, pa.int32()), array.flatten(), self.inner("[]", locate)

    def _map(self, array: pa.Array, t: DataType, target: pa.DataType) -> pa.Array:
        source = array.type
        if pa.types.is_map(source):
            # a map is a list of entries to Arrow
            entry = pa.struct([source.key_field, source.item_field])
            listed = pa.list_(pa.field("entries", entry, nullable=False))
            array = array.cast(listed)
        elif not _is_list(source):
            raise self.refuse(source, t, "it is neither a map nor a list of key and value")
        offsets, entries, place = self._elements(array)
        entries = _plain(entries)
        if not pa.types.is_struct(entries.type) or entries.type.num_fields != 2:
            raise self.refuse(source, t, "its elements are no structs of key and value")
        if entries.null_count:
            index = pc.index(entries.is_null(), True).as_py()
            raise SchemaMismatchError(_null_message(self.table, place.path, t, place.row(index)))
        assert t.key is not None
        assert t.value is not None
        keys, values = entries.flatten()
        keys = place.inner(".key").convert(keys, t.key.with_nullable(False))
        values = place.inner(".value").convert(values, t.value)
        made = pa.MapArray.from_arrays(offsets, keys, values, target)
        mask = _mask(array)
        if mask is None:
            return made
        # from_arrays takes no mask for a map
        validity = pa.array(~mask.to_numpy(zero_copy_only=False)).buffers()[1]
        struct = pa.StructArray.from_arrays(
            [keys, values], fields=[target.key_field, target.item_field]
        )
        return pa.MapArray.from_buffers(
            target, len(array), [validity, offsets.buffers()[1]], children=[struct]
        )

    def _row(self, array: pa.Array, t: DataType, target: pa.DataType) -> pa.Array:
        names = [field.name for field in array.type]
        known = {field.name for field in t.fields}
        for name, count in Counter(names).items():
            if name not in known or count > 1:
                raise self.refuse(array.type, t, f"field '{name}' is unknown or there twice")
        children = []
        # flatten() makes the fields of a null row null; that does not violate their NOT NULL
        hidden = _mask(array)
        flat = dict(zip(names, array.flatten(), strict=True))
        for field, wanted in zip(t.fields, target, strict=True):
            child = flat.get(field.name)
            if child is None:
                if not field.type.nullable or len(array):
                    raise self.refuse(array.type, t, f"field '{field.name}' is missing")
                child = pa.nulls(0, wanted.type)
            children.append(self.inner(f".{field.name}").convert(child, field.type, hidden))
        return pa.StructArray.from_arrays(children, fields=list(target), mask=hidden)


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _is_list(t: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(t)
        or pa.types.is_large_list(t)
        or pa.types.is_fixed_size_list(t)
        or pa.types.is_list_view(t)
        or pa.types.is_large_list_view(t)
    )


def _plain(array: pa.Array) -> pa.Array:
    """Undo encodings, extension types and views; few functions of Arrow take views."""
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif pa.types.is_dictionary(array.type):
            values = _plain(array.dictionary)
            array = values.take(array.indices)
        elif pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        elif pa.types.is_string_view(array.type):
            array = array.cast(pa.string())
        elif pa.types.is_binary_view(array.type):
            array = array.cast(pa.binary())
        else:
            return array


def _refusal(source: pa.DataType, t: DataType) -> str | None:
    """Return why a type is refused whatever its values are; None where values decide."""
    types = pa.types
    root = t.root
    text = types.is_string(source) or types.is_large_string(source) or types.is_string_view(source)
    binary = (
        types.is_binary(source)
        or types.is_large_binary(source)
        or types.is_binary_view(source)
        or types.is_fixed_size_binary(source)
    )
    if root in (_R.STRING, _R.CHAR):
        return None if text else "cast it to a string first"
    if root is _R.BYTES:
        return None if binary else "cast it to binary first"
    if root is _R.BINARY:
        if types.is_fixed_size_binary(source) and source.byte_width != t.length:
            return f"it has {source.byte_width} bytes"
        return None if binary else "cast it to binary first"
    if root is _R.BOOLEAN:
        return None if types.is_boolean(source) else "cast it to a boolean first"
    if root in _INTEGERS:
        if types.is_duration(source):
            return "cast it to int64 in the unit you choose"
        return None if types.is_integer(source) else "cast it to an integer first"
    if root in _FLOATS:
        good = types.is_floating(source) or types.is_integer(source)
        return None if good else "cast it to a float first"
    if root is _R.DECIMAL:
        good = types.is_decimal(source) or types.is_integer(source)
        return None if good else f"cast it to decimal128({t.precision}, {t.scale}) first"
    if root is _R.DATE:
        return None if types.is_date(source) else "cast it to a date first"
    if root is _R.TIME_WITHOUT_TIME_ZONE:
        return None if types.is_time(source) else "cast it to a time first"
    if not types.is_timestamp(source):
        return "cast it to a timestamp first"
    if root is _R.TIMESTAMP_WITHOUT_TIME_ZONE and source.tz is not None:
        return "it has a time zone, the column has none: drop the zone (replace_time_zone(None))"
    if root is _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE and source.tz is None:
        return "it has no time zone, so no instant: set one (replace_time_zone)"
    return None
