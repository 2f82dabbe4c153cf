"""The inside of Polars expressions.

An expression's structure is read from its JSON form, its children with ``meta.pop()``, its literals
by evaluating them. Names of nodes, operators and functions are those of Polars 2.1: where another
release calls them otherwise, :class:`ExprNode` gives the old names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import polars as pl


class UnknownFormError(Exception):
    """An expression is not built as those of the releases that are known."""


class ExprNode:
    """A node of an expression.

    Raises UnknownFormError for an expression of a form that is not known. Raises PolarsError for an
    expression that has no JSON form, as one with a Python function.

    Attributes
    ----------
    expression
        The expression whose root the node is.
    kind
        What the node is: ``"Column"``, ``"Literal"``, ``"BinaryExpr"``, ``"Function"`` and others.
    content
        The name of a column; of other nodes what the JSON form has.
    """

    __slots__ = ("content", "expression", "kind")

    def __init__(self, expression: pl.Expr, tree: Any = None) -> None:
        if tree is None:
            tree = json.loads(expression.meta.serialize(format="json"))
        self.expression = expression
        self.kind, self.content = name_and_options(tree)

    def inputs(self) -> list[ExprNode]:
        """Return the nodes that an operator or a function is applied to."""
        content = self.content
        if self.kind == "BinaryExpr":
            trees = [content["left"], content["right"]]
        else:
            trees = content["input"]
        expressions = self.expression.meta.pop()[::-1]
        if len(expressions) != len(trees):
            raise UnknownFormError("an expression of an unknown form")
        return [ExprNode(part, tree) for part, tree in zip(expressions, trees, strict=True)]

    def is_literal(self) -> bool:
        """Whether the node is a literal, or a literal that is cast."""
        return bool(self.expression.meta.is_literal())


def name_and_options(tree: Any) -> tuple[str, Any]:
    """Return the name of what a JSON form holds, and what it holds of it; None for nothing."""
    if isinstance(tree, str):
        return tree, None
    if isinstance(tree, Mapping) and len(tree) == 1:
        return next(iter(tree.items()))
    raise UnknownFormError("an expression of an unknown form")


def root_names(expression: pl.Expr) -> frozenset[str]:
    """Return the names of the columns that an expression looks at."""
    return frozenset(expression.meta.root_names())


def calls_python(expression: pl.Expr) -> bool:
    """Whether an expression calls a Python function.

    Raises PolarsError for an expression that has no JSON form.
    """
    text = expression.meta.serialize(format="json")
    return '"AnonymousFunction"' in text or '"PythonUdf"' in text
