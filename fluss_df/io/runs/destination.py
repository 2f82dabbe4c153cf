"""Where a run writes to. A checkpoint keeps its destination, and is refused with another."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

import polars as pl

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.runs.checkpoint import Checkpoint, local_folder
from fluss_df.io.runs.losses import Losses
from fluss_df.metadata import TablePath
from fluss_df.schema import TableInfo

logger = logging.getLogger(__name__)

#: A table, a folder of Parquet files, or a function that is called with each batch and its number.
Destination: TypeAlias = (
    "str | TablePath | os.PathLike[str] | Callable[[pl.DataFrame, int], object]"
)


# errors that mean that there is no table of a name; an unreachable cluster says nothing about it
_NO_TABLE: Final = (
    ErrorCode.TABLE_NOT_EXIST,
    ErrorCode.DATABASE_NOT_EXIST,
    ErrorCode.INVALID_TABLE_EXCEPTION,
    ErrorCode.INVALID_DATABASE_EXCEPTION,
)


def place_of(to: Destination) -> Destination:
    """Return a destination, with ``~`` of a folder replaced by the home folder.

    Raises FlussError as :func:`~fluss_df.io.runs.checkpoint.local_folder`.
    """
    if callable(to) or isinstance(to, TablePath):
        return to
    path = local_folder("to", to)
    return to if path == Path(to) else path


def table_of(connection: FlussConnection, to: str | TablePath) -> TablePath | None:
    """Return the table that ``to`` names; None when it names a folder.

    Raises FlussError when ``to`` may mean a table as well as a folder, or a table that does not
    exist.
    """
    if isinstance(to, TablePath):
        return to
    if os.sep in to or (os.altsep is not None and os.altsep in to) or not to.strip("."):
        return None
    if "." not in to.strip("."):
        _refuse_ambiguous(connection, to)
        return None
    try:
        path = TablePath.parse(to, connection.default_database)
        connection.get_table(path)
    except FlussError as error:
        if error.error_code in _NO_TABLE and Path(to).is_dir():
            return None
        raise FlussError(
            f"to={to!r}: {error.message}; for a folder of Parquet files say to='./{to}'",
            error.error_code,
        ) from None
    if Path(to).is_dir():
        raise FlussError(
            f"to={to!r} is a table and a folder: say to='./{to}' for the folder, or"
            f" to=TablePath({path.database_name!r}, {path.table_name!r}) for the table"
        )
    return path


def _refuse_ambiguous(connection: FlussConnection, to: str) -> None:
    """Refuse a name without a dot, which means a folder, if there is also a table of that name."""
    try:
        path = TablePath.parse(to, connection.default_database)
        exists = connection.get_admin().table_exists(path)
    except FlussError:
        # the name is that of no table, or of one that this user may not see: then it is a folder
        return
    if exists:
        raise FlussError(
            f"to={to!r}: there is a table {path}, but a name without a dot means a folder:"
            f" say to='{path}' for the table, or to='./{to}' for a folder of Parquet files"
        )


def refuse_nested(to: Destination, checkpoint: str | os.PathLike[str]) -> None:
    """Refuse a checkpoint inside the folder of Parquet files.

    Programs that read the whole folder would read the checkpoint's files too. For a checkpoint
    that is already in use there is only a warning, so that its run can go on.
    """
    inner = local_folder("checkpoint", checkpoint).resolve()
    if callable(to) or isinstance(to, TablePath):
        return
    folder = local_folder("to", to).resolve()
    # checked even where this names a table: the checkpoint would make a folder of that name
    if folder not in (inner, *inner.parents):
        return
    text = (
        f"checkpoint {inner} lies in {folder}, the folder of Parquet files that the run writes:"
        " programs that read the folder as a whole find the checkpoint's files among them"
    )
    if not (inner / "metadata.json").exists():
        raise FlussError(f"{text}; name a folder outside, such as {folder}.checkpoint")
    logger.warning("%s; end the run and move the checkpoint out", text)


def refuse_source(
    source: FlussConnection, read: TableInfo, target: FlussConnection, written: TableInfo
) -> None:
    """Refuse to write to the table that is read: what a batch writes would be read by the next."""
    known = [(i.table_path, i.table_id, i.created_time) for i in (read, written)]
    if known[0] != known[1]:
        return
    if source is not target:
        # The connection may be another one to the same cluster, by another of its addresses.
        # Servers are compared too, because a cluster restored from a backup has the same tables.
        servers = [
            {(node.host, node.port) for node in connection.get_admin().get_server_nodes()}
            for connection in (source, target)
        ]
        if not servers[0] & servers[1]:
            return
    raise FlussError(f"to='{written.table_path}': a run cannot write to the table that it reads")


def describe(to: Destination, info: TableInfo | None) -> dict[str, Any]:
    """Return what a checkpoint keeps of a destination.

    ``kind`` is ``"table"``, ``"folder"`` or ``"function"``, and ``name`` which one; of a table also
    its ``table_id``, and when it was ``created``, in milliseconds since 1970.
    """
    if info is not None:
        return {
            "kind": "table",
            "name": str(info.table_path),
            "table_id": info.table_id,
            "created": info.created_time,
        }
    if callable(to):
        function = to.func if isinstance(to, functools.partial) else to
        module = getattr(function, "__module__", None)
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return {"kind": "function", "name": f"{module}.{name}"}
    assert not isinstance(to, TablePath)
    return {"kind": "folder", "name": str(Path(to).resolve())}


def _made(table: dict[str, Any]) -> str:
    text = f"id {table['table_id']}"
    if "created" not in table:
        return text  # an earlier release wrote it
    when = datetime.fromtimestamp(table["created"] / 1000, UTC)
    return f"{text}, created {when:%Y-%m-%d %H:%M:%S} UTC"


def check_destination(
    checkpoint: Checkpoint,
    now: dict[str, Any],
    losses: Losses,
    connection: FlussConnection,
    is_moved: Callable[[], bool],
) -> bool:
    """Compare a destination with that of the checkpoint; return whether its table is another one.

    That is a table which was created again, with which the run goes on because ``losses`` permit
    it. ``now`` is the destination by :func:`describe`. ``is_moved`` is called for a folder whose
    old path is gone, and returns whether the folder was moved with its checkpoint.

    Raises FlussError when the checkpoint belongs to another destination.
    """
    then = checkpoint.about.get("destination")
    if then is None or then == now:
        return False
    if (then["kind"], then["name"]) == (now["kind"], now["name"]):
        losses.found(
            f"table {now['name']}, which checkpoint {checkpoint.folder} belongs to, was dropped and"
            f" made again ({_made(then)}; now {_made(now)}): rows of earlier batches are not in it;"
            " start over with another checkpoint",
            ErrorCode.TABLE_NOT_EXIST,
        )
        return True
    if then["kind"] == now["kind"] == "function":
        logger.warning(
            "checkpoint %s was begun with function %s, and goes on with %s",
            *(checkpoint.folder, then["name"], now["name"]),
        )
        return False
    if then["kind"] == now["kind"] == "folder" and not Path(then["name"]).exists() and is_moved():
        return False
    gone = ""
    if then["kind"] == "table":
        try:
            path = TablePath.parse(then["name"], connection.default_database)
            gone = "" if connection.get_admin().table_exists(path) else " that is gone"
        except FlussError:
            gone = ""
    raise FlussError(
        f"checkpoint {checkpoint.folder} belongs to the {then['kind']} {then['name']}{gone}, where"
        f" its rows so far were written, and not to the {now['kind']} {now['name']}: another"
        " destination needs a checkpoint of its own"
    )
