"""Files of Iceberg tables that are on the disk before a snapshot has them.

A catalog is a database, whose commits survive a loss of power. What it names must survive too: a
table whose metadata is cut short is lost with all that its snapshots have.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow.fs import LocalFileSystem
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from fluss_df.engine.files.files import sync_file, sync_folder
from fluss_df.hooks import Closing

if TYPE_CHECKING:
    from pyiceberg.io import OutputStream


class SyncedFileIO(PyArrowFileIO):
    """Reads and writes as PyArrow does; a local file that is closed is durable."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        file = super().new_output(location)
        # on other file systems a file is durable once it is closed
        if isinstance(file._filesystem, LocalFileSystem):
            return _SyncedFile(location, file._path, file._filesystem, file._buffer_size)
        return file


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        return _SyncedStream(super().create(overwrite), Path(self._path))


class _SyncedStream(Closing):
    """A file that is being written."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream = stream
        self._path = path

    def write(self, data: bytes) -> int:
        return int(self._stream.write(data))

    def tell(self) -> int:
        return int(self._stream.tell())

    def flush(self) -> None:
        self._stream.flush()

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def close(self) -> None:
        if self._stream.closed:
            return
        self._stream.close()
        sync_file(self._path)
        # the first file of a folder creates the folder, whose name must be durable, too
        for folder in (self._path.parent, self._path.parent.parent):
            sync_folder(folder)
