"""The upkeep of one Paimon table: old snapshots go, and files that no snapshot has."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from fluss_df.lake.options import LakeOptions
from fluss_df.lake.paimon.manifests import live_entries, read_avro
from fluss_df.lake.paimon.partitions import Partitions
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.paimon_writing.commit import Said, hint, read_said, snapshot_numbers
from fluss_df.lake.paimon_writing.tiered_table import newest_schema
from fluss_df.lake.rounds.offsets import COMMIT_USER

# a snapshot may be what queries read until the second round after it was committed
_ROUNDS: Final = 2
_LISTS: Final = ("baseManifestList", "deltaManifestList", "changelogManifestList")
# options by which changelogs are kept for longer than their snapshots
_CHANGELOG_STAYS: Final = ("changelog.num-retained", "changelog.time-retained")


class PaimonUpkeep:
    """Expires snapshots, and removes files that none has; see :class:`LakeUpkeep`."""

    def __init__(self, options: LakeOptions) -> None:
        self._table = TableFiles(options)

    def expire(self, age_s: float) -> tuple[int, int] | None:
        """Expire the snapshots that are older; return how many, and how many files were deleted.

        Snapshots are deleted before files that only they had: what a kill leaves is of no snapshot.
        What tags name stays, and what consumers did not read. A table with branches, or whose
        changes stay for longer, is left as it is.
        """
        if self._is_kept():
            return None
        numbers = sorted(snapshot_numbers(self._table))
        old = self._old(numbers, age_s)
        if not old:
            return None
        kept = numbers[len(old) :]
        gone = [read_said(self._table, number) for number in old]
        stays = [read_said(self._table, number) for number in kept]
        stays += self._tagged()
        # a file that one snapshot lacks is in no later one: the oldest of the kept ones is enough
        having = [stays[0], *stays[len(kept) :]]
        names = {name for said in having for name in self._rows(said)}
        needed = {path for said in stays for path in self._manifests(said)}
        # a dict, because most files are of many snapshots
        files: dict[str, None] = {}
        for said in gone:
            rows = self._rows(said).items()
            files |= dict.fromkeys(path for name, path in rows if name not in names)
            files |= dict.fromkeys(self._changes(said))
            files |= dict.fromkeys(p for p in self._manifests(said) if p not in needed)
        hint(self._table, "EARLIEST", kept[0])
        for number in old:
            Path(self._table.at(f"snapshot/snapshot-{number}")).unlink(missing_ok=True)
        return len(old), _deleted(files)

    def remove_orphans(self, age_s: float) -> int:
        """Delete files that no snapshot has, of this age at the least; return how many."""
        if self._is_kept():
            return 0
        before = time.time() - age_s
        # first what there is, then what is known: what comes meanwhile is young
        there = [path for path in self._there() if _modified(path) < before]
        numbers = sorted(snapshot_numbers(self._table))
        stays = [*(read_said(self._table, number) for number in numbers), *self._tagged()]
        known: set[str] = set()
        for said in stays:
            known |= {Path(path).name for path in self._manifests(said)}
            if said.get("indexManifest"):
                known.add(said["indexManifest"])
        for name in [name for name in known if name.startswith("manifest-")]:
            if not name.startswith("manifest-list-"):
                for entry in read_avro(self._table, f"manifest/{name}"):
                    file = entry["_FILE"]
                    known |= {file["_FILE_NAME"], *file["_EXTRA_FILES"]}
        return _deleted(path for path in there if Path(path).name not in known)

    def _is_kept(self) -> bool:
        options = newest_schema(self._table).lake.options
        # options of changelogs may be those of one job, and not the table's
        has = any(Path(self._table.at(folder)).exists() for folder in ("branch", "changelog"))
        return has or any(option.startswith(_CHANGELOG_STAYS) for option in options)

    def _old(self, numbers: list[int], age_s: float) -> list[int]:
        """Return the first of some snapshots: those that go."""
        before = (time.time() - age_s) * 1000
        consumed = [
            int(json.loads(path.read_bytes())["nextSnapshot"])
            for path in Path(self._table.at("consumer")).glob("consumer-*")
        ]
        last = min(consumed, default=None)
        rounds: list[tuple[int, int]] = []
        for number in reversed(numbers):
            said = read_said(self._table, number)
            # a compaction belongs to the round before it
            if said.get("commitUser") == COMMIT_USER and said.get("commitKind") == "APPEND":
                rounds.append((number, said["timeMillis"]))
        # newest round first; a snapshot may go where two newer rounds are old enough
        ends = [
            rounds[at + _ROUNDS - 1][0]
            for at in range(len(rounds) - _ROUNDS + 1)
            if rounds[at][1] <= before
        ]
        first_kept = max(ends, default=0)
        if last is not None:
            first_kept = min(first_kept, last)
        return list(itertools.takewhile(lambda number: number < first_kept, numbers))

    def _tagged(self) -> list[Said]:
        return [json.loads(path.read_bytes()) for path in Path(self._table.at("tag")).glob("tag-*")]

    def _rows(self, said: Said) -> dict[str, str]:
        """Return the paths of the files of a snapshot by their names."""
        partitions = Partitions(self._table, newest_schema(self._table).lake)
        return {
            entry["_FILE"]["_FILE_NAME"]: self._path(partitions, entry)
            for _, entry in live_entries(self._table, said)
        }

    def _changes(self, said: Said) -> Iterator[str]:
        name = said.get("changelogManifestList")
        if not name:
            return
        partitions = Partitions(self._table, newest_schema(self._table).lake)
        for line in read_avro(self._table, f"manifest/{name}"):
            for entry in read_avro(self._table, f"manifest/{line['_FILE_NAME']}"):
                yield self._path(partitions, entry)

    def _path(self, partitions: Partitions, entry: dict[str, Any]) -> str:
        file = entry["_FILE"]
        place: str = file.get("_EXTERNAL_PATH") or partitions.path(
            entry["_PARTITION"], entry["_BUCKET"], file["_FILE_NAME"]
        )
        return self._table.at(place)

    def _manifests(self, said: Said) -> Iterator[str]:
        for key in _LISTS:
            if said.get(key):
                yield self._table.at(f"manifest/{said[key]}")
                for line in read_avro(self._table, f"manifest/{said[key]}"):
                    yield self._table.at(f"manifest/{line['_FILE_NAME']}")

    def _there(self) -> Iterator[str]:
        """Yield the files of the table that a killed round may have left."""
        for folder, _, names in os.walk(self._table.folder):
            place = Path(folder)
            for name in names:
                data = place.name.startswith("bucket-") and name.startswith(("data-", "changelog-"))
                manifest = place.name == "manifest" and name.startswith("manifest-")
                started = place.name == "snapshot" and name.endswith(".tmp")
                if data or manifest or started:
                    yield f"{folder}/{name}"


def _modified(path: str) -> float:
    with contextlib.suppress(OSError):
        return os.stat(path).st_mtime
    return time.time()


def _deleted(paths: Iterable[str]) -> int:
    """Delete files; return how many were there. What cannot be deleted is left."""
    count = 0
    for path in dict.fromkeys(paths):
        with contextlib.suppress(OSError):
            os.unlink(path)
            count += 1
    return count
