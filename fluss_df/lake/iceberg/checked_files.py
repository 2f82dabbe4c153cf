"""Reads manifests of Iceberg, and looks first whether they are whole."""

from __future__ import annotations

import io
from contextlib import closing

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table.snapshots import Snapshot

from fluss_df.lake.iceberg.whole_avro import require_whole


def manifests_of(snapshot: Snapshot, files: FileIO) -> list[ManifestFile]:
    """Return the manifests of a snapshot. Raises ValueError where their list is damaged."""
    return snapshot.manifests(_Checked(files))


def entries_of(manifest: ManifestFile, files: FileIO) -> list[ManifestEntry]:
    """Return the entries that are not deleted. Raises ValueError for a damaged manifest."""
    return manifest.fetch_manifest_entry(_Checked(files), discard_deleted=True)


class _Checked(FileIO):
    """Files of which every one that is read is Avro, and whole."""

    def __init__(self, files: FileIO) -> None:
        super().__init__(files.properties)
        self._files = files

    def new_input(self, location: str) -> InputFile:
        return _CheckedAvro(self._files.new_input(location))

    def new_output(self, location: str) -> OutputFile:
        return self._files.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._files.delete(location)


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
