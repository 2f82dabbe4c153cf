"""Thousands of mutated log batches: right data or an error, never anything else."""

from __future__ import annotations

import random
import struct

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.errors import FlussError
from fluss_df.record.layout.headers import scan_headers
from fluss_df.record.log.log_decode import LogDecoder

from .batches import GOLDEN, golden_rows

NUMBERS = [0, -1, 1, 2**31, 2**31 - 1, 2**62, -(2**63), 2**40]
ROUNDS = 1500


def mutated(raw: bytes, chance: random.Random) -> bytes:
    data = bytearray(raw)
    for _ in range(chance.choice([1, 1, 2, 4])):
        where = chance.random()
        # most go into the Arrow metadata, which stands behind the header
        low, high = (48, 2500) if where < 0.7 else (0, 48) if where < 0.8 else (0, len(data) - 8)
        at = chance.randrange(low, high)
        how = chance.random()
        if how < 0.5:
            data[at] = chance.randrange(256)
        elif how < 0.8:
            struct.pack_into("<q", data, at, chance.choice([*NUMBERS, chance.randrange(10**5)]))
        elif how < 0.95:
            struct.pack_into("<i", data, at, chance.choice([0, -1, 1, 2**31 - 1, -(2**31)]))
        else:
            del data[at : at + chance.randrange(1, 100)]
    return bytes(data)


@pytest.mark.parametrize("codec", ["none", "lz4_frame", "zstd"])
def test_mutated_batches(codec: str) -> None:
    chance = random.Random(codec)
    raw = (GOLDEN / f"log_{codec}.bin").read_bytes()
    expected = golden_rows()
    decoder = LogDecoder({1: expected.schema}, expected.schema)
    refused = unchanged = 0
    for _ in range(ROUNDS):
        data = mutated(raw, chance)
        try:
            headers = scan_headers(data)
            table = decoder.decode_table(data, headers)
            parts = decoder.decode(data, headers)
        except FlussError:
            refused += 1
            continue
        # what is let through can be used by whoever trusts Arrow
        table.validate(full=True)
        assert table.schema.equals(expected.schema)
        assert table.num_rows == headers.rows
        assert sum(part.batch.num_rows for part in parts) == headers.rows
        assert pl.from_arrow(table).height == table.num_rows  # type: ignore[union-attr]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        unchanged += table.equals(expected)
    assert refused > ROUNDS / 3
    assert unchanged
