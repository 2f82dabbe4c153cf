"""``MERGE INTO`` as it was written: its clauses, and what their columns are.

Every column of a condition or a value is resolved here, to ``alias.column`` of the target or the
source. So the rows of a statement are one frame whose columns are called that, and a name that both
sides have is an error, where Polars would take one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from fluss_df.backend.sql.dialect import Fluss, spot, unsupported
from fluss_df.backend.sql.operands.types import number_in
from fluss_df.backend.sql.sql_types import type_of_sql
from fluss_df.backend.sql.values import READ_FROM_TEXT, require_fitting
from fluss_df.errors import FlussError
from fluss_df.metadata import TablePath, require_columns
from fluss_df.schema import TableInfo
from fluss_df.types import Column, TypeRoot

MATCHED: Final = "WHEN MATCHED"
NOT_MATCHED: Final = "WHEN NOT MATCHED"
BY_SOURCE: Final = "WHEN NOT MATCHED BY SOURCE"

# a number with a point is a DECIMAL to Polars, which goes into none of these as it is
_POINTED = (TypeRoot.FLOAT, TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INTEGER, TypeRoot.BIGINT)


@dataclass(frozen=True, slots=True)
class Side:
    """The target or the source of a statement, with the alias that it has there.

    ``path`` is set for a table without an alias, which the statement may also call by this name.
    """

    alias: str
    columns: tuple[str, ...]
    path: TablePath | None = None

    def named(self, column: str) -> str:
        """Return the name of a column among the rows of the statement."""
        return f"{self.alias}.{column}"

    def is_named_by(self, parts: Sequence[str]) -> int:
        """Return how many parts of a name say that it is of this side."""
        if self.path is not None and list(parts[:2]) == [
            self.path.database_name,
            self.path.table_name,
        ]:
            return 2
        return 1 if parts[0] == self.alias else 0


@dataclass(frozen=True, slots=True)
class Clause:
    """A ``WHEN`` of a statement.

    ``when`` is ``MATCHED``, ``NOT_MATCHED`` or ``BY_SOURCE``; ``condition`` is what follows
    ``AND``. ``action`` is ``"update"``, ``"insert"``, ``"delete"`` or ``"nothing"``. ``values`` has
    the value of each column that an update or insert sets.
    """

    when: str
    condition: exp.Expr | None
    action: str
    values: Mapping[str, exp.Expr]


@dataclass(frozen=True, slots=True)
class Merge:
    """A MERGE statement whose names are resolved.

    ``info`` is the target table, ``condition`` what follows ``ON``. The clauses keep their order.
    """

    info: TableInfo
    target: Side
    source: Side
    condition: exp.Expr
    clauses: tuple[Clause, ...]

    def of(self, when: str) -> list[Clause]:
        """Return the clauses of a kind."""
        return [clause for clause in self.clauses if clause.when == when]

    def used(self) -> set[str]:
        """Return the columns of both sides that the statement names."""
        found = [self.condition]
        for clause in self.clauses:
            found += clause.values.values()
            if clause.condition is not None:
                found.append(clause.condition)
        known = {side.named(c) for side in (self.target, self.source) for c in side.columns}
        return known & {
            c.text(part) for e in found for c in e.find_all(exp.Column) for part in _PLACES
        }

    def key_values(self) -> dict[str, exp.Expr]:
        """Return the columns of the target that ``ON`` sets equal to a value of the source."""
        found: dict[str, exp.Expr] = {}
        theirs = {self.target.named(c): c for c in self.target.columns}
        for part in (part.unnest() for part in self._conjuncts()):
            if not isinstance(part, exp.EQ):
                continue
            for one, other in ((part.this, part.expression), (part.expression, part.this)):
                one, other = one.unnest(), other.unnest()
                is_column = isinstance(one, exp.Column) and not one.table
                if is_column and one.name in theirs and self._of_source(other):
                    found.setdefault(theirs[one.name], other)
                    break
        return found

    def only_keys(self) -> bool:
        """Whether ``ON`` says that the primary keys are equal, and nothing else."""
        keys = self.info.get_primary_keys()
        return self.key_values().keys() == set(keys) and len(self._conjuncts()) == len(keys)

    def _conjuncts(self) -> list[exp.Expr]:
        whole = self.condition
        return list(whole.flatten()) if isinstance(whole, exp.And) else [whole]

    def _of_source(self, value: exp.Expr) -> bool:
        ours = {self.source.named(c) for c in self.source.columns}
        return value.find(exp.Query) is None and all(
            any(c.text(part) in ours for part in _PLACES) for c in value.find_all(exp.Column)
        )


_PLACES = ("table", "this")


def target_side(tree: exp.Merge, path: TablePath, info: TableInfo) -> Side:
    """Return the target of a statement."""
    if tree.args.get("returning"):
        raise FlussError(f"MERGE INTO {path} cannot be run with RETURNING")
    table = tree.this
    columns = tuple(info.get_column_names())
    return Side(table.alias or table.name, columns, None if table.alias else path)


def source_alias(tree: exp.Merge, path: TablePath, target: Side) -> str:
    """Return the alias of the source of a statement."""
    using = tree.args["using"]
    alias = str(using.alias_or_name)
    if not alias:
        raise FlussError(
            f"MERGE INTO {path}: the source needs a name: USING (...) AS s{spot(using)}"
        )
    if alias == target.alias:
        raise FlussError(
            f"MERGE INTO {path}: target and source are both called '{alias}': give one another"
            f" name, USING ... AS s{spot(using)}"
        )
    return alias


def resolved(tree: exp.Merge, info: TableInfo, target: Side, source: Side) -> Merge:
    """Return a statement with its names resolved.

    Raises FlussError for names that there are not, or that both sides have; clauses that do what
    cannot be done where they stand, or that no row reaches; values that are none of one row.
    """
    path = info.table_path
    both = (target, source)
    named = {side.named(c) for side in both for c in side.columns}
    if len(named) < len(target.columns) + len(source.columns):
        raise FlussError(f"MERGE INTO {path}: give the source another name, USING ... AS s")
    using = tree.args.get("using_cond")
    if using:
        names = [item.name for item in using]
        for side, what in ((target, f"MERGE INTO {path}: USING"), (source, "the source: USING")):
            require_columns(names, side.columns, what)
        condition: exp.Expr = exp.and_(
            *(
                exp.EQ(this=_column(target.named(n)), expression=_column(source.named(n)))
                for n in names
            )
        )
    elif tree.args.get("on"):
        condition = _resolved(tree.args["on"], both, path)
    else:
        raise FlussError(f"MERGE INTO {path}: expected ON and a condition behind the source")
    merge = Merge(info, target, source, condition, ())
    keys = set(info.get_primary_keys())
    equal = {name: value.sql(Fluss) for name, value in merge.key_values().items() if name in keys}
    clauses: list[Clause] = []
    reached: set[str] = set()
    for when in tree.args["whens"].expressions:
        clause = _clause(when, merge, equal)
        if clause.when in reached:
            raise FlussError(
                f"MERGE INTO {path}: no row reaches this clause, because a {clause.when} without a"
                f" condition stands before it: {when.sql(Fluss, comments=False)[:80]}{spot(when)}"
            )
        if clause.condition is None:
            reached.add(clause.when)
        clauses.append(clause)
    return Merge(info, target, source, condition, tuple(clauses))


def _clause(when: exp.When, merge: Merge, equal: Mapping[str, str]) -> Clause:
    path = merge.info.table_path
    sides: tuple[Side, ...]
    if when.args.get("matched"):
        kind, sides = MATCHED, (merge.target, merge.source)
    elif when.args.get("source"):
        kind, sides = BY_SOURCE, (merge.target,)
    else:
        kind, sides = NOT_MATCHED, (merge.source,)
    condition = when.args.get("condition")
    if condition is not None:
        condition = _resolved(condition, sides, path, kind)
    then = when.args["then"]
    action, values = "nothing", {}
    if isinstance(then, exp.Update) and kind != NOT_MATCHED:
        action, values = "update", _updated(then, merge, sides, kind, equal)
    elif isinstance(then, exp.Insert) and kind == NOT_MATCHED:
        action, values = "insert", _inserted(then, merge, kind)
    elif isinstance(then, exp.Var) and then.name.upper() == "DELETE" and kind != NOT_MATCHED:
        action = "delete"
    elif not (isinstance(then, exp.Var) and then.name.upper() == "DO NOTHING"):
        can = "INSERT" if kind == NOT_MATCHED else "UPDATE SET, DELETE"
        raise FlussError(
            f"MERGE INTO {path}: {kind} THEN takes {can} or DO NOTHING, not"
            f" {then.sql(Fluss, comments=False)[:80]}{spot(when)}"
        )
    if action in ("update", "delete"):
        require_changes(merge.info, "MERGE INTO", action)
    return Clause(kind, condition, action, values)


def require_changes(info: TableInfo, what: str, action: str) -> None:
    """Raise where the rows of a table cannot be updated or deleted."""
    path = info.table_path
    if not info.has_primary_key():
        raise FlussError(
            f"{what} {path}: the table has no primary key, so rows are only added to it: there"
            f" is no {action.upper()}, only WHEN NOT MATCHED THEN INSERT"
        )
    engine = info.get_properties().get("table.merge-engine")
    if engine:
        raise FlussError(
            f"{what} {path}: the table merges rows by itself ('table.merge-engine' ="
            f" '{engine}'), so there is no {action.upper()}; write to it with INSERT INTO"
        )
    behavior = info.get_properties().get("table.delete.behavior", "allow").lower()
    if action == "delete" and behavior != "allow":
        raise FlussError(
            f"{what} {path}: nothing is deleted there ('table.delete.behavior' = '{behavior}')"
        )


def _updated(
    then: exp.Update, merge: Merge, sides: Sequence[Side], kind: str, equal: Mapping[str, str]
) -> dict[str, exp.Expr]:
    path, info = merge.info.table_path, merge.info
    by_name = {column.name: column for column in info.schema.columns}
    found: dict[str, exp.Expr] = {}
    pairs = _all_by_name(merge, kind, "UPDATE SET *") if _is_star(then.expressions) else None
    if pairs is None:
        pairs = []
        for item in then.expressions:
            if not isinstance(item, exp.EQ) or not isinstance(item.this, exp.Column):
                raise unsupported(f"part of MERGE INTO {path}", item)
            parts = [part.name for part in item.this.parts]
            name = ".".join(parts[merge.target.is_named_by(parts) if len(parts) > 1 else 0 :])
            require_columns([name], merge.target.columns, f"MERGE INTO {path}: SET")
            value = _resolved(item.expression, sides, path, kind)
            pairs.append((name, value, item.this))
    for name, value, place in pairs:
        if name in found:
            raise FlussError(f"MERGE INTO {path}: column '{name}' is set twice{spot(place)}")
        if name in info.get_primary_keys():
            if equal.get(name) == value.sql(Fluss):
                continue  # ON says that the row has this key already
            raise FlussError(
                f"MERGE INTO {path}: column '{name}' is of the primary key, and cannot be set"
                f"{spot(place)}"
            )
        _require_written(info, name)
        found[name] = typed(value, by_name[name], path)
    return found


def _inserted(then: exp.Insert, merge: Merge, kind: str) -> dict[str, exp.Expr]:
    path, info = merge.info.table_path, merge.info
    by_name = {column.name: column for column in info.schema.columns}
    values = then.expression
    if isinstance(then.this, exp.Star):
        return {
            name: typed(value, by_name[name], path)
            for name, value, _ in _all_by_name(merge, kind, "INSERT *")
        }
    if not isinstance(values, exp.Tuple | exp.Paren):
        raise FlussError(
            f"MERGE INTO {path}: expected INSERT (columns) VALUES (...), not"
            f" {then.sql(Fluss, comments=False)[:80]}{spot(then)}"
        )
    given = values.expressions if isinstance(values, exp.Tuple) else [values.this]
    numbered = set(info.schema.auto_increment)
    listed = [c for c in by_name if c not in numbered]
    if then.this is not None:
        names = then.this.expressions if isinstance(then.this, exp.Tuple) else [then.this.unnest()]
        listed = [name.name for name in names]
        require_columns(listed, list(by_name), f"MERGE INTO {path}: INSERT")
        if len(set(listed)) != len(listed):
            raise FlussError(f"MERGE INTO {path}: INSERT names a column more than once{spot(then)}")
    if len(given) != len(listed):
        raise FlussError(
            f"MERGE INTO {path}: INSERT has {len(given)} values for {len(listed)} columns"
            f" ({', '.join(listed)}){spot(then)}"
        )
    found = {}
    for name, value in zip(listed, given, strict=True):
        _require_written(info, name)
        found[name] = typed(_resolved(value, (merge.source,), path, kind), by_name[name], path)
    missing = [
        c.name
        for c in info.schema.columns
        if c.name not in found and not c.type.nullable and c.name not in numbered
    ]
    if missing:
        raise FlussError(
            f"MERGE INTO {path}: INSERT gives no value for column '{missing[0]}', which is NOT"
            f" NULL{spot(then)}"
        )
    return found


def _require_written(info: TableInfo, name: str) -> None:
    if name in info.schema.auto_increment:
        raise FlussError(
            f"MERGE INTO {info.table_path}: column '{name}' is numbered by the server (auto"
            " increment) and cannot be written"
        )


def _is_star(items: Sequence[exp.Expr]) -> bool:
    return len(items) == 1 and isinstance(items[0], exp.Star)


def _all_by_name(merge: Merge, kind: str, what: str) -> list[tuple[str, exp.Expr, exp.Expr]]:
    """Return each column of the target, with the column of the source that has its name."""
    path, source = merge.info.table_path, merge.source
    if kind == BY_SOURCE:
        raise FlussError(f"MERGE INTO {path}: {what} takes a source, and {kind} has none")
    numbered = set(merge.info.schema.auto_increment)
    wanted = [c for c in merge.target.columns if c not in numbered]
    require_columns(wanted, source.columns, f"MERGE INTO {path}: {what}: the source")
    return [(n, value, value) for n in wanted for value in [_column(source.named(n))]]


def typed(value: exp.Expr, column: Column, path: TablePath) -> exp.Expr:
    """Return a value for a column, read as INSERT reads it: literals get the column's type.

    Raises FlussError for a literal that does not fit the column, naming both and where it stands.
    """
    bare = value.unnest()
    if isinstance(bare, exp.Var) and bare.name.upper() == "DEFAULT":
        bare = exp.null()  # in Fluss the default of every column is NULL
    if isinstance(bare, exp.Null):
        return bare
    text = isinstance(bare, exp.Literal) and bare.is_string
    number = number_in(bare)
    pointed = number is not None and not number.is_int
    if (text and column.type.root in READ_FROM_TEXT) or (pointed and column.type.root in _POINTED):
        require_fitting(bare, column, path)
        return exp.cast(bare, type_of_sql(column.type))
    return value


def _column(name: str) -> exp.Column:
    return exp.column(name, quoted=True)


def _resolved(
    value: exp.Expr, sides: Sequence[Side], path: TablePath, kind: str = "ON"
) -> exp.Expr:
    """Return an expression with its columns named as those of the rows."""
    value = value.copy()
    holder = exp.Paren(this=value)
    for part in list(value.find_all(exp.AggFunc, exp.Window, exp.Star)):
        if part.find_ancestor(exp.Query) is None:
            what = part.sql(Fluss, comments=False)[:80]
            raise FlussError(
                f"MERGE INTO {path}: {kind} is about one row, and {what} about several{spot(part)}"
            )
    for column in list(value.find_all(exp.Column)):
        names = [part.name for part in column.parts]
        if column.find_ancestor(exp.Query) is not None:
            if len(names) > 1 and any(side.is_named_by(names) for side in sides):
                inside = column.find_ancestor(exp.Select)
                tables = inside.find_all(exp.Table, exp.Subquery) if inside else ()
                if names[0] not in {t.alias_or_name for t in tables}:
                    raise FlussError(
                        f"MERGE INTO {path}: a subquery cannot speak of the row around it, as"
                        f" {column.sql(Fluss)} does: join what it needs in USING{spot(column)}"
                    )
            continue
        column.replace(_found(column, names, sides, path, kind))
    made: exp.Expr = holder.this
    return made.pop()


def _found(
    column: exp.Column, names: list[str], sides: Sequence[Side], path: TablePath, kind: str
) -> exp.Expr:
    of = next((s for s in sides if len(names) > 1 and s.is_named_by(names)), None)
    if of is not None:
        names = names[of.is_named_by(names) :]
        if names[0] not in of.columns:
            raise FlussError(
                f"MERGE INTO {path}: {of.alias} has no column '{names[0]}' (columns:"
                f" {', '.join(of.columns)}){spot(column)}"
            )
    else:
        having = [side for side in sides if names[0] in side.columns]
        if len(having) > 1:
            raise FlussError(
                f"MERGE INTO {path}: column '{names[0]}' is of both sides: write"
                f" {' or '.join(f'{side.alias}.{names[0]}' for side in having)}{spot(column)}"
            )
        if not having:
            there = "; ".join(f"{side.alias}: {', '.join(side.columns)}" for side in sides)
            raise FlussError(
                f"MERGE INTO {path}: {kind} has no column '{'.'.join(names)}' (columns of"
                f" {there}){spot(column)}"
            )
        of = having[0]
    made: exp.Expr = _column(of.named(names[0]))
    for field in names[1:]:
        held = exp.to_identifier(made.name, quoted=True) if isinstance(made, exp.Column) else None
        name = exp.to_identifier(field, quoted=True)
        made = (
            exp.Column(this=name, table=held)
            if held is not None and not made.args.get("table")
            else exp.Dot(this=made, expression=name)
        )
    return made
