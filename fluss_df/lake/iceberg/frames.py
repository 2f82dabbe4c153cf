"""Lazy frames over the files of an Iceberg snapshot, read by Polars' own Parquet reader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import polars as pl
import polars.selectors as cs
import pyarrow as pa

from fluss_df.lake.iceberg.access import StorageAccess
from fluss_df.lake.iceberg.files import LakeFile, SnapshotFiles, deleted_by
from fluss_df.lake.snapshot import local_path
from fluss_df.polars_adapter.lake_files import scan_by_ids

if TYPE_CHECKING:
    from pyiceberg.table import Table

# columns that no table of Fluss has: Polars' readers name positions and files by them
_POSITION: Final = "\0position"
_SEQUENCE: Final = "\0sequence"
_DELETED: Final = "\0deleted"
# the columns of a file that lists deleted positions
_FILE_PATH, _POS = "file_path", "pos"

#: The columns of a lake table, and the same with the ids that they have in its files.
LakeColumns: TypeAlias = tuple[dict[str, pl.DataType], pa.Schema]


def lake_frame(
    table: Table,
    files: SnapshotFiles,
    access: StorageAccess | None = None,
    columns_of: LakeColumns | None = None,
) -> pl.LazyFrame:
    """Return the rows of a snapshot with all columns of the lake table.

    Without ``access``, files are reached by the options of the table itself. ``columns_of`` is what
    :func:`lake_columns` returns for the table, for callers that have it already.
    """
    schema, ids = columns_of or lake_columns(table)
    options = (access or StorageAccess(table)).scan_options()

    def scan(paths: Sequence[str], **more: Any) -> pl.LazyFrame:
        local = [local_path(path) for path in paths]
        return scan_by_ids(local, schema, ids, missing_columns="insert", **options, **more)

    if not files.rows:
        return pl.LazyFrame(schema=schema)
    positions = _deleted_positions(files.positions, options)
    hit = {path for path in map(_path, files.rows) if path in positions} if positions else set()
    parts: list[pl.LazyFrame] = []
    for sequence, group in _by_sequence(files.rows, alone=not files.equalities).items():
        plain = [path for path in map(_path, group) if path not in hit]
        # the number of rows, by which Polars chooses the side of a join without opening the files
        count = sum(int(file.file.record_count) for file in group if _path(file) not in hit)
        frames = [scan(plain, rows=count)] if plain else []
        for path in map(_path, group):
            if path in hit:
                rows = scan([path], row_index_name=_POSITION)
                gone = pl.LazyFrame({_POSITION: positions[path].cast(pl.get_index_type())})
                frames.append(rows.join(gone, on=_POSITION, how="anti").drop(_POSITION))
        if files.equalities:
            frames = [frame.with_columns(pl.lit(sequence).alias(_SEQUENCE)) for frame in frames]
        parts += frames
    whole = parts[0] if len(parts) == 1 else pl.concat(parts)
    for keys, group in _by_keys(table, files.equalities).items():
        whole = _without(whole, keys, group, schema, ids, options)
    if files.equalities:
        whole = whole.drop(_SEQUENCE)
    return whole


def columns(names: Iterable[str]) -> list[pl.Expr]:
    """Return the columns of exactly these names: Polars takes ``*`` and ``^a$`` for patterns."""
    return [cs.by_name(name).as_expr() for name in names]


def _path(file: LakeFile) -> str:
    return str(file.file.file_path)


def _by_sequence(files: Iterable[LakeFile], *, alone: bool) -> dict[int, list[LakeFile]]:
    """Return files by sequence number; all of them together where none matters."""
    groups: dict[int, list[LakeFile]] = defaultdict(list)
    for file in files:
        groups[0 if alone else file.sequence].append(file)
    return groups


def _by_keys(table: Table, files: Iterable[LakeFile]) -> dict[tuple[str, ...], list[LakeFile]]:
    groups: dict[tuple[str, ...], list[LakeFile]] = defaultdict(list)
    for file in files:
        groups[tuple(deleted_by(table, file.file))].append(file)
    return groups


def _without(
    rows: pl.LazyFrame,
    keys: tuple[str, ...],
    deletes: Sequence[LakeFile],
    schema: Mapping[str, pl.DataType],
    ids: pa.Schema,
    options: Mapping[str, Any],
) -> pl.LazyFrame:
    """Return rows without those whose values are in files of later sequences.

    A value is in one partition only: a table is partitioned by columns of its primary key, or by
    their hash, and deletes are by the primary key.
    """
    names = columns(keys)
    parts = [
        scan_by_ids(
            [local_path(_path(file)) for file in group],
            {name: schema[name] for name in keys},
            ids,
            **options,
        )
        .select(names)
        .with_columns(pl.lit(sequence).alias(_DELETED))
        for sequence, group in _by_sequence(deletes, alone=False).items()
    ]
    last = pl.concat(parts).group_by(names).agg(*(column.max() for column in columns([_DELETED])))
    joined = rows.join(last, on=names, how="left", nulls_equal=True)
    deleted, sequence = columns([_DELETED, _SEQUENCE])
    alive = deleted.is_null() | (deleted <= sequence)
    return joined.filter(alive).drop(_DELETED)


def _deleted_positions(
    files: Sequence[LakeFile], options: Mapping[str, Any]
) -> dict[str, pl.Series]:
    """Return the positions of deleted rows, by the path of the file that has the rows.

    A position holds for files of its sequence and before; a file is never written again.
    """
    if not files:
        return {}
    paths = [local_path(_path(file)) for file in files]
    rows = pl.scan_parquet(
        paths,
        glob=False,
        extra_columns="ignore",
        schema={_FILE_PATH: pl.String(), _POS: pl.Int64()},
        **options,
    ).collect()
    return {
        str(key[0]): group.get_column(_POS).unique()
        for key, group in rows.partition_by(_FILE_PATH, as_dict=True).items()
    }


def lake_columns(table: Table) -> LakeColumns:
    """Return the columns of the lake table, and by which ids its files have them.

    In files they may be called otherwise: Iceberg's writers replace what Avro does not allow in
    names, as ``a b`` by ``a_x20b``. Polars finds columns by ids for its own Iceberg reader.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    arrow: pa.Schema = schema_to_pyarrow(table.schema(), include_field_ids=True)
    return dict(pl.DataFrame(arrow.empty_table()).schema), arrow


def with_row_number(frame: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return a frame with the number of each row as its first column, and the column's name."""
    name = "__row"
    while name in frame.columns:
        name += "_"
    return frame.with_row_index(name), name
