"""The tables that a service holds, kept its own by heartbeats."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import IO

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.tiering.coordinator import Coordinator, Lease
from fluss_df.metadata import TablePath

logger = logging.getLogger("fluss_df.lake.tiering")

HEARTBEAT_S = 10.0


class Leases:
    """The leases that a service holds; a thread of its own sends heartbeats.

    The coordinator gives a table to another service two minutes after the last heartbeat. A service
    that was killed leaves its tables for as long, unless it wrote them into ``file``: the next one
    that uses the file gives them back at once. Two services at once need two files; None writes
    none.
    """

    def __init__(self, coordinator: Coordinator, file: Path | None) -> None:
        self._coordinator = coordinator
        self._lock = threading.RLock()
        self._held: dict[int, Lease] = {}
        self._lost: dict[Lease, str] = {}
        self._ended = threading.Event()
        self._file = file
        self._locked: IO[str] | None = None
        if file is not None:
            self._locked = _locked(file)
            self._give_back_old()
        self._thread = threading.Thread(target=self._beat, name="fluss-df-tier-beat", daemon=True)
        self._thread.start()

    def request(
        self, wanted: set[TablePath] | None, without: Collection[TablePath] = ()
    ) -> Lease | None:
        """Return a table that is due; None where there is none.

        Tables that are not in ``wanted``, or are in ``without``, are given back. None wants any.
        """
        others: list[Lease] = []
        try:
            while True:
                with self._lock:
                    lease, _ = self._coordinator.heartbeat(request=True)
                    if lease is None:
                        return None
                    self._held[lease.table_id] = lease
                    self._save()
                if (wanted is None or lease.path in wanted) and lease.path not in without:
                    return lease
                others.append(lease)
        finally:
            # All at once, and last: they become due again at the end of the coordinator's queue.
            if others:
                self._report(failed=others)

    def check(self, lease: Lease) -> None:
        """Raise FlussError, with the coordinator's reason, where this service lost a table."""
        with self._lock:
            if lease not in self._lost:
                self._heartbeat([lease])
            if lease in self._lost:
                raise FlussError(
                    f"table {lease.path} is not this service's to tier any more:"
                    f" {self._lost[lease]}"
                )

    def finish(self, lease: Lease, *, complete: bool) -> None:
        """Report a table that was tiered: to its end, or so that it is due again at once."""
        if complete:
            self._report(finished=[lease])
        else:
            self._report(continued=[lease])

    def fail(self, lease: Lease) -> None:
        """Report a table that could not be tiered."""
        self._report(failed=[lease])

    def close(self) -> None:
        """Give back what is still held, and end the heartbeats."""
        self._ended.set()
        self._thread.join()
        with self._lock:
            held = list(self._held.values())
        if held:
            with contextlib.suppress(FlussError):
                self._report(failed=held)
        if self._locked is not None:
            self._locked.close()

    def _report(
        self,
        *,
        finished: list[Lease] | None = None,
        continued: list[Lease] | None = None,
        failed: list[Lease] | None = None,
    ) -> None:
        finished, continued, failed = finished or [], continued or [], failed or []
        with self._lock:
            for lease in (*finished, *continued, *failed):
                self._held.pop(lease.table_id, None)
                self._lost.pop(lease, None)
            _, refused = self._coordinator.heartbeat(
                finished=finished, continued=continued, failed=failed
            )
            self._save()
        for table_id, reason in refused.items():
            logger.info("the report of table id %s was refused: %s", table_id, reason)

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            with self._lock:
                held = [lease for lease in self._held.values() if lease not in self._lost]
                if held:
                    try:
                        self._heartbeat(held)
                    # whatever it is: without heartbeats others would tier the tables, too
                    except Exception as error:
                        logger.warning("a heartbeat of the tiering service failed: %s", error)

    def _heartbeat(self, held: list[Lease]) -> None:
        _, refused = self._coordinator.heartbeat(tiering=held)
        for lease in held:
            if lease.table_id in refused:
                self._lost[lease] = refused[lease.table_id]

    # ---- the file

    def _save(self) -> None:
        if self._file is None:
            return
        content = [
            [
                lease.table_id,
                lease.path.database_name,
                lease.path.table_name,
                lease.coordinator_epoch,
                lease.tiering_epoch,
            ]
            for lease in self._held.values()
        ]
        new = self._file.with_name(f".{self._file.name}.new")
        try:
            new.write_text(json.dumps(content), encoding="utf-8")
            new.replace(self._file)
        except OSError as error:
            # a killed service's tables then wait for two minutes; this one's are not held up
            logger.warning("the tables that are held are not written to %s: %s", self._file, error)

    def _give_back_old(self) -> None:
        assert self._file is not None
        try:
            content = json.loads(self._file.read_text(encoding="utf-8") or "[]")
            old = deque(
                Lease(int(table), TablePath(database, name), int(coordinator), int(epoch))
                for table, database, name, coordinator, epoch in content
            )
        except FileNotFoundError:
            return
        except (ValueError, TypeError) as error:
            raise FlussError(
                f"{self._file} is not what a tiering service wrote there; remove it"
            ) from error
        if old:
            self._report(failed=list(old))


def _locked(file: Path) -> IO[str]:
    """Return the file's lock, held until it is closed or the process ends."""
    try:
        import fcntl  # POSIX only; the package imports everywhere
    except ImportError:
        raise FlussError(
            f"the tables that are held cannot be written to {file}, as this system has no locks of"
            " files: name no file of leases; after a kill, tables then wait for two minutes",
            ErrorCode.STORAGE_EXCEPTION,
        ) from None

    try:
        stream = open(file.with_name(f"{file.name}.lock"), "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise FlussError(
            f"the tables that are held cannot be written to {file}: {error.strerror or error}: name"
            " a file in a folder that is there",
            ErrorCode.STORAGE_EXCEPTION,
        ) from error
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        raise FlussError(
            f"another tiering service (process of this machine) uses {file}: give each its own"
        ) from None
    except OSError as error:
        stream.close()
        raise FlussError(
            f"the tables that are held cannot be written to {file}, whose file system has no locks"
            f" ({error.strerror or error}): name a file on a disk of this machine",
            ErrorCode.STORAGE_EXCEPTION,
        ) from None
    os.set_inheritable(stream.fileno(), False)
    return stream
