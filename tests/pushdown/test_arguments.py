"""An argument of an expression that no translator reads makes it one that is not translated."""

import polars as pl
import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from fluss_df.backend.sql import arguments as statements
from fluss_df.backend.sql.dialect import Fluss
from fluss_df.errors import FlussError
from fluss_df.polars_adapter.expressions import ExprNode
from fluss_df.pushdown.arguments import require_keys
from fluss_df.pushdown.from_polars import _convert, from_polars
from fluss_df.pushdown.predicate import UnsupportedExpression
from fluss_df.spark.plan.sql_filter import READ, SqlConditions

SCHEMA = pa.schema({"i": pa.int64(), "s": pa.string(), "b": pa.bool_(), "x": pa.binary()})
# of each class that conditions are made of, a condition with it
CONDITIONS = [
    "i = 1", "i <> 1", "i < 1", "i <= 1", "i > 1", "i >= 1", "i = 1 AND b", "i = 1 OR b", "i <=> 1",
    "startswith(s, 'a')", "endswith(s, 'a')", "contains(s, 'a')", "i IS NULL", "s LIKE 'a%'",
    "NOT b", "(b)", "i BETWEEN 1 AND 2", "i IN (1, 2)", "b = true", "x = X'1F'", "i = -1", "i = 5L",
    "b = date('2024-01-01')",
]  # fmt: skip
STATEMENTS = [
    "CREATE TABLE t (a INT NOT NULL COMMENT 'c', b DECIMAL(5, 2),"
    " CONSTRAINT p PRIMARY KEY (a) NOT ENFORCED) COMMENT 'd' PARTITIONED BY (a) WITH ('k' = 'v')",
    "CREATE TABLE t (a INT PRIMARY KEY)",
    "DROP TABLE d.t", "ALTER TABLE t ADD COLUMN b INT", "ALTER TABLE t SET ('k' = 'v')",
    "ALTER TABLE t ADD PARTITION (a = '1')", "ALTER TABLE t DROP PARTITION (a = '1')", "USE d",
    "TRUNCATE TABLE t", "INSERT INTO t (a) VALUES (1)", "UPDATE t SET a = 1 WHERE b = 2",
    "DELETE FROM t WHERE a = 1",
    "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED AND s.b > 1 THEN UPDATE SET b = s.b"
    " WHEN NOT MATCHED THEN INSERT (a, b) VALUES (s.a, s.b)",
]  # fmt: skip


def _nodes(
    texts: list[str], dialect: str | type[Fluss]
) -> dict[type[exp.Expr], tuple[exp.Expr, exp.Expr]]:
    """Return of each class a tree, and a node of the class in it."""
    found: dict[type[exp.Expr], tuple[exp.Expr, exp.Expr]] = {}
    for text in texts:
        tree = sqlglot.parse_one(text, dialect=dialect)
        for node in tree.walk():
            found.setdefault(type(node), (tree, node))
    return found


def _each_unread(read: dict[type[exp.Expr], frozenset[str]]) -> list[tuple[type[exp.Expr], str]]:
    return [(kind, name) for kind, names in read.items()
            for name in [*sorted(set(kind.arg_types) - names), "of_a_later_release"]]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), _each_unread(READ))
def test_conditions_of_spark(kind: type[exp.Expr], name: str) -> None:
    tree, node = _nodes([*CONDITIONS, "i <=> NULL"], "spark")[kind]
    for value in (True, "x", exp.true(), [exp.true()]):
        copied = tree.copy()
        (same,) = [n for n, old in zip(copied.walk(), tree.walk(), strict=True) if old is node]
        same.args[name] = value
        with pytest.raises(UnsupportedExpression, match="with"):
            SqlConditions(SCHEMA, "UTC").convert(copied)


def test_every_class_that_conditions_are_made_of_is_met() -> None:
    assert set(READ) <= set(_nodes([*CONDITIONS, "i <=> NULL"], "spark"))
    for kind, names in READ.items():
        # an argument that sqlglot has renamed is not read any more
        assert names <= set(kind.arg_types), kind


@pytest.mark.parametrize(("kind", "name"), _each_unread(statements.READ))
def test_statements(kind: type[exp.Expr], name: str) -> None:
    tree, node = _nodes(STATEMENTS, Fluss)[kind]
    copied = tree.copy()
    (same,) = [n for n, old in zip(copied.walk(), tree.walk(), strict=True) if old is node]
    statements.require_read(copied)
    same.args[name] = True
    with pytest.raises(FlussError, match=f"cannot be run with {name.strip('_').upper()}"):
        statements.require_read(copied)


def test_every_class_that_statements_are_made_of_is_met() -> None:
    assert set(statements.READ) <= set(_nodes(STATEMENTS, Fluss))
    for kind, names in statements.READ.items():
        assert names <= set(kind.arg_types), kind


@pytest.mark.parametrize(
    ("expression", "place"),
    [
        (pl.col("i") == 1, ("BinaryExpr",)),
        (pl.col("i").is_null(), ("Function",)),
        (pl.col("i").is_in([1]), ("Function", "function", "Boolean", "IsIn")),
        (pl.col("i").is_between(1, 2), ("Function", "function", "Boolean", "IsBetween")),
        (pl.col("s").str.contains("a"), ("Function", "function", "StringExpr", "Contains")),
    ],
    ids=str,
)
def test_expressions_of_polars(expression: pl.Expr, place: tuple[str, ...]) -> None:
    import json

    from_polars(expression, SCHEMA)
    tree = json.loads(expression.meta.serialize(format="json"))
    inner = tree
    for key in place:
        inner = inner[key]
    inner["of_a_later_release"] = False
    with pytest.raises(UnsupportedExpression, match="of_a_later_release"):
        _convert(ExprNode(expression, tree), SCHEMA)


def test_a_function_of_polars_with_new_options_is_not_understood() -> None:
    tree = {"Function": {"input": [{"Column": "i"}], "function": {"Boolean": {"IsNull": {"x": 1}}}}}
    with pytest.raises(UnsupportedExpression, match="IsNull with x"):
        _convert(ExprNode(pl.col("i").is_null(), tree), SCHEMA)
    with pytest.raises(UnsupportedExpression, match="of an unknown form"):
        require_keys("IsIn", None, ())
