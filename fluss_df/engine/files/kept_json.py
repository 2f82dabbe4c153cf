"""Small files that outlive damage: JSON with a checksum and a generation, kept in two places.

A change is durable in the first file before it is answered; the second file follows, without a
sync. Where the first is lost, damaged, or an older version of itself, the second one is taken, and
the other way round. So one damaged, lost or misplaced file loses nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import google_crc32c

from fluss_df.engine.files.files import (
    NOT_AS_WRITTEN,
    DamagedError,
    make_folder,
    read_bytes,
    sync_folder,
    write_atomically,
)
from fluss_df.errors import FlussError

logger = logging.getLogger(__name__)

_CRC_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class Kept:
    """The contents of one of the two files.

    ``generation`` is how often it was written; 0 in files of format 1, which have neither this nor
    a checksum.
    """

    generation: int
    value: Any


class KeptJson:
    """A value in two files.

    ``belongs`` says whether a value belongs to these files. Where the files of two tables were
    exchanged, nothing else tells. With ``plain``, files without a checksum are read, as format 1
    has them. ``before_change`` is called before a file is changed; it raises where none may be.
    """

    def __init__(
        self,
        first: Path,
        second: Path,
        *,
        belongs: Callable[[Any], bool] = lambda _value: True,
        plain: bool = False,
        before_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.first = first
        self.second = second
        self._belongs = belongs
        self._plain = plain
        self._before_change = before_change
        self._generation = 0

    def read(self) -> tuple[Any, list[str]]:
        """Return the newest value, and what is wrong with the files; changes nothing.

        The value is None where there is no file. There is a message for each file that is damaged,
        missing or of an older generation, though the other one has its value.

        Raises :class:`~fluss_df.engine.files.files.DamagedError` where neither file is sound.
        """
        found: dict[Path, Kept] = {}
        problems: dict[Path, str] = {}
        for path in (self.first, self.second):
            try:
                kept = _read(path, self._plain)
                if kept is not None and not self._belongs(kept.value):
                    raise DamagedError(f"{path} is the file of something else")
            except DamagedError as error:
                problems[path] = error.message
                continue
            if kept is not None:
                found[path] = kept
        if not found:
            if problems:
                raise DamagedError(
                    f"{'; '.join(problems.values())}. Restore the folder from a backup"
                )
            return None, []
        newest = max(found.values(), key=lambda kept: kept.generation)
        self._generation = newest.generation
        other = {path: kept for path, kept in found.items() if kept.generation < newest.generation}
        for path in other:
            problems[path] = f"{path} is older than its copy"
        if self.first not in found and self.first not in problems:
            problems[self.first] = f"{self.first} is missing"
        # the second file is not synced: after a loss of power it may be missing, or older
        return newest.value, [
            text for path, text in problems.items() if path == self.first or path not in other
        ]

    def packed(self, change: Callable[[Any], Any]) -> bytes | None:
        """Return the contents of a file with the newest value, changed; None for no files.

        Raises FlussError as :meth:`read`.
        """
        value, _ = self.read()
        return None if value is None else _pack(Kept(self._generation, change(value)))

    def load(self) -> Any:
        """Return the newest value, and put right what is wrong with the files; None for no files.

        Raises FlussError as :meth:`read` and :meth:`save`.
        """
        value, problems = self.read()
        for problem in problems:
            logger.warning("%s: its copy is taken", problem)
        if value is not None:
            self._put_right(value)
        return value

    def _put_right(self, value: Any) -> None:
        data = _pack(Kept(self._generation, value))
        if self._is(self.first, data):
            self._save_second(data)
        else:
            self.save(value)

    def save(self, value: Any) -> None:
        """Replace the value; it is durable then.

        Raises FlussError, see :func:`~fluss_df.engine.files.files.disk_refused`; the old value
        stays.
        """
        self._before_change()
        data = _pack(Kept(self._generation + 1, value))
        try:
            old = _read(self.first, self._plain)
        except DamagedError:
            old = None  # the second file has it
        try:
            write_atomically(self.first, data)
        except FlussError:
            self._take_back(data, old)
            raise
        self._generation += 1
        self._save_second(data)

    def _take_back(self, data: bytes, old: Kept | None) -> None:
        """Put the old value back in place of one that was written and is not durable."""
        try:
            if not self._is(self.first, data):
                return
            if old is None:
                self.first.unlink()
                sync_folder(self.first.parent)
                return
            # its generation is later than that of the value that may be on the disk
            self._generation += 2
            write_atomically(self.first, _pack(Kept(self._generation, old.value)))
        except (OSError, FlussError) as error:
            logger.error("%s may have a change that was refused: %s", self.first, error)

    def _save_second(self, data: bytes) -> None:
        """Write the second file where it is another; a disk that is full has the first one."""
        try:
            if self._is(self.second, data):
                return
            make_folder(self.second.parent)
            write_atomically(self.second, data, durable=False)
        except (OSError, FlussError) as error:
            logger.warning("cannot write %s, a copy of %s: %s", self.second, self.first, error)

    @staticmethod
    def _is(path: Path, data: bytes) -> bool:
        """Whether a file has some bytes."""
        try:
            return read_bytes(path) == data
        except DamagedError:
            return False


def _pack(kept: Kept) -> bytes:
    text = {"generation": kept.generation, "value": kept.value}
    body = json.dumps(text, separators=(",", ":")).encode()
    return body + b"\n%0*x\n" % (_CRC_DIGITS, google_crc32c.value(body))


def _read(path: Path, plain: bool) -> Kept | None:
    """Return what is in a file; None where there is none."""
    data = read_bytes(path)
    return None if data is None else _unpack(path, data, plain)


def _unpack(path: Path, data: bytes, plain: bool) -> Kept:
    body, _, digits = data.rstrip(b"\n").rpartition(b"\n")
    try:
        if not body and plain:
            return Kept(0, json.loads(data))
        if data != body + b"\n%0*x\n" % (_CRC_DIGITS, google_crc32c.value(body)):
            raise DamagedError(f"{path} is damaged: its checksum is {digits[:16]!r}")
        value = json.loads(body)
        return Kept(int(value["generation"]), value["value"])
    except NOT_AS_WRITTEN as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
