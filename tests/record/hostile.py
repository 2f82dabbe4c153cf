"""Captured responses of a server, mutated, and the way that clients read them."""

from __future__ import annotations

import base64
import json
import random
import resource
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from fluss_df.errors import FlussError
from fluss_df.protocol.api import LIMIT_SCAN, LOOKUP, PREFIX_LOOKUP, SCAN_KV
from fluss_df.protocol.fetch import parse_fetch_response
from fluss_df.protocol.frames import Response, parse_response
from fluss_df.record.kv.kv_batch import decode_kv_batch
from fluss_df.record.kv.values import ValueDecoder, encode_value_batch, encode_values
from fluss_df.record.layout.headers import scan_headers, verify_crcs
from fluss_df.record.log.log_decode import LogDecoder
from fluss_df.record.rows.compacted import RowDecoder, RowEncoder
from fluss_df.types import Column, from_arrow

GOLDEN = Path(__file__).parent / "golden"
_NUMBERS = (0, -1, 1, 2**31 - 1, -(2**31), 2**62, -(2**63), 2**40, 127, 128, 255)


def golden_rows() -> pa.Table:
    """Return the rows that were put."""
    with pa.ipc.open_file(GOLDEN / "kv_rows.arrow") as source:
        return source.read_all()


def mutated(raw: bytes, chance: random.Random) -> bytes:
    """Return some bytes with one to four changes."""
    data = bytearray(raw)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        at = chance.randrange(max(1, len(data)))
        how = chance.randrange(8)
        if how < 2 and data:
            data[min(at, len(data) - 1)] ^= 1 << chance.randrange(8)
        elif how == 2 and data:
            data[min(at, len(data) - 1)] = chance.randrange(256)
        elif how == 3:
            number = struct.pack("<q", chance.choice(_NUMBERS))
            width = chance.choice([1, 2, 4, 8])
            data[at : at + width] = number[:width]
        elif how == 4:
            del data[at : at + chance.randrange(1, 40)]
        elif how == 5:
            data[at:at] = bytes([chance.choice([0, 0xFF, 0x80])]) * chance.randrange(1, 40)
        elif how == 6:
            # what stands elsewhere, here: well formed, in a wrong place
            other = chance.randrange(max(1, len(data)))
            length = chance.randrange(1, 200)
            data[at : at + length] = data[other : other + length]
        else:
            del data[at:]
    return bytes(data)


@dataclass
class Case:
    """One captured response.

    Attributes
    ----------
    name
        Of what kind it is.
    raw
        Its bytes.
    read
        Reads it as clients do.
    covered
        Whether a checksum covers the rows: then they are the right ones, or the first of them.
    """

    name: str
    raw: bytes
    read: Callable[[bytes], pa.Table]
    covered: bool
    expected: pa.Table = field(init=False)

    def __post_init__(self) -> None:
        self.expected = self.read(self.raw)


def cases() -> Iterator[Case]:
    """Return all captured responses."""
    rows = golden_rows()
    columns = [Column(f.name, from_arrow(f.type, f.nullable)) for f in rows.schema]
    loose = pa.schema([f.with_nullable(True) for f in rows.schema])
    values = ValueDecoder({1: columns}, loose)
    row_decoder = RowDecoder(columns)
    log_decoder = LogDecoder({1: loose}, loose)

    def put(data: bytes) -> pa.Table:
        records = decode_kv_batch(data)
        there = records.row_starts >= 0
        table = row_decoder.decode(data, records.row_starts[there], records.row_ends[there])
        keys = [data[a:b] for a, b in zip(records.key_starts, records.key_ends, strict=True)]
        return pa.table({"key": pa.array(keys, pa.binary()), "there": there}).append_column(
            "row", pa.array([str(row) for row in _spread(table.to_pylist(), there)])
        )

    def fetch(data: bytes) -> pa.Table:
        parts = [loose.empty_table().append_column("kind", pa.array([], pa.uint8()))]
        for bucket in parse_fetch_response(pa.py_buffer(data)):
            if bucket.error_code or bucket.records is None:
                continue
            headers = scan_headers(bucket.records)
            verify_crcs(bucket.records, headers)
            whole = log_decoder.decode_table(bucket.records, headers)
            for part in log_decoder.decode(bucket.records, headers):
                kinds = part.change_types
                if kinds is None:
                    kinds = pa.array(np.zeros(part.batch.num_rows, np.uint8))
                parts.append(pa.table(part.batch).append_column("kind", kinds))
            assert whole.num_rows == headers.rows
        return pa.concat_tables(parts)

    def lookup(data: bytes) -> pa.Table:
        answer = parse_response(LOOKUP, Response(0, 0, pa.py_buffer(data)), "peer")
        found = [v.values for bucket in answer.buckets_resp for v in bucket.values if v.values]
        table = values.decode_values(found)
        assert table.num_rows == len(found)
        return table

    def prefix(data: bytes) -> pa.Table:
        answer = parse_response(PREFIX_LOOKUP, Response(0, 0, pa.py_buffer(data)), "peer")
        lists = [found for bucket in answer.buckets_resp for found in bucket.value_lists]
        return values.decode_values([value for found in lists for value in found.values])

    def limit(data: bytes) -> pa.Table:
        answer = parse_response(LIMIT_SCAN, Response(0, 0, pa.py_buffer(data)), "peer")
        return values.decode_batch(answer.records)

    def scan(data: bytes) -> pa.Table:
        answer = parse_response(SCAN_KV, Response(0, 0, pa.py_buffer(data)), "peer")
        return values.decode_batch(answer.records)

    captured = json.loads((GOLDEN / "kv_responses.json").read_text())
    yield Case("PUT_KV", (GOLDEN / "kv_put.bin").read_bytes(), put, True)
    readers = {
        "FETCH_LOG": fetch,
        "LOOKUP": lookup,
        "PREFIX_LOOKUP": prefix,
        "LIMIT_SCAN": limit,
        "SCAN_KV": scan,
    }
    for name, read in readers.items():
        yield Case(name, base64.b64decode(captured[name]), read, name == "FETCH_LOG")
    # so many values that their chain is read as Parquet
    many = RowEncoder(columns).encode(pa.concat_tables([rows] * 30))
    yield Case("MANY", encode_value_batch(list(encode_values(1, many))), values.decode_batch, False)


def _spread(rows: list[object], there: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[object]:
    left = iter(rows)
    return [next(left) if flag else None for flag in there.tolist()]


@dataclass
class Outcome:
    """What became of mutations.

    Attributes
    ----------
    refused, same, others
        How many were errors, gave the captured rows, or others (where no checksum covers them).
    slowest
        Seconds of the slowest.
    grown
        By how many bytes the most memory of this process grew.
    """

    refused: int = 0
    same: int = 0
    others: int = 0
    slowest: float = 0.0
    grown: int = 0


def attack(case: Case, rounds: int, seed: int) -> Outcome:
    """Read a response with mutations; whatever is neither an error nor well formed is raised."""
    chance = random.Random(f"{case.name} {seed}")
    outcome = Outcome()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(rounds):
        data = mutated(case.raw, chance)
        began = time.perf_counter()
        try:
            table = case.read(data)
        except FlussError:
            outcome.refused += 1
            continue
        finally:
            outcome.slowest = max(outcome.slowest, time.perf_counter() - began)
        table.validate(full=True)
        assert table.schema.equals(case.expected.schema)
        if table.equals(case.expected):
            outcome.same += 1
            continue
        # a response that is cut off may end with a part of a batch, which does not count
        if case.covered and not table.equals(case.expected.slice(0, table.num_rows)):
            raise AssertionError(f"{case.name}, seed {seed}, round {number}: other rows")
        outcome.others += 1
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome.grown = (after - before) * 1024
    return outcome
