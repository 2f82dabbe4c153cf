"""Micro-batches as Parquet files: each batch one file, that appears whole and once."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.hooks import undoing
from fluss_df.io.runs.checkpoint import (
    BatchOffsets,
    local_folder,
    lock_file,
    new_file,
    storing,
    storing_output,
    sync_folder,
)
from fluss_df.io.runs.losses import Losses
from fluss_df.io.runs.micro_batches import MicroBatch
from fluss_df.io.runs.run_register import Link
from fluss_df.io.runs.written import positions, where

# the key of the run's id in the metadata of files
_RUN_ID = b"fluss_df.run"
_BATCH = b"fluss_df.batch"
# how many characters of the folder's name the names of unfinished files have
_PREFIX = 40


class ParquetFolder:
    """One file for each batch that has rows, marked with the run that it is of.

    Files are written beside the folder, so that readers of the folder see whole files only. Where
    that is another disk, or may not be written, they are written in the folder, under a name that
    begins with a dot and does not end with ``.parquet``. The folder is made where it does not
    exist. Use it in a ``with`` statement.

    ``losses`` says what is done where files are gone. ``link`` is the newest file that this run
    knows of.
    """

    def __init__(self, folder: str | os.PathLike[str], run_id: str, losses: Losses) -> None:
        self._folder = local_folder("to", folder).resolve()
        self._run_id = run_id
        self._losses = losses
        self._lock: IO[str] | int | None = None
        self.link: Link | None = None
        if self._folder.exists() and not self._folder.is_dir():
            raise FlussError(f"to={str(folder)!r} is a file: expected a folder for Parquet files")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FlussError(
                f"to={str(folder)!r} cannot be made as a folder: {error}",
                ErrorCode.STORAGE_EXCEPTION,
            ) from None
        # only the beginning of a long name, so that the whole is not too long for a name
        self._prefix = f".{self._folder.name[:_PREFIX]}-{run_id}-"

    def __enter__(self) -> ParquetFolder:
        self._lock = _locked_folder(self._folder)
        with undoing(self._unlock):
            for place in (self._folder.parent, self._folder):
                for leftover in place.glob(f"{glob.escape(self._prefix)}*"):
                    leftover.unlink(missing_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._unlock()

    def _unlock(self) -> None:
        if isinstance(self._lock, int):
            os.close(self._lock)
        elif self._lock is not None:
            self._lock.close()

    def newest(self) -> Link | None:
        """Return the newest file; raise for one that another run wrote."""
        paths = sorted(self._folder.glob("batch-*.parquet"))
        return self._read(paths[-1]) if paths else None

    def _read(self, path: Path) -> Link:
        try:
            about: dict[bytes, bytes] = pq.read_metadata(path).metadata or {}
        except (pa.ArrowException, OSError) as error:
            raise FlussError(
                f"{path} cannot be read as a Parquet file: {error}. If this run wrote it, it is"
                " damaged: restore it; if something else did, a run needs a folder of its own",
                ErrorCode.STORAGE_EXCEPTION,
            ) from None
        if about.get(_RUN_ID) != self._run_id.encode():
            raise FlussError(
                f"{path} was not written with this checkpoint: a run needs a folder of its own,"
                " and the checkpoint that belongs to it"
            )
        text = path.stem.removeprefix("batch-")
        if not (text.isascii() and text.isdigit()):
            raise FlussError(
                f"{path} is a copy of a file that this run wrote, under a name of its own: move it"
                " out of the folder, where readers would count its rows twice"
            )
        number = int(text)
        if _BATCH not in about:
            # an earlier release wrote it
            return Link(number, "")
        found: dict[str, Any] = json.loads(about[_BATCH])
        return Link(number, found["name"], found)

    def check(self, planned: BatchOffsets | None, known: Link | None, told: bool) -> None:
        """Compare the folder with what the checkpoint says.

        ``planned`` is the batch that is not committed, None where all are. ``known`` is the newest
        file that was committed. ``told`` says whether the checkpoint names it: those of earlier
        releases do not.
        """
        self.link = known
        found = self.newest()
        if found == known:
            return
        if found is not None and planned is not None and found.batch == planned.number:
            if found.name in ("", planned.digest):
                return
            raise self._ahead(found, known)
        if not told:
            if found is not None and planned is not None and found.batch > planned.number:
                raise self._ahead(found, known)
            self.link = found
            return
        if known is not None and (found is None or found.batch < known.batch):
            self._losses.found(
                f"folder {self._folder} has no {_name(known.batch)}, which this run wrote last:"
                " files were deleted, or the folder was put back or replaced; batches up to"
                f" {known.batch} are not written again",
                ErrorCode.STORAGE_EXCEPTION,
            )
            self.link = found
            return
        assert found is not None
        raise self._ahead(found, known)

    def _ahead(self, found: Link, known: Link | None) -> FlussError:
        then = "nothing" if known is None else f"{_name(known.batch)} as the last one"
        return FlussError(
            f"folder {self._folder} has {_name(found.batch)}{where(found.about)}, and the"
            f" checkpoint knows of {then}: the checkpoint was put back to an earlier state, or a"
            " copy of it ran; its rows would be written a second time. Go on with the newest"
            " checkpoint, or start over with another checkpoint and folder"
        )

    def has(self, batch: BatchOffsets) -> bool:
        """Whether the file of a batch is there."""
        return self.newest() == Link(batch.number, batch.digest)

    def write(self, batch: MicroBatch) -> int:
        """Write the file of a batch, unless it is there; return its rows."""
        path = self._folder / _name(batch.number)
        found = self.newest()
        digest = batch.planned.digest
        if found == Link(batch.number, digest):
            self.link = found
            return int(pq.read_metadata(path).num_rows)
        # a file without a name is of an earlier release, and this run's
        replaces = found is not None and found.batch == batch.number and not found.name
        if found != self.link and not replaces:
            assert found is not None or self.link is not None
            if found is None or (self.link is not None and found.batch < self.link.batch):
                raise FlussError(
                    f"folder {self._folder} changed while the run went on: its newest file,"
                    f" {_name(self.link.batch if self.link else 0)}, is gone"
                )
            raise self._ahead(found, self.link)
        about = {"name": digest, "positions": positions(batch.planned.splits)}
        name = new_file(self._beside() / self._prefix, path)
        try:
            marks = {_RUN_ID.decode(): self._run_id, _BATCH.decode(): json.dumps(about)}
            with storing_output(path):
                batch.frame.sink_parquet(name, metadata=marks)
            rows = int(pq.read_metadata(name).num_rows)
            with storing(path):
                if rows:
                    with open(name, "rb+") as file:
                        os.fsync(file.fileno())
                    self._place(name, path, replaces)
                    self.link = Link(batch.number, digest)
                elif replaces:
                    path.unlink()
                sync_folder(self._folder)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        return rows

    def _beside(self) -> Path:
        """Return where files are written before they have their name."""
        above = self._folder.parent
        same = above.stat().st_dev == self._folder.stat().st_dev
        return above if same and os.access(above, os.W_OK | os.X_OK) else self._folder

    def _place(self, name: str, path: Path, replaces: bool) -> None:
        """Give a file its name: of two that would have it, the first does."""
        if not replaces:
            try:
                os.link(name, path)
                return
            except FileExistsError:
                raise self._ahead(self._read(path), self.link) from None
            except OSError:
                # the file system has no links
                pass
        os.replace(name, path)


def _name(number: int) -> str:
    return f"batch-{number:010}.parquet"


def _locked_folder(folder: Path) -> IO[str] | int | None:
    """Have the folder for this process alone, where the system can tell."""
    if sys.platform == "win32":
        name = sha256(str(folder).encode()).hexdigest()[:32]
        return lock_file(Path(tempfile.gettempdir()) / f"fluss-df-{name}.lock", f"folder {folder}")
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise FlussError(
            f"folder {folder} is being written by another run: a run needs a folder of its own;"
            " is a copy of its checkpoint in use?"
        ) from None
    except OSError:
        # file systems over a network may not lock folders
        os.close(handle)
        return None
    return handle
