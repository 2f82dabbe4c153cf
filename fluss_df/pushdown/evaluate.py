"""Predicates on rows: bound to a schema, evaluated on Arrow, projected on columns."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.metadata import require_columns
from fluss_df.pushdown.predicate import (
    And,
    Comparison,
    Constant,
    In,
    IsNotNull,
    IsNull,
    Not,
    Op,
    Or,
    Predicate,
    PredicateVisitor,
    TextMatch,
    TextOp,
    UnsupportedExpression,
    and_,
    compare,
    in_,
    literal_text,
    or_,
)

_KERNELS = {
    Op.EQ: pc.equal,
    Op.NE: pc.not_equal,
    Op.LT: pc.less,
    Op.LE: pc.less_equal,
    Op.GT: pc.greater,
    Op.GE: pc.greater_equal,
}
_TEXT_KERNELS = {
    TextOp.STARTS_WITH: pc.starts_with,
    TextOp.ENDS_WITH: pc.ends_with,
    TextOp.CONTAINS: pc.match_substring,
}


def bind(predicate: Predicate, schema: pa.Schema, *, what: str = "") -> Predicate:
    """Return the predicate with its literals in exactly the types of the schema's columns.

    ``what`` is what the columns belong to, for errors, such as ``table db.t:``.

    Raises FlussError for a column that does not exist. Raises UnsupportedExpression for a literal
    that the type of its column cannot represent exactly, naming both; also for comparisons of
    nested columns, and text matches of columns that are not strings.
    """
    require_columns(sorted(predicate.columns()), schema.names, what)
    return _Bind(schema).visit(predicate)


def exactly(column: str, values: list[pa.Scalar], schema: pa.Schema) -> pa.Array:
    """Return values in the type of their column.

    Raises UnsupportedExpression for a value that the type does not have.
    """
    kind = schema.field(column).type
    found = [
        value if value.type == kind else _exactly(pa.array([value]), kind, column)[0]
        for value in values
    ]
    # made of scalars: Python's own times have no nanoseconds
    return pa.array(found, kind)


def evaluate(predicate: Predicate, data: pa.Table | pa.RecordBatch) -> pa.ChunkedArray:
    """Return true, false or null for each row, as the module :mod:`~.predicate` defines it.

    The literals must have the types of their columns: see :func:`bind`.

    Examples
    --------
    >>> from fluss_df.pushdown.column import col
    >>> rows = pa.table({"x": [1, 2, None]})
    >>> evaluate(bind(col("x") > 1, rows.schema), rows).to_pylist()
    [False, True, None]
    """
    table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
    return _Evaluate(table).visit(predicate)


def at_microseconds(predicate: Predicate, schema: pa.Schema) -> Predicate:
    """Return what a predicate on times cut off to microseconds says of the times themselves."""
    return _AtMicroseconds(schema).visit(predicate)


def filter_rows(predicate: Predicate, data: pa.Table | pa.RecordBatch) -> pa.Table | pa.RecordBatch:
    """Return the rows for which the predicate is true, as the same kind of object."""
    mask = evaluate(predicate, data)
    if isinstance(data, pa.RecordBatch):
        mask = mask.combine_chunks()
    return data.filter(mask)


def project(predicate: Predicate, columns: Collection[str]) -> Predicate:
    """Return a predicate over only these columns that is true wherever ``predicate`` is true.

    What cannot be expressed with the columns becomes true. So a partition may be left out when the
    projection on the partition columns is not true for its values.

    Examples
    --------
    >>> from fluss_df.pushdown.column import col
    >>> p = (col("day") == 1) & (col("x") > 5) | (col("day") == 2) & (col("y") > 5)
    >>> str(project(p, ["day"]))
    'day == 1 or day == 2'
    """
    return _Project(frozenset(columns)).visit(_PUSH_NOT_DOWN.visit(predicate))


class _Rewrite(PredicateVisitor[Predicate]):
    """Returns the same predicate: what is to change is overridden."""

    def _same(self, node: Any) -> Any:
        return node

    comparison = in_ = is_null = is_not_null = text_match = constant = _same

    def and_(self, node: And) -> Predicate:
        return and_(map(self.visit, node.operands))

    def or_(self, node: Or) -> Predicate:
        return or_(map(self.visit, node.operands))

    def not_(self, node: Not) -> Predicate:
        return Not(self.visit(node.operand))


class _Bind(_Rewrite):
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def _type(self, column: str) -> pa.DataType:
        found = self._schema.field(column).type
        if pa.types.is_nested(found):
            raise UnsupportedExpression(f"column '{column}' ({found}) cannot be compared")
        return found

    def comparison(self, node: Comparison) -> Predicate:
        wanted = self._type(node.column)
        if node.literal.type == wanted:
            return node
        values = _exactly(pa.array([node.literal]), wanted, node.column)
        return compare(node.column, node.op, values[0])

    def in_(self, node: In) -> Predicate:
        wanted = self._type(node.column)
        if node.values.type == wanted:
            return node
        return in_(node.column, _exactly(node.values, wanted, node.column))

    def text_match(self, node: TextMatch) -> Predicate:
        if not pa.types.is_string(self._schema.field(node.column).type):
            found = self._schema.field(node.column).type
            raise UnsupportedExpression(f"column '{node.column}' is {found}, not a string")
        return node


class _AtMicroseconds(_Bind):
    """Widens comparisons with nanoseconds to all that have the same microseconds."""

    def comparison(self, node: Comparison) -> Predicate:
        kind = node.literal.type
        timed = pa.types.is_timestamp(kind) or pa.types.is_time(kind)
        if not timed or kind.unit != "ns" or not node.literal.is_valid:
            return node
        first = node.literal.cast(pa.int64()).as_py()
        if first % 1000 or first + 1000 >= 1 << 63:
            raise UnsupportedExpression(f"{node.literal} has nanoseconds")
        low, high = (pa.scalar(value, pa.int64()).cast(kind) for value in (first, first + 1000))
        if node.op in (Op.LT, Op.GE):
            return node
        if node.op is Op.LE:
            return compare(node.column, Op.LT, high)
        if node.op is Op.GT:
            return compare(node.column, Op.GE, high)
        parts = [compare(node.column, Op.GE, low), compare(node.column, Op.LT, high)]
        return and_(parts) if node.op is Op.EQ else Not(and_(parts))

    def in_(self, node: In) -> Predicate:
        kind = node.values.type
        if not (pa.types.is_timestamp(kind) or pa.types.is_time(kind)) or not len(node.values):
            return node
        return or_(self.visit(compare(node.column, Op.EQ, value)) for value in node.values)


def _family(t: pa.DataType) -> str:
    """Return the kind of type within which values may be converted."""
    if pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t):
        return "number"
    if pa.types.is_timestamp(t):
        return "timestamp" if t.tz is None else "instant"
    if pa.types.is_time(t):
        return "time"
    if pa.types.is_date(t):
        return "date"
    if pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t):
        return "string"
    if isinstance(t, pa.FixedSizeBinaryType) or pa.types.is_large_binary(t):
        return "binary"
    return str(t).removesuffix("_view")


def _exactly(values: pa.Array, wanted: pa.DataType, column: str) -> pa.Array:
    """Cast without changing a value."""
    given = values.type
    if pa.types.is_null(given):
        return pa.nulls(len(values), wanted)
    problem = ""
    if _family(given) == _family(wanted):
        try:
            made = values.cast(wanted, safe=True)
            # decimals and floats: a safe cast may still round
            if made.cast(given, safe=True).equals(values) or _same_floats(made, values):
                return made
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            problem = f" ({error})"
    raise UnsupportedExpression(
        f"column '{column}' is {wanted} and cannot be compared with"
        f" {literal_text(values[0]) if len(values) else 'a value'} of type {given}{problem}:"
        " give a value of the column's type"
    )


def _same_floats(made: pa.Array, values: pa.Array) -> bool:
    if not pa.types.is_floating(made.type) or not pa.types.is_floating(values.type):
        return False
    wide, given = made.cast(pa.float64()), values.cast(pa.float64())
    same = pc.or_kleene(pc.equal(wide, given), pc.and_kleene(pc.is_nan(wide), pc.is_nan(given)))
    return bool(pc.all(same.fill_null(True)).as_py())


class _Evaluate(PredicateVisitor[pa.ChunkedArray]):
    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def _same(self, value: bool | None) -> pa.ChunkedArray:
        rows = self._table.num_rows
        return pa.chunked_array([pa.repeat(pa.scalar(value, pa.bool_()), rows)])

    def comparison(self, node: Comparison) -> pa.ChunkedArray:
        column = self._table.column(node.column)
        if pa.types.is_floating(column.type):
            return _compare_floats(column, node.op, node.literal)
        return _KERNELS[node.op](column, node.literal)

    def in_(self, node: In) -> pa.ChunkedArray:
        column, values = self._table.column(node.column), node.values
        if pa.types.is_floating(column.type):
            # Arrow's is_in compares hashes, which differ for -0.0 and 0.0
            zero = pa.scalar(0.0, column.type)
            column, values = pc.add(column, zero), pc.add(values, zero)
        found = pc.is_in(column, value_set=values)
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(values)).as_py():
            # they differ between NaNs too, of which there are many: 0.0 / 0.0 has another sign
            found = pc.or_(found, pc.is_nan(column).fill_null(False))
        return pc.if_else(pc.is_valid(column), found, pa.scalar(None, pa.bool_()))

    def is_null(self, node: IsNull) -> pa.ChunkedArray:
        return self._table.column(node.column).is_null()

    def is_not_null(self, node: IsNotNull) -> pa.ChunkedArray:
        return self._table.column(node.column).is_valid()

    def text_match(self, node: TextMatch) -> pa.ChunkedArray:
        return _TEXT_KERNELS[node.op](self._table.column(node.column), pattern=node.text)

    def constant(self, node: Constant) -> pa.ChunkedArray:
        return self._same(node.value)

    def and_(self, node: And) -> pa.ChunkedArray:
        return reduce(pc.and_kleene, map(self.visit, node.operands))

    def or_(self, node: Or) -> pa.ChunkedArray:
        return reduce(pc.or_kleene, map(self.visit, node.operands))

    def not_(self, node: Not) -> pa.ChunkedArray:
        return pc.invert(self.visit(node.operand))


def _compare_floats(column: Any, op: Op, literal: pa.Scalar) -> pa.ChunkedArray:
    """Compare with NaN as the greatest number, equal to itself."""
    nan = pc.is_nan(column)
    if literal.as_py() == literal.as_py():
        plain = _KERNELS[op](column, literal)
        return pc.or_kleene(plain, nan) if op in (Op.GT, Op.GE) else plain
    if op in (Op.EQ, Op.GE):
        return nan
    if op in (Op.NE, Op.LT):
        return pc.invert(nan)
    always = pc.or_kleene(nan, pc.invert(nan))
    return always if op is Op.LE else pc.invert(always)


class _PushNotDown(_Rewrite):
    """Moves every ``not`` to the leaves, where a comparison or null test takes it in."""

    def not_(self, node: Not) -> Predicate:
        inner = node.operand
        if isinstance(inner, Not):
            return self.visit(inner.operand)
        if isinstance(inner, And):
            return or_(self.visit(Not(p)) for p in inner.operands)
        if isinstance(inner, Or):
            return and_(self.visit(Not(p)) for p in inner.operands)
        if isinstance(inner, Comparison):
            return Comparison(inner.column, inner.op.negated, inner.literal)
        if isinstance(inner, IsNull):
            return IsNotNull(inner.column)
        if isinstance(inner, IsNotNull):
            return IsNull(inner.column)
        if isinstance(inner, Constant):
            return Constant(None if inner.value is None else not inner.value)
        return node


class _Project(_Rewrite):
    def __init__(self, columns: frozenset[str]) -> None:
        self._columns = columns

    def _leaf(self, node: Predicate) -> Predicate:
        return node if node.columns() <= self._columns else Constant(True)

    comparison = in_ = is_null = is_not_null = text_match = constant = _leaf

    def or_(self, node: Or) -> Predicate:
        operands = [self.visit(p) for p in node.operands]
        return Constant(True) if Constant(True) in operands else or_(operands)

    def not_(self, node: Not) -> Predicate:
        return self._leaf(node)


_PUSH_NOT_DOWN = _PushNotDown()


def selected_values(predicates: Sequence[Predicate], column: str) -> pa.Array | None:
    """Return the values of which a column has one wherever all predicates are true.

    Follows equalities and ``in``, also within ``and`` and ``or``; None when they do not say.
    """
    found: pa.Array | None = None
    for predicate in predicates:
        values = _selected(predicate, column)
        if values is not None:
            found = values if found is None else found.filter(pc.is_in(found, value_set=values))
    return found


def combinations(values: Sequence[pa.Array], most: int) -> list[pa.Array] | None:
    """Return every combination of values, column by column; None for more than ``most``.

    Examples
    --------
    >>> [a.to_pylist() for a in combinations([pa.array([1, 2]), pa.array(["x", "y"])], 9)]
    [[1, 1, 2, 2], ['x', 'y', 'x', 'y']]
    """
    sizes = [len(array) for array in values]
    if math.prod(sizes) > most:
        return None
    grid = np.indices(sizes).reshape(len(sizes), -1)
    return [array.take(pa.array(index)) for array, index in zip(values, grid, strict=True)]


def _selected(predicate: Predicate, column: str) -> pa.Array | None:
    if isinstance(predicate, Comparison):
        if predicate.column != column or predicate.op is not Op.EQ:
            return None
        return pa.array([predicate.literal])
    if isinstance(predicate, In):
        return predicate.values if predicate.column == column else None
    if isinstance(predicate, And):
        return selected_values(predicate.operands, column)
    if isinstance(predicate, Or):
        choices = [_selected(operand, column) for operand in predicate.operands]
        known = [values for values in choices if values is not None]
        return pa.concat_arrays(known).unique() if len(known) == len(choices) else None
    return None
