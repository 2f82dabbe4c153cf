"""What happens to programs of either client when a cluster changes halfway through them.

``python -m tests.faults.halfway CLIENT DOES ADDRESS TABLE PARTITION OFFSET FRAMES`` is such a
program: it writes frames of 1,000 rows, or polls until it has as many. Halfway it says so, and
waits for a line; what it saw in the end it prints as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.metadata import ServerNode, TableBucket
from tests.client.support import Tables
from tests.faults.fault_cases import FRAMES, ROOT, ROWS
from tests.faults.fault_proxy import PRODUCE_LOG, FaultProxy, Rule
from tests.programs import command

SCHEMA = pa.schema([("part", pa.string()), ("id", pa.int64()), ("pad", pa.binary())])
PARTITION = "a"
_HALFWAY = "halfway"
_FLOOD_BYTES = 100_000_000
# how long a program polls for nothing before it calls that an answer
_PATIENCE_S = 20.0
_SETTLED_S = 30.0

# Rows that are old are gone after seconds. Only segments that were copied expire on 0.9.1.
EXPIRING = {
    "table.log.ttl": "3s",
    "table.log.tiered.local-segments": "1",
    "table.log.arrow.compression.type": "NONE",
}
EXPIRING_SERVER = {
    "log.segment.file-size": "1mb",
    "log.index.file-size": "64kb",
    "remote.log.task-interval-duration": "1s",
    # 1.0 expires local segments, too, when it looks
    "log.retention.check-interval": "1s",
}


def frame(number: int) -> pa.RecordBatch:
    """Return the rows of a frame; each is about a third of a segment."""
    ids = range(number * ROWS, (number + 1) * ROWS)
    pads = [os.urandom(350) for _ in ids]
    return pa.record_batch({"part": [PARTITION] * ROWS, "id": ids, "pad": pads}, schema=SCHEMA)


@dataclass
class Scene:
    """A cluster, and the table that a program is about to write or read."""

    cluster: LocalCluster
    proxy: FaultProxy | None
    connection: fluss.FlussConnection
    table: fluss.FlussTable
    partition_id: int | None
    frames: int
    gone: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls, case: HalfwayCase, cluster: LocalCluster, proxy: FaultProxy | None, tables: Tables
    ) -> Scene:
        """Make the table of a case."""
        keys = ["part"] if case.partitioned else None
        table = tables(SCHEMA, partition_keys=keys, properties=case.properties)
        partition_id = None
        if case.partitioned:
            admin = tables.connection.get_admin()
            admin.create_partition(table.get_table_path(), {"part": PARTITION})
            partition_id = tables.partitions(table)[PARTITION]
        return cls(cluster, proxy, tables.connection, table, partition_id, case.frames)

    @property
    def address(self) -> str:
        """Where the program connects."""
        servers: str = self.connection.config.bootstrap_servers
        return servers

    @property
    def path(self) -> fluss.TablePath:
        """The table's path."""
        return self.table.get_table_path()

    def write(self, frames: range) -> None:
        """Write what a reader is to read."""
        with self.table.new_append().create_writer() as writer:
            for number in frames:
                writer.write_arrow_batch(frame(number))
                writer.flush()

    def ids(self) -> list[int]:
        """Return what is in the table."""
        scanner = self.table.new_scan().create_record_batch_log_scanner()
        if self.partition_id is None:
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        else:
            scanner.subscribe_partition(self.partition_id, 0, fluss.EARLIEST_OFFSET)
        found: list[int] = scanner.to_arrow().column("id").to_pylist()
        return found

    def servers(self) -> tuple[int, list[int]]:
        """Return the leader of the table, and the other tablet servers."""
        bucket = TableBucket(self.table.get_table_info().table_id, 0)
        leader: ServerNode = self.connection.io.run(
            self.connection.cluster.leader(self.path, bucket)
        )
        ids = [server.id for server in self.cluster.tablet_servers]
        return leader.id, [number for number in ids if number != leader.id]

    def kill(self, server: int) -> None:
        """Kill a tablet server until :meth:`repair`."""
        self.cluster.kill_tablet_server(server)
        self.gone.append(server)

    def repair(self) -> None:
        """Start what was killed, and let traffic go."""
        if self.proxy is not None:
            self.proxy.rules.clear()
        while self.gone:
            self.cluster.start_tablet_server(self.gone.pop())


# ---- what happens halfway


def _nothing(scene: Scene) -> None: ...


def _drop_table(scene: Scene) -> None:
    scene.connection.get_admin().drop_table(scene.path)


def _drop_partition(scene: Scene) -> None:
    scene.connection.get_admin().drop_partition(scene.path, {"part": PARTITION})


def _expire(scene: Scene) -> None:
    """Wait until most rows are gone."""
    admin, end = scene.connection.get_admin(), time.monotonic() + _SETTLED_S
    while True:
        first = admin.list_offsets(scene.path, [0], fluss.OffsetSpec.earliest())[0]
        if first >= scene.frames * ROWS // 2:
            return
        if time.monotonic() > end:
            raise RuntimeError(f"the rows of {scene.path} did not expire: {first}")
        time.sleep(0.2)


def _kill_leader(scene: Scene) -> None:
    scene.kill(scene.servers()[0])


def _kill_follower(scene: Scene) -> None:
    scene.kill(scene.servers()[1][0])


def _stop_leader(scene: Scene) -> None:
    leader = scene.servers()[0]
    scene.cluster.stop_tablet_server(leader)
    scene.gone.append(leader)


def _restart_leader(scene: Scene) -> None:
    leader = scene.servers()[0]
    scene.cluster.kill_tablet_server(leader)
    scene.cluster.start_tablet_server(leader)


def _restart_coordinator(scene: Scene) -> None:
    scene.cluster.kill_coordinator()
    scene.cluster.start_coordinator()


def _slow(scene: Scene) -> None:
    assert scene.proxy is not None
    scene.proxy.rules.append(Rule(PRODUCE_LOG, "delay", times=10**6, seconds=0.1))


@dataclass(frozen=True)
class HalfwayCase:
    """What happens to a program.

    Attributes
    ----------
    name
        What it is called in the documentation.
    does
        ``write``, ``read``, or ``flood``: write 100 MB more, and flush at the end.
    happens
        What is done halfway.
    servers
        How many tablet servers there are.
    partitioned
        Whether the table has partitions.
    offset
        Where a reader begins.
    properties
        Of the table.
    frames
        How much there is to write or read.
    goes_on
        Whether there is something left to write or read: rows behind those of the first half.
    """

    name: str
    does: str
    happens: Callable[[Scene], None]
    servers: int = 1
    partitioned: bool = False
    offset: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    frames: int = FRAMES
    goes_on: bool = True


CASES = [
    HalfwayCase("an offset that is out of range", "read", _nothing, offset=10**6, goes_on=False),
    HalfwayCase(
        "rows expire before they are read",
        "read",
        _expire,
        properties=EXPIRING,
        frames=4 * FRAMES,
        goes_on=False,
    ),
    HalfwayCase("the table is dropped while it is read", "read", _drop_table, goes_on=False),
    HalfwayCase("the table is dropped while it is written", "write", _drop_table, goes_on=False),
    HalfwayCase(
        "a partition is dropped while it is read",
        "read",
        _drop_partition,
        partitioned=True,
        goes_on=False,
    ),
    HalfwayCase(
        "a partition is dropped while it is written",
        "write",
        _drop_partition,
        partitioned=True,
        goes_on=False,
    ),
    HalfwayCase("a server that is slow to answer a writer", "flood", _slow),
    HalfwayCase("the leader of three servers is killed, writer", "write", _kill_leader, 3),
    HalfwayCase("the leader of three servers is killed, reader", "read", _kill_leader, 3),
    HalfwayCase("it comes back at once, writer", "write", _restart_leader, 3),
    HalfwayCase("it comes back at once, reader", "read", _restart_leader, 3),
    HalfwayCase("a follower is killed, writer", "write", _kill_follower, 3),
    HalfwayCase("the leader is stopped in order, writer", "write", _stop_leader, 3),
    HalfwayCase("the leader is stopped in order, reader", "read", _stop_leader, 3),
    HalfwayCase("the coordinator of three is restarted, writer", "write", _restart_coordinator, 3),
    HalfwayCase("the coordinator of three is restarted, reader", "read", _restart_coordinator, 3),
]


def run(case: HalfwayCase, scene: Scene, client: str, timeout_s: float) -> str:
    """Run the program of a case; say how it ended and what became of the rows."""
    if case.does == "read":
        scene.write(range(case.frames // 2 if case.goes_on else case.frames))
    partition = "" if scene.partition_id is None else str(scene.partition_id)
    given = [client, case.does, scene.address, str(scene.path), partition]
    given += [str(case.offset), str(case.frames)]
    process = subprocess.Popen(
        [*command(), "-m", "tests.faults.halfway", *given],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    began = time.monotonic()
    # a program may end before it is halfway
    said = process.stdout.readline()
    if said.strip() == _HALFWAY:
        case.happens(scene)
        said, began = "", time.monotonic()
        process.stdin.write("\n")
        process.stdin.flush()
        if case.does == "read" and case.goes_on:
            rest = range(case.frames // 2, case.frames)
            threading.Thread(target=scene.write, args=(rest,)).start()
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"hangs ({timeout_s:g} s watched)" + _rows_written(case, scene)
    out = said + out
    took = f" ({time.monotonic() - began:.1f} s)"
    if process.returncode or not out.strip():
        last = (err.strip().splitlines() or [""])[-1]
        return f"dies ({process.returncode}): {last[:150]}{took}"
    seen = json.loads(out.strip().splitlines()[-1])
    outcome: str = seen["outcome"]
    if case.does == "read" and case.goes_on:
        outcome += "; " + _verdict(seen["ids"], case.frames)
    if case.does == "flood":
        outcome += f"; {seen['grown_mb']} MB more memory"
    return f"{outcome}{_rows_written(case, scene)}{took}"


def _rows_written(case: HalfwayCase, scene: Scene) -> str:
    if case.does != "write" or not case.goes_on:
        return ""
    scene.repair()
    return "; " + _verdict(scene.ids(), case.frames)


def _verdict(ids: list[int], frames: int) -> str:
    expected = list(range(frames * ROWS))
    if ids == expected:
        return "each row once"
    lost, doubled = len(set(expected) - set(ids)), len(ids) - len(set(ids))
    return f"{lost} rows missing, {doubled} doubled"


# ---- the programs


class _Client(Protocol):
    """Writes or reads one table; None of a poll is no answer at all."""

    async def open(self, address: str, table: str, does: str) -> None: ...

    async def write(self, data: pa.RecordBatch) -> None: ...

    async def flush(self) -> None: ...

    def subscribe(self, partition: str, offset: int) -> None: ...

    async def poll(self) -> pa.Table: ...


_CONFIG = {
    "writer.buffer.memory-size": 32 << 20,
    "scanner.log.fetch.max-bytes": 400_000,
    "scanner.log.fetch.max-bytes-for-bucket": 400_000,
    "scanner.remote-log.prefetch-num": 1,
}


class _Both:
    """What both clients call the same."""

    _scanner: Any
    _writer: Any

    async def write(self, data: pa.RecordBatch) -> None:
        self._writer.write_arrow_batch(data)

    def subscribe(self, partition: str, offset: int) -> None:
        if partition:
            self._scanner.subscribe_partition(int(partition), 0, offset)
        else:
            self._scanner.subscribe(0, offset)


class _Ours(_Both):
    async def open(self, address: str, table: str, does: str) -> None:
        self._connection = fluss.connect({"bootstrap.servers": address, **_CONFIG})
        opened = self._connection.get_table(fluss.TablePath.parse(table))
        if does == "read":
            self._scanner = opened.new_scan().create_record_batch_log_scanner()
        else:
            self._writer = opened.new_append().create_writer()

    async def flush(self) -> None:
        self._writer.flush()

    async def poll(self) -> pa.Table:
        return self._scanner.poll_arrow(500)


class _Official(_Both):
    async def open(self, address: str, table: str, does: str) -> None:
        from tests.peer import official

        given = {key: str(value) for key, value in _CONFIG.items()}
        config = official.Config({"bootstrap.servers": address, **given})
        self._connection = await official.FlussConnection.create(config)
        opened = await self._connection.get_table(official.TablePath(*table.split(".")))
        if does == "read":
            self._scanner = await opened.new_scan().create_record_batch_log_scanner()
        else:
            self._writer = opened.new_append().create_writer()

    async def flush(self) -> None:
        await self._writer.flush()

    async def poll(self) -> pa.Table:
        return await self._scanner.poll_arrow(500)


def _halfway() -> None:
    print(_HALFWAY, flush=True)
    sys.stdin.readline()


async def _write(client: _Client, frames: int) -> None:
    for number in range(frames):
        if number == frames // 2:
            _halfway()
        await client.write(frame(number))
        await client.flush()


async def _flood(client: _Client) -> None:
    data = frame(0)
    await client.write(data)
    await client.flush()
    _halfway()
    for _ in range(_FLOOD_BYTES // data.nbytes):
        await client.write(data)
    await client.flush()


async def _read(client: _Client, rows: int, ids: list[int]) -> str:
    said = False
    last = time.monotonic()
    while len(ids) < rows:
        found = await client.poll()
        if found.num_rows:
            ids += found.column("id").to_pylist()
            last = time.monotonic()
        # what expires is to be unread for the greater part
        if not said and (found.num_rows or time.monotonic() - last > 1):
            said = True
            _halfway()
            last = time.monotonic()
        if time.monotonic() - last > _PATIENCE_S:
            return f"empty answers for ever ({_PATIENCE_S:g} s watched)"
    return "ok"


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


async def main(
    name: str, does: str, address: str, table: str, partition: str, offset: str, frames: str
) -> None:
    """Run a program."""
    client: _Client = _Ours() if name == "ours" else _Official()
    outcome = "ok"
    ids: list[int] = []
    before = _peak_mb()
    try:
        await client.open(address, table, does)
        before = _peak_mb()
        if does == "write":
            await _write(client, int(frames))
        elif does == "flood":
            await _flood(client)
        else:
            client.subscribe(partition, int(offset))
            outcome = await _read(client, int(frames) * ROWS, ids)
    except Exception as error:
        code = getattr(error, "error_code", None)
        outcome = f"{type(error).__name__} {code}: {str(error)[:200]}"
    grown = _peak_mb() - before
    print(json.dumps({"outcome": outcome, "ids": ids, "grown_mb": grown}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
