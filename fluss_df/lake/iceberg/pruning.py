"""Which data files of an Iceberg table may have rows for which a predicate is true."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyiceberg.expressions
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    bind,
    expression_evaluator,
    inclusive_projection,
)

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
)

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

# its classes take names of columns, which their type hints do not say
ice: Any = pyiceberg.expressions

_OPS: dict[Op, Callable[[str, Any], Any]] = {
    Op.EQ: ice.EqualTo,
    Op.NE: ice.NotEqualTo,
    Op.LT: ice.LessThan,
    Op.LE: ice.LessThanOrEqual,
    Op.GT: ice.GreaterThan,
    Op.GE: ice.GreaterThanOrEqual,
}


class _ToIceberg(PredicateVisitor[Any]):
    """Iceberg's expression for a predicate; UnsupportedExpression for what it has none for."""

    def comparison(self, node: Comparison) -> Any:
        return _OPS[node.op](node.column, _value(node.literal))

    def in_(self, node: In) -> Any:
        return ice.In(node.column, {_value(value) for value in node.values if value.is_valid})

    def is_null(self, node: IsNull) -> Any:
        return ice.IsNull(node.column)

    def is_not_null(self, node: IsNotNull) -> Any:
        return ice.NotNull(node.column)

    def text_match(self, node: TextMatch) -> Any:
        if node.op is not TextOp.STARTS_WITH:
            raise UnsupportedExpression("statistics say nothing of the ends of texts")
        return ice.StartsWith(node.column, node.text)

    def constant(self, node: Constant) -> Any:
        # a condition that is null keeps no row, and neither does its negation
        raise UnsupportedExpression("a constant")

    def and_(self, node: And) -> Any:
        return ice.And(*(self.visit(part) for part in node.operands))

    def or_(self, node: Or) -> Any:
        return ice.Or(*(self.visit(part) for part in node.operands))

    def not_(self, node: Not) -> Any:
        return ice.Not(self.visit(node.operand))


def _value(literal: pa.Scalar) -> Any:
    # NaN is the greatest of all numbers in Polars, and not in the statistics of Iceberg
    if pa.types.is_floating(literal.type):
        raise UnsupportedExpression("statistics say nothing of NaN")
    finer = pa.types.is_timestamp(literal.type) or pa.types.is_time64(literal.type)
    if finer and literal.type.unit == "ns" and literal.is_valid and literal.value % 1000:
        # Iceberg would cut off the nanoseconds, which gives an earlier moment
        raise UnsupportedExpression("the lake has microseconds")
    return literal.as_py()


def file_filter(table: Table, predicates: Sequence[Predicate]) -> Callable[[DataFile], bool]:
    """Return a function that tells whether a data file may have rows that satisfy all predicates.

    By the values of its partition, and the least and greatest values of its columns. A predicate
    that Iceberg cannot judge keeps every file.
    """
    schema = table.schema()
    kept: list[Any] = []
    named: set[int] = set()
    for predicate in predicates:
        # types and values that Iceberg does not have raise errors of many types
        with contextlib.suppress(Exception):
            expression = _ToIceberg().visit(predicate)
            bind(schema, expression, case_sensitive=True)
            # IN with an empty list is a constant: binding it does not find that a column is missing
            ids = {schema.find_field(name).field_id for name in predicate.columns()}
            kept.append(expression)
            named |= ids
    if not kept:
        return lambda file: True
    wanted = ice.And(*kept) if len(kept) > 1 else kept[0]
    by_columns = _InclusiveMetricsEvaluator(schema, wanted)
    by_spec: dict[int, Callable[[DataFile], bool]] = {}
    specs = table.specs()

    def of_partition(spec_id: int) -> Callable[[DataFile], bool]:
        spec = specs[spec_id]
        if named.isdisjoint(field.source_id for field in spec.fields):
            # such as the columns of a table that is divided into buckets only
            return lambda file: True
        projected = inclusive_projection(schema, spec)(wanted)
        fits = expression_evaluator(_partition_schema(spec, schema), projected, True)
        return lambda file: fits(file.partition)

    def keep(file: DataFile) -> bool:
        try:
            judge = by_spec.get(file.spec_id)
            if judge is None:
                judge = by_spec[file.spec_id] = of_partition(file.spec_id)
            return judge(file) and by_columns.eval(file)
        # bounds of another type than the column's, as other writers may leave them
        except Exception:
            return True

    return keep


def _partition_schema(spec: Any, schema: Any) -> Any:
    from pyiceberg.schema import Schema

    return Schema(*spec.partition_type(schema).fields)
