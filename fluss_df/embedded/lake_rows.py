"""The lines of the catalog of a folder's lake, read without pyiceberg, which takes a second."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from fluss_df.engine.files.files import sync_file, sync_folder
from fluss_df.metadata import TablePath

CATALOG: Final = "fluss-iceberg-catalog"
CATALOG_FILE: Final = "catalog.db"
#: (catalog, namespace, name)
Key = tuple[str, str, str]


def catalog_rows(catalog: Path) -> dict[Key, str]:
    """Return where the metadata of each table is, as a catalog says."""
    with contextlib.closing(sqlite3.connect(catalog)) as database:
        found = database.execute(
            "SELECT catalog_name, table_namespace, table_name, metadata_location"
            " FROM iceberg_tables WHERE metadata_location IS NOT NULL"
        ).fetchall()
    return {(str(c), str(n), str(t)): str(at) for c, n, t, at in found}


@contextlib.contextmanager
def replacing(catalog: Path) -> Iterator[Path]:
    """Give the path of an empty file, which takes the place of a catalog at the end, as a whole."""
    new = catalog.with_name(f"{catalog.name}.tmp")
    for left in (new, new.with_name(f"{new.name}-journal")):
        left.unlink(missing_ok=True)
    os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    yield new
    sync_file(new)
    # SQLite would roll the old catalog's journal back into the new one
    catalog.with_name(f"{catalog.name}-journal").unlink(missing_ok=True)
    os.replace(new, catalog)
    sync_folder(catalog.parent)


def is_damaged(catalog: Path) -> bool:
    """Return whether a catalog can never be read: it is there, and is no database."""
    try:
        catalog_rows(catalog)
    except sqlite3.OperationalError as error:
        return "no such table" in str(error)
    except sqlite3.DatabaseError:
        return True
    return False


def lacking(
    lake: Path, known: Mapping[TablePath, int]
) -> tuple[dict[Key, str] | None, dict[TablePath, int]]:
    """Return the lines of a catalog, and which tables are not among them.

    The lines are None where there is no catalog, or a damaged one. ``known`` are tables with their
    snapshots. Raises sqlite3.OperationalError where the catalog cannot be read now.
    """
    catalog = lake / CATALOG_FILE
    rows = None if not catalog.exists() or is_damaged(catalog) else catalog_rows(catalog)
    there = rows or {}
    return rows, {
        path: snapshot
        for path, snapshot in known.items()
        if (CATALOG, path.database_name, path.table_name) not in there
    }
