"""Options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fluss_df.addresses import embedded_folder
from fluss_df.cli.base import completion
from fluss_df.client.connection import FlussConnection, resolve_connection
from fluss_df.client.transport.folders import home_folder
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TablePath
from fluss_df.record.change_tables import split_virtual

Connection = Annotated[
    str | None,
    typer.Option(
        "--connection",
        "-c",
        metavar="ADDRESS",
        envvar="FLUSS_BOOTSTRAP_SERVERS",
        help="A folder, host:port[,host:port] or fluss://USER:PASSWORD@HOST/DB; else the folder in"
        " FLUSS_HOME.",
        autocompletion=completion.connections,
    ),
]
Table = Annotated[
    str,
    typer.Argument(
        metavar="TABLE", help="table or database.table", autocompletion=completion.tables
    ),
]
Source = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="table or database.table; behind it, $changelog or $binlog for its changes, $lake for"
        " what of it is in the data lake.",
        autocompletion=completion.tables,
    ),
]
Columns = Annotated[
    str | None, typer.Option(metavar="NAME,NAME", help="Only these columns.", show_default="all")
]
Metadata = Annotated[
    bool, typer.Option("--metadata", help="With partition, bucket, offset and time of each row.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]


def open_table(
    connection: str | None, table: str, *, may_be_new: bool = False
) -> tuple[FlussConnection, TablePath]:
    """Return a connection, and the path of a table; ``may_be_new``: it may make a folder."""
    base, virtual = split_virtual(table)
    if virtual:
        raise FlussError(
            f"{table} is no table of its own, and this command takes {base}; head, tail, count,"
            f" dump and sql read '{table}'",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    opened = resolve_connection(connection) if may_be_new else open_existing(connection)
    return opened, TablePath.parse(table, opened.default_database)


def open_source(connection: str | None, table: str) -> tuple[FlussConnection, TablePath, str]:
    """Return a connection, the path of a table, and what of it to scan: ``db.t$changelog``."""
    base, virtual = split_virtual(table)
    opened, path = open_table(connection, base)
    return opened, path, f"{path}{virtual}"


def open_existing(connection: str | None) -> FlussConnection:
    """Return a connection, for a command that must not make a folder of data.

    Raises FlussError for a folder that holds no data: to connect to it would make an empty one.
    """
    folder = home_folder() if connection is None else embedded_folder(connection)
    if isinstance(folder, Path):
        from fluss_df.engine.files.files import holds_data

        if folder.expanduser().is_file():
            raise FlussError(
                f"{folder} is a file: -c names a folder of data of Fluss, or the address of a"
                " server; 'fluss-df load' reads files",
                ErrorCode.STORAGE_EXCEPTION,
            )
        if not holds_data(folder.expanduser()):
            raise FlussError(
                f"there is no data of Fluss in the folder {folder}: is its name right?"
                " 'fluss-df create', 'load --create', 'sql' and 'serve' make a new one",
                ErrorCode.STORAGE_EXCEPTION,
            )
    return resolve_connection(connection)


def place_of(connection: str | None, opened: FlussConnection) -> str:
    """Return where a connection leads, for messages: a folder, or the addresses of servers."""
    folder = home_folder() if connection is None else embedded_folder(connection)
    if isinstance(folder, Path):
        return str(folder.expanduser().resolve())
    return opened.config.bootstrap_servers


def split_names(names: str | None) -> list[str] | None:
    """Return the names in a list that is separated by commas.

    Raises FlussError for a list without a name, as a script has it whose variable is empty.
    """
    if names is None:
        return None
    found = [name.strip() for name in names.split(",") if name.strip()]
    if not found:
        raise FlussError(
            "an option that takes names of columns was given without any: leave it out, or name"
            " columns with commas between",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    return found
