"""Cases of broken traffic, for either client: what is done to a program, and how it ends.

``python -m tests.faults.fault_cases ours|official write|read ADDRESS DATABASE.TABLE`` is such a
program: it writes 10 frames of 1,000 rows, or reads all rows, and prints what it saw as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fluss_df.errors import ErrorCode
from fluss_df.protocol import messages_pb2 as pb
from tests.faults.fault_proxy import FETCH_LOG, PRODUCE_LOG, Rule
from tests.programs import command

ROOT = Path(__file__).parents[2]
FRAMES, ROWS = 10, 1_000
# what cannot be compressed, so that an answer has few batches
SCHEMA = pa.schema([("id", pa.int64()), ("pad", pa.binary())])
HEAD = 9

Rewrite = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Case:
    """What happens to a program.

    Attributes
    ----------
    name
        What it is called in the documentation.
    does
        ``write`` or ``read``.
    rule
        What the proxy does; None where it changes an answer.
    rewrite
        What the proxy makes of the third answer to a produce or fetch.
    ends
        ``ok`` where a good client gets over it, or ``error`` where it has to say so.
    """

    name: str
    does: str
    rule: Callable[[], Rule] | None = None
    rewrite: Rewrite | None = None
    ends: str = "ok"


def framed(frame: bytes, body: bytes) -> bytes:
    head = frame[4:HEAD]
    return struct.pack(">i", len(head) + len(body)) + head + body


def _produce_error(code: int) -> Rewrite:
    def rewrite(frame: bytes) -> bytes:
        answer = pb.ProduceLogResponse.FromString(frame[HEAD:])
        for bucket in answer.buckets_resp:
            bucket.ClearField("base_offset")
            bucket.error_code, bucket.error_message = code, "changed on its way"
        return framed(frame, answer.SerializeToString())

    return rewrite


def _garbage(frame: bytes) -> bytes:
    return framed(frame, random.Random(1).randbytes(len(frame)))


def _flipped(frame: bytes) -> bytes:
    changed = bytearray(frame)
    changed[-100] ^= 0x10
    return bytes(changed)


def _too_long(frame: bytes) -> bytes:
    return struct.pack(">i", 2**31 - 1) + frame[4:]


def _negative(frame: bytes) -> bytes:
    return struct.pack(">i", -5) + frame[4:]


def _other_request(frame: bytes) -> bytes:
    return frame[:5] + struct.pack(">i", 999_999) + frame[9:]


def _rule(key: int, action: str) -> Callable[[], Rule]:
    return lambda: Rule(key, action, skip=2)


CASES = [
    Case("reset before the server applied a produce", "write", _rule(PRODUCE_LOG, "reset before")),
    Case("reset after the server applied a produce", "write", _rule(PRODUCE_LOG, "reset after")),
    Case("silence after a produce", "write", _rule(PRODUCE_LOG, "silent")),
    Case("silence after a fetch", "read", _rule(FETCH_LOG, "silent")),
    Case("reset during a fetch", "read", _rule(FETCH_LOG, "reset after")),
    Case(
        "OUT_OF_ORDER_SEQUENCE for a produce that was applied",
        "write",
        rewrite=_produce_error(ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION),
    ),
    Case(
        "DUPLICATE_SEQUENCE for a produce",
        "write",
        rewrite=_produce_error(ErrorCode.DUPLICATE_SEQUENCE_EXCEPTION),
    ),
    Case("an answer to a produce that is no message", "write", rewrite=_garbage),
    Case("an answer of 2 GiB to a produce", "write", rewrite=_too_long),
    Case("an answer to a request that was not asked", "write", rewrite=_other_request),
    Case("a flipped bit in fetched rows", "read", rewrite=_flipped, ends="error"),
    Case("an answer to a fetch that is no message", "read", rewrite=_garbage),
    Case("an answer of 2 GiB to a fetch", "read", rewrite=_too_long),
    Case("an answer of negative length to a fetch", "read", rewrite=_negative),
]


def run_program(
    client: str, does: str, address: str, table: str, timeout_s: float
) -> dict[str, Any]:
    """Run a program of a client to its end; what it saw, or how it ended without a word."""
    began = time.monotonic()
    process = subprocess.Popen(
        [*command(), "-m", "tests.faults.fault_cases", client, does, address, table],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"outcome": f"hangs ({timeout_s:g} s)", "ids": None, "seconds": timeout_s}
    if process.returncode or not out.strip():
        last = (err.strip().splitlines() or [""])[-1]
        return {"outcome": f"dies ({process.returncode}): {last}", "ids": None, "seconds": 0}
    seen: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    seen["seconds"] = round(time.monotonic() - began, 1)
    return seen


# ---- the programs


def frames() -> list[pa.RecordBatch]:
    """Return the rows that are written."""
    draw = random.Random(2)
    return [
        pa.record_batch(
            {"id": range(start, start + ROWS), "pad": [draw.randbytes(40) for _ in range(ROWS)]},
            schema=SCHEMA,
        )
        for start in range(0, FRAMES * ROWS, ROWS)
    ]


def _ours(does: str, address: str, table: str) -> pa.Table | None:
    import fluss_df as fluss

    # small answers, so that there are several; a server is taken to be silent after two seconds
    config = {
        "bootstrap.servers": address,
        "request-timeout": 2_000,
        "scanner.log.fetch.max-bytes": 20_000,
        "scanner.log.fetch.max-bytes-for-bucket": 20_000,
    }
    with fluss.connect(config) as connection:
        opened = connection.get_table(fluss.TablePath.parse(table))
        if does == "write":
            with opened.new_append().create_writer() as writer:
                for frame in frames():
                    writer.write_arrow_batch(frame)
                    writer.flush()
            return None
        scanner = opened.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        return scanner.to_arrow()


async def _official(does: str, address: str, table: str) -> pa.Table | None:
    from tests.peer import official

    config = official.Config(
        {
            "bootstrap.servers": address,
            "scanner.log.fetch.max-bytes": "20000",
            "scanner.log.fetch.max-bytes-for-bucket": "20000",
        }
    )
    connection = await official.FlussConnection.create(config)
    opened = await connection.get_table(official.TablePath(*table.split(".")))
    if does == "write":
        writer = opened.new_append().create_writer()
        for frame in frames():
            writer.write_arrow_batch(frame)
            await writer.flush()
        return None
    scanner = await opened.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, official.EARLIEST_OFFSET)
    found: pa.Table = await scanner.to_arrow()
    return found


def main(client: str, does: str, address: str, table: str) -> None:
    """Run a program."""
    outcome, ids = "ok", None
    try:
        if client == "ours":
            read = _ours(does, address, table)
        else:
            read = asyncio.run(_official(does, address, table))
        if read is not None:
            ids = read.column("id").to_pylist()
            written = pa.Table.from_batches(frames())
            if ids == written.column("id").to_pylist() and not read.equals(written):
                outcome = "wrong bytes in the rows, no error"
    except Exception as error:
        outcome = f"{type(error).__name__}: {str(error)[:150]}"
    print(json.dumps({"outcome": outcome, "ids": ids}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
