"""The commit of a snapshot: a file with the next number, there as a whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fluss_df.engine.files.files import sync_file, sync_folder
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.paimon.manifests import read_avro
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.paimon_writing.files import NewFile
from fluss_df.lake.paimon_writing.manifests import Entry, ManifestWriter
from fluss_df.lake.paimon_writing.schema import WriteSchema
from fluss_df.lake.rounds.offsets import COMMIT_USER
from fluss_df.lake.rounds.tiered_lake import LakeMovedError, NotCommittedError

_NAME: Final = re.compile(r"snapshot-([1-9]\d*)")
_VERSION: Final = 3
# the identifier of a batch commit, which all commits of Fluss are
_IDENTIFIER: Final = (1 << 63) - 1
# kinds of commits that change no rows: others may make them after a round was planned
_SAME_ROWS: Final = ("COMPACT", "ANALYZE")
_ATTEMPTS: Final = 10
# fields that a snapshot takes over from the one before it
_KEPT: Final = ("indexManifest", "watermark", "statistics", "nextRowId")

Said = dict[str, Any]


def latest_snapshot(table: TableFiles) -> int:
    """Return the number of the newest snapshot; 0 where there is none."""
    return max(snapshot_numbers(table), default=0)


@dataclass(frozen=True, slots=True)
class Base:
    """The snapshot that a commit is planned with; its number is 0 where the table had none.

    A table that was rolled back gives numbers again: ``mark`` tells the snapshot from another one
    with its number.
    """

    number: int
    mark: bytes | None


def newest_base(table: TableFiles) -> Base:
    """Return the newest snapshot, for a commit to come on top of."""
    number = latest_snapshot(table)
    return Base(number, table.snapshot_mark(number) if number else None)


def snapshot_numbers(table: TableFiles) -> Iterator[int]:
    """Yield the numbers of the snapshots that there are, in no order."""
    try:
        names = os.listdir(table.at("snapshot"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise FlussError(
            f"lake table {table.path}: its snapshots cannot be listed: {error}",
            ErrorCode.NETWORK_EXCEPTION,
        ) from error
    for name in names:
        if (found := _NAME.fullmatch(name)) is not None:
            yield int(found[1])


class OutcomeUnknownError(Exception):
    """The storage failed while a snapshot was made, and does not say whether it is there."""


def read_said(table: TableFiles, number: int) -> Said:
    """Return what a snapshot says of itself.

    Raises FlussError where its file is missing or damaged.
    """
    name = f"snapshot/snapshot-{number}"
    try:
        said: Said = json.loads(table.read(name))
        if int(said["id"]) != number:
            raise ValueError(f"it is of the snapshot {said['id']}")
    except (ValueError, KeyError, TypeError) as error:
        raise table.damaged(name, error) from error
    return said


def commit_snapshot(
    table: TableFiles,
    schema: WriteSchema,
    base: Base,
    files: Sequence[NewFile],
    properties: Mapping[str, str],
    removed: Sequence[Entry] = (),
) -> int:
    """Commit new files on top of the snapshot that a round was planned with; return its number.

    Compactions by others since then change no rows: the snapshot comes on top of them. A commit
    that removes files is a compaction itself. It comes on top of the snapshot that it read or not
    at all. ``removed`` has the manifest entries of the files whose rows are in the new ones.

    Raises LakeMovedError when rows were committed meanwhile or the table was rolled back, and for a
    compaction when anything was committed. Raises NotCommittedError where a file cannot be read or
    written. Raises OutcomeUnknownError where the storage does not say whether the snapshot is
    there: its files stay then.
    """
    for _ in range(_ATTEMPTS):
        manifests = ManifestWriter(table, schema)
        # an interrupt may come after the snapshot was made and before _put returned
        committed = may_be_there = False
        try:
            newest = newest_base(table)
            if removed and newest.number != base.number:
                raise LakeMovedError(f"the snapshot {newest.number} was committed meanwhile")
            _require_same_rows(table, base, newest.number)
            last = read_said(table, newest.number) if newest.number else None
            said = _next(table, schema, manifests, last, files, properties, removed)
            _sync([*(Path(file.path) for file in files), *manifests.made])
            # writing manifests takes a while; if the table was rolled back meanwhile, files that
            # they list may be gone
            if newest_base(table) == newest:
                may_be_there = True
                committed = may_be_there = _put(
                    table, newest.number + 1, json.dumps(said, indent=2)
                )
        except LakeMovedError:
            raise
        except (OSError, FlussError) as error:
            may_be_there = False
            raise NotCommittedError(
                f"lake table {table.path}: its next snapshot cannot be written: {error}"
            ) from error
        finally:
            if not may_be_there:
                for path in manifests.made:
                    with contextlib.suppress(OSError):
                        path.unlink()
        if committed:
            hint(table, "LATEST", newest.number + 1)
            return newest.number + 1
    raise LakeMovedError(f"others committed {_ATTEMPTS} times meanwhile")


def _require_same_rows(table: TableFiles, base: Base, latest: int) -> None:
    mark = table.snapshot_mark(base.number) if base.number else None
    if latest < base.number or (base.number and (mark is None or mark != base.mark)):
        raise LakeMovedError(
            f"the snapshot {base.number} is gone, or another one: the table was rolled back, or"
            " the snapshot expired"
        )
    for number in range(base.number + 1, latest + 1):
        said = read_said(table, number)
        if said.get("commitKind") not in _SAME_ROWS or said.get("commitUser") == COMMIT_USER:
            raise LakeMovedError(
                f"{said.get('commitUser')!r} committed the snapshot {number} meanwhile"
            )


def _next(
    table: TableFiles,
    schema: WriteSchema,
    manifests: ManifestWriter,
    last: Said | None,
    files: Sequence[NewFile],
    properties: Mapping[str, str],
    removed: Sequence[Entry],
) -> Said:
    """Write the manifests of the next snapshot; return what it says."""
    before: list[Any] = []
    if last is not None:
        for key in ("baseManifestList", "deltaManifestList"):
            before += read_avro(table, f"manifest/{last[key]}")
    rows = [file for file in files if not file.changelog]
    changes = [file for file in files if file.changelog]
    base, base_size = manifests.list_of(manifests.merged(before))
    delta, delta_size = manifests.list_of(manifests.changed(rows, removed))
    count = sum(file.rows for file in rows)
    count -= sum(entry["_FILE"]["_ROW_COUNT"] for entry in removed)
    said: Said = {
        "version": _VERSION,
        "id": 1 if last is None else last["id"] + 1,
        "schemaId": max(schema.lake.id, 0 if last is None else last["schemaId"]),
        "baseManifestList": base,
        "baseManifestListSize": base_size,
        "deltaManifestList": delta,
        "deltaManifestListSize": delta_size,
        "changelogManifestList": None,
    }
    if changes:
        name, size = manifests.list_of(manifests.changed(changes))
        said |= {"changelogManifestList": name, "changelogManifestListSize": size}
    kept = {} if last is None else {key: last[key] for key in _KEPT if last.get(key) is not None}
    return {
        **said,
        "commitUser": COMMIT_USER,
        "commitIdentifier": _IDENTIFIER,
        "commitKind": "COMPACT" if removed else "APPEND",
        "timeMillis": int(time.time() * 1000),
        "logOffsets": {},
        "totalRecordCount": count + (0 if last is None else last["totalRecordCount"]),
        "deltaRecordCount": count,
        "changelogRecordCount": sum(file.rows for file in changes),
        "properties": dict(properties),
        **kept,
    }


def _sync(files: Sequence[Path]) -> None:
    """Have the disk hold files, and their names, before a snapshot has them."""
    for path in files:
        sync_file(path)
    for folder in {path.parent for path in files}:
        sync_folder(folder)


def _put(table: TableFiles, number: int, text: str) -> bool:
    """Make the file of a snapshot; return whether there was none.

    A hard link is made only where there is no file yet: of two writers that commit the same number
    one is refused. To look first and rename then would let both succeed.

    Raises OSError where the file cannot be made, and OutcomeUnknownError where it cannot be found
    out whether it was made.
    """
    path = Path(table.at(f"snapshot/snapshot-{number}"))
    path.parent.mkdir(exist_ok=True)
    whole = path.with_name(f".{path.name}.{uuid.uuid4()}.tmp")
    try:
        with whole.open("x", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        # what fails before this line has made no snapshot, even if a file of its name can be read
        try:
            os.link(whole, path)
            sync_folder(path.parent)
        except OSError as error:
            # where the answer of a storage was lost, a second attempt says that our own file exists
            try:
                return path.read_text(encoding="utf-8", errors="replace") == text
            except FileNotFoundError:
                raise error from None
            except OSError as unread:
                raise OutcomeUnknownError(f"{path}: {error}; {unread}") from error
    finally:
        with contextlib.suppress(OSError):
            whole.unlink()
    return True


def hint(table: TableFiles, name: str, number: int) -> None:
    """Note the newest snapshot or the first one, for readers that look before they list all."""
    path = Path(table.at(f"snapshot/{name}"))
    made = path.with_name(f".{name}.{uuid.uuid4()}.tmp")
    # not needed: readers list the folder where the note is out of date
    with contextlib.suppress(OSError):
        try:
            made.write_text(str(number), encoding="utf-8")
            made.replace(path)
        finally:
            # on a full disk the note may be empty
            made.unlink(missing_ok=True)
