"""Folders that are renamed, deleted, copied, replaced or unlocked under six processes that write.

Each process connects to the folder's path, writes numbers of its own one by one, and notes each
that is acknowledged; after an error it connects again. What was acknowledged must be in a folder
that remains, once, and two owners must not acknowledge beside each other.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.errors import FlussError
from tests.embedded.forking import ForkingProcess
from tests.waiting import wait_until

SCHEMA = pa.schema([("n", pa.int64())])
LOG = fluss.TablePath("fluss", "log")
WRITERS: Final = 6
EACH: Final = 10_000_000
# seconds between an acknowledgement and its note, at the most
_LATE_S: Final = 1.0
HOWS: Final = ("rename", "delete", "copy", "unlock", "replace")


def write_for_ever(folder: str, notes: str, number: int) -> None:
    """Write one's numbers; note when each was acknowledged."""
    fd = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    n = number * EACH
    settings = {"bootstrap.servers": folder, "retry-timeout": 2000}
    while True:
        try:
            with fluss.connect(settings) as connection:
                writer = connection.get_table(LOG).new_append().create_writer()
                while True:
                    n += 1
                    writer.write_arrow(pa.table({"n": [n]}, schema=SCHEMA))
                    writer.flush()
                    os.write(fd, f"{n} {time.monotonic()}\n".encode())
        except FlussError as error:
            os.write(fd, f"# {time.monotonic()} {error}\n".replace("\n", " ").encode() + b"\n")
            time.sleep(0.02)


@dataclass(slots=True)
class Outcome:
    """What was seen in one trial.

    Attributes
    ----------
    how
        What was done to the folder.
    acknowledged, after
        How many numbers were acknowledged, and how many of them after it was done.
    problems
        What must not be.
    """

    how: str
    acknowledged: int = 0
    after: int = 0
    problems: list[str] = field(default_factory=list)


class Writers(ForkingProcess):
    """Processes that write, each a fork of one that has imported everything."""

    def __init__(self) -> None:
        super().__init__("tests.embedded.losing")

    def _ask(self, line: str) -> list[str]:
        return self._tell(line).readline().split()

    def start(self, folder: Path, notes: Path) -> list[int]:
        """Begin to write; return the process ids."""
        return [int(pid) for pid in self._ask(f"start\t{folder}\t{notes}")]

    def reap(self) -> None:
        """Wait for those that were killed."""
        assert self._ask("reap") == ["reaped"]


def serve_forks() -> None:
    """Fork writers as the input says."""
    pids: list[int] = []
    for line in sys.stdin:
        what, *arguments = line.rstrip("\n").split("\t")
        if what == "start":
            folder, notes = arguments
            for number in range(WRITERS):
                pid = os.fork()
                if not pid:
                    try:
                        write_for_ever(folder, f"{notes}/{number}", number)
                    finally:
                        os._exit(1)
                pids.append(pid)
            print(*pids, flush=True)
        else:
            for pid in pids:
                os.waitpid(pid, 0)
            pids.clear()
            print("reaped", flush=True)


def trial(writers: Writers, base: Path, choose: random.Random) -> Outcome:
    """Do one thing to a folder that is written to, and look at what remains."""
    found = Outcome(choose.choice(HOWS))
    folder, other, notes = base / "d", base / "e", base / "notes"
    notes.mkdir(parents=True)
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
        connection.get_admin().create_table(LOG, descriptor)
    pids = writers.start(folder, notes)
    try:
        wait_until(lambda: sum(1 for n in acknowledged(notes)) > 20, 60)
        time.sleep(choose.uniform(0.0, 0.3))
        begun = time.monotonic()
        _do(found.how, folder, other)
        done = time.monotonic()
        time.sleep(choose.uniform(1.2, 1.8) if found.how == "delete" else choose.uniform(0.3, 1.5))
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        writers.reap()
    acks = acknowledged(notes)
    found.acknowledged = len(acks)
    found.after = sum(at > done for at in acks.values())
    _check(found, acks, begun, done, folder, other)
    if found.problems:
        found.problems += [f"notes: {_errors(notes)}"]
    return found


def _do(how: str, folder: Path, other: Path) -> None:
    if how == "rename":
        os.rename(folder, other)
    elif how == "delete":
        # a folder that is written to gets new files while it is deleted
        while folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
            if (folder / "FORMAT").exists():
                break
    elif how == "copy":
        shutil.copytree(folder, other, ignore_dangling_symlinks=True, copy_function=_copy)
    elif how == "unlock":
        (folder / "LOCK").unlink()
    else:
        os.rename(folder, other)
        made = folder.with_name("made")
        shutil.copytree(other, made, copy_function=_copy)
        with contextlib.suppress(OSError):
            # a process that found nothing there may have begun a folder of its own
            os.rename(made, folder)


def _copy(source: str, target: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


def acknowledged(notes: Path) -> dict[int, float]:
    """Return the numbers that were acknowledged, and when."""
    found: dict[int, float] = {}
    for path in notes.iterdir():
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n") and not line.startswith("#"):
                n, at = line.split()
                found[int(n)] = float(at)
    return found


def _errors(notes: Path) -> list[str]:
    lines = [
        line[:300]
        for path in sorted(notes.iterdir())
        for line in path.read_text().splitlines()
        if line.startswith("#")
    ]
    return [*lines[:6], *lines[-6:]]


def _stored(found: Outcome, folder: Path) -> Counter[int] | None:
    """Return the numbers in a folder; None where there is no table."""
    if not (folder / "FORMAT").exists():
        return None
    try:
        report = check_folder(folder)
        if not report.sound:
            found.problems.append(f"{folder.name} is not sound: {report}")
        with EmbeddedFluss(folder) as engine, engine.connection() as connection:
            if not connection.get_admin().table_exists(LOG):
                return None
            table = connection.get_table(LOG)
            scanner = table.new_scan().create_record_batch_log_scanner()
            scanner.subscribe(0, 0)
            return Counter(scanner.to_arrow()["n"].to_pylist())
    except FlussError as error:
        found.problems.append(f"{folder.name} cannot be read: {error}")
        return None


def _check(
    found: Outcome, acks: dict[int, float], begun: float, done: float, folder: Path, other: Path
) -> None:
    here = _stored(found, folder)
    # a copy of what is being written to is as it was, file by file
    there = _stored(found, other) if found.how != "copy" else None
    for name, stored in (("d", here), ("e", there)):
        twice = [n for n, count in (stored or {}).items() if count > 1]
        if twice:
            found.problems.append(f"{len(twice)} numbers are twice in {name}: {twice[:5]}")
    kept = (here or Counter()) + (there or Counter())
    lost = [n for n, at in acks.items() if n not in kept]
    if found.how == "delete":
        # what was acknowledged before went with the folder
        lost = [n for n in lost if acks[n] > done + _LATE_S]
    if lost:
        late = [round(acks[n] - done, 3) for n in lost[:5]]
        found.problems.append(f"{len(lost)} acknowledged numbers are lost: {lost[:5]}, at {late}")
    if found.how in ("copy", "unlock") and not found.after:
        found.problems.append("nothing was acknowledged afterwards")
    if here is not None and there is not None:
        of_new = [at for n, at in acks.items() if n in here and n not in there]
        of_old = [at for n, at in acks.items() if n in there and n not in here]
        if of_new and of_old and max(of_old) > min(of_new) + _LATE_S:
            found.problems.append("two owners acknowledged at the same time")


def campaign(
    base: Path, trials: int, seed: int, report: Callable[[int, Outcome], None]
) -> list[Outcome]:
    """Try many times; return what was seen.

    Parameters
    ----------
    base
        A folder for all of it.
    trials, seed
        How often, and what decides how.
    report
        Called after each trial.
    """
    choose = random.Random(seed)
    outcomes = []
    with Writers() as writers:
        for number in range(trials):
            place = base / str(number)
            outcomes.append(trial(writers, place, choose))
            report(number + 1, outcomes[-1])
            if not outcomes[-1].problems:
                shutil.rmtree(place, ignore_errors=True)
    return outcomes
