"""The lake in a backup: one snapshot of each table, which is pinned before the logs are copied.

While the backup is made, logs keep rows that are tiered. So every row of a pinned table is in its
snapshot, or in the copy of the log. Rows that are tiered meanwhile are tiered again by the engine
that opens the backup.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from fluss_df.engine.engine import Engine
from fluss_df.engine.lake.lake_of_table import has_lake
from fluss_df.engine.lake.lake_tables import LAKE_TABLES, LakeTableCopy, PinnedTable
from fluss_df.engine.tables.tables import Table
from fluss_df.errors import ErrorCode, FlussError

LAKE: Final = "lake"
_PART: Final = r"[A-Za-z0-9_=%+,@~-][A-Za-z0-9._=%+,@~-]{0,254}"
#: The names of a backup's files of the lake: there is a folder for each partition key of a table.
MEMBER: Final = (
    rf"{LAKE}/({LAKE_TABLES.replace('.', '[.]')}"
    rf"|checksums/[A-Za-z0-9_-]{{1,200}}/[A-Za-z0-9_-]{{1,200}}"
    rf"|warehouse(/{_PART}){{2,64}})"
)


class LakeInBackup:
    """The part of a backup that has the lake.

    ``known`` is what the engine knows of each pinned table's lake, by table id. ``copies`` are the
    lake tables, by table id.
    """

    def __init__(
        self, known: Mapping[int, dict[str, Any]], copies: Mapping[int, LakeTableCopy]
    ) -> None:
        self._known = known
        self._copies = copies
        self._there: list[int] = []

    def of_table(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return what is stored of a table with the snapshot that is pinned."""
        table = Table.from_json(value)
        if not has_lake(table):
            return value
        if table.id in self._copies:
            self._there.append(table.id)
        snapshot = self._known.get(table.id, {}).get("snapshot")
        rest = {key: each for key, each in value.items() if key != "lake"}
        return {**rest, "lake": {"snapshot": snapshot}} if snapshot else rest

    def members(self) -> Iterator[tuple[str, bytes | Path]]:
        """Iterate over the files of the lake tables that :meth:`of_table` was called for."""
        copies = [self._copies[number] for number in self._there]
        for copy in copies:
            found: dict[str, bytes | Path] = {**copy.files, **copy.made}
            for below, content in found.items():
                name = f"{LAKE}/{below}"
                if not re.fullmatch(MEMBER, name, re.ASCII):
                    raise FlussError(
                        f"cannot back up the file {name}: it has a name that no file of the lake"
                        " has",
                        ErrorCode.STORAGE_EXCEPTION,
                    )
                yield name, content
        if copies:
            rows = [dict(copy.row) for copy in copies]
            yield f"{LAKE}/{LAKE_TABLES}", json.dumps(rows).encode()


@contextlib.contextmanager
def lake_of(engine: Engine) -> Iterator[LakeInBackup]:
    """Pin the lake for a backup.

    Raises FlussError where a file of it is missing or damaged, or the lake cannot be used.
    """
    with contextlib.ExitStack() as pins:
        pins.enter_context(engine.tiered.held())
        # from here on no log loses rows that these snapshots have not
        known = {t.id: t.lake for t in engine.catalog.all_tables() if has_lake(t)}
        pinned = []
        for number, lake in known.items():
            table = engine.catalog.table_by_id(number)
            if table is not None:
                snapshot = lake.get("snapshot", {}).get("id")
                pinned.append(PinnedTable(number, table.path, snapshot))
        copies: Mapping[int, LakeTableCopy] = {}
        if pinned and engine.lake is not None:
            try:
                copies = pins.enter_context(
                    engine.lake.copy(
                        pinned, lambda number: engine.catalog.table_by_id(number) is not None
                    )
                )
            except FlussError as error:
                raise FlussError(
                    f"cannot back up {engine.folder}: {error.message}", error.error_code
                ) from error
        yield LakeInBackup(known, copies)
