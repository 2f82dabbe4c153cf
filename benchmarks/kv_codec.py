"""Rows a second of the row codec of primary-key tables: ``python -m benchmarks.kv_codec``."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.record.kv.values import ValueDecoder, encode_value_batch, encode_values
from fluss_df.record.rows.compacted import RowEncoder
from fluss_df.types import Column, from_arrow

ROWS = 200_000
ROUNDS = 5


def rows(groups: int) -> pa.Table:
    """Return rows of four columns for each group."""
    chance = np.random.default_rng(1)
    names = pa.array([f"name{i}" for i in range(1000)])
    columns: dict[str, pa.Array] = {}
    for group in range(groups):
        nulls = chance.random(ROWS) < 0.1 if group else None
        columns[f"id{group}"] = pa.array(np.arange(ROWS))
        columns[f"name{group}"] = names.take(pa.array(chance.integers(0, 1000, ROWS), mask=nulls))
        columns[f"value{group}"] = pa.array(chance.random(ROWS), mask=nulls)
        times = pa.array(chance.integers(10**15, 2 * 10**15, ROWS), mask=nulls)
        columns[f"at{group}"] = times.cast(pa.timestamp("us"))
    return pa.table(columns)


def best(work: Callable[[], object]) -> float:
    """Return the seconds of the quickest of some runs."""
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    """Print the figures."""
    for groups in (1, 3):
        table = rows(groups)
        columns = [Column(f.name, from_arrow(f.type, f.name != "id0")) for f in table.schema]
        encoder = KvEncoder(1, columns, ["id0"])
        decoder = ValueDecoder({1: columns}, table.schema)
        batch = encode_value_batch(list(encode_values(1, RowEncoder(columns).encode(table))))
        size = encoder.encode(table).nbytes
        source = np.zeros(size, np.uint8)
        copying = best(source.copy)
        encoding = best(lambda e=encoder, t=table: e.encode(t))  # type: ignore[misc]
        decoding = best(lambda d=decoder, b=batch: d.decode_batch(b))  # type: ignore[misc]
        for what, seconds in (("encode", encoding), ("decode", decoding)):
            print(
                f"{len(columns):2} columns, {what}: {ROWS / seconds / 1e6:5.1f} M rows/s, "
                f"{seconds / copying:5.1f} times a copy of the bytes"
            )


if __name__ == "__main__":
    main()
