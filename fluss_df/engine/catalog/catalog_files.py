"""The files of the catalog on the disk, and what happens to files that belong to no table.

Each file of the catalog has a copy in ``data/``, so that no table is lost with ``catalog/``. To
drop a table, its folder of data is renamed first, and its copy of the catalog's file with it: so a
drop that a crash ended is not taken for a loss. A folder in ``data/`` that belongs to no table is
moved to ``set-aside/`` and never deleted: it may be all that is left of a table whose two files
were lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

from fluss_df.engine.catalog.cluster_changes import ClusterChanges
from fluss_df.engine.files.files import make_folder, names_in, refused_by, sync_folder
from fluss_df.engine.files.kept_json import KeptJson
from fluss_df.engine.log.bucket_register import BucketRegister

logger = logging.getLogger(__name__)

CATALOG: Final = "catalog"
DATA: Final = "data"
SET_ASIDE: Final = "set-aside"
_TABLE_FILE: Final = re.compile(r"table-(\d{1,18})\.json")
_BUCKETS_FILE: Final = re.compile(r"table-(\d{1,18})\.buckets")
_TABLE_COPY: Final = "table.json"
_DROPPED: Final = re.compile(r"dropped-(\d{1,18})")
_ID: Final = re.compile(r"\d{1,18}")


class CatalogFiles:
    """The files of a folder's catalog.

    With ``plain``, files without checksums are read, as folders of format 1 have them.
    ``before_change`` is called before a file is changed; it raises an error when no file may be
    changed.
    """

    def __init__(
        self, folder: Path, *, plain: bool = False, before_change: Callable[[], None] = lambda: None
    ) -> None:
        self.folder = folder
        self._before_change = before_change
        self._catalog = folder / CATALOG
        self._data = folder / DATA
        self._plain = plain

    def make(self) -> None:
        """Create the folders, and remove files whose writing was interrupted."""
        make_folder(self._catalog)
        make_folder(self._data)
        # an earlier process may have created them and ended before their names were on the disk
        sync_folder(self.folder)
        for name in names_in(self._catalog):
            if name.endswith(".tmp"):
                (self._catalog / name).unlink()

    def databases(self) -> KeptJson:
        """Return the file of the databases and counters."""
        return self._kept("databases.json", "next")

    def cluster(self) -> KeptJson:
        """Return the file of the state of the cluster."""
        return self._kept("cluster.json", "producers")

    def acls(self) -> KeptJson:
        """Return the file of the access control lists."""
        return self._kept("acls.json", "acls")

    def cluster_changes(self) -> ClusterChanges:
        """Return the changes since the file of the state of the cluster was written."""
        name = "cluster.changes"
        return ClusterChanges(self._catalog / name, self._data / name, self._before_change)

    def _kept(self, name: str, member: str) -> KeptJson:
        def belongs(value: Any) -> bool:
            return isinstance(value, dict) and member in value

        first, second = self._catalog / name, self._data / name
        return self._made(first, second, belongs)

    def _made(self, first: Path, second: Path, belongs: Callable[[Any], bool]) -> KeptJson:
        return KeptJson(
            first, second, belongs=belongs, plain=self._plain, before_change=self._before_change
        )

    def table(self, table_id: int) -> KeptJson:
        """Return the file of a table."""

        def belongs(value: Any) -> bool:
            return isinstance(value, dict) and value.get("id") == table_id

        first = self._catalog / f"table-{table_id}.json"
        return self._made(first, self.data_folder(table_id) / _TABLE_COPY, belongs)

    def register(self, table_id: int) -> BucketRegister:
        """Read which buckets of a table rows were written to."""
        first = self._catalog / f"table-{table_id}.buckets"
        return BucketRegister(table_id, first, self.data_folder(table_id) / "buckets")

    def data_folder(self, table_id: int) -> Path:
        """Return the folder of a table's data."""
        return self._data / str(table_id)

    def table_ids(self) -> list[int]:
        """Return the ids of tables with a file in ``catalog/`` or in ``data/``, ascending."""
        dropped = {table_id for table_id, _ in self._dropped()}
        found = {
            int(match[1])
            for name in names_in(self._catalog)
            if (match := _TABLE_FILE.fullmatch(name))
        }
        found |= {int(part.name) for part in self._numbered() if (part / _TABLE_COPY).exists()}
        return sorted(found - dropped)

    def highest_data_id(self) -> int:
        """Return the highest table id among the folders of data, -1 where there are none."""
        ids = [int(part.name) for part in self._numbered()]
        return max(ids + [table_id for table_id, _ in self._dropped()], default=-1)

    def _numbered(self) -> Iterator[Path]:
        yield from (self._data / name for name in names_in(self._data) if _ID.fullmatch(name))

    def _dropped(self) -> Iterator[tuple[int, Path]]:
        for name in names_in(self._data):
            match = _DROPPED.fullmatch(name)
            if match is not None:
                yield int(match[1]), self._data / name

    # ---- dropping

    def drop(self, table_id: int) -> None:
        """Drop a table; :meth:`remove_dropped` removes its data.

        This works on a full disk, as it only renames and removes files.

        Raises ``STORAGE_EXCEPTION`` when the disk refuses; the table is then not dropped.
        """
        self._before_change()
        folder = self.data_folder(table_id)
        dropped = self._data / f"dropped-{table_id}"
        with refused_by(f"cannot drop table {table_id}", self.folder):
            if folder.exists():
                os.rename(folder, dropped)
            else:
                dropped.mkdir(0o700, exist_ok=True)
            try:
                sync_folder(self._data)
                self.table(table_id).first.unlink(missing_ok=True)
                sync_folder(self._catalog)
            except OSError:
                os.rename(dropped, folder)
                raise

    def lead_to_dropped(self, table_id: int) -> None:
        """Have what is still open of a dropped table find its files where they were.

        RocksDB brings rows to its files as it is closed. Where it cannot, it waits for a second:
        that is a minute for the buckets of a table, and nobody else gets rid of theirs meanwhile.
        """
        with contextlib.suppress(OSError):  # who was opening a bucket may have made it again
            os.symlink(f"dropped-{table_id}", self.data_folder(table_id))

    def remove_place(self, table_id: int) -> None:
        """Remove what is where the data of a dropped table were."""
        folder = self.data_folder(table_id)
        if folder.is_symlink():
            with contextlib.suppress(OSError):
                folder.unlink()
        else:
            # made again by a thread that opened a bucket when the catalog put it away
            shutil.rmtree(folder, ignore_errors=True)

    def remove_dropped(self) -> None:
        """Remove the data of dropped tables, also of drops that a crash interrupted."""
        for table_id, part in list(self._dropped()):
            try:
                for name in (f"table-{table_id}.json", f"table-{table_id}.buckets"):
                    (self._catalog / name).unlink(missing_ok=True)
                sync_folder(self._catalog)
            except OSError as error:
                # the renamed folder has to stay while a file of the table is left in catalog/: it
                # is what says that the table was dropped
                logger.warning("cannot remove what is left of table %s: %s", table_id, error)
                continue
            place = self.data_folder(table_id)
            if os.path.lexists(place):
                # its process ended meanwhile, or the disk refused
                self.remove_place(table_id)
            if os.path.lexists(place):
                # the renamed folder is what says that this one is of a dropped table
                logger.warning("cannot remove %s, which is left of a dropped table", place)
                continue
            shutil.rmtree(part, ignore_errors=True)

    def remove_partition(self, table_id: int, partition_id: int) -> bool:
        """Remove the data of a dropped partition; return whether nothing is left of it."""
        folder = self.data_folder(table_id) / str(partition_id)
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return True
        logger.warning(
            "cannot remove %s, which is left of a dropped partition: it is tried again when the"
            " folder is opened",
            folder,
        )
        return False

    # ---- files that belong to no table

    def unknown(self, tables: Collection[int]) -> Iterator[Path]:
        """Iterate over folders of data and files of buckets that belong to none of ``tables``."""
        known = {*tables, *(table_id for table_id, _ in self._dropped())}
        for part in self._numbered():
            if int(part.name) not in known:
                yield part
        for name in names_in(self._catalog):
            match = _BUCKETS_FILE.fullmatch(name)
            if match is not None and int(match[1]) not in known:
                yield self._catalog / name

    def unknown_partitions(self, table_id: int, known: Collection[str]) -> Iterator[Path]:
        """Iterate over folders of a table's data that hold buckets and are not in ``known``.

        They are named by the number of a partition, or ``table`` where there are no partitions.
        """
        folder = self.data_folder(table_id)
        for name in names_in(folder):
            if name not in known and (_ID.fullmatch(name) or name == "table"):
                yield folder / name

    def set_aside(self, part: Path) -> None:
        """Move a folder or file that belongs to no table to ``set-aside/``."""
        name = "-".join(part.relative_to(self.folder).parts)
        aside = self.folder / SET_ASIDE
        make_folder(aside)
        to = next(
            path for number in range(10**6) if not (path := aside / f"{name}.{number}").exists()
        )
        os.rename(part, to)
        sync_folder(aside)
        sync_folder(part.parent)
        logger.warning("%s belongs to no table: it is now %s", part, to)
