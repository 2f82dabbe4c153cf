"""The folder in which a run of micro-batches remembers how far it got.

``metadata.json`` names the run, the table that it reads, where it writes and what its query is.
``start.json`` says from where the first batch reads, once it was looked for rows;
``offsets/N.json`` says which offsets batch N reads, and is written before the batch is run;
``commits/N.json`` says that its output is there. A batch with the one file and without the other
is run again, with the same offsets. Files appear whole: written beside their place, synced, and
renamed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import polars as pl

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.hooks import undoing
from fluss_df.metadata import TablePath
from fluss_df.pushdown.plan import Split
from fluss_df.schema import TableInfo

_VERSION = 1
# errors by which systems say that another process has the lock
_IS_LOCKED = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK})

# errors of a disk, or of a share of it, that takes no more data
_FULL = frozenset({errno.ENOSPC, errno.EFBIG, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC)})
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_NUMBER = re.compile(r"(?:os error|errno) (\d+)", re.IGNORECASE)


#: What follows for a run where something cannot be written.
RUN_GOES_ON: Final = (
    "batches that were committed stay as they are, and the run goes on behind them when it is begun"
    " again"
)


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """The part of a table that a micro-batch reads.

    Parameters
    ----------
    number
        From 0, without gaps; -1 for where the first batch begins.
    table_id
        The id of the table; another one means that it was dropped and made again.
    splits
        A range of offsets for each bucket that the run knows; empty where nothing is new.
    created
        When the table was made, in milliseconds since 1970, because a server that was set up again
        gives the same ids again. None where an earlier release wrote the file.
    clock
        A moment in milliseconds since 1970: rows before the ends were committed to Fluss before it.
        Rows that were committed later are others, of a log that was put back to an earlier state.
        None where no such moment is known.
    """

    number: int
    table_id: int
    splits: tuple[Split, ...]
    created: int | None = None
    clock: int | None = None

    def is_of(self, info: TableInfo) -> bool:
        """Whether a table is the one that it reads, and not another one of the same name."""
        return self.table_id == info.table_id and self.created in (None, info.created_time)

    @property
    def rows(self) -> int:
        """How many rows of the table that is."""
        return sum(split.rows for split in self.splits)

    @property
    def ranges(self) -> list[list[Any]]:
        """The splits as JSON."""
        return [
            [s.partition_id, s.partition_name, s.bucket_id, s.start, s.stop] for s in self.splits
        ]

    @property
    def digest(self) -> str:
        """The same for batches that read the same rows, and for no others."""
        read = sorted(map(json.dumps, (r for r in self.ranges if r[4] > r[3])))
        return hashlib.sha256(f"{self.table_id}/{read}".encode()).hexdigest()[:32]

    def to_json(self) -> dict[str, Any]:
        """Return the content of its file."""
        return {
            "version": _VERSION,
            "table_id": self.table_id,
            "splits": self.ranges,
            "created": self.created,
            "clock": self.clock,
        }


def local_folder(what: str, folder: str | os.PathLike[str]) -> Path:
    """Return the path of a folder of this machine, with ``~`` replaced by the home folder.

    To give it the path that it returned changes nothing.

    Raises FlussError for a URL: as a path it would be a folder here with an odd name. And for an
    empty name, which would be the folder that the program happens to be in. And where an earlier
    release took ``~`` for the name of a folder, and what it wrote there is still in use.
    """
    if not os.fspath(folder).strip():
        raise FlussError(
            f"{what}={os.fspath(folder)!r} is empty: expected the path of a folder of this machine"
        )
    if _URL.match(os.fspath(folder)):
        raise FlussError(
            f"{what}={os.fspath(folder)!r} is a URL: expected the path of a folder of this machine"
        )
    given = Path(folder)
    if not given.parts or not given.parts[0].startswith("~"):
        return given
    # as in shells, "./~" is a folder of that name, and so is "~name" where there is no such user
    path = Path(os.path.expanduser(folder))
    literal = Path.cwd() / given
    if path == given:
        return literal
    if _has_files(literal) and not _has_files(path):
        raise FlussError(
            f"{what}={os.fspath(folder)!r} is {path}, and an earlier release wrote to {literal}: to"
            f" go on with that, move it to {path}, or say {what}={str(literal)!r}"
        )
    return path


def _has_files(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


class Checkpoint:
    """A checkpoint folder, owned by one run at a time; use it in a ``with`` statement.

    The folder is made where it does not exist, and serves one table. ``run_id`` is the id that all
    runs with this folder share, and ``about`` the content of ``metadata.json``. Both are known only
    within the ``with`` statement.

    Raises FlussError when another process uses the folder, or it is of another table or a later
    version.
    """

    def __init__(self, folder: str | os.PathLike[str], table: TablePath) -> None:
        self.folder = local_folder("checkpoint", folder)
        self._table = table
        self._lock: IO[str] | None = None
        self.run_id = ""
        self.about: dict[str, Any] = {}

    def __enter__(self) -> Checkpoint:
        try:
            for name in ("offsets", "commits"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            self._lock = lock_file(self.folder / "lock", f"checkpoint {self.folder}")
        except OSError as error:
            raise FlussError(
                f"checkpoint {self.folder} cannot be used as a folder: {error}",
                ErrorCode.STORAGE_EXCEPTION,
            ) from None
        with undoing(self._lock.close):
            for leftover in self.folder.glob("**/.*.json-*"):
                leftover.unlink(missing_ok=True)
            self.run_id = self._identify()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def _identify(self) -> str:
        path = self.folder / "metadata.json"
        if path.exists():
            found = read_state(path)
            if found.get("table") != str(self._table):
                raise FlussError(
                    f"checkpoint {self.folder} is of table {found.get('table')}, not of"
                    f" {self._table}: every query needs a folder of its own"
                )
            self.about = found
            self._check_numbers()
            return str(found.get("run_id"))
        if _numbers(self.folder / "offsets") or _numbers(self.folder / "commits"):
            raise FlussError(
                f"checkpoint {self.folder} has batches and no metadata.json, which names the run"
                " that they are of: put the file back, or start over with another folder"
            )
        run_id = uuid.uuid4().hex
        self.about = {"version": _VERSION, "table": str(self._table), "run_id": run_id}
        write_atomically(path, self.about)
        return run_id

    def _check_numbers(self) -> None:
        """Refuse a folder that lost the newest files: what they said would be taken wrongly."""
        begun = max(_numbers(self.folder / "offsets"), default=-1)
        done = max(_numbers(self.folder / "commits"), default=-1)
        if done > begun:
            raise FlussError(
                f"checkpoint {self.folder} lost files: batch {done} is committed, and"
                f" offsets/{done:010}.json, which says what it read, is not there; put the folder"
                " back as a whole, or start over with another one"
            )

    def amend(self, **fields: Any) -> None:
        """Note something of the run as a whole."""
        if all(self.about.get(key) == value for key, value in fields.items()):
            return
        self.about = {**self.about, **fields}
        write_atomically(self.folder / "metadata.json", self.about)

    def planned(self) -> BatchOffsets | None:
        """Return the newest batch that was begun; None before the first."""
        numbers = _numbers(self.folder / "offsets")
        return self.offsets(max(numbers)) if numbers else None

    def offsets(self, number: int) -> BatchOffsets:
        """Return what a batch reads."""
        return self._read_offsets(self.folder / "offsets" / f"{number:010}.json", number)

    def start(self) -> BatchOffsets | None:
        """Return where the first batch begins; None before it was looked for rows."""
        path = self.folder / "start.json"
        return self._read_offsets(path, -1) if path.exists() else None

    def begin(self, start: BatchOffsets) -> None:
        """Remember where the first batch begins, whenever that will be."""
        write_atomically(self.folder / "start.json", start.to_json())

    def _read_offsets(self, path: Path, number: int) -> BatchOffsets:
        found = read_state(path)
        try:
            splits = tuple(Split(*entry) for entry in found["splits"])
            created, clock = found.get("created"), found.get("clock")
            return BatchOffsets(number, int(found["table_id"]), splits, created, clock)
        except (KeyError, TypeError, ValueError) as error:
            raise FlussError(f"checkpoint file {path} is damaged: {error!r}") from None

    @classmethod
    def progress(
        cls, folder: str | os.PathLike[str]
    ) -> tuple[TablePath, BatchOffsets | None, dict[tuple[str | None, int], int]]:
        """Return which table a folder is of, and how far each bucket was read; while it is in use.

        With the path comes the newest batch; None before the first. Of a batch that is not
        committed nothing counts as read.
        """
        about = Path(folder) / "metadata.json"
        if not about.exists():
            raise FlussError(f"{folder} is no checkpoint folder: there is no metadata.json in it")
        path = TablePath.parse(str(read_state(about).get("table")))
        checkpoint = cls(folder, path)
        last = checkpoint.planned() or checkpoint.start()
        if last is None:
            return path, None, {}
        done = checkpoint.is_committed(last.number)
        read = {(s.partition_name, s.bucket_id): s.stop if done else s.start for s in last.splits}
        return path, last, read

    def is_committed(self, number: int) -> bool:
        """Whether the output of a batch is there."""
        return (self.folder / "commits" / f"{number:010}.json").exists()

    def committed(self) -> tuple[int, dict[str, Any]] | None:
        """Return the newest batch that is committed, and what was noted with it."""
        numbers = _numbers(self.folder / "commits")
        if not numbers:
            return None
        return max(numbers), read_state(self.folder / "commits" / f"{max(numbers):010}.json")

    def plan(self, batch: BatchOffsets) -> None:
        """Remember what a batch reads, before it is run."""
        write_atomically(self.folder / "offsets" / f"{batch.number:010}.json", batch.to_json())

    def commit(self, number: int, about: Mapping[str, Any]) -> None:
        """Remember that the output of a batch is there; forget old batches."""
        path = self.folder / "commits" / f"{number:010}.json"
        write_atomically(path, {"version": _VERSION, **about})
        # the newest one is needed; the one before is kept for people who look into the folder
        for kind in ("commits", "offsets"):
            for old in _numbers(self.folder / kind):
                if old < number - 1:
                    (self.folder / kind / f"{old:010}.json").unlink(missing_ok=True)


def _numbers(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit()]


def read_state(path: Path) -> dict[str, Any]:
    """Return what a file of a checkpoint says, or raise when it is damaged."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise FlussError(f"checkpoint file {path} cannot be read: {error}") from None
    if not isinstance(value, dict) or value.get("version") != _VERSION:
        raise FlussError(
            f"checkpoint file {path} is not of version {_VERSION}: a later fluss_df wrote it"
        )
    return value


def write_atomically(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON so that the file is there as a whole or not at all, also after a power loss."""
    with replacing(path) as name, storing(path), open(name, "w", encoding="utf-8") as file:
        json.dump(value, file)


@contextlib.contextmanager
def storing(path: Path) -> Iterator[None]:
    """Say of a disk that takes no more, or fails, what could not be written, and what follows."""
    try:
        yield
    except OSError as error:
        raise FlussError(
            f"{path} cannot be written: {error.strerror or error}; {RUN_GOES_ON}",
            ErrorCode.STORAGE_EXCEPTION,
        ) from error


@contextlib.contextmanager
def storing_output(path: Path) -> Iterator[None]:
    """As :func:`storing`, around a query, which may have errors of its own: of full disks alone."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        # Polars and Arrow have the error number in their texts
        found = _NUMBER.search(str(error))
        if found is None or int(found[1]) not in _FULL:
            raise
        with storing(path):
            raise OSError(int(found[1]), os.strerror(int(found[1]))) from error


def new_file(prefix: Path, path: Path) -> str:
    """Make an empty file, of which ``path`` is to be made; return its name.

    Others may read it as any file of this user, which those of :mod:`tempfile` they may not.
    """
    name = f"{prefix}{secrets.token_hex(4)}"
    with storing(path), open(name, "xb"):
        return name


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[str]:
    """Give the name of a new file beside ``path``, at the end synced and put in its place."""
    name = new_file(path.with_name(f".{path.name}-"), path)
    try:
        yield name
        with storing(path):
            with open(name, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    with storing(path):
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock_file(path: Path, what: str) -> IO[str]:
    """Return the file, locked until it is closed or the process ends."""
    file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - stays open
    try:
        _lock(file)
    except OSError as error:
        file.seek(0)
        owner = file.read().strip()
        file.close()
        if error.errno not in _IS_LOCKED:
            # a file system over a network may have no locks
            raise FlussError(
                f"{what} cannot be locked: {error.strerror or error}; take a folder on a file"
                " system with locks, as without them two runs could use it at once",
                ErrorCode.STORAGE_EXCEPTION,
            ) from None
        raise FlussError(
            f"{what} is in use by process {owner or 'unknown'}: a run needs a folder of its own"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[str]) -> None:
        # locked far after the process id, so that others may read the id
        file.seek(1 << 20)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        file.seek(0)

else:
    import fcntl

    def _lock(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
