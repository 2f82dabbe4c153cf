"""Which parts of statements are read; a statement with any other part is refused."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from fluss_df.backend.sql.dialect import spot
from fluss_df.errors import FlussError
from fluss_df.pushdown.arguments import unread

# for each class of node, the arguments that are read, or refused by name
READ: Final[dict[type[exp.Expr], frozenset[str]]] = {
    exp.Create: frozenset({"this", "kind", "exists", "expression", "properties", "replace"}),
    exp.Drop: frozenset({"tables", "kind", "exists", "cascade", "restrict"}),
    exp.Alter: frozenset({"this", "kind", "actions", "exists"}),
    exp.AddPartition: frozenset({"this", "exists"}),
    exp.DropPartition: frozenset({"expressions", "exists"}),
    exp.AlterSet: frozenset({"expressions"}),
    exp.Use: frozenset({"this"}),
    exp.TruncateTable: frozenset({"expressions", "partition"}),
    exp.Insert: frozenset(
        {"this", "expression", "with_", "overwrite", "where", "conflict", "returning"}
        | {"alternative"}
    ),
    exp.Update: frozenset(
        {"this", "expressions", "where", "from_", "returning", "limit", "order", "with_"}
    ),
    exp.Delete: frozenset({"this", "where", "using", "returning", "limit", "order", "with_"}),
    exp.Merge: frozenset({"this", "using", "on", "using_cond", "whens", "with_", "returning"}),
    exp.Whens: frozenset({"expressions"}),
    exp.When: frozenset({"matched", "source", "condition", "then"}),
    exp.Table: frozenset({"this", "db", "alias", "partition"}),
    exp.Schema: frozenset({"this", "expressions"}),
    exp.Properties: frozenset({"expressions"}),
    exp.Property: frozenset({"this", "value"}),
    exp.SchemaCommentProperty: frozenset({"this"}),
    exp.PartitionedByProperty: frozenset({"this"}),
    exp.Partition: frozenset({"expressions"}),
    exp.ColumnDef: frozenset({"this", "kind", "constraints", "exists", "position"}),
    exp.ColumnConstraint: frozenset({"kind"}),
    exp.NotNullColumnConstraint: frozenset({"allow_null"}),
    exp.CommentColumnConstraint: frozenset({"this"}),
    # holds Flink's NOT ENFORCED, and nothing else
    exp.PrimaryKeyColumnConstraint: frozenset({"options", "include"}),
    exp.PrimaryKey: frozenset({"expressions", "options", "include"}),
    # "this" is the name of a key, which Fluss does not keep
    exp.Constraint: frozenset({"this", "expressions"}),
    exp.DataType: frozenset({"this", "kind", "expressions", "nested", "nullable"}),
    exp.DataTypeParam: frozenset({"this"}),
}


def require_read(tree: exp.Expr) -> None:
    """Check a statement, but for the queries and conditions in it.

    Raises FlussError for an argument of a part of it that is not read, naming it and where it
    stands.
    """
    if isinstance(tree, exp.Query | exp.Values | exp.Where):
        return
    names = READ.get(type(tree))
    name = None if names is None else unread(tree, names)
    if name is not None:
        part = type(tree).__name__.upper()
        raise FlussError(f"SQL cannot be run with {name.strip('_').upper()} of {part}{spot(tree)}")
    for child in tree.iter_expressions():
        require_read(child)
