"""Filters that servers of 1.0 and later apply to log batches, by the statistics of a batch.

A server skips a batch if the minimum, the maximum and the number of nulls of its columns show that
none of its rows can pass. It sends all rows of other batches, so the client filters them again.
Batches have statistics if the table's property ``table.statistics.columns`` names columns. Servers
before 1.0 ignore the filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.errors import FlussError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.pushdown.evaluate import project
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
)
from fluss_df.record.log.statistics import statistics_columns, unscaled_value
from fluss_df.schema import TableInfo
from fluss_df.types import Column, TypeRoot

_R = TypeRoot
_FUNCTIONS: Final = {Op.EQ: 0, Op.NE: 1, Op.LT: 2, Op.LE: 3, Op.GT: 4, Op.GE: 5}
_TEXT_FUNCTIONS: Final = {TextOp.STARTS_WITH: 8, TextOp.CONTAINS: 9, TextOp.ENDS_WITH: 10}
_IS_NULL, _IS_NOT_NULL, _IN = 6, 7, 11
_LEAF, _COMPOUND = 0, 1
_AND, _OR = 0, 1
# comparing longer lists with each batch costs the server more than it saves
_MOST_VALUES: Final = 200

# Codes of types in literals. CHAR is left out, as it has no minimum and maximum, and TIME, as its
# literals have no digits behind milliseconds.
_CODES: Final = {
    _R.BOOLEAN: 0,
    _R.TINYINT: 1,
    _R.SMALLINT: 2,
    _R.INTEGER: 3,
    _R.BIGINT: 4,
    _R.FLOAT: 5,
    _R.DOUBLE: 6,
    _R.STRING: 8,
    _R.DECIMAL: 9,
    _R.DATE: 10,
    _R.TIMESTAMP_WITHOUT_TIME_ZONE: 12,
    _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE: 13,
}


# The least and greatest text of a batch were found by the order of UTF-8 bytes. But servers compare
# a prefix with them by UTF-16: the two orders differ where a text has a character from this one on.
_ORDERED_OTHERWISE: Final = "\ue000"


class _NotPushed(FlussError):  # noqa: N818 - handled here, and no error for users
    """A predicate that has no message, or whose message means another predicate to servers."""


class ServerFilter:
    """A filter in the form in which it is sent to servers.

    ``predicate`` is the message of the protocol; it names columns by their ids in the schema
    ``schema_id``. ``text`` is the predicate for plans that users print.
    """

    def __init__(self, predicate: pb.Predicate, schema_id: int, text: str) -> None:
        self.predicate = predicate
        self.schema_id = schema_id
        self.text = text


def server_filter(info: TableInfo, predicates: Iterable[Predicate]) -> ServerFilter | None:
    """Return the part of some conditions by which servers can skip batches; None if none can."""
    if info.has_primary_key():
        # not of a changelog: the old and the new row of an update belong together, and a filter
        # tests each row alone
        return None
    by_name = {
        column.name: column
        for column in statistics_columns(info)
        if column.type.root in _CODES and column.column_id is not None
    }
    if not by_name:
        return None
    messages: list[pb.Predicate] = []
    texts: list[str] = []
    for predicate in predicates:
        part = project(predicate, by_name)
        if isinstance(part, Constant):
            continue
        try:
            messages.append(_Message(by_name).visit(part))
        except _NotPushed:
            continue
        texts.append(str(part))
    if not messages:
        return None
    whole = messages[0] if len(messages) == 1 else _compound(_AND, messages)
    return ServerFilter(whole, info.schema_id, " and ".join(texts))


def _compound(function: int, children: Iterable[pb.Predicate]) -> pb.Predicate:
    compound = pb.CompoundPredicate(function=function, children=children)
    return pb.Predicate(type=_COMPOUND, compound=compound)


class _Message(PredicateVisitor[pb.Predicate]):
    def __init__(self, columns: dict[str, Column]) -> None:
        self._columns = columns

    def _leaf(self, function: int, column: str, values: Iterable[pa.Scalar] = ()) -> pb.Predicate:
        found = self._columns[column]
        literals = [_literal(value, found) for value in values]
        field_id = found.column_id
        leaf = pb.LeafPredicate(function=function, field_id=field_id, literals=literals)
        return pb.Predicate(type=_LEAF, leaf=leaf)

    def comparison(self, node: Comparison) -> pb.Predicate:
        return self._leaf(_FUNCTIONS[node.op], node.column, [node.literal])

    def in_(self, node: In) -> pb.Predicate:
        if not 0 < len(node.values) <= _MOST_VALUES:
            raise _NotPushed("too many values")
        return self._leaf(_IN, node.column, node.values)

    def is_null(self, node: IsNull) -> pb.Predicate:
        return self._leaf(_IS_NULL, node.column)

    def is_not_null(self, node: IsNotNull) -> pb.Predicate:
        return self._leaf(_IS_NOT_NULL, node.column)

    def text_match(self, node: TextMatch) -> pb.Predicate:
        if any(character >= _ORDERED_OTHERWISE for character in node.text):
            raise _NotPushed("servers look for it in another order than that of their statistics")
        return self._leaf(_TEXT_FUNCTIONS[node.op], node.column, [pa.scalar(node.text)])

    def constant(self, node: Constant) -> pb.Predicate:
        raise _NotPushed("a constant within a predicate")

    def and_(self, node: And) -> pb.Predicate:
        children = []
        for operand in node.operands:
            # a part of a conjunction is enough: it leaves out fewer batches, and none wrongly
            try:
                children.append(self.visit(operand))
            except _NotPushed:
                continue
        if not children:
            raise _NotPushed("no part of a conjunction")
        return children[0] if len(children) == 1 else _compound(_AND, children)

    def or_(self, node: Or) -> pb.Predicate:
        return _compound(_OR, map(self.visit, node.operands))

    def not_(self, node: Not) -> pb.Predicate:
        raise _NotPushed("a negated list or text match")


def _literal(value: pa.Scalar, column: Column) -> pb.LiteralValue:
    t = column.type
    made = pb.LiteralValue(literal_type=_CODES[t.root], is_null=False)
    _SETTERS[t.root](made, value, t.precision or 0)
    return made


def _set_float(made: pb.LiteralValue, value: pa.Scalar, _: int) -> None:
    number = value.as_py()
    # servers compare as Java does: -0.0 is less than 0.0, and NaN is greater than all numbers
    if math.isnan(number) or number == 0:
        raise _NotPushed(f"a comparison with {number}")
    if pa.types.is_float32(value.type):
        made.float_value = number
    else:
        made.double_value = number


def _set_decimal(made: pb.LiteralValue, value: pa.Scalar, precision: int) -> None:
    unscaled = unscaled_value(value.as_py())
    if precision <= 18:
        made.decimal_value = unscaled
    else:
        made.decimal_bytes = unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)


def _set_date(made: pb.LiteralValue, value: pa.Scalar, _: int) -> None:
    made.bigint_value = value.value  # days, as far away as Python's own dates do not reach


def _set_timestamp(made: pb.LiteralValue, value: pa.Scalar, _: int) -> None:
    per_milli = {"s": 0, "ms": 1, "us": 1_000, "ns": 1_000_000}[value.type.unit]
    number = pc.cast(value, pa.int64()).as_py()
    if not per_milli:
        made.timestamp_millis_value, made.timestamp_nano_of_millis_value = number * 1000, 0
        return
    made.timestamp_millis_value = number // per_milli
    made.timestamp_nano_of_millis_value = number % per_milli * (1_000_000 // per_milli)


def _setter(field: str) -> Callable[[pb.LiteralValue, pa.Scalar, int], None]:
    def assign(made: pb.LiteralValue, value: pa.Scalar, _: int) -> None:
        setattr(made, field, value.as_py())

    return assign


_SETTERS: Final[dict[TypeRoot, Any]] = {
    _R.BOOLEAN: _setter("boolean_value"),
    **dict.fromkeys((_R.TINYINT, _R.SMALLINT, _R.INTEGER), _setter("int_value")),
    _R.BIGINT: _setter("bigint_value"),
    _R.FLOAT: _set_float,
    _R.DOUBLE: _set_float,
    _R.STRING: _setter("string_value"),
    _R.DECIMAL: _set_decimal,
    _R.DATE: _set_date,
    _R.TIMESTAMP_WITHOUT_TIME_ZONE: _set_timestamp,
    _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE: _set_timestamp,
}
