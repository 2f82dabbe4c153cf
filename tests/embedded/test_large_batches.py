"""Batches of frames that are appended to an engine in this process: larger than for servers."""

from __future__ import annotations

import asyncio

import numpy as np
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.io import scan_fluss
from tests.peer import official

PATH = fluss.TablePath("fluss", "t")
PLAIN = {"table.log.arrow.compression.type": "NONE"}
ROWS = 1_500_000
FRAME = pa.table({"n": np.arange(ROWS), "x": np.arange(ROWS) / 7})
MIB = 1 << 20


def appended(engine: EmbeddedFluss, properties: dict[str, str], **settings: object) -> list[int]:
    """Append 24 MB in one go, and return the rows of each batch."""
    config = fluss.Config({"bootstrap.servers": engine.connection().config.bootstrap_servers})
    with fluss.connect(config.copy(**settings)) as connection:
        schema = fluss.Schema(FRAME.schema)
        descriptor = fluss.TableDescriptor(schema, bucket_count=1, properties=PLAIN | properties)
        connection.get_admin().create_table(PATH, descriptor)
        table = connection.get_table(PATH)
        with table.new_append().create_writer() as writer:
            writer.write_arrow(FRAME)
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        rows: list[int] = []
        while sum(rows) < ROWS:
            rows += [found.batch.num_rows for found in scanner.poll_record_batch(5000)]
        assert scan_fluss(PATH, connection=connection).collect().to_arrow().equals(FRAME)
    return rows


def test_of_an_engine_in_this_process(engine: EmbeddedFluss) -> None:
    rows = appended(engine, {})
    assert 3 <= len(rows) <= 4

    async def by_the_official_client() -> pa.Table:
        config = official.Config({"bootstrap.servers": engine.address})
        connection = await official.FlussConnection.create(config)
        table = await connection.get_table(official.TablePath("fluss", "t"))
        scanner = await table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        async with asyncio.timeout(60):
            found = await scanner.to_arrow()
        await connection.close()
        return found

    assert asyncio.run(by_the_official_client()).equals(FRAME)


@pytest.mark.parametrize(
    ("properties", "settings", "most"),
    [
        ({}, {"writer_batch_size": 2 * MIB}, 2 * MIB),
        ({}, {"writer_request_max_size": 3 * MIB}, 3 * MIB),
        ({"table.statistics.columns": "n"}, {}, 2 * MIB),
    ],
    ids=["a size that was set", "small requests", "a filter goes by batches"],
)
def test_not_where_others_are_wanted(
    engine: EmbeddedFluss, properties: dict[str, str], settings: dict[str, object], most: int
) -> None:
    rows = appended(engine, properties, **settings)
    assert max(rows) * 16 <= most
    assert max(rows) * 16 > most // 2
