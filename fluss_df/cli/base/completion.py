"""Shell completion of table names and connections; within a short time, or not at all.

Completing never prints an error, and changes nothing: a folder that nobody has open is not opened.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fluss_df.addresses import embedded_folder

_LONGEST_S = 1.5
_MOST = 500
_VARIABLES = ("FLUSS_BOOTSTRAP_SERVERS", "FLUSS_HOME")


def tables(ctx: Any, incomplete: str) -> list[str]:
    """Return the tables of the connection that is named, those that begin as was typed."""
    found: set[str] = set()
    given = ctx.params.get("connection")

    def look() -> None:
        found.update(_tables(given))

    _quickly(look)
    # a name alone is one of the default database
    names = (
        {name.removeprefix("fluss.") for name in found} | found
        if "." in incomplete
        else {name.removeprefix("fluss.") for name in found}
    )
    return sorted(name for name in names if name.startswith(incomplete))[:_MOST]


def connections(incomplete: str) -> list[str]:
    """Return the addresses that the environment names, and folders."""
    names = {os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    # a password is not shown
    found = {name for name in names if "@" not in name}

    def look() -> None:
        typed = incomplete or "./"
        if isinstance(embedded_folder(typed), Path):
            parent, _, begun = typed.rpartition("/")
            for path in Path(f"{parent}/").expanduser().iterdir():
                if path.name.startswith(begun) and path.is_dir():
                    found.add(f"{parent}/{path.name}")

    _quickly(look)
    return sorted(name for name in found if name.startswith(incomplete))[:_MOST]


def _quickly(look: Callable[[], None]) -> None:
    """Do something for a while at most; whatever goes wrong is silent."""

    def run() -> None:
        with contextlib.suppress(Exception):
            look()

    logging.disable()
    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(_LONGEST_S)


def _tables(given: str | None) -> set[str]:
    from fluss_df.cli.base.listing import list_tables
    from fluss_df.client.connection import BOOTSTRAP_VARIABLE, FlussConnection, unconnected
    from fluss_df.client.transport.folders import home_folder

    described: Any = given or os.environ.get(BOOTSTRAP_VARIABLE) or home_folder()
    if not described:
        return set()
    folder = embedded_folder(described)
    if isinstance(folder, Path):
        return _tables_of_folder(folder.expanduser())
    config = unconnected(described).config.copy()
    most = int(_LONGEST_S * 1000)
    config.connect_timeout_ms = config.request_timeout_ms = config.retry_timeout_ms = most
    with FlussConnection.create(config) as opened:
        return {str(path) for path in list_tables(opened)}


def _tables_of_folder(folder: Path) -> set[str]:
    """Return the tables that the catalog of a folder names, whether or not somebody has it open."""
    from fluss_df.engine.catalog.catalog_files import CatalogFiles
    from fluss_df.engine.files.files import CHECKSUMS_SINCE, holds_data, read_format
    from fluss_df.engine.tables.tables import Table

    if not holds_data(folder):
        return set()
    files = CatalogFiles(folder, plain=read_format(folder)[0] < CHECKSUMS_SINCE)
    found = set()
    for table_id in files.table_ids():
        with contextlib.suppress(Exception):
            found.add(str(Table.from_json(files.table(table_id).read()[0]).path))
    return found
