"""How many bytes some columns of stored batches have, without cutting all of them out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from fluss_df.engine.log.log_reads import Piece
from fluss_df.engine.requests.data_requests import project, projected_size
from fluss_df.record.layout.headers import scan_headers
from fluss_df.record.log.cut import ColumnLayout
from fluss_df.record.log.log_batch import Codec
from tests.record.batches import stored

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def piece(batches: int, codec: Codec) -> Piece:
    """Return batches of which some have a hundred times the bytes of others."""
    rng = np.random.default_rng(3)
    parts = []
    offset = 0
    for _ in range(batches):
        rows = int(10 ** rng.uniform(0, 3))
        texts = ["x" * int(length) for length in rng.integers(0, 40, rows)]
        data = pa.record_batch([rng.integers(0, 1 << 40, rows), texts], schema=SCHEMA)
        parts.append(stored(data, offset, codec=codec))
        offset += rows
    records = memoryview(b"".join(parts))
    return Piece(records, scan_headers(records))


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize(("batches", "exact"), [(1, True), (64, True), (65, False), (1000, False)])
@pytest.mark.parametrize("columns", [[0], [1], [0, 1]])
def test_bytes_of_some_columns(batches: int, exact: bool, columns: list[int], codec: Codec) -> None:
    found = piece(batches, codec)
    layouts = {1: ColumnLayout(SCHEMA)}
    cut = project(found, columns, layouts, len(found.data) * 2, at_least_one=True)
    size = sum(map(len, cut))
    assert projected_size(found, columns, layouts) == pytest.approx(size, rel=0 if exact else 0.15)
