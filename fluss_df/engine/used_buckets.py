"""Which buckets of an engine rows were written to; the files are those of ``bucket_register``."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from fluss_df.engine.catalog.catalog import Catalog
from fluss_df.engine.catalog.catalog_files import CatalogFiles
from fluss_df.engine.files.files import DamagedError, disk_refused, names_in
from fluss_df.engine.log.bucket_register import BucketRegister, dropped
from fluss_df.engine.log.synced_point import BucketIds
from fluss_df.errors import FlussError
from fluss_df.metadata import TableBucket

logger = logging.getLogger(__name__)

# buckets of a folder that are looked for one by one; for more, its names are listed once
_LOOKED_AT_EACH: Final = 16


class UsedBuckets:
    """The registers of all tables, each read when it is first asked for; thread safe."""

    def __init__(self, files: CatalogFiles, catalog: Catalog) -> None:
        self._files = files
        self._catalog = catalog
        self._lock = threading.Lock()
        self._registers: dict[int, BucketRegister] = {}

    def has(self, bucket: BucketIds) -> bool:
        """Whether rows were written to a bucket."""
        register = self._of(bucket.table)
        return register is not None and bucket in register

    def having_folders(
        self, buckets: Iterable[TableBucket], folder_of: Callable[[TableBucket], Path]
    ) -> set[TableBucket]:
        """Return the buckets that have a folder, or should have one.

        Raises FlussError, see :func:`~fluss_df.engine.files.files.disk_refused`.
        """
        found = set()
        parts: dict[tuple[int, int | None], list[TableBucket]] = defaultdict(list)
        for bucket in buckets:
            if self.has(BucketIds.of(bucket)):
                found.add(bucket)
            else:
                parts[bucket.table_id, bucket.partition_id].append(bucket)
        for others in parts.values():
            folder = folder_of(others[0])
            if len(others) <= _LOOKED_AT_EACH:
                found |= {each for each in others if (folder / str(each.bucket_id)).exists()}
                continue
            try:
                names = set(names_in(folder))
            except NotADirectoryError:
                continue  # who opens one of them says so
            except OSError as error:
                raise disk_refused(f"cannot list {folder}", folder, error) from error
            found |= {each for each in others if str(each.bucket_id) in names}
        return found

    def note(self, bucket: BucketIds) -> None:
        """Note that a bucket is about to have rows; on the disk then.

        Raises FlussError as :meth:`BucketRegister.add`.
        """
        register = self._of(bucket.table)
        if register is None:
            raise dropped(bucket)
        register.add(bucket)

    def forget(self, table_id: int) -> None:
        """Forget a table that was dropped, which the catalog does not have any more.

        A thread that was about to note a bucket has done so, or finds the table dropped: no file is
        left.
        """
        with self._lock:
            register = self._registers.pop(table_id, None)
        if register is not None:
            try:
                register.drop()
            except OSError as error:
                logger.warning("cannot remove what is left of table %s: %s", table_id, error)

    def _of(self, table_id: int) -> BucketRegister | None:
        """Return the register of a table; None for one that was dropped."""
        with self._lock:
            found = self._registers.get(table_id)
            if found is None:
                table = self._catalog.table_by_id(table_id)
                if table is None:
                    return None
                found = self._files.register(table_id)
                for problem in found.problems:
                    logger.warning("%s: its copy is taken", problem)
                partitions = [-1, *(p.id for p in list(table.partitions.values()))]
                try:
                    found.put_right(partitions)
                except FlussError as error:
                    logger.warning("%s", error.message)
                self._registers[table_id] = found
            return found


def missing(name: str, folder: Path) -> DamagedError:
    """Return the error for a bucket whose folder is not there."""
    return DamagedError(
        f"the folder of {name} is missing, and rows were written to it: {folder}. Put it back, or"
        " restore the folder from a backup"
    )
