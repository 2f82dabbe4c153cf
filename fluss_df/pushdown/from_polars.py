"""Polars expressions to predicates.

Polars gives a filter to a scan as a list of conjuncts, normalised: the column on the left, literals
in the type of the column. :mod:`fluss_df.polars_adapter.expressions` reads their structure.
What is not understood raises :class:`UnsupportedExpression` and stays with Polars.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from fluss_df.polars_adapter.expressions import (
    ExprNode,
    UnknownFormError,
    calls_python,
    name_and_options,
    root_names,
)
from fluss_df.pushdown.arguments import require_keys
from fluss_df.pushdown.evaluate import bind
from fluss_df.pushdown.predicate import (
    Constant,
    IsNotNull,
    IsNull,
    Not,
    Op,
    Predicate,
    TextMatch,
    TextOp,
    UnsupportedExpression,
    and_,
    between,
    compare,
    in_,
    or_,
)
from fluss_df.pushdown.prune import Conjunct, Mask

_OPS = {"Eq": Op.EQ, "NotEq": Op.NE, "Lt": Op.LT, "LtEq": Op.LE, "Gt": Op.GT, "GtEq": Op.GE}
_TEXT_OPS = {"StartsWith": TextOp.STARTS_WITH, "EndsWith": TextOp.ENDS_WITH}
# the options of functions that have some; all of them must be read, as results depend on them
_OPTIONS: dict[str, tuple[str, ...]] = {
    "IsBetween": ("closed",),
    "IsIn": ("nulls_equal",),
    # "strict" says what an invalid regular expression does; only plain texts are translated
    "Contains": ("literal", "strict"),
}
_ARGUMENTS = {"IsBetween": 3, "IsIn": 2}
_CLOSED = {"Both": "both", "Left": "left", "Right": "right", "None": "none"}
# regular expressions of these characters alone match themselves and nothing else
_PLAIN = re.compile(r"[A-Za-z0-9_ \-/:,;@%&=<>'\"!~`]*")


def from_polars(expression: pl.Expr, schema: pa.Schema) -> Predicate:
    """Return the predicate that a Polars expression of booleans means.

    Raises UnsupportedExpression for whatever is not a predicate of
    :mod:`fluss_df.pushdown.predicate`, a literal that its column's type does not have, or a column
    that is not in the schema.

    Examples
    --------
    >>> schema = pa.schema({"x": pa.int64()})
    >>> str(from_polars(pl.col("x").is_between(1, 5, closed="left"), schema))
    'x >= 1 and x < 5'
    """
    unknown = sorted(root_names(expression) - set(schema.names))
    if unknown:
        raise UnsupportedExpression(f"no column {', '.join(unknown)} in the scan")
    try:
        predicate = _convert(ExprNode(expression), schema)
    except UnknownFormError as error:
        raise UnsupportedExpression(str(error)) from None
    except (pl.exceptions.PolarsError, RecursionError, ValueError) as error:
        # a Python function in the expression cannot be serialised, for example
        raise UnsupportedExpression(f"{type(error).__name__}: {error}") from None
    return bind(predicate, schema)


def matches(expression: pl.Expr, rows: pl.DataFrame) -> pl.Series:
    """Return for each row whether it may satisfy a conjunct, by evaluating the conjunct itself.

    Polars gives a scan only conjuncts that look at each row by itself, so that evaluating one on
    the distinct values of its columns says the same as evaluating it on all rows.

    Raises UnsupportedExpression when the expression runs Python code, which may not be repeated, or
    fails on these rows, which another conjunct might have excluded.
    """
    try:
        if calls_python(expression):
            raise UnsupportedExpression("it calls a Python function")
        mask = rows.select(kept=expression.fill_null(False)).get_column("kept")
    except pl.exceptions.PolarsError as error:
        raise UnsupportedExpression(f"{type(error).__name__}: {error}") from None
    if mask.dtype != pl.Boolean:
        raise UnsupportedExpression(f"it is {mask.dtype}, not boolean")
    if len(mask) != len(rows):
        # a condition on no column, such as pl.lit(True), gives one value for all rows
        if len(mask) != 1:
            raise UnsupportedExpression("it is not a value for each row")
        mask = mask.new_from_index(0, len(rows))
    return mask


def _function(form: Any, inputs: Sequence[ExprNode], number: int) -> tuple[str, Any]:
    """Return the name of a function with a number of arguments, and its options, all known."""
    name, options = name_and_options(form)
    if len(inputs) != number:
        raise UnsupportedExpression(f"{name} with {len(inputs)} arguments")
    if name in _OPTIONS or options is not None:
        require_keys(name, options, _OPTIONS.get(name, ()))
    return name, options


def _convert(node: ExprNode, schema: pa.Schema) -> Predicate:
    kind, content = node.kind, node.content
    if kind == "Column":
        if not pa.types.is_boolean(schema.field(content).type):
            raise UnsupportedExpression(f"column {content} is not boolean")
        return compare(content, Op.EQ, pa.scalar(True))
    if kind == "Literal":
        value = _literal(node)
        if not pa.types.is_boolean(value.type) and value.is_valid:
            raise UnsupportedExpression("a literal that is not boolean")
        return Constant(value.as_py())
    if kind == "BinaryExpr":
        require_keys(kind, content, ("left", "op", "right"))
        return _binary(content["op"], node.inputs(), schema)
    if kind == "Function":
        require_keys(kind, content, ("input", "function"))
        inputs = node.inputs()
        family, function = name_and_options(content["function"])
        if family == "Boolean":
            return _boolean(function, inputs, schema)
        if family == "StringExpr":
            return _text(function, inputs)
    raise UnsupportedExpression(f"{kind} is not a predicate")


def _column(node: ExprNode) -> str:
    if node.kind != "Column":
        raise UnsupportedExpression(f"{node.kind} is not a column")
    return str(node.content)


def _literal(node: ExprNode) -> pa.Scalar:
    return _literal_values(node)[0]


def _literal_values(node: ExprNode) -> pa.Array:
    """Return the value of a literal, exactly as typed, as an array."""
    if not node.is_literal():
        raise UnsupportedExpression(f"{_written(node.expression)} is not a literal")
    array = pl.select(node.expression).to_series().to_arrow()
    return _unview(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)


def _binary(op: str, inputs: Sequence[ExprNode], schema: pa.Schema) -> Predicate:
    combine: Callable[[list[Predicate]], Predicate] | None = {
        "And": and_,
        "LogicalAnd": and_,
        "Or": or_,
        "LogicalOr": or_,
    }.get(op)
    if combine is not None:
        return combine([_convert(side, schema) for side in inputs])
    if inputs[0].kind == "Literal":
        inputs = inputs[::-1]
        op = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}.get(op, op)
    column, value = _column(inputs[0]), _literal(inputs[1])
    _only_exact(value.type, schema.field(column).type)
    if op in _OPS:
        return compare(column, _OPS[op], value)
    # with "eq_missing", null is a value like others
    if op == "EqValidity":
        if not value.is_valid:
            return IsNull(column)
        return and_((IsNotNull(column), compare(column, Op.EQ, value)))
    if op == "NotEqValidity":
        if not value.is_valid:
            return IsNotNull(column)
        return or_((IsNull(column), compare(column, Op.NE, value)))
    raise UnsupportedExpression(f"the operator {op}")


def _only_exact(literal: pa.DataType, column: pa.DataType) -> None:
    """Refuse pairs of types that Polars compares by rounding one to the other."""
    if pa.types.is_floating(literal) != pa.types.is_floating(column) and not pa.types.is_null(
        literal
    ):
        raise UnsupportedExpression(f"a comparison of {column} with {literal}")
    if pa.types.is_floating(column) and literal != column and not pa.types.is_null(literal):
        raise UnsupportedExpression(f"a comparison of {column} with {literal}")


def _boolean(function: Any, inputs: Sequence[ExprNode], schema: pa.Schema) -> Predicate:
    name, options = _function(function, inputs, _ARGUMENTS.get(name_and_options(function)[0], 1))
    if name == "Not":
        # on integers, "not" is bitwise
        return Not(_convert(inputs[0], schema))
    if name == "IsNull":
        return IsNull(_column(inputs[0]))
    if name == "IsNotNull":
        return IsNotNull(_column(inputs[0]))
    if name in ("IsNan", "IsNotNan"):
        column = _column(inputs[0])
        kind = schema.field(column).type
        if not pa.types.is_floating(kind):
            raise UnsupportedExpression(f"{name} of {kind}")
        nan = pa.scalar(float("nan"), kind)
        return compare(column, Op.EQ if name == "IsNan" else Op.NE, nan)
    if name == "IsBetween":
        column = _column(inputs[0])
        low, high = _literal(inputs[1]), _literal(inputs[2])
        _only_exact(low.type, schema.field(column).type)
        _only_exact(high.type, schema.field(column).type)
        return between(column, low, high, closed=_CLOSED[options["closed"]])
    if name == "IsIn":
        return _is_in(inputs, nulls_equal=bool(options["nulls_equal"]), schema=schema)
    raise UnsupportedExpression(f"the function {name}")


def _is_in(inputs: Sequence[ExprNode], *, nulls_equal: bool, schema: pa.Schema) -> Predicate:
    column = _column(inputs[0])
    values = _literal_values(inputs[1])
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        if len(values) != 1 or not values[0].is_valid:
            raise UnsupportedExpression("an is_in with several lists")
        values = _unview(values.flatten())
    _only_exact(values.type, schema.field(column).type)
    if pa.types.is_null(values.type):
        values = values.cast(schema.field(column).type)
    found = in_(column, values)
    if not nulls_equal:
        return found
    if values.null_count:
        return or_((IsNull(column), found))
    return and_((IsNotNull(column), found))


def _unview(array: pa.Array) -> pa.Array:
    if pa.types.is_large_string(array.type) or pa.types.is_string_view(array.type):
        return array.cast(pa.string())
    if pa.types.is_large_binary(array.type) or pa.types.is_binary_view(array.type):
        return array.cast(pa.binary())
    return array


def _text(function: Any, inputs: Sequence[ExprNode]) -> Predicate:
    name, options = _function(function, inputs, 2)
    column, value = _column(inputs[0]), _literal(inputs[1])
    if not pa.types.is_string(value.type):
        raise UnsupportedExpression(f"the function {name}")
    text = value.as_py()
    if text is None:
        return Constant(None)
    if name in _TEXT_OPS:
        return TextMatch(column, _TEXT_OPS[name], text)
    if name == "Contains" and (options["literal"] or _PLAIN.fullmatch(text)):
        return TextMatch(column, TextOp.CONTAINS, text)
    raise UnsupportedExpression(f"the function {name}")


class PolarsConjunct(Conjunct):
    """A condition that Polars gave a scan; ``expression`` is the condition itself."""

    def __init__(self, expression: pl.Expr, schema: pa.Schema) -> None:
        self.expression = expression
        self.columns = root_names(expression)
        self.predicate: Predicate | None
        try:
            self.predicate = from_polars(expression, schema)
            self.text = str(self.predicate)
        except UnsupportedExpression:
            self.predicate = None
            self.text = _written(expression)

    @property
    def is_plain(self) -> bool:
        """Whether Polars can hand the condition to a source that is written in Python.

        It does so as bytes, and a query fails where a function within has no such form.
        """
        if self.predicate is not None:
            return True
        try:
            return not calls_python(self.expression)
        except pl.exceptions.PolarsError:
            return False

    def matches(self, rows: pa.Table) -> Mask:
        """Evaluate the expression itself."""
        result: Mask = matches(self.expression, pl.DataFrame(rows)).to_numpy()
        return result


def _written(expression: pl.Expr) -> str:
    try:
        return str(expression)
    except pl.exceptions.PanicException:
        # Polars cannot write moments that its calendar does not have
        return f"a condition on {', '.join(sorted(root_names(expression)))}"


def conjuncts(expressions: Iterable[pl.Expr], schema: pa.Schema) -> list[PolarsConjunct]:
    """Return the filters of a query as predicates over columns of these types."""
    return [PolarsConjunct(expression, schema) for expression in expressions]
