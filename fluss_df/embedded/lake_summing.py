"""The thread that makes checksums of what was tiered into the lake of a folder."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Final

from fluss_df.embedded.lake_rows import CATALOG_FILE, catalog_rows
from fluss_df.metadata import TablePath

logger = logging.getLogger(__name__)

# seconds for what is left when the folder is closed; the next opening makes the rest
_AT_END_S: Final = 5.0


class LakeSumming:
    """Makes checksums of the files of new snapshots, whoever wrote them.

    They are read once more, while they are still in the memory of the operating system.
    """

    def __init__(self, lake: Path, catalog: str) -> None:
        self._lake = lake
        self._catalog = catalog
        self._changed = threading.Condition()
        self._due: dict[TablePath, None] = {}
        self._thread: threading.Thread | None = None
        self._end: float | None = None

    def add(self, path: TablePath) -> None:
        """Have the checksums of a table made."""
        with self._changed:
            if self._end is not None:
                return
            self._due[path] = None
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="fluss-df-folder-lake-sums", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Make those that are due, as far as there is time, and end."""
        with self._changed:
            self._end = time.monotonic() + _AT_END_S
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _late(self) -> bool:
        return self._end is not None and time.monotonic() > self._end

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due and self._end is None:
                    self._changed.wait()
                if not self._due or self._late():
                    return
                path = next(iter(self._due))
                del self._due[path]
            try:
                self._make(path)
            except FileNotFoundError:
                # the table was dropped meanwhile
                logger.debug("files of the lake table %s are gone", path)
            except ImportError as error:
                # without the extra 'lake': whoever reads the table is told
                logger.debug("lake table %s has no checksums: %s", path, error)
            # whatever pyiceberg raises for a damaged file: other tables get their checksums
            except Exception as error:
                if isinstance(error, RuntimeError) and self._end is not None:
                    return  # the process is ending, and nothing can be imported any more
                logger.warning("lake table %s has no checksums: %s", path, error)

    def _make(self, path: TablePath) -> None:
        from fluss_df.embedded.lake_sums import Sums, add_sums

        name = (path.database_name, path.table_name)
        place = catalog_rows(self._lake / CATALOG_FILE).get((self._catalog, *name))
        if place is not None:
            add_sums(self._lake, Sums.of(self._lake, *name), place, self._late)
