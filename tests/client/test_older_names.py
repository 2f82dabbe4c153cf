"""Names of the official client's older generation, which programs that move here may have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import FlussError, aio
from fluss_df.embedded import EmbeddedFluss

ROWS = pa.table({"a": pa.array([1, 2], pa.int64()), "s": ["x", None]})


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedFluss]:
    with EmbeddedFluss(None, port=0) as made:
        yield made


@pytest.fixture
def table(engine: EmbeddedFluss) -> Iterator[fluss.FlussTable]:
    with fluss.connect(engine.address) as connection:
        path = fluss.TablePath("fluss", "older")
        admin = connection.get_admin()
        admin.create_table(path, fluss.TableDescriptor(fluss.Schema(ROWS.schema), bucket_count=1))
        yield connection.get_table(path)
        admin.drop_table(path)


def read(scanner: fluss.LogScanner) -> pa.Table:
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    return scanner.to_arrow()


def test_a_table_is_written_and_read_by_them(table: fluss.FlussTable) -> None:
    with table.new_append_writer() as writer:
        writer.write_arrow(ROWS)
    with table.new_scan().create_batch_scanner() as scanner:
        assert read(scanner).equals(ROWS)
    with table.new_scan().project_by_name(["s"]).create_batch_scanner() as scanner:
        assert read(scanner).equals(ROWS.select(["s"]))


def test_batches_have_the_columns_of_the_table(table: fluss.FlussTable) -> None:
    """Asked for or not, and an older batch gets those that were added; without is refused."""
    with table.new_append_writer() as writer:
        writer.write_arrow(ROWS)
    path = table.get_table_path()
    with fluss.connect(table._connection.config) as connection:
        connection.get_admin().alter_table(path, add_columns=pa.schema([("new", pa.int32())]))
        scan = connection.get_table(path).new_scan().project_by_name(["new", "a"])
        fixed = scan.with_fixed_schema(True)
        wanted = pa.table({"new": pa.nulls(2, pa.int32()), "a": ROWS["a"]})
        for each in (scan, fixed):
            with each.create_batch_scanner() as scanner:
                assert read(scanner).equals(wanted)
        with pytest.raises(FlussError, match=r"with_fixed_schema\(False\) is not supported"):
            scan.with_fixed_schema(False)


def test_coroutines_have_them_too(table: fluss.FlussTable) -> None:
    async def asked() -> pa.Table:
        config = {"bootstrap.servers": table._connection.config.bootstrap_servers}
        async with await aio.FlussConnection.create(fluss.Config(config)) as connection:
            there = await connection.get_table(table.get_table_path())
            scan = there.new_scan()
            with pytest.raises(FlussError, match="is not supported"):
                scan.with_fixed_schema(False)
            scanner = await scan.with_fixed_schema(True).create_record_batch_log_scanner()
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            return await scanner.to_arrow()

    with table.new_append_writer() as writer:
        writer.write_arrow(ROWS)
    assert asyncio.run(asked()).equals(ROWS)
