"""The catalog of a folder's lake, made again: of a backup's list, or where it was lost.

A backup has no catalog: SQLite's files are not for bytes that others may have made. It has a list
of the tables, from which a catalog is made when the folder is opened.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fluss_df.embedded.lake_paths import (
    WAREHOUSE,
    LakePaths,
    read_file,
    read_metadata,
    require_inside,
)
from fluss_df.embedded.lake_rows import CATALOG, CATALOG_FILE, Key, lacking, replacing
from fluss_df.engine.files.files import NOT_AS_WRITTEN, DamagedError, names_in, read_bytes
from fluss_df.engine.lake.lake_tables import LAKE_TABLES
from fluss_df.metadata import TablePath

logger = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,200}", re.ASCII)
#: The path of a table's metadata below the lake.
METADATA: Final = re.compile(
    rf"{WAREHOUSE}(/[A-Za-z0-9_=%+,@~-][A-Za-z0-9._=%+,@~-]*)+/metadata/"
    r"[A-Za-z0-9][A-Za-z0-9._-]*\.metadata\.json",
    re.ASCII,
)
_VERSION: Final = re.compile(r"(\d{1,9})-.*\.metadata\.json")


def pending_rows(lake: Path) -> dict[Key, str] | None:
    """Return the tables that a backup put into a lake; None where there is no list of them.

    Raises DamagedError where it is not one that a backup has.
    """
    data = read_bytes(lake / LAKE_TABLES)
    if data is None:
        return None
    rows = {}
    try:
        for row in json.loads(data):
            database, name, below = str(row["database"]), str(row["name"]), str(row["metadata"])
            if not (_NAME.fullmatch(database) and _NAME.fullmatch(name)):
                raise ValueError(f"{database!r}.{name!r} is no name of a table")
            if not METADATA.fullmatch(below):
                raise ValueError(f"{below!r} is no metadata of a table")
            rows[CATALOG, database, name] = _made_at(lake, below)
    except NOT_AS_WRITTEN as error:
        raise DamagedError(f"{LAKE_TABLES} is damaged: {error!r}") from error
    return rows


def _made_at(lake: Path, below: str) -> str:
    """Return the path of a table's metadata where it was made."""
    try:
        data = read_file(lake / below)
    except FileNotFoundError:
        return f"file://{lake}/{below}"  # whoever reads it reports that it is missing
    metadata = read_metadata(data, below)
    location = str(metadata["location"])
    table = below.rpartition("/metadata/")[0]
    if not location.startswith("file:///") or not location.endswith(f"/{table}"):
        raise DamagedError(f"{below} is that of a table at {location}")
    made = location.removesuffix(f"/{table}").removeprefix("file://")
    require_inside(metadata, LakePaths(made, lake))
    return f"file://{made}/{below}"


def register_pending(lake: Path) -> bool:
    """Make the catalog of a lake that a backup put into a folder; whether there was one."""
    rows = pending_rows(lake)
    if rows is None:
        return False
    _write(lake, rows)
    (lake / LAKE_TABLES).unlink()
    return True


def _write(lake: Path, rows: Mapping[Key, str]) -> None:
    """Put a catalog with some tables in place of what is there."""
    from pyiceberg.catalog.sql import SqlCatalog

    with replacing(lake / CATALOG_FILE) as new:
        warehouse = f"file://{lake}/{WAREHOUSE}"
        catalog = SqlCatalog(CATALOG, uri=f"sqlite:///{new}", warehouse=warehouse)
        for database in {key[1] for key in rows}:
            catalog.create_namespace_if_not_exists(database)
        catalog.close()
        with contextlib.closing(sqlite3.connect(new)) as connection:
            connection.executemany(
                "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name,"
                " metadata_location, iceberg_type) VALUES (?, ?, ?, ?, 'TABLE')",
                [(*key, at) for key, at in rows.items()],
            )
            connection.commit()


# ---- a catalog that was lost


def lost_rows(
    lake: Path, known: Mapping[TablePath, int]
) -> tuple[dict[Key, str], dict[TablePath, str]]:
    """Find metadata of tables that the catalog lacks; return its place, or why there is none.

    ``known`` has the tables that the catalog lacks, each with the snapshot that Fluss knows. The
    right metadata is the one whose newest snapshot is that one. Whatever newer metadata has in the
    lake is still in the logs, and is tiered again.
    """
    found: dict[Key, str] = {}
    missing: dict[TablePath, str] = {}
    for path, snapshot in known.items():
        folder = f"{WAREHOUSE}/{path.database_name}/{path.table_name}/metadata"
        versions = {
            (int(match[1]), name): f"{folder}/{name}"
            for name in names_in(lake / folder)
            if (match := _VERSION.fullmatch(name))
        }
        missing[path] = f"no metadata in {folder} has the snapshot {snapshot} as its newest"
        for _, below in sorted(versions.items(), reverse=True):
            try:
                metadata = read_metadata(read_file(lake / below), below)
                if metadata.get("current-snapshot-id") == snapshot:
                    found[CATALOG, path.database_name, path.table_name] = _made_at(lake, below)
                    del missing[path]
                    break
            except (DamagedError, OSError) as error:
                logger.warning("%s is passed over: %s", below, error)
    return found, missing


def mend_catalog(lake: Path, known: Mapping[TablePath, int]) -> None:
    """Make a catalog again that is lost or damaged, or lacks tables.

    One that is damaged gets another name: nothing is deleted.
    """
    catalog = lake / CATALOG_FILE
    rows, tables = lacking(lake, known)
    damaged = rows is None and catalog.exists()
    found, missing = lost_rows(lake, tables)
    for path, why in missing.items():
        logger.warning("the lake table %s is lost: %s", path, why)
    if damaged:
        names = (lake / f"{CATALOG_FILE}.damaged-{number}" for number in range(10**6))
        os.link(catalog, next(name for name in names if not name.exists()))
    if found or damaged:
        logger.warning("the catalog of the lake %s is made again: %d tables", lake, len(found))
        _write(lake, {**(rows or {}), **found})
