"""The lake of a folder: Iceberg tables beside the data, tiered by the process that has the folder.

``FOLDER/lake/catalog.db`` is a catalog of Iceberg in SQLite, and ``FOLDER/lake/warehouse`` has the
Parquet files. Any reader of Iceberg may read them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fluss_df.client.connection import FlussConnection, uncounted
from fluss_df.embedded.lake_layout import (
    lake_errors,
    lake_properties,
    lake_schema,
    layout,
    match_columns,
)
from fluss_df.embedded.lake_rows import CATALOG, CATALOG_FILE, catalog_rows, lacking
from fluss_df.embedded.lake_summing import LakeSumming
from fluss_df.engine.files.files import read_bytes, write_atomically
from fluss_df.engine.lake.lake_tables import LAKE_TABLES, LakeTableCopy, PinnedTable
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.hooks import EndStep, ForkStep, after_fork, at_end
from fluss_df.lake.iceberg.catalog import FILE_IO
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

    from fluss_df.lake import TieringService

logger = logging.getLogger(__name__)

LAKE: Final = "lake"
_FORMAT: Final = "table.datalake.format"
# a property that marks lake tables which this module made
_MARK: Final = "fluss-df.folder"
# characters that mean something else in addresses
_NOT_IN_PLACES: Final = frozenset("%?#")
# names the table whose columns are being changed
_ALTERING: Final = "altering"
_TRIES: Final = 10
# seconds after which a lake that could not be used is looked at again
_AGAIN_S: Final = 60.0
# seconds that a round under way gets when the process ends
_AT_END_S: Final = 2.0


class FolderLake:
    """The lake tables of a folder, and the thread that tiers into them.

    Parameters
    ----------
    folder
        The folder of the engine.
    address
        Where this process reaches the engine, as ``host:port``.
    tiers
        Whether the owner of the folder tiers its tables; else ``fluss-df tier`` does.
    keep_s
        For how many seconds a snapshot stays after queries began to read a newer one; None for
        ever.
    """

    def __init__(
        self, folder: Path, address: str, tiers: bool = True, keep_s: float | None = None
    ) -> None:
        # without links, by which one place has several names
        self._owner = folder.resolve()
        self._folder = (folder / LAKE).resolve()
        self._address = address
        self._tiers = tiers
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._service: TieringService | None = None
        self._closing = False
        self._sums = LakeSumming(self._folder, CATALOG)
        self._state = threading.Lock()
        self._right = False
        self._problem: str | None = None
        # tables that could not be made right, and why
        self._damaged: dict[TablePath, str] = {}
        self._looked = 0.0
        _open.add(self)

    # ---- what the engine asks

    @property
    def problem(self) -> str | None:
        """Why the lake cannot be used; None where it can.

        A lake that was made at another place is made right here, which is tried again now and then.
        """
        with self._state:
            now = time.monotonic()
            if self._right or (self._problem is not None and now - self._looked < _AGAIN_S):
                return self._problem
            try:
                self._damaged = self._make_right()
                # damaged tables are looked at again when the folder is opened: a catalog is
                # replaced as a whole, and others may commit to it from now on
                self._right, self._problem = True, None
            # whatever pyiceberg or SQLite raise: the engine is usable without its lake
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                self._problem = error.message if isinstance(error, FlussError) else text
                self._looked = now
                logger.warning("the lake of %s cannot be used: %s", self._owner, self._problem)
            return self._problem

    def problem_of(self, path: TablePath) -> str | None:
        """Why the lake of a table cannot be used; None where it can."""
        problem = self.problem
        return self._damaged.get(path) if problem is None else problem

    def _make_right(self) -> dict[TablePath, str]:
        """Have Iceberg's files name the place where the folder is; return what is damaged."""
        found = read_bytes(self._folder / "place")
        here = _place(self._folder, self._owner)
        restored = (self._folder / LAKE_TABLES).exists()
        if not restored and (found == here or not (self._folder / CATALOG_FILE).exists()):
            return {}
        # earlier releases noted only the place of the lake, with links in it
        made, _, owner = (found or b"").partition(b"\0")
        if owner and made == os.fsencode(self._folder) and owner != os.fsencode(self._owner):
            other = Path(os.fsdecode(owner)) / LAKE
            with contextlib.suppress(OSError):
                if other.resolve() == self._folder:
                    raise FlussError(
                        f"{LAKE} is a link to the lake of {os.fsdecode(owner)}, which is there"
                        " still: copy what it leads to in place of the link",
                        ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
                    )
        self._require_extra()
        from fluss_df.embedded.lake_catalog import register_pending
        from fluss_df.embedded.lake_move import move_lake

        if restored:
            register_pending(self._folder)
        started = time.monotonic()
        moved, damaged = move_lake(self._folder)
        for why in damaged.values():
            logger.warning("the lake of %s: %s", self._owner, why)
        if not damaged:
            write_atomically(self._folder / "place", here)
        if moved:
            logger.warning(
                "the lake of %s was made at another place: %d tables name their files here now"
                " (%.1f s)",
                self._owner,
                moved,
                time.monotonic() - started,
            )
        return damaged

    def properties(self) -> Mapping[str, str]:
        """Return the properties by which clients find the lake."""
        prefix = "table.datalake.iceberg."
        return {
            _FORMAT: "iceberg",
            f"{prefix}type": "jdbc",
            f"{prefix}uri": f"jdbc:sqlite:{self._folder / CATALOG_FILE}",
            f"{prefix}warehouse": f"file://{self._folder / 'warehouse'}",
        }

    def require(self) -> None:
        """Raise where the extra ``lake`` is missing, or the lake cannot be used."""
        self._require_extra()
        problem = self.problem
        if problem is not None:
            raise FlussError(
                f"table.datalake.enabled: the lake of the folder cannot be used: {problem}",
                ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
            )

    def _require_right(self, path: TablePath) -> None:
        problem = self.problem_of(path)
        if problem is not None:
            raise FlussError(
                f"table {path}: its lake cannot be used: {problem}",
                ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
            )

    def _require_extra(self) -> None:
        try:
            import pyiceberg.catalog.sql  # noqa: F401
        except ImportError as error:
            raise FlussError(
                "table.datalake.enabled: a lake in the folder needs the extra 'lake':"
                f" pip install 'fluss-df[lake]' ({error})",
                ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
            ) from error
        odd = sorted(_NOT_IN_PLACES & {*str(self._folder)})
        try:
            str(self._folder).encode()
        except UnicodeEncodeError:
            odd.append("bytes that are not UTF-8")
        if odd:
            raise FlussError(
                f"table.datalake.enabled: a lake cannot be at {str(self._folder)!r}: the addresses"
                f" of its files and of its catalog cannot have {' '.join(odd)} in them; rename the"
                " folder",
                ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
            )

    def opened(self, tables: Iterable[tuple[TablePath, TableDescriptor, int | None]]) -> None:
        """Make the lake right when its folder is opened.

        ``tables`` are those with a lake, each with its snapshot; None where nothing was tiered.
        """
        for left in self._folder.glob("copies-*"):
            # left by a backup that was killed
            shutil.rmtree(left, ignore_errors=True)
        known = list(tables)
        tiered = {path: snapshot for path, _, snapshot in known if snapshot is not None}
        if tiered:
            self._mend(tiered)
        if self.problem is None:
            try:
                self._complete((path, descriptor) for path, descriptor, _ in known)
            except Exception as error:
                logger.warning("a lake table has other columns than its table: %s", error)
            for path, descriptor, snapshot in known:
                if snapshot is None:
                    self._make_missing(path, descriptor)
                self._sums.add(path)

    def _mend(self, tiered: Mapping[TablePath, int]) -> None:
        try:
            if (self._folder / LAKE_TABLES).exists() or not self._folder.exists():
                return
            rows, tables = lacking(self._folder, tiered)
            if rows is not None and not tables:
                return
            from fluss_df.embedded.lake_catalog import mend_catalog

            mend_catalog(self._folder, tiered)
        except Exception as error:
            # reading and tiering report what is missing
            logger.warning("the catalog of %s cannot be made again: %s", self._folder, error)

    def _make_missing(self, path: TablePath, descriptor: TableDescriptor) -> None:
        """Make the lake table of a table of which nothing was tiered, where it is not there."""
        try:
            with contextlib.closing(self._catalog()) as catalog:
                there = catalog.table_exists((path.database_name, path.table_name))
            if not there:
                self.create(path, descriptor)
        except Exception as error:
            # the engine is usable without it, and tiering reports what is missing
            logger.warning("the lake table of %s cannot be made: %s", path, error)

    def create(self, path: TablePath, descriptor: TableDescriptor) -> None:
        """Make the lake table of a table that is about to be created; it has Fluss's layout."""
        given = descriptor.properties.get(_FORMAT, "iceberg").lower()
        if given != "iceberg":
            raise FlussError(
                f"table {path}: {_FORMAT}={given!r}: the lake of a folder is 'iceberg'",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
        self.require()
        with lake_errors(path):
            self._create(path, descriptor)
        # the format decides how keys are hashed, so it must stay the table's for good
        descriptor.properties[_FORMAT] = "iceberg"

    def _create(self, path: TablePath, descriptor: TableDescriptor) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        name = (path.database_name, path.table_name)
        self._folder_of(name)
        schema, spec = layout(path, descriptor)
        given = lake_properties(path, descriptor)
        with contextlib.closing(self._catalog()) as catalog:
            catalog.create_namespace_if_not_exists(path.database_name)
            with contextlib.suppress(NoSuchTableError):
                old = catalog.load_table(name)
                if _MARK not in old.properties:
                    raise FlussError(
                        f"The table {path} already exists in Iceberg catalog, and the embedded"
                        " engine did not make it: drop or rename it there.",
                        ErrorCode.LAKE_TABLE_ALREADY_EXIST,
                    )
                # left by a table whose creation or drop was interrupted
                self.drop(path)
            # old metadata files are of no use to anybody
            tidy = {"write.metadata.delete-after-commit.enabled": "true"}
            marks = {**given, _MARK: "true", "format-version": "2", **tidy}
            # one commit: what is refused leaves no table in the catalog
            catalog.create_table(name, schema, partition_spec=spec, properties=marks)

    @contextlib.contextmanager
    def altering(self, path: TablePath, old: Schema, new: Schema) -> Iterator[None]:
        """Give a lake table other columns; those of before, where the end is an error."""
        self.require()
        self._require_right(path)
        lake_schema(path, new)
        # whoever opens the folder after a crash completes the change that is noted here
        marker = self._folder / _ALTERING
        write_atomically(marker, str(path).encode())
        try:
            with lake_errors(path):
                self._match(path, new)
            yield
        except BaseException:
            with contextlib.suppress(Exception):
                self._match(path, old)
                marker.unlink()
            raise
        marker.unlink(missing_ok=True)

    def _match(self, path: TablePath, schema: Schema) -> None:
        from pyiceberg.exceptions import CommitFailedException

        for left in reversed(range(_TRIES)):
            try:
                with contextlib.closing(self._catalog()) as catalog:
                    table = catalog.load_table((path.database_name, path.table_name))
                    match_columns(table, schema)
                return
            except CommitFailedException as error:
                # a round of tiering committed meanwhile: try again
                if not left:
                    raise FlussError(
                        f"table {path}: its lake table was changed by others all the time: {error}",
                        ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
                    ) from error

    def _complete(self, tables: Iterable[tuple[TablePath, TableDescriptor]]) -> None:
        """Put a lake table right whose columns were being changed by a process that was killed."""
        marker = self._folder / _ALTERING
        found = read_bytes(marker)
        if found is not None:
            for path, descriptor in tables:
                if str(path).encode() == found:
                    # a damaged table may still name another folder, whose files must not be changed
                    self._require_right(path)
                    self._match(path, descriptor.schema)
            marker.unlink()

    def created(self) -> None:
        """Begin to tier, where that is not begun; called once a table with a lake is there."""
        with self._lock:
            if self._tiers and self._thread is None and not self._closing:
                self._thread = threading.Thread(
                    target=self._run, name="fluss-df-folder-lake", daemon=True
                )
                self._thread.start()

    def committed(self, path: TablePath) -> None:
        """Make checksums of the files of a new snapshot."""
        self._sums.add(path)

    def copy(
        self, pinned: Iterable[PinnedTable], there: Callable[[int], bool]
    ) -> AbstractContextManager[Mapping[int, LakeTableCopy]]:
        """Give the files of lake tables as they are now, for a backup."""
        self.require()
        from fluss_df.embedded.lake_copy import copied_tables

        return copied_tables(self._folder, pinned, there)

    def drop(self, path: TablePath) -> None:
        """Remove the lake table of a table that was dropped, and its files."""
        try:
            from pyiceberg.exceptions import NoSuchTableError

            with contextlib.suppress(NoSuchTableError):
                self._drop((path.database_name, path.table_name))
        except Exception as error:
            logger.warning("the lake table of %s could not be removed: %s", path, error)
        with self._state:
            # the dropped table may have been the problem: look again soon
            self._looked = 0.0
            self._damaged.pop(path, None)

    def _drop(self, name: tuple[str, str]) -> None:
        from fluss_df.embedded.lake_paths import LakePaths
        from fluss_df.embedded.lake_sums import forget_sums

        folder = self._folder_of(name)
        if not (self._folder / CATALOG_FILE).exists():
            return
        right = self.problem_of(TablePath(*name)) is None
        with contextlib.closing(self._catalog()) as catalog:
            if right and _MARK not in catalog.load_table(name).properties:
                return
            # a table that was not moved names another folder: only files in this one are its own
            place = catalog_rows(self._folder / CATALOG_FILE).get((CATALOG, *name))
            found = None if place is None else LakePaths.of(place, self._folder)
            catalog.drop_table(name)
        forget_sums(self._folder, *name)
        # where the metadata is at another place, other tables may be beside it
        if found is not None and (self._folder / found[1]).parent.parent == folder:
            shutil.rmtree(folder, ignore_errors=True)

    def _folder_of(self, name: tuple[str, str]) -> Path:
        """Return the folder of a lake table; raise where a name or a link leads out of the lake."""
        warehouse = self._folder / "warehouse"
        # as texts: paths would take a name of '.' or '' for the folder of the database
        place = os.path.realpath(f"{warehouse}/{name[0]}/{name[1]}")
        if place != f"{os.path.realpath(warehouse)}/{name[0]}/{name[1]}":
            raise FlussError(
                f"table {'.'.join(name)}: the files of its lake table would be at {place} and not"
                f" in {warehouse}: rename the table, or move what a link there leads to",
                ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
            )
        return warehouse / name[0] / name[1]

    def close(self) -> None:
        """End the tiering, after the round that it is at."""
        self._stop(None)
        self._sums.close()

    def end(self) -> None:
        """End the tiering as the process ends: a round that takes longer is not committed."""
        service = self._stop(_AT_END_S)
        if service is not None:
            service.cancel()

    def _stop(self, timeout_s: float | None) -> TieringService | None:
        with self._lock:
            self._closing = True
            thread, service = self._thread, self._service
        if service is not None:
            service.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
        return service

    # ---- within

    def _run(self) -> None:
        try:
            from fluss_df.lake import TieringService

            with (
                uncounted(FlussConnection.create(self._address)) as connection,
                TieringService(
                    connection, tables_at_once=1, keep_snapshots_s=self._keep_s
                ) as service,
            ):
                with self._lock:
                    self._service = service
                    closing = self._closing
                if not closing:
                    service.run()
        except Exception as error:
            # RuntimeError: the process is ending, and threads take no new work
            if not self._closing and not isinstance(error, RuntimeError):
                logger.warning("the tiering of %s ended: %s", self._folder, error)

    def _catalog(self) -> SqlCatalog:
        """Return the catalog; who uses it closes it, or its file stays open for a while."""
        from pyiceberg.catalog.sql import SqlCatalog

        warehouse = self._folder / "warehouse"
        for folder in (self._folder, warehouse):
            if not folder.exists():
                folder.mkdir(0o700, parents=True, exist_ok=True)
        place = self._folder / "place"
        if not place.exists():
            write_atomically(place, _place(self._folder, self._owner))
        return SqlCatalog(
            CATALOG,
            uri=f"sqlite:///{self._folder / CATALOG_FILE}",
            warehouse=f"file://{warehouse}",
            **{"py-io-impl": FILE_IO},
        )


_open: Final[weakref.WeakSet[FolderLake]] = weakref.WeakSet()


def _end_open() -> None:
    for lake in list(_open):
        lake.end()


at_end(EndStep.TIERING, _end_open)
# the threads of the parent are not in its children
after_fork(ForkStep.TIERING, _open.clear)


def _place(lake: Path, owner: Path) -> bytes:
    """Return the content of ``place``: where a lake is, and the folder whose lake it is."""
    return os.fsencode(lake) + b"\0" + os.fsencode(owner)
