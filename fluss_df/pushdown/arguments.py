"""Arguments of expressions: one that a translator does not read makes an expression unsupported.

A library whose expressions are translated may give a node a new argument, such as ``negate`` of a
LIKE. A translator that passes over it means something else than the user. So each translator names
the arguments that it reads of each kind of node, and checks all nodes before it translates one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from fluss_df.pushdown.predicate import UnsupportedExpression

if TYPE_CHECKING:
    from sqlglot import exp

Arguments = Mapping[type[Any], frozenset[str]]


def is_set(value: Any) -> bool:
    """Whether an argument of a node of sqlglot is there: None, False and empty ones are not."""
    if value is None or value is False:
        return False
    return bool(value) if isinstance(value, str | list | tuple | dict) else True


def unread(node: exp.Expr, read: Collection[str]) -> str | None:
    """Return the name of an argument that a node has and that is not read, if there is one."""
    return next(
        (name for name, value in node.args.items() if name not in read and is_set(value)), None
    )


def require_read(tree: exp.Expr, read: Arguments) -> None:
    """Check every node of a tree of sqlglot.

    ``read`` has the classes that the translator understands, each with the arguments that it reads.
    A subclass is another class.

    Raises UnsupportedExpression for a node of another class, or with another argument.
    """
    for node in tree.walk():
        names = read.get(type(node))
        if names is None:
            raise UnsupportedExpression(f"'{node.sql(dialect='spark')}' is not understood")
        name = unread(node, names)
        if name is not None:
            # names the class: sqlglot may fail to write a node with arguments of a newer release
            raise UnsupportedExpression(
                f"{type(node).__name__.upper()} with {name.strip('_')} is not understood"
            )


def require_keys(what: str, found: Any, read: Collection[str]) -> None:
    """Check that a node in JSON has no other keys than those that are read.

    Raises UnsupportedExpression for another key, or for what is no object.
    """
    if not isinstance(found, Mapping):
        raise UnsupportedExpression(f"{what} of an unknown form")
    other = sorted(set(found) - set(read))
    if other:
        raise UnsupportedExpression(f"{what} with {other[0]}")
