"""One snapshot of a Paimon table, as scans want it: which files, and the plan over them."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import polars as pl
import polars.selectors as cs

from fluss_df.lake.options import BUCKET
from fluss_df.lake.paimon.binary_rows import BYTES, TEXTS, value_at
from fluss_df.lake.paimon.deletion_vectors import deleted_positions
from fluss_df.lake.paimon.manifests import PaimonFile, Snapshot, schema_of
from fluss_df.lake.paimon.pruning import MayHave
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.paimon.types import LakeSchema
from fluss_df.lake.snapshot import LakeSnapshotFiles
from fluss_df.pushdown.evaluate import project
from fluss_df.pushdown.predicate import Predicate, and_

# columns in files of primary-key tables: the order of a key's changes, and the kind of each
_SEQUENCE: Final = "_SEQUENCE_NUMBER"
_KIND: Final = "_VALUE_KIND"
# kinds of rows that are current: inserts and rows after an update. The others are rows before an
# update, and deletes.
_ALIVE: Final = (0, 2)
# a column that no table of Fluss has
_POSITION: Final = "\0position"
# types of keys whose order in Python is that of Paimon
_ORDERED: Final = (
    TEXTS | BYTES | {"BOOLEAN", "TINYINT", "SMALLINT", "INT", "INTEGER", "BIGINT", "DATE", "TIME"}
)


class PaimonSnapshot(LakeSnapshotFiles[PaimonFile]):
    """One snapshot of a Paimon table.

    Files of a primary-key table whose keys overlap are merged: the row of a key with the greatest
    sequence number counts, and it may be a delete. They are one group. A file whose keys no other
    file of its bucket may have is read as it is.
    """

    def __init__(self, table: TableFiles, snapshot: Snapshot) -> None:
        self._table = table
        self._schema = snapshot.schema
        self._vectors = snapshot.vectors
        partitions = snapshot.schema.partition_keys
        self._keys = tuple(k for k in snapshot.schema.primary_keys if k not in partitions)
        self._merged = bool(snapshot.schema.primary_keys)
        files: Sequence[PaimonFile] = snapshot.files
        if self._merged and snapshot.schema.options.get("deletion-vectors.enabled") == "true":
            # with deletion vectors only compacted files are read, in which each key is once
            files = [file for file in files if file.level > 0]
            self._merged = False
        self._schemas = functools.lru_cache(maxsize=None)(self._schema_of)
        deletes = len({vector.file for vector in self._vectors.values()})
        names = {field.name for field in snapshot.schema.fields}
        super().__init__(
            table.path,
            files,
            deletes,
            offsets=snapshot.offsets,
            # newer clusters make tables without these columns
            has_own_columns=BUCKET in names,
        )
        self._groups = self._sections() if self._merged else [(file,) for file in self.files]
        self._group_of = {f.path: number for number, g in enumerate(self._groups) for f in g}

    def wanted(self, predicates: Sequence[Predicate]) -> list[PaimonFile]:  # noqa: D102
        if not predicates:
            return list(self.files)
        # moves negations to the leaves; with all columns nothing else changes
        whole = and_(predicates)
        whole = project(whole, whole.columns())
        # a row of a key that a predicate on other columns leaves out overrides one that it keeps
        of_key = project(whole, self._schema.primary_keys)
        found = []
        for group in self._groups:
            kept = [file for file in group if self._may_have(file, of_key)]
            if any(self._may_have(file, whole) for file in kept):
                found += kept
        return found

    def groups(self, files: Iterable[PaimonFile]) -> list[tuple[PaimonFile, ...]]:  # noqa: D102
        found: dict[int, list[PaimonFile]] = defaultdict(list)
        for file in files:
            found[self._group_of[file.path]].append(file)
        return [tuple(group) for group in found.values()]

    def frame(self, files: Sequence[PaimonFile]) -> pl.LazyFrame:  # noqa: D102
        self.require_there(files)
        parts: list[pl.LazyFrame] = []
        plain: list[PaimonFile] = []
        merged: list[tuple[PaimonFile, ...]] = []
        for group in self.groups(files):
            if len(group) > 1:
                merged.append(group)
            elif group[0].name in self._vectors:
                parts.append(self._without_deleted(group[0]))
            elif self._merged and group[0].deletes:
                parts.append(self._alive(self._scan(group)))
            else:
                plain.append(group[0])
        if plain:
            parts.insert(0, self._scan(plain))
        if merged:
            parts += self._merge(merged)
        if not parts:
            return pl.LazyFrame(schema={f.name: f.type.polars for f in self._schema.fields})
        names = [_exact(field.name) for field in self._schema.fields]
        return pl.concat([part.select(names) for part in parts])

    def _may_have(self, file: PaimonFile, predicate: Predicate) -> bool:
        return MayHave(file, self._schemas(file.schema_id), self._schema).visit(predicate)

    def _schema_of(self, number: int) -> LakeSchema:
        return self._schema if number == self._schema.id else schema_of(self._table, number)

    # ---- what must be merged

    def _sections(self) -> list[tuple[PaimonFile, ...]]:
        """Return the files of each bucket in groups whose keys do not overlap."""
        buckets: dict[tuple[Any, ...], list[PaimonFile]] = defaultdict(list)
        for file in self.files:
            buckets[*file.partition.values(), file.bucket].append(file)
        found: list[tuple[PaimonFile, ...]] = []
        kinds = [self._schema.field(key).type for key in self._keys]
        for files in buckets.values():
            if not all(kind.root in _ORDERED for kind in kinds):
                found.append(tuple(files))
                continue
            ranges = [
                tuple(
                    tuple(value_at(row, position, kind) for position, kind in enumerate(kinds))
                    for row in file.keys
                )
                for file in files
            ]
            order = sorted(range(len(files)), key=lambda i, of=ranges: of[i])  # type: ignore[misc]
            section: list[PaimonFile] = []
            end: tuple[Any, ...] = ()
            for at in order:
                low, high = ranges[at]
                if section and low > end:
                    found.append(tuple(section))
                    section = []
                end = high if not section else max(end, high)
                section.append(files[at])
            found.append(tuple(section))
        return found

    def _merge(self, groups: Iterable[Sequence[PaimonFile]]) -> list[pl.LazyFrame]:
        """Return the newest row of each key of groups, where it is not a delete.

        What is in the highest level of a bucket is older than all else there, and has each key
        once: it is read without the keys of the others. Memory is that of the keys of the lower
        levels. A key is in one bucket of one partition, so that one plan serves all groups.
        """
        base: list[PaimonFile] = []
        newer: list[PaimonFile] = []
        for group in groups:
            top = max(file.level for file in group)
            for file in group:
                (base if top and file.level == top else newer).append(file)
        if not newer:
            return [self._alive(self._scan(base))]
        on = [_exact(key) for key in self._schema.primary_keys]
        changes = self._scan(newer)
        sequence = _exact(_SEQUENCE)
        last = changes.select(*on, sequence).group_by(on).agg(sequence.max())
        parts = [self._alive(changes.join(last, on=[*on, sequence], how="semi"))]
        if base:
            old = self._alive(self._scan(base))
            parts.append(old.join(changes.select(on), on=on, how="anti"))
        return parts

    @staticmethod
    def _alive(rows: pl.LazyFrame) -> pl.LazyFrame:
        return rows.filter(_exact(_KIND).is_in(_ALIVE))

    # ---- files

    def _without_deleted(self, file: PaimonFile) -> pl.LazyFrame:
        gone = pl.LazyFrame(
            {
                _POSITION: pl.Series(
                    deleted_positions(self._table, self._vectors[file.name]), dtype=pl.UInt32
                ).cast(pl.get_index_type())
            }
        )
        rows = self._scan([file], row_index_name=_POSITION)
        return rows.join(gone, on=_exact(_POSITION), how="anti").drop(cs.by_name(_POSITION))

    def _scan(self, files: Sequence[PaimonFile], **more: Any) -> pl.LazyFrame:
        """Return the rows of files as they are, with the columns of this snapshot's schema."""
        by_schema: dict[int, list[str]] = defaultdict(list)
        for file in files:
            by_schema[file.schema_id].append(file.path)
        parts = [
            self._scan_of(self._schemas(number), paths, **more)
            for number, paths in by_schema.items()
        ]
        return parts[0] if len(parts) == 1 else pl.concat(parts)

    def _scan_of(self, schema: LakeSchema, paths: Sequence[str], **more: Any) -> pl.LazyFrame:
        types = {field.name: field.type.polars for field in schema.fields}
        if self._schema.primary_keys:
            types |= {_SEQUENCE: pl.Int64(), _KIND: pl.Int8()}
        rows = pl.scan_parquet(
            list(paths),
            schema=types,
            extra_columns="ignore",
            hive_partitioning=False,
            glob=False,
            **more,
        )
        if schema.fields == self._schema.fields:
            return rows
        # columns are the same where their ids are, whatever they were called
        old = {field.id: field for field in schema.fields}
        columns: list[pl.Expr] = []
        for field in self._schema.fields:
            before = old.get(field.id)
            if before is None:
                columns.append(pl.lit(None, dtype=field.type.polars).alias(field.name))
                continue
            column = _exact(before.name)
            if before.type.polars != field.type.polars:
                column = column.cast(field.type.polars)
            columns.append(column.alias(field.name))
        added = [name for name in (_SEQUENCE, _KIND) if name in types]
        return rows.select(*columns, *added, *map(_exact, more.values()))


def _exact(name: str) -> pl.Expr:
    """Return the column of exactly this name: Polars takes ``*`` and ``^a$`` for patterns."""
    return cs.by_name(name).as_expr()
