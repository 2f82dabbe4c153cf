"""Has pyiceberg read no Avro file that is not whole."""

from __future__ import annotations

import io
from contextlib import closing
from typing import Final

from pyiceberg.io import FileIO, InputFile, InputStream
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Snapshot

from fluss_df.lake.iceberg.whole_avro import require_whole

#: as catalogs are told
FILE_IO: Final = {"py-io-impl": f"{__name__}.CheckedFileIO"}
_AVRO: Final = ".avro"


def manifests_of(snapshot: Snapshot, files: FileIO) -> list[ManifestFile]:
    """Return the manifests of a snapshot.

    Raises ValueError where one of them, or their list, is not whole.
    """
    _require_avro(snapshot.manifest_list)
    found = snapshot.manifests(files)
    for manifest in found:
        _require_avro(manifest.manifest_path)
    return found


def _require_avro(location: str) -> None:
    # what has another ending is not looked at before it is read
    if not location.endswith(_AVRO):
        raise ValueError(f"{location} is no manifest: its name does not end with {_AVRO!r}")


class CheckedFileIO(PyArrowFileIO):
    """Files as PyArrow reads them; of Avro those that are whole."""

    def new_input(self, location: str) -> InputFile:  # type: ignore[override]
        """Return a file to read."""
        file = super().new_input(location)
        return _CheckedAvro(file) if location.endswith(_AVRO) else file


class _CheckedAvro(InputFile):
    def __init__(self, file: InputFile) -> None:
        super().__init__(file.location)
        self._file = file

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        return self._file.exists()

    def open(self, seekable: bool = True) -> InputStream:
        with closing(self._file.open(seekable)) as stream:
            data = stream.read()
        try:
            require_whole(data)
        except ValueError as error:
            raise ValueError(f"{self.location} is damaged: {error}") from error
        return io.BytesIO(data)
