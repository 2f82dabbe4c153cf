"""A Paimon table as rounds of tiering use it: to plan, to write and to commit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from fluss_df.client.context import ClientContext
from fluss_df.errors import FlussError
from fluss_df.lake.offsets import offsets_in
from fluss_df.lake.options import OFFSETS_PATH_PROPERTY, LakeOptions
from fluss_df.lake.paimon.manifests import live_entries
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.paimon_writing.commit import (
    commit_snapshot,
    newest_base,
    read_said,
    snapshot_numbers,
)
from fluss_df.lake.paimon_writing.compaction import compact
from fluss_df.lake.paimon_writing.files import discard
from fluss_df.lake.paimon_writing.schema import WriteSchema, write_schema
from fluss_df.lake.paimon_writing.tasks import PaimonTaskWriter
from fluss_df.lake.rounds.offsets import COMMIT_USER, TieredSnapshot
from fluss_df.lake.rounds.split import Split, lake_partition
from fluss_df.lake.rounds.tasks import TaskWriter, WriteTask, Written
from fluss_df.lake.rounds.tiered_lake import TieredLake
from fluss_df.schema import TableInfo

_AUTO: Final = "table.datalake.auto-compaction"
_SCHEMA_NAME: Final = re.compile(r"schema-(\d+)")


class PaimonLake(TieredLake):
    """A Paimon table that is tiered into.

    Raises FlussError for a table that fluss_df cannot write.
    """

    def __init__(self, info: TableInfo, table: TableFiles) -> None:
        super().__init__(info)
        self._table = table
        self._base = newest_base(table)
        self._schema = newest_schema(table)

    def newest_tiered(self) -> TieredSnapshot | None:  # noqa: D102
        for number in sorted(snapshot_numbers(self._table), reverse=True):
            if number > self._base.number:
                continue
            said = read_said(self._table, number)
            properties = said.get("properties") or {}
            if said.get("commitUser") != COMMIT_USER:
                continue
            return TieredSnapshot(
                number,
                properties.get(OFFSETS_PATH_PROPERTY),
                offsets_in(properties),
                int(said["timeMillis"]),
            )
        return None

    def tasks(self, splits: Sequence[Split]) -> list[WriteTask]:  # noqa: D102
        return [WriteTask(lake_partition(split), split) for split in splits]

    def writer(self, connection: ClientContext) -> TaskWriter:  # noqa: D102
        # newer clusters make lake tables without columns of their own
        self.require_columns(self._schema.rows.names, system=False)
        return self.writer_at(connection, self._base.number or None)

    def writer_at(  # noqa: D102
        self, connection: ClientContext, snapshot_id: int | None
    ) -> TaskWriter:
        sequences: dict[tuple[bytes, int], int] = {}
        if self._schema.keyed and snapshot_id is not None:
            said = read_said(self._table, snapshot_id)
            for _, entry in live_entries(self._table, said):
                place = entry["_PARTITION"], entry["_BUCKET"]
                last = entry["_FILE"]["_MAX_SEQUENCE_NUMBER"]
                sequences[place] = max(last, sequences.get(place, -1))
        return PaimonTaskWriter(
            connection, self.info, self._table, self._schema, snapshot_id, sequences
        )

    def commit(  # noqa: D102
        self, written: Sequence[Written], properties: Mapping[str, str]
    ) -> int:
        files = [file for part in written for file in part.added]
        return commit_snapshot(self._table, self._schema, self._base, files, properties)

    def compacted(self, properties: Mapping[str, str]) -> int | None:  # noqa: D102
        # off by default as in Flink's service: Paimon may have a compaction job of its own
        if self.info.get_properties().get(_AUTO, "false").lower() != "true":
            return None
        return compact(self._table, self._schema, properties)

    def discard(self, written: Iterable[Written]) -> None:  # noqa: D102
        discard([file for part in written for file in part.added])


def newest_schema(table: TableFiles) -> WriteSchema:
    """Return the newest version of a table's schema.

    Raises FlussError where there is none, it is damaged, or fluss_df cannot write the table.
    """
    found = [_SCHEMA_NAME.fullmatch(path.name) for path in Path(table.at("schema")).glob("*")]
    numbers = [int(one[1]) for one in found if one is not None]
    name = f"schema/schema-{max(numbers, default=0)}"
    content = table.read(name)
    try:
        return write_schema(table, content)
    except FlussError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise table.damaged(name, error) from error


def open_paimon_lake(info: TableInfo, options: LakeOptions) -> PaimonLake:
    """Return the Paimon table of a table.

    Raises FlussError where it cannot be reached, or fluss_df cannot write it.
    """
    return PaimonLake(info, TableFiles(options))
