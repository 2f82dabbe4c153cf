"""Changes of the cluster's state since its file was written: one record for each, added to the end.

A change costs its own bytes only, however large the state is. The state's file names the changes
that go on from it (``epoch``): earlier records do not belong to a new file. There are two files, as
for everything small: the first is synced before a change is answered, the second follows.
Each record has a number and a checksum, so both files together have all records.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import google_crc32c

from fluss_df.engine.files.files import (
    NOT_AS_WRITTEN,
    DamagedError,
    add_record,
    disk_refused,
    make_folder,
    read_bytes,
    set_folder_aside,
)

logger = logging.getLogger(__name__)

# bytes of the body, checksum of what follows; epoch and number
_HEAD: Final = struct.Struct("<II")
_IDS: Final = struct.Struct("<QQ")

Change = dict[str, Any]


def new_epoch() -> int:
    """Return a name for the changes that go on from a file, which no other changes have."""
    return secrets.randbits(62) + 2


class ClusterChanges:
    """The two files; guarded by the lock of the state.

    The files are created with the first change. ``before_change`` is called before a file is
    changed; it raises where none may be.

    ``size`` is the bytes of the records in the first file. ``sound`` says whether both files have
    all records. Where they have not, the state's file is to be written before the next change.
    """

    def __init__(
        self, first: Path, second: Path, before_change: Callable[[], None] = lambda: None
    ) -> None:
        self.first = first
        self._files = first, second
        self._before_change = before_change
        self._epoch = 0
        self._number = 0
        self._whole = 0
        self.size = 0
        self.sound = True

    def read(self, epoch: int) -> tuple[list[Change], list[str]]:
        """Return the changes that go on from a state's file, and what is wrong; change nothing.

        ``epoch`` is the one that the state's file names; 0 where there is no such file.

        Raises :class:`~fluss_df.engine.files.files.DamagedError` where one of them is in neither
        file, or the state's file is missing.
        """
        problems: list[str] = []
        found: list[dict[int, Change]] = []
        self._whole = 0
        for path in self._files:
            data = b""
            try:
                data = read_bytes(path) or b""
            except DamagedError as error:
                problems.append(error.message)
            if data and not epoch:
                raise DamagedError(
                    f"{path} has changes of a file that is lost: restore the folder from a backup"
                )
            records, whole = _records(data, epoch)
            self._whole = self._whole if found else whole
            found.append(records)
        known = found[1] | found[0]
        # the second file is not synced: after a loss of power it may lack some
        if len(found[0]) < len(known):
            problems.append(f"{self.first} is damaged, or lacks changes")
        self.sound = not problems and len(found[1]) == len(known)
        if sorted(known) != list(range(1, len(known) + 1)):
            missing = next(i for i in range(1, len(known) + 1) if i not in known)
            raise DamagedError(
                f"{self.first} and its copy {self._files[1]} both lack change {missing}, and later"
                " ones are there: restore the folder from a backup"
            )
        return [known[number] for number in sorted(known)], problems

    def go_on(self, epoch: int, count: int) -> None:
        """Have changes added behind those that were read, or begun for a new file of the state.

        ``epoch`` is the one that the state's file names. ``count`` is how many changes there are
        already; both files have them.
        """
        self._epoch, self._number, self.sound = epoch, count, True
        # behind the records may be one that was not written to the end
        self.size = self._whole if count else 0
        if count:
            return
        for path in self._files:
            try:
                if path.is_dir():
                    set_folder_aside(path)
                elif path.exists():
                    os.truncate(path, 0)
            except OSError as error:
                # what is there has another epoch
                logger.warning("cannot empty %s: %s", path, error)

    def add(self, change: Change) -> None:
        """Add a change; it is on the disk then.

        Raises FlussError, see :func:`~fluss_df.engine.files.files.disk_refused`; then the state's
        file is to be written before the next one.
        """
        self._before_change()
        ids = _IDS.pack(self._epoch, self._number + 1)
        body = json.dumps(change, separators=(",", ":")).encode()
        rest = ids + body
        record = _HEAD.pack(len(body), google_crc32c.value(rest)) + rest
        try:
            add_record(self._files[0], record, self.size, durable=True)
        except OSError as error:
            # how much of it is on the disk is not known
            self.sound = False
            path = self._files[0]
            raise disk_refused(f"cannot write {path}", path.parent, error) from error
        try:
            make_folder(self._files[1].parent)
            add_record(self._files[1], record, self.size, durable=False)
        except OSError as error:
            logger.warning("cannot write %s, a copy: %s", self._files[1], error)
            self.sound = False
        self._number += 1
        self.size += len(record)


def _records(data: bytes, epoch: int) -> tuple[dict[int, Change], int]:
    """Return the records of an epoch by number, and the bytes before the first that is none."""
    found: dict[int, Change] = {}
    at = 0
    while at + _HEAD.size + _IDS.size <= len(data):
        length, crc = _HEAD.unpack_from(data, at)
        start, end = at + _HEAD.size, at + _HEAD.size + _IDS.size + length
        if end > len(data) or google_crc32c.value(data[start:end]) != crc:
            break
        of, number = _IDS.unpack_from(data, start)
        try:
            change = json.loads(data[start + _IDS.size : end])
        except NOT_AS_WRITTEN:
            break
        if of != epoch:
            break  # left over: the state's file was written since then
        found[number] = change
        at = end
    return found, at
