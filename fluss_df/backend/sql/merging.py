"""``MERGE INTO``, run: everything is computed and checked, then it is written.

The source is read once. Its rows are joined with the current rows of the target, each pair and each
row that has none gets the first clause whose condition holds, and what the clauses say becomes
deletes of keys and whole rows. Nothing is sent before all of that is known and fits the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import polars as pl
import pyarrow as pa
from sqlglot import exp

from fluss_df.backend.catalog.frames import floats_of_decimals
from fluss_df.backend.key_lookups import KeySide, narrowed, narrows
from fluss_df.backend.sql.ddl import Ddl
from fluss_df.backend.sql.merge import (
    BY_SOURCE,
    MATCHED,
    NOT_MATCHED,
    Clause,
    Merge,
    Side,
    resolved,
    source_alias,
    target_side,
)
from fluss_df.backend.sql.queries import SqlScope, errors_of_polars, hints_within
from fluss_df.errors import FlussError
from fluss_df.io.base.names import all_exact, exact, key_signs, without_keys_of
from fluss_df.io.sinks.changes import Changes
from fluss_df.metadata import TablePath

_ROWS: Final = "__fluss_rows"
# columns with the numbers of rows: of the source, and of the frame that a clause looks at
_SOURCE_ROW: Final = "__fluss_source_row"
_NUMBER: Final = "__fluss_number"


class Merging(Ddl):
    """``MERGE INTO``."""

    def _merge(self, tree: exp.Merge, hints: int) -> pl.DataFrame:
        """Run a statement that has a number of hints; return how many rows it changed."""
        if not isinstance(tree.this, exp.Table):
            raise FlussError("MERGE INTO: expected the name of a table")
        path = self.path(tree.this.name, tree.this.db or None)
        if self.is_local(tree.this.name, tree.this.db or None):
            raise FlussError(f"MERGE INTO {tree.this.name}: it is local to the connection")
        info = self.written_info(path)
        target = target_side(tree, path, info)
        alias = source_alias(tree, path, target)
        common = tree.args.get("with_")
        with errors_of_polars():
            rows = self._source(tree.args["using"], common, path, hints)
            source = Side(alias, tuple(rows.columns))
            merge = resolved(tree, info, target, source)
            return _Run(self, merge, rows, common).run()

    def _source(
        self, using: exp.Expr, common: exp.Expr | None, path: TablePath, hints: int
    ) -> pl.DataFrame:
        query = exp.select("*").from_(using.copy())
        if common is not None:
            query.set("with_", common.copy())
        if hints_within(query) != hints:
            raise FlussError(
                f"MERGE INTO {path}: a hint /*+ ... */ has an effect in USING only: the target is"
                " read as it is now"
            )
        return SqlScope(self).run(query, hints).collect()


class _Run:
    """One run of a statement.

    ``source`` has the source's rows. ``common`` is the ``WITH`` before the statement, which
    subqueries may name.
    """

    def __init__(
        self, catalog: Merging, merge: Merge, source: pl.DataFrame, common: exp.Expr | None
    ) -> None:
        self._catalog = catalog
        self._merge = merge
        self._common = common
        self._path = merge.info.table_path
        self._keys = merge.info.get_primary_keys()
        self._source = source.rename(merge.source.named).with_row_index(_SOURCE_ROW)
        self._changes = Changes(catalog.connection, merge.info)
        self._counts = {"inserted": 0, "updated": 0, "deleted": 0}
        self._acted: list[pl.DataFrame] = []
        self._gone: list[pa.Table] = []
        self._new: list[pa.Table] = []

    def run(self) -> pl.DataFrame:
        merge = self._merge
        target = self._target()
        if merge.of(BY_SOURCE):
            # read once, because a second reading could find other rows
            target = target.collect().lazy()
        pairs = self._pairs(target)
        for clause, chosen in self._chosen(merge.of(MATCHED), pairs):
            self._change(clause, chosen)
        if merge.of(NOT_MATCHED):
            alone = self._source.join(pairs.select(_SOURCE_ROW), on=_SOURCE_ROW, how="anti")
            for clause, chosen in self._chosen(merge.of(NOT_MATCHED), alone):
                self._insert(clause, chosen)
        if merge.of(BY_SOURCE):
            names = [merge.target.named(key) for key in self._keys or merge.target.columns]
            left = without_keys_of(target, pairs.lazy(), names, nulls_equal=True).collect()
            for clause, chosen in self._chosen(merge.of(BY_SOURCE), left):
                self._change(clause, chosen)
        self._require_one_change_each()
        self._require_new_keys()
        self._changes.apply()
        return pl.DataFrame(
            {"table": [str(self._path)], "rows": [self._changes.rows], **self._counts}
        )

    # ---- reading

    def _target(self) -> pl.LazyFrame:
        """Return the rows of the target that the statement is about, named as its own."""
        merge, info = self._merge, self._merge.info
        frame = self._catalog.scan_table(self._path.table_name, self._path.database_name)
        given = merge.key_values()
        whole = set(self._keys) <= given.keys()
        of = self._keys if whole else [*info.get_partition_keys(), *info.get_bucket_keys()]
        given = {name: value for name, value in given.items() if name in of}
        if not merge.of(BY_SOURCE) and given and narrows(info, list(given)):
            side = self._key_side(given, frame)
            if side is not None:
                frame = narrowed(frame, self._path, self._catalog.connection, side)
        if not any(clause.action == "update" for clause in merge.clauses):
            used = merge.used()
            needed = [
                c for c in merge.target.columns if c in self._keys or merge.target.named(c) in used
            ]
            # where no column is needed, one is read for the number of rows
            frame = frame.select(all_exact(needed or merge.target.columns[:1]))
        return frame.rename({c: merge.target.named(c) for c in frame.collect_schema().names()})

    def _key_side(self, given: Mapping[str, exp.Expr], frame: pl.LazyFrame) -> KeySide | None:
        """Return the keys of the source, where their types are such that they can be looked up."""
        kinds = frame.collect_schema()
        keys = self._computed(self._source.lazy(), given)
        found = keys.collect_schema()
        for name in given:
            same = kinds[name] == found[name]
            if not same and not (kinds[name].is_integer() and found[name].is_integer()):
                return None
        return KeySide(tuple(given), keys.drop(_NUMBER, strict=False).collect().lazy())

    def _pairs(self, target: pl.LazyFrame) -> pl.DataFrame:
        """Return the pairs of rows for which ``ON`` holds."""
        merge = self._merge
        used = merge.used()
        wanted = [merge.source.named(c) for c in merge.source.columns]
        source = self._source.lazy().select(
            _SOURCE_ROW, *all_exact(name for name in wanted if name in used)
        )
        # Polars turns the product into a join where the condition compares columns
        product = target.join(source, how="cross")
        return self._where(product, merge.condition).collect()

    def _where(self, rows: pl.LazyFrame, condition: exp.Expr) -> pl.LazyFrame:
        return self._query(exp.select("*").where(condition.copy()), rows)

    def _computed(self, rows: pl.LazyFrame, values: Mapping[str, exp.Expr]) -> pl.LazyFrame:
        """Return values of each row, by name."""
        rows = rows.with_row_index(_NUMBER)
        places = {f"__fluss_value_{at}": name for at, name in enumerate(values)}
        items = [
            exp.alias_(value.copy(), place)
            for place, value in zip(places, values.values(), strict=True)
        ]
        # constants alone would give one row; beside the number they give one for each row
        query = exp.select(exp.column(_NUMBER), *items)
        return self._query(query, rows).rename(places)

    def _query(self, query: exp.Select, rows: pl.LazyFrame) -> pl.LazyFrame:
        if self._common is not None and query.find(exp.Table):
            query.set("with_", self._common.copy())
        scope = SqlScope(self._catalog)
        scope.register(_ROWS, rows)
        return scope.run(query.from_(exp.to_table(_ROWS)))

    # ---- deciding

    def _chosen(
        self, clauses: Sequence[Clause], rows: pl.DataFrame
    ) -> Iterator[tuple[Clause, pl.DataFrame]]:
        """Give each clause its rows: those of no clause before it for which its condition holds."""
        rows = rows.with_row_index(_NUMBER)
        for clause in clauses:
            if clause.condition is None:
                yield clause, rows.drop(_NUMBER)
                return
            chosen = self._where(rows.lazy(), clause.condition).collect()
            rows = rows.join(chosen.select(_NUMBER), on=_NUMBER, how="anti")
            yield clause, chosen.drop(_NUMBER)

    def _change(self, clause: Clause, rows: pl.DataFrame) -> None:
        """Take the updates or deletes of rows of the target."""
        if clause.action == "nothing" or rows.is_empty():
            return
        target = self._merge.target
        own = rows.select(exact(target.named(key)).alias(key) for key in self._keys)
        self._acted.append(own)
        if clause.action == "delete":
            self._gone.append(self._changes.delete(own.to_arrow()))
            self._counts["deleted"] += len(own)
            return
        numbered = set(self._merge.info.schema.auto_increment)
        kept = [c for c in target.columns if c not in clause.values and c not in numbered]
        made = rows.select(exact(target.named(c)).alias(c) for c in kept)
        values = self._computed(rows.lazy(), clause.values).drop(_NUMBER).collect()
        self._written(pl.concat([made, values], how="horizontal"))
        self._counts["updated"] += len(rows)

    def _insert(self, clause: Clause, rows: pl.DataFrame) -> None:
        if clause.action == "nothing" or rows.is_empty():
            return
        values = self._computed(rows.lazy(), clause.values).drop(_NUMBER).collect()
        self._new.append(self._written(values))
        self._counts["inserted"] += len(rows)

    def _written(self, rows: pl.DataFrame) -> pa.Table:
        fitting = floats_of_decimals(rows, self._merge.info)
        assert isinstance(fitting, pl.DataFrame)
        return self._changes.write(fitting.to_arrow())

    # ---- checking

    def _require_one_change_each(self) -> None:
        """Raise where a row would be changed more than once: which change counts is not said."""
        if not self._acted:
            return
        counts = self._counted(pl.concat(self._acted))
        worst = counts.filter(pl.col("__fluss_len") > 1).head(1)
        if len(worst):
            raise FlussError(
                f"MERGE INTO {self._path}: the row with {self._shown(worst)} matches"
                f" {worst['__fluss_len'][0]} rows of the source, and may be changed by one only:"
                " nothing was written; have one row for each key in USING, by GROUP BY or a"
                " condition in ON"
            )

    def _require_new_keys(self) -> None:
        """Raise where a row that is to be inserted has the key of another one."""
        if not self._new or not self._keys:
            return
        made = pa.concat_tables(table.select(self._keys) for table in self._new)
        new = pl.DataFrame(made)
        counts = self._counted(new)
        twice = counts.filter(pl.col("__fluss_len") > 1).head(1)
        if len(twice):
            raise FlussError(
                f"MERGE INTO {self._path}: {twice['__fluss_len'][0]} rows would be inserted with"
                f" the key {self._shown(twice)}: nothing was written; have one row for each key in"
                " USING"
            )
        if self._inserts_unmatched_keys():
            return
        scan = self._catalog.scan_table(self._path.table_name, self._path.database_name)
        side = KeySide(tuple(self._keys), new.lazy())
        there = narrowed(scan, self._path, self._catalog.connection, side)
        found = there.select(all_exact(self._keys)).collect()
        for gone in self._gone:
            found = without_keys_of(found.lazy(), pl.LazyFrame(gone), self._keys).collect()
        if len(found):
            raise FlussError(
                f"MERGE INTO {self._path}: a row with {self._shown(found)} would be inserted, and"
                " there is one with this key that ON does not match: nothing was written; compare"
                " the whole primary key in ON"
            )

    def _inserts_unmatched_keys(self) -> bool:
        """Whether rows are inserted under the keys that ``ON`` found no row of, so all are new."""
        equal = self._merge.key_values()
        return self._merge.only_keys() and all(
            clause.values.get(key) == equal[key]
            for clause in self._merge.of(NOT_MATCHED)
            if clause.action == "insert"
            for key in self._keys
        )

    def _counted(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return how many rows there are of each key."""
        signs = key_signs(self._keys, rows.schema)
        by = [*all_exact(self._keys), *(expr.alias(name) for name, expr in signs.items())]
        return rows.group_by(by).len("__fluss_len")

    def _shown(self, rows: pl.DataFrame) -> str:
        return ", ".join(f"{key} = {rows[key][0]!r}" for key in self._keys)
