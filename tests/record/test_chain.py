"""Chains of records: found by Arrow's Parquet reader as one by one, and refused alike."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from fluss_df.errors import ProtocolError
from fluss_df.record.layout.chain import _read_as_parquet, walk_chain


def chain_of(records: list[bytes], before: bytes = b"head") -> bytes:
    return before + b"".join(struct.pack("<i", len(record)) + record for record in records)


@pytest.mark.parametrize("count", [1, 2, 999, 1_000, 30_000])
@pytest.mark.parametrize("most", [2, 40, 1_000])
def test_every_record_is_found(count: int, most: int) -> None:
    chance = random.Random(count)
    # zeros look like the beginnings of lengths
    records = [bytes(chance.randrange(2, most + 1)) for _ in range(count - 1)] + [b"end"]
    data = chain_of(records)
    found = walk_chain(data, 4, count, least=2, what="records")
    spans = zip(found.starts.tolist(), found.ends.tolist(), strict=True)
    assert [found.data[a:b].tobytes() for a, b in spans] == records
    there = found.starts + found.moved
    assert [data[a : a + len(r)] for a, r in zip(there.tolist(), records, strict=True)] == records
    # words may be read at their last bytes
    assert len(found.data) >= found.ends[-1] + 8


@pytest.mark.parametrize("count", [10, 5_000])
@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 1, 0, 6, 8, 10_000])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_another_length_is_an_error(count: int, length: int, place: str) -> None:
    data = bytearray(chain_of([b"seven.." for _ in range(count)]))
    at = 4 + 11 * {"first": 0, "middle": count // 2, "last": count - 1}[place]
    struct.pack_into("<i", data, at, length)
    with pytest.raises(ProtocolError):
        walk_chain(data, 4, count, least=2, what="records")


@pytest.mark.parametrize("count", [10, 5_000])
def test_another_count_or_size_is_an_error(count: int) -> None:
    data = chain_of([b"seven.." for _ in range(count)])
    for wrong in (-1, 0, count - 1, count + 1, 2**31 - 1):
        with pytest.raises(ProtocolError):
            walk_chain(data, 4, wrong, least=2, what="records")
    for cut in (data[:-1], data[:-4], data + b"\0", data + bytes(4)):
        with pytest.raises(ProtocolError):
            walk_chain(cut, 4, count, least=2, what="records")


def test_mutations_are_found_alike() -> None:
    chance = random.Random(7)
    records = [bytes(chance.randrange(3, 30)) for _ in range(1_500)]
    data = chain_of(records)
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(4, len(changed) - 4)
            changed[at : at + chance.choice([0, 1, 1, 4])] = bytes([chance.randrange(256)])
        # the same thing, one by one
        edges = [4]
        while edges[-1] + 4 <= len(changed) and len(edges) <= len(records):
            length = struct.unpack_from("<i", changed, edges[-1])[0]
            edges.append(edges[-1] + 4 + length if length >= 2 else len(changed) + 1)
        right = len(edges) == len(records) + 1 and edges[-1] == len(changed)
        try:
            found = walk_chain(changed, 4, len(records), least=2, what="records")
        except ProtocolError:
            assert not right
            continue
        assert right
        assert np.array_equal(found.starts + found.moved, np.array(edges[:-1]) + 4)


def test_many_records_are_found_by_arrow() -> None:
    records = [b"record"] * 2_000
    data = chain_of(records)
    assert _read_as_parquet(memoryview(data), 4, len(records)) is not None
    assert _read_as_parquet(memoryview(data), 4, len(records) - 1) is None
