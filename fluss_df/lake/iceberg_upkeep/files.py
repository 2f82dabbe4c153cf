"""Which files snapshots have, and how files that none has are deleted."""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from pyiceberg.io.pyarrow import PyArrowFileIO

from fluss_df.lake.iceberg.checked_files import entries_of, manifests_of
from fluss_df.lake.options import WRITTEN_TO

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

logger = logging.getLogger("fluss_df.lake.tiering")

# the property by which an owner forbids to delete files, as another table may have them
_PROPERTY: Final = "gc.enabled"
# names of one storage, of which a table's writers may use several
_S3: Final = ("s3a", "s3n")


def snapshot_paths(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Return the paths of all files of snapshots: manifest lists, manifests, rows, deletes.

    Raises OSError where one cannot be read.
    """
    found: set[str] = set()
    manifests: dict[str, ManifestFile] = {}
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        for manifest in manifests_of(snapshot, table.io):
            manifests[manifest.manifest_path] = manifest
    found.update(manifests)
    for manifest in manifests.values():
        entries = entries_of(manifest, table.io)
        found.update(entry.data_file.file_path for entry in entries)
    return found


def may_delete(table: Table) -> bool:
    """Whether files of a table may be deleted: its owner allows it, and no other table has them."""
    if table.metadata.properties.get(_PROPERTY, "true").lower() != "true":
        return False
    from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
    from sqlalchemy import func, or_, select
    from sqlalchemy.orm import Session

    catalog = table.catalog
    if not isinstance(catalog, SqlCatalog):
        return True
    place = table.location().rstrip("/") + "/"
    # Java's writers name a local file with one slash
    places = {place, re.sub("^file:/+", "file:/", place), re.sub("^file:/+", "file:///", place)}
    with Session(catalog.engine) as session:
        location = IcebergTables.metadata_location
        there = or_(*(location.startswith(each, autoescape=True) for each in sorted(places)))
        count = session.scalar(select(func.count()).select_from(IcebergTables).where(there))
    if count != 1:
        logger.warning(
            "table %s: files of older snapshots are kept: the catalog has %s tables at %s",
            ".".join(table.name()),
            count,
            place,
        )
    return count == 1


def delete_files(table: Table, paths: Collection[str]) -> int:
    """Delete files of a table; return how many. What cannot be deleted is said, and left.

    So are files at other places than those that the table writes to: a manifest of another's
    making, as in a backup, may name any file of the user.
    """
    name = ".".join(table.name())
    properties = table.metadata.properties
    own = [table.location(), *(properties[key] for key in WRITTEN_TO if key in properties)]
    roots = tuple(f"{_place(table, each)}/" for each in own)
    deleted = 0
    others = []
    for path in sorted(paths):
        try:
            if not _place(table, path).startswith(roots):
                others.append(path)
                continue
            table.io.delete(path)
            deleted += 1
        except FileNotFoundError:
            continue
        # each kind of storage has errors of its own
        except Exception as error:
            logger.warning("table %s: %s stays: %s", name, path, error)
    if others:
        logger.warning(
            "table %s: %d files that no snapshot has stay, as they are not in %s: the first is %s",
            name,
            len(others),
            " or ".join(own),
            others[0],
        )
    return deleted


def _place(table: Table, path: str) -> str:
    """Return the place of a file in the one form by which places are compared."""
    scheme, _, place = PyArrowFileIO.parse_location(path, table.io.properties)
    return f"{'s3' if scheme in _S3 else scheme}:{normal(f'/{place}')}"


def normal(path: str) -> str:
    """Return a path as it is compared: writers do not agree on ``a//b`` and ``a/./b``."""
    return posixpath.normpath(path).replace("//", "/")
