"""Attacks on a server, and a well-behaved peer beside them.

The server is a process of its own with the default limits, and so is the attacker. The peer looks
up one key after the other, over TCP.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

import fluss_df as fluss
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.wire import bytes_header, varint_field
from fluss_df.record.kv.kv_batch import KvEncoder
from tests.embedded.raw import RawClient

MB: Final = 1 << 20
ROWS = fluss.TablePath("fluss", "rows")
LOG = fluss.TablePath("fluss", "log")
PEER: Final = ("carol", "secret of carol")
_KEYS: Final = 50_000
_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
_SERVER = """
import sys
from fluss_df.embedded import EmbeddedFluss
users = {"alice": "secret of alice", "carol": "secret of carol"} if sys.argv[2] else None
with EmbeddedFluss(sys.argv[1], port=0, sasl=users) as engine:
    print(engine.address, flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Attack:
    """A way to do harm.

    Attributes
    ----------
    name
        What it is called.
    run
        Does it once, on a connection of its own; gets the server's address and the ids of the
        tables of rows and of a log. Called again and again.
    threads
        How many do it at once.
    sasl
        Whether the server has passwords.
    """

    name: str
    run: Callable[[str, int, int], None]
    threads: int = 4
    sasl: bool = False


_begun = threading.Event()


def _begins() -> None:
    """Say once that everything is made, and the attack begins."""
    if not _begun.is_set():
        _begun.set()
        print("begun", flush=True)


def _nothing(address: str, rows: int, log: int) -> None:
    _begins()
    time.sleep(0.1)


def _send(key: int, body: bytes, times: int = 20) -> Callable[[str, int, int], None]:
    def run(address: str, rows: int, log: int) -> None:
        with RawClient(address, 120) as client:
            _begins()
            for _ in range(times):
                client.send(key, 0, body)
                client.receive()

    return run


def _of(
    key: int, make: Callable[[int, int], bytes], times: int = 20
) -> Callable[[str, int, int], None]:
    made: dict[tuple[int, int], bytes] = {}

    def run(address: str, rows: int, log: int) -> None:
        if (rows, log) not in made:
            made[rows, log] = make(rows, log)
        _send(key, made[rows, log], times)(address, rows, log)

    return run


def _offsets(count: int) -> Callable[[int, int], bytes]:
    def make(rows: int, log: int) -> bytes:
        head = pb.ListOffsetsRequest(follower_server_id=-1, offset_type=1, table_id=log)
        ids = (bytes(range(100)) * (count // 100 + 1))[:count]
        return head.SerializeToString() + bytes_header(5, count) + ids

    return make


def _fetch(count: int) -> Callable[[int, int], bytes]:
    def make(rows: int, log: int) -> bytes:
        bucket = pb.FetchLogRequestForBucket(bucket_id=0, fetch_offset=0, max_fetch_bytes=1)
        part = bucket.SerializeToString()
        parts = (bytes_header(4, len(part)) + part) * count
        table = varint_field(1, log) + varint_field(2, 0) + parts
        head = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1, max_wait_ms=500)
        return head.SerializeToString() + bytes_header(3, len(table)) + table

    return make


def _metadata(size: int) -> Callable[[int, int], bytes]:
    def make(rows: int, log: int) -> bytes:
        path = pb.PathOfTable(database_name="fluss", table_name="log").SerializeToString()
        part = bytes_header(1, len(path)) + path
        return part * (size // len(part))

    return make


def _lookup(count: int, size: int) -> Callable[[int, int], bytes]:
    def make(rows: int, log: int) -> bytes:
        keys = [i.to_bytes(size, "big") for i in range(count)]
        bucket = pb.LookupRequestForBucket(bucket_id=0, keys=keys)
        return pb.LookupRequest(table_id=rows, buckets_req=[bucket]).SerializeToString()

    return make


def _prefixes(count: int) -> Callable[[int, int], bytes]:
    def make(rows: int, log: int) -> bytes:
        bucket = pb.PrefixLookupRequestForBucket(bucket_id=0, keys=[b""] * count)
        return pb.PrefixLookupRequest(table_id=rows, buckets_req=[bucket]).SerializeToString()

    return make


def _put(count: int) -> Callable[[int, int], bytes]:
    def make(rows: int, log: int) -> bytes:
        import numpy as np

        columns = fluss.Schema(_SCHEMA, ["id"]).columns
        encoder = KvEncoder(1, columns, ["id"])
        table = pa.table({"id": np.arange(count), "text": [""] * count}, schema=_SCHEMA)
        batch = encoder.encode(table)
        batch.stamp(-1, -1)
        part = pb.PutKvRequestForBucket(bucket_id=1, records=batch.to_bytes())
        return pb.PutKvRequest(
            acks=-1, table_id=rows, timeout_ms=1000, buckets_req=[part]
        ).SerializeToString()

    return make


def _tiny_rows(rows: int, log: int) -> bytes:
    """Return 100 MB of rows that have six bytes each: sixteen million."""
    import struct

    count = 100 * MB // 6
    data = bytearray(28) + struct.pack("<iBB", 2, 1, 7) * count
    struct.pack_into("<iBIhBqii", data, 0, len(data) - 4, 0, 0, 1, 0, -1, -1, count)
    part = pb.PutKvRequestForBucket(bucket_id=0, records=bytes(data))
    return pb.PutKvRequest(
        acks=-1, table_id=rows, timeout_ms=1000, buckets_req=[part]
    ).SerializeToString()


def _tiny_batches(rows: int, log: int) -> bytes:
    """Return 20 MB of parts of a produce request that are for nothing."""
    head = pb.ProduceLogRequest(acks=-1, table_id=log, timeout_ms=1).SerializeToString()
    return head + (bytes_header(4, 2) + varint_field(2, 0)) * (5 * MB)


def _claims(rows: int, log: int) -> bytes:
    import struct

    import google_crc32c

    from fluss_df.record.log.cut import read_message
    from fluss_df.record.log.log_batch import Compression, encode_log_batch

    batch = pa.record_batch([range(1000), ["x" * 50] * 1000], schema=_SCHEMA)
    made = encode_log_batch(batch, schema_id=1, compression=Compression("lz4_frame"))
    made.stamp(-1, -1)
    data = bytearray(made.to_bytes())
    message = read_message(memoryview(bytes(data)), 48, len(data))
    for offset, length in message.buffers:
        if length:
            struct.pack_into("<q", data, message.body + offset, 100 << 30)
    struct.pack_into("<I", data, 21, google_crc32c.value(bytes(data[25:])))
    part = pb.ProduceLogRequestForBucket(bucket_id=0, records=bytes(data))
    return pb.ProduceLogRequest(
        acks=-1, table_id=log, timeout_ms=1000, buckets_req=[part]
    ).SerializeToString()


def _sockets(address: str, rows: int, log: int) -> None:
    """Open as many connections as there may be and leave them be."""
    host, _, port = address.rpartition(":")
    _begins()
    with contextlib.ExitStack() as peers:
        for _ in range(1500):
            with contextlib.suppress(OSError):
                peers.enter_context(socket.create_connection((host, int(port)), 5))
        time.sleep(2)


def _passwords(address: str, rows: int, log: int) -> None:
    with RawClient(address, 60) as client:
        client.hello()
        _begins()
        for number in range(100):
            client.authenticate("alice", str(number))


def _writer_ids(rows: int, log: int) -> bytes:
    return b""


ATTACKS: Final = (
    Attack("nothing", _nothing, threads=1),
    Attack("LIST_OFFSETS of 20 MB", _of(1021, _offsets(20 * MB))),
    Attack("LIST_OFFSETS, as many as may be", _of(1021, _offsets(130_000))),
    Attack("FETCH_LOG of 20 MB", _of(1015, _fetch(MB))),
    Attack("FETCH_LOG, as many as may be", _of(1015, _fetch(120_000))),
    Attack("GET_METADATA of 100 MB", _of(1012, _metadata(100 * MB), 3)),
    Attack("GET_METADATA, as many as may be", _of(1012, _metadata(3 * MB // 2))),
    Attack("LOOKUP of 20 MB", _of(1017, _lookup(4 * MB, 3))),
    Attack("LOOKUP, as many as may be", _of(1017, _lookup(130_000, 8))),
    Attack("PREFIX_LOOKUP of 20 MB", _of(1034, _prefixes(10 * MB))),
    Attack("PREFIX_LOOKUP of all, many times", _of(1034, _prefixes(5000))),
    Attack("PUT_KV, 100 MB of tiny rows", _of(1016, _tiny_rows, 3)),
    Attack("PUT_KV, as many as may be", _of(1016, _put(128 << 10), 3)),
    Attack("PRODUCE_LOG, 20 MB of nothing", _of(1014, _tiny_batches)),
    Attack("PRODUCE_LOG, 100 GB claimed", _of(1014, _claims, 1000)),
    Attack("INIT_WRITER without end", _of(1026, _writer_ids, 5000)),
    Attack("1,500 idle sockets", _sockets, threads=1),
    Attack("1,500 idle sockets, passwords", _sockets, threads=1, sasl=True),
    Attack("wrong passwords", _passwords, threads=16, sasl=True),
)


@contextlib.contextmanager
def server(folder: Path, sasl: bool) -> Iterator[tuple[str, int]]:
    """Serve a folder in a process of its own; give its address and process id."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(folder), "1" if sasl else ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            # what was begun may take long, and the folder goes with it
            process.kill()


def make_tables(address: str, sasl: bool) -> tuple[int, int]:
    """Make a table of rows and a log; return their ids."""
    with _connected(address, sasl) as connection:
        admin = connection.get_admin()
        rows = fluss.TableDescriptor(fluss.Schema(_SCHEMA, ["id"]), bucket_count=2)
        admin.create_table(ROWS, rows)
        admin.create_table(LOG, fluss.TableDescriptor(fluss.Schema(_SCHEMA), bucket_count=100))
        table = connection.get_table(ROWS)
        with table.new_upsert().create_writer() as writer:
            texts = [str(i) * 3 for i in range(_KEYS)]
            writer.write_arrow(pa.table({"id": range(_KEYS), "text": texts}, schema=_SCHEMA))
        log = connection.get_table(LOG).get_table_info().table_id
        return table.get_table_info().table_id, log


def _connected(address: str, sasl: bool) -> fluss.FlussConnection:
    if not sasl:
        return fluss.connect(address)
    settings = {
        "bootstrap.servers": address,
        "security.protocol": "sasl",
        "security.sasl.username": PEER[0],
        "security.sasl.password": PEER[1],
    }
    return fluss.connect(settings)


def attack_for(attack: Attack, address: str, rows: int, log: int, seconds: float) -> None:
    """Attack for some time, whatever the server does about it."""

    def go_on() -> None:
        while not _begun.is_set() or time.monotonic() < until[0]:
            try:
                attack.run(address, rows, log)
            except (OSError, EOFError, AssertionError):
                time.sleep(0.01)

    threads = [threading.Thread(target=go_on, daemon=True) for _ in range(attack.threads)]
    until = [0.0]
    for thread in threads:
        thread.start()
    _begun.wait()
    until[0] = time.monotonic() + seconds
    time.sleep(seconds)
    os._exit(0)


@dataclass(frozen=True, slots=True)
class Beside:
    """What a peer saw beside an attack.

    Attributes
    ----------
    lookups
        How many it made.
    p50_ms, p99_ms, worst_ms
        How long they took.
    peak, before
        The anonymous memory of the server, in bytes: at the most, and before the attack.
    new_ms
        How long a new connection took, with its first lookup; at the most.
    refused
        How many new connections failed.
    """

    lookups: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    peak: int
    before: int
    new_ms: float
    refused: int


def _memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def measure(attack: Attack, folder: Path, seconds: float) -> Beside:
    """Attack a server for some seconds, and look up keys meanwhile."""
    with server(folder, attack.sasl) as (address, pid):
        rows, log = make_tables(address, attack.sasl)
        times: list[float] = []
        peak = [0]
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.02):
                peak[0] = max(peak[0], _memory(pid))

        slowest, refused = 0.0, 0
        with _connected(address, attack.sasl) as connection:
            lookuper = connection.get_table(ROWS).new_lookup().create_lookuper()
            lookuper.lookup({"id": 1})
            before = _memory(pid)
            watcher = threading.Thread(target=watch, daemon=True)
            watcher.start()
            program = (
                "from tests.embedded.attacking import ATTACKS, attack_for;"
                f"attack_for(ATTACKS[{ATTACKS.index(attack)}], {address!r}, {rows}, {log},"
                f" {seconds})"
            )
            attacker = subprocess.Popen(
                [sys.executable, "-c", program],
                cwd=str(Path(__file__).parents[2]),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            try:
                assert attacker.stdout is not None
                assert attacker.stdout.readline() == "begun\n"
                begun = time.monotonic()
                next_new = begun
                while time.monotonic() < begun + seconds - 1:
                    at = time.perf_counter()
                    found = lookuper.lookup({"id": len(times) % _KEYS})
                    times.append(time.perf_counter() - at)
                    assert found is not None
                    if time.monotonic() > next_new:
                        next_new = time.monotonic() + 1
                        at = time.perf_counter()
                        try:
                            _new_peer(address, attack.sasl)
                        except (OSError, EOFError, AssertionError):
                            refused += 1
                        slowest = max(slowest, time.perf_counter() - at)
                    time.sleep(0.005)
            finally:
                attacker.kill()
                attacker.communicate()
                done.set()
                watcher.join()
    times.sort()
    count = len(times)
    return Beside(
        count,
        times[count // 2] * 1e3,
        times[int(count * 0.99)] * 1e3,
        times[-1] * 1e3,
        peak[0],
        before,
        slowest * 1e3,
        refused,
    )


def _new_peer(address: str, sasl: bool) -> None:
    """Come in as a new peer."""
    from fluss_df.protocol import api

    with RawClient(address, 20) as client:
        client.hello()
        if sasl:
            assert client.authenticate(*PEER).type == 0
        client.call(api.LIST_DATABASES, pb.ListDatabasesRequest())
