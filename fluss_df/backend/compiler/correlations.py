"""Where a subquery refers to the outer rows, those of the query around it.

Only the conditions of the subquery's filters may refer to them. A key is what such a condition
compares for equality. The relations above the filter are computed for the rows of each key
separately. A subquery for which this is not possible is refused. Otherwise Polars would take a
column of the outer table for the subquery's own column of that name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import ibis.common.exceptions as com
import ibis.expr.operations as ops
from ibis.expr.rewrites import DerefMap

#: Operations whose value for a row depends on other rows.
OF_OTHER_ROWS = (ops.WindowFunction, ops.Analytic, ops.Reduction)

# Both kinds of relations can be computed for the rows of each key separately. Only those of
# _OF_EACH may stand above conditions that are no equality: see Step.residual.
_OF_EACH = (ops.Filter, ops.Project, ops.Sort, ops.DropNull, ops.FillNull, ops.DropColumns)
_OF_KEYS = (ops.Limit, ops.Distinct, ops.Aggregate)

_NAMES = {
    ops.ScalarSubquery: "scalar subquery (as_scalar)",
    ops.ExistsSubquery: "exists subquery (any)",
    ops.InSubquery: "subquery of isin",
}


@dataclass(frozen=True, slots=True)
class Step:
    """A relation of a subquery: the first one that refers to the outer rows, or one above it.

    Each step's relation is computed from that of the step before. The other attributes are the
    conditions of a filter. They are empty for another relation.

    Attributes
    ----------
    own
        The conditions that do not refer to the outer rows.
    keys
        Pairs that are to be equal: a value of the outer rows, and one of the subquery's own.
    residual
        The other conditions that refer to the outer rows.
    """

    relation: ops.Relation
    own: list[ops.Value] = field(default_factory=list)
    keys: list[tuple[ops.Value, ops.Value]] = field(default_factory=list)
    residual: list[ops.Value] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Correlation:
    """How a subquery refers to the rows of the query around it, the outer rows.

    ``base`` is a relation that does not refer to them. ``steps`` are computed from its rows, one
    after another.
    """

    base: ops.Relation
    steps: list[Step]

    @property
    def keys(self) -> list[ops.Value]:
        """The values of the outer rows that are to be equal to the subquery's."""
        return [outer for step in self.steps for outer, _ in step.keys]

    @property
    def residual(self) -> list[ops.Value]:
        """The other conditions."""
        return [predicate for step in self.steps for predicate in step.residual]


def free_fields(relation: ops.Relation) -> list[ops.Field]:
    """Return the columns anywhere in a relation that are of no relation in it."""
    return _free([(relation, frozenset())])


def _free(todo: list[tuple[ops.Relation, frozenset[ops.Relation]]]) -> list[ops.Field]:
    found: list[ops.Field] = []
    seen = set()
    while todo:
        relation, around = here = todo.pop()
        if here in seen:
            continue
        seen.add(here)
        todo += [(below, around) for below in _below(relation)]
        fields, subqueries = _spoken(relation, around)
        found += fields
        todo += subqueries
    return found


def _below(relation: ops.Relation) -> list[ops.Relation]:
    return [child for child in relation.__children__ if isinstance(child, ops.Relation)]


def _spoken(
    relation: ops.Relation, around: frozenset[ops.Relation] = frozenset()
) -> tuple[list[ops.Field], list[tuple[ops.Relation, frozenset[ops.Relation]]]]:
    """Return the free columns in a relation's own values, and the subqueries in these."""
    known = around.union(_below(relation))
    found: list[ops.Field] = []
    subqueries: list[tuple[ops.Relation, frozenset[ops.Relation]]] = []
    for value in relation.__children__:
        if not isinstance(value, ops.Value):
            continue
        for node in value.find((ops.Field, ops.Subquery), filter=ops.Value):
            if isinstance(node, ops.Subquery):
                subqueries.append((node.rel, known))
            elif node.rel not in known:
                found.append(node)
    return found, subqueries


def correlation(
    op: ops.Subquery, relation: ops.Relation, outer: ops.Relation
) -> Correlation | None:
    """Return how a relation of a subquery refers to the outer rows; None where it does not.

    ``op`` is the subquery, for messages. ``relation`` is the one in it whose rows are wanted, and
    ``outer`` the one with the outer rows.

    Raises UnsupportedOperationError where it cannot be computed for each outer row.
    """
    chain: list[ops.Relation] = []
    while isinstance(relation, _OF_EACH + _OF_KEYS):
        chain.append(relation)
        relation = relation.parent
    if free := free_fields(relation):
        raise _refused(op, free[0], f"below its {type(relation).__name__}")
    found = Correlation(relation, [])
    for above in reversed(chain):
        fields, subqueries = _spoken(above)
        nested = _free(subqueries)
        if not (found.steps or fields or nested):
            found = Correlation(above, [])
            continue
        if nested:
            raise _refused(op, nested[0], "inside a further subquery")
        if fields and not isinstance(above, ops.Filter):
            raise _refused(op, fields[0], f"in its {type(above).__name__}, not in a filter")
        found.steps.append(_step(op, above, fields, outer))
        _require_computable(op, above, found)
    return found if found.steps else None


def require_own(op: ops.Subquery, relations: Iterable[ops.Relation]) -> None:
    """Check that the top relations of a scalar subquery can be computed for each outer row.

    They are the last aggregate and the projections above it, or the projections above a limit.

    Raises UnsupportedOperationError where one refers to the outer rows. Raises it also where a
    projection has a window function, an aggregate, an unnest or a further subquery.
    """
    for relation in relations:
        fields, subqueries = _spoken(relation)
        if free := fields + _free(subqueries):
            raise _refused(op, free[0], f"in its {type(relation).__name__}, not in a filter")
        values = relation.values.values() if isinstance(relation, ops.Project) else ()
        if any(
            v.find((*OF_OTHER_ROWS, ops.Unnest, ops.Subquery), filter=ops.Value) for v in values
        ):
            raise com.UnsupportedOperationError(
                f"the {_NAMES[type(op)]} refers to the rows around it, and has a window, unnest or"
                " further subquery above its aggregate or limit: write it as a join"
            )


def _require_computable(op: ops.Subquery, relation: ops.Relation, found: Correlation) -> None:
    """Raise for a relation that cannot be computed for the rows of each outer row separately."""
    values = [v for v in relation.__children__ if isinstance(v, ops.Value)]
    if isinstance(relation, ops.Aggregate):
        if not relation.groups:
            raise com.UnsupportedOperationError(
                f"the {_NAMES[type(op)]} refers to the rows around it below an aggregate without"
                " groups that is not its last: write it as a join"
            )
    elif any(v.find(OF_OTHER_ROWS, filter=ops.Value) for v in values):
        raise com.UnsupportedOperationError(
            f"the {_NAMES[type(op)]} refers to the rows around it below a window function, which"
            " would be computed over all rows: write it as a join"
        )
    if isinstance(relation, _OF_KEYS) and found.residual:
        raise com.UnsupportedOperationError(
            f"the {_NAMES[type(op)]} refers to the rows around it by more than equal columns below"
            f" its {type(relation).__name__}: write it as a join"
        )
    if isinstance(relation, ops.Limit) and not (
        isinstance(relation.offset, int) and isinstance(relation.n, int | None)
    ):
        raise com.UnsupportedOperationError("a limit in a subquery must be a number")


def _step(
    op: ops.Subquery, relation: ops.Relation, fields: list[ops.Field], outer: ops.Relation
) -> Step:
    made = Step(relation)
    if not isinstance(relation, ops.Filter):
        return made
    theirs = {given: _outer_field(op, given, outer) for given in fields}
    left = list(relation.predicates)
    while left:
        predicate = left.pop()
        if isinstance(predicate, ops.And):
            left += [predicate.left, predicate.right]
        elif not _of(predicate, theirs):
            made.own.append(predicate)
        elif isinstance(predicate, ops.Equals) and (pair := _pair(predicate, theirs)):
            made.keys.append((pair[0].replace(theirs, filter=ops.Value), pair[1]))
        else:
            made.residual.append(predicate.replace(theirs, filter=ops.Value))
    return made


def _outer_field(op: ops.Subquery, given: ops.Field, outer: ops.Relation) -> ops.Field:
    """Return which column of the outer rows a column outside the subquery is.

    The column may be one of a relation that the outer rows are made from.

    Raises UnsupportedOperationError where the outer rows do not have it.
    """
    if given.rel == outer:
        return given
    (found,) = DerefMap.from_targets(outer).dereference(given)
    if not isinstance(found, ops.Field) or found.rel != outer:
        raise _refused(op, given, "which is no column of the rows that the subquery stands beside")
    return found


def _of(value: ops.Value, fields: Iterable[ops.Field]) -> list[ops.Field]:
    return [f for f in value.find(ops.Field, filter=ops.Value) if f in fields]


def _pair(predicate: ops.Equals, theirs: Iterable[ops.Field]) -> tuple[ops.Value, ops.Value] | None:
    """Return the side of an equation that has columns of the outer rows only, then the other side.

    Return None where there is no such side, where the other side has columns of the outer rows,
    too, or where there is a subquery in the equation.
    """
    sides = [predicate.left, predicate.right]
    if any(side.find(ops.Subquery, filter=ops.Value) for side in sides):
        return None
    fields = [list(side.find(ops.Field, filter=ops.Value)) for side in sides]
    outer = [len(_of(side, theirs)) for side in sides]
    for at, other in ((0, 1), (1, 0)):
        if outer[at] == len(fields[at]) and outer[at] and not outer[other]:
            return sides[at], sides[other]
    return None


def _refused(op: ops.Subquery, of: ops.Field, where: str) -> com.UnsupportedOperationError:
    name = getattr(of.rel, "name", None)
    table = f"table {name}" if isinstance(name, str) else "the table"
    return com.UnsupportedOperationError(
        f"the {_NAMES[type(op)]} refers to column '{of.name}' of {table} around it, {where}: this"
        " cannot be computed for each row; refer to the column in a filter of equal columns, or"
        " write a join of the two tables"
    )
