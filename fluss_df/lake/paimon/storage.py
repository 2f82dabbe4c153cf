"""Reads the small files of a Paimon table: snapshots, schemas, manifests, deletion vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.options import LakeOptions
from fluss_df.lake.snapshot import file_gone, local_path


class TableFiles:
    """The folder of a table of a filesystem catalog.

    Raises FlussError where the catalog is of another kind, or its warehouse cannot be reached.
    """

    def __init__(self, options: LakeOptions) -> None:
        self.path = options.path
        kind = options.properties.get("metastore", "filesystem").lower()
        if kind != "filesystem":
            raise FlussError(
                f"the Paimon catalog of table {options.path} is of the kind {kind!r}, and only"
                f" 'filesystem' is read: {options!r}; lake=False reads what Fluss itself has",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        warehouse = options.properties.get("warehouse", "")
        place = local_path(warehouse).rstrip("/")
        if not place.startswith("/"):
            raise FlussError(
                f"the Paimon catalog of table {options.path} has the warehouse"
                f" {options.redacted(warehouse)!r}, and only folders of this machine are read:"
                " an absolute path, or file:/...; lake=False reads what Fluss itself has",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        if not Path(place).is_dir():
            raise FlussError(
                f"the Paimon catalog of table {options.path} cannot be used: its warehouse"
                f" {place} is not a folder of this machine: is it mounted here? lake=False reads"
                " what Fluss itself has",
                ErrorCode.NETWORK_EXCEPTION,
            )
        names = options.path
        self.folder: Final = f"{place}/{names.database_name}.db/{names.table_name}"
        if not Path(self.folder).is_dir():
            raise FlussError(
                f"table {options.path} is not in its Paimon catalog: there is no {self.folder}:"
                " was it dropped or renamed there?",
                ErrorCode.TABLE_NOT_EXIST,
            )

    def read(self, name: str) -> bytes:
        """Return the content of a file; its name is relative to the table's folder, or absolute.

        Raises FlussError ``LAKE_SNAPSHOT_NOT_EXIST`` where the file is gone.
        """
        place = self.at(name)
        try:
            return Path(place).read_bytes()
        except (FileNotFoundError, ValueError) as error:
            # ValueError: a damaged manifest may have a name that no file can have
            raise file_gone(self.path, place) from error
        except OSError as error:
            raise FlussError(
                f"lake table {self.path}: {place} cannot be read: {error.strerror}; lake=False"
                " reads what Fluss itself has",
                ErrorCode.NETWORK_EXCEPTION,
            ) from error

    def at(self, name: str) -> str:
        """Return the path of a file of the table; an absolute one stays what it is."""
        local = local_path(name)
        return local if local.startswith("/") else f"{self.folder}/{name}"

    def there(self, name: str) -> bool:
        """Whether there is such a file."""
        return Path(self.at(name)).is_file()

    def snapshot_mark(self, number: int) -> bytes | None:
        """Return all that a snapshot says of itself; None where it is not there.

        It names files whose names nobody else has, so that no other snapshot says the same.
        """
        name = f"snapshot/snapshot-{number}"
        return self.read(name) if self.there(name) else None

    def damaged(self, name: str, error: Exception) -> FlussError:
        """Return the error for a file that is not what it should be."""
        return FlussError(
            f"lake table {self.path}: {self.at(name)} cannot be understood: {error}; lake=False"
            " reads what Fluss itself has",
            ErrorCode.CORRUPT_MESSAGE,
        )
