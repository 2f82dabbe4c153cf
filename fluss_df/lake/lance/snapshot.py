"""One version of a Lance dataset, as scans want it: its fragments, and the rows of them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow as pa

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.options import LakeOptions
from fluss_df.lake.snapshot import DataFile, LakeSnapshotFiles, local_path
from fluss_df.metadata import TablePath
from fluss_df.polars_adapter.scans import scan_frames
from fluss_df.pushdown.predicate import Predicate
from fluss_df.record.keys.partition_names import partition_names
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    import lance

_ROWS: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class LanceFile(DataFile):
    """The rows of one partition in a fragment, whose number is ``fragment``.

    A fragment that a tiering service wrote has rows of one partition. A fragment that was compacted
    by hand may have rows of several, and is then one LanceFile for each partition, all of the same
    path.
    """

    fragment: int


class LanceSnapshot(LakeSnapshotFiles[LanceFile]):
    """One version of a Lance dataset.

    Fluss 0.9.1 writes the rows of log tables to Lance without their bucket, offset and time. It
    also writes TIMESTAMP_LTZ columns without the zone UTC: ``zoned`` has the names of these.
    """

    def __init__(
        self,
        path: TablePath,
        dataset: lance.LanceDataset,
        files: Sequence[LanceFile],
        zoned: Iterable[str],
    ) -> None:
        super().__init__(path, files, 0, has_own_columns=False)
        self._dataset = dataset
        self._zoned = frozenset(zoned)

    def wanted(self, predicates: Sequence[Predicate]) -> list[LanceFile]:  # noqa: D102
        return list(self.files)

    def groups(self, files: Iterable[LanceFile]) -> list[tuple[LanceFile, ...]]:  # noqa: D102
        found: dict[int, list[LanceFile]] = defaultdict(list)
        for file in files:
            found[file.fragment].append(file)
        return [tuple(group) for group in found.values()]

    def frame(self, files: Sequence[LanceFile]) -> pl.LazyFrame:  # noqa: D102
        numbers = {file.fragment for file in files}
        schema: pa.Schema = self._dataset.schema

        def read(names: list[str], enough: int | None) -> Iterator[pl.DataFrame]:
            fragments = [f for f in self._dataset.get_fragments() if f.fragment_id in numbers]
            if not fragments:
                return
            # Lance cannot scan zero columns: to count rows, the first column is read
            columns = names or schema.names[:1]
            try:
                scan = self._dataset.scanner(
                    columns=columns, fragments=fragments, limit=enough, batch_size=_ROWS
                )
                for batch in scan.to_batches():
                    found = self._as_in_fluss(pa.Table.from_batches([batch]))
                    yield found if names else found.select([])
            except (OSError, ValueError) as error:
                raise FlussError(
                    f"lake table {self.path}: a file of its version {self._dataset.version} cannot"
                    f" be read: {error}: was the version expired meanwhile, or the file deleted or"
                    " damaged by hand? lake=False reads what Fluss itself has",
                    ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
                ) from error

        return scan_frames(read, self._as_in_fluss(schema.empty_table()).schema)

    def _as_in_fluss(self, rows: pa.Table) -> pl.DataFrame:
        frame = pl.DataFrame(pl.from_arrow(rows))
        return frame.with_columns(
            frame[name].dt.replace_time_zone("UTC") for name in frame.columns if name in self._zoned
        )


def open_lance(info: TableInfo, options: LakeOptions, snapshot_id: int) -> LanceSnapshot:
    """Return a version of the Lance dataset of a table.

    Reads the partition columns, because Lance does not keep their values per fragment.

    Raises FlussError where the extra ``lance`` is not installed, or the dataset or its version is
    not there.
    """
    try:
        import lance
    except ImportError as error:
        raise FlussError(
            f"table {options.path} is tiered into Lance: pip install 'fluss-df[lance]' to read"
            f" it, or pass lake=False for what Fluss itself has ({error})"
        ) from error
    names = options.path
    place = _place(options)
    if place.startswith("/") and not Path(place).is_dir():
        raise FlussError(
            f"table {names} is not in its Lance warehouse: there is no {place}: was it dropped or"
            " renamed there? lake=False reads what Fluss itself has",
            ErrorCode.TABLE_NOT_EXIST,
        )
    storage = {key: value for key, value in options.properties.items() if key != "warehouse"}
    try:
        dataset = lance.dataset(place, version=snapshot_id, storage_options=storage or None)
    except (ValueError, OSError) as error:
        raise FlussError(
            f"lake table {names}: the version {snapshot_id}, which the cluster says is the newest"
            f" that can be read, cannot be opened ({place}): {options.redacted(str(error))}: was it"
            " expired, or the table made again by hand? lake=False reads what Fluss itself has",
            ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
        ) from error
    zoned = [c.name for c in info.schema.columns if c.type.root.name.endswith("LOCAL_TIME_ZONE")]
    return LanceSnapshot(names, dataset, list(_files(info, dataset, place)), zoned)


def _place(options: LakeOptions) -> str:
    names = options.path
    warehouse = local_path(options.properties.get("warehouse", "")).rstrip("/")
    return f"{warehouse}/{names.database_name}/{names.table_name}.lance"


def dataset_mark(options: LakeOptions) -> tuple[int, int] | None:
    """Return inode and modification time of a local dataset's folder, None for one elsewhere.

    They change when the dataset is deleted and made again. Writes change only folders inside it.
    """
    try:
        found = os.stat(_place(options))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _files(info: TableInfo, dataset: Any, place: str) -> Iterator[LanceFile]:
    keys = info.get_partition_keys()
    kinds = {column.name: column.type for column in info.schema.columns}
    for fragment in dataset.get_fragments():
        files = fragment.metadata.files
        path = f"{place}/data/{files[0].path}"
        size = sum(file.file_size_bytes or 0 for file in files)
        number = fragment.fragment_id
        if not keys:
            yield LanceFile(path, fragment.count_rows(), size, {}, number)
            continue
        values = dataset.scanner(columns=keys, fragments=[fragment]).to_table()
        texts = [
            partition_names([values.column(key).combine_chunks()], [kinds[key]], names=[key])
            for key in keys
        ]
        counted = pa.table(dict(zip(keys, texts, strict=True))).group_by(keys)
        for row in counted.aggregate([([], "count_all")]).to_pylist():
            count = row.pop("count_all")
            yield LanceFile(path, count, size * count // len(values), row, number)
