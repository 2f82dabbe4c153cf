"""Scanners: polls, bounded reads, subscriptions, what goes away underneath them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import ChangeType, ErrorCode, FlussError, TableBucket
from fluss_df.embedded import EmbeddedFluss
from tests.client.support import Official, Tables, poll_rows, rows_of

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def frame(rows: int, start: int = 0) -> pa.Table:
    numbers = range(start, start + rows)
    return pa.table({"n": numbers, "text": [f"text-{i}" for i in numbers]}, schema=SCHEMA)


def numbers(table: pa.Table) -> list[int]:
    found: list[int] = table.column("n").to_pylist()
    return found


def scan(
    table: fluss.FlussTable, offset: int = fluss.EARLIEST_OFFSET, *, records: bool = False
) -> fluss.LogScanner:
    builder = table.new_scan()
    make = builder.create_log_scanner if records else builder.create_record_batch_log_scanner
    scanner = make()
    scanner.subscribe(0, offset)
    return scanner


@pytest.fixture(scope="module")
def thousand(tables: Tables) -> fluss.FlussTable:
    """One bucket with 1,000 rows in batches of 100."""
    table = tables(SCHEMA)
    with table.new_append().create_writer() as writer:
        for start in range(0, 1000, 100):
            writer.write_arrow(frame(100, start)).wait()
    return table


# ---- records


def test_poll_returns_at_most_500(thousand: fluss.FlussTable) -> None:
    scanner = scan(thousand, records=True)
    polls = [scanner.poll(2000), scanner.poll(2000)]
    assert [len(p) for p in polls] == [500, 500]
    assert [r["n"] for p in polls for r in rows_of(p)] == list(range(1000))
    began = time.monotonic()
    assert scanner.poll(200).is_empty()
    assert 0.15 < time.monotonic() - began < 10


def test_poll_size_is_a_setting(address: str, thousand: fluss.FlussTable) -> None:
    config = {"bootstrap.servers": address, "scanner.log.max-poll-records": 30}
    with fluss.connect(config) as connection:
        scanner = scan(connection.get_table(thousand.get_table_path()), records=True)
        assert [len(scanner.poll(2000)) for _ in range(5)] == [30] * 5


def test_records(tables: Tables, official_client: Official) -> None:
    table = tables(SCHEMA, bucket_count=2)
    began = int(time.time() * 1000)
    with table.new_append().create_writer() as writer:
        for i in range(4):
            writer.write_arrow(frame(10, i * 10)).wait()
    scanner = table.new_scan().create_log_scanner()
    tables.subscribe_all(scanner, table)
    end = time.monotonic() + 10
    found: dict[TableBucket, list[Any]] = {}
    while sum(map(len, found.values())) < 40 and time.monotonic() < end:
        records = scanner.poll(500)
        for bucket in records.buckets():
            found.setdefault(bucket, []).extend(records.records(bucket))
    table_id = table.get_table_info().table_id
    assert set(found) == {TableBucket(table_id, 0), TableBucket(table_id, 1)}
    for of_bucket in found.values():
        assert [record.offset for record in of_bucket] == list(range(20))
        for record in of_bucket:
            assert record.change_type is ChangeType.AppendOnly
            assert began - 1 <= record.timestamp <= int(time.time() * 1000) + 1
            assert record.row == {"n": record.row["n"], "text": f"text-{record.row['n']}"}

    async def theirs() -> list[tuple[int, int, int]]:
        opened = await official_client.connection.get_table(official_client.path(table))
        scanner = await opened.new_scan().create_log_scanner()
        scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})
        got: list[tuple[int, int, int]] = []
        while len(got) < 40:
            polled = await scanner.poll(500)
            got += [(b.bucket_id, r.offset, r.timestamp) for b, rs in polled.items() for r in rs]
        return got

    ours = [(b.bucket_id, r.offset, r.timestamp) for b, rs in found.items() for r in rs]
    assert sorted(ours) == sorted(official_client.run(theirs))


def test_records_are_a_sequence_and_a_mapping(thousand: fluss.FlussTable) -> None:
    records = scan(thousand, records=True).poll(2000)
    bucket = TableBucket(thousand.get_table_info().table_id, 0)
    listed = list(records)
    assert records.count() == len(records) == len(listed) == 500
    assert not records.is_empty()
    assert records[0] is listed[0]
    assert records[-1] is listed[499]
    assert records[250:260] == listed[250:260]
    assert records[::-100] == listed[::-100]
    assert records[bucket] == records.records(bucket) == listed
    assert bucket in records
    other = TableBucket(0, 7)
    assert other not in records
    assert records[other] == []
    assert records.keys() == records.buckets() == [bucket]
    assert list(records.values()) == [listed]
    assert dict(records.items()) == {bucket: listed}
    assert "500 records in 1 buckets" in repr(records)
    for index in (500, -501):
        with pytest.raises(IndexError):
            records[index]
    assert listed[3].row == {"n": 3, "text": "text-3"}


def test_no_records() -> None:
    records = fluss.ScanRecords()
    assert records.is_empty()
    assert len(records) == records.count() == 0
    assert list(records) == []
    assert records.buckets() == []
    assert list(records.values()) == []
    assert records[:] == []


# ---- Arrow


def test_poll_arrow(thousand: fluss.FlussTable) -> None:
    scanner = scan(thousand)
    assert numbers(scanner.poll_arrow(2000)) == list(range(1000))
    nothing = scanner.poll_arrow(0)
    assert nothing.num_rows == 0
    assert nothing.schema == SCHEMA


def test_poll_record_batch(thousand: fluss.FlussTable) -> None:
    batches = scan(thousand).poll_record_batch(2000)
    assert [b.base_offset for b in batches] == list(range(0, 1000, 100))
    assert [b.last_offset for b in batches] == list(range(99, 1000, 100))
    assert {b.bucket.bucket_id for b in batches} == {0}
    assert [b.batch.num_rows for b in batches] == [100] * 10
    assert scan(thousand).poll_batches(2000)[3].batch.equals(batches[3].batch)


def test_to_arrow_goes_on(tables: Tables) -> None:
    table = tables(SCHEMA)
    scanner = scan(table)
    assert scanner.to_arrow().num_rows == 0
    tables.write(table, frame(10))
    assert numbers(scanner.to_arrow()) == list(range(10))
    assert scanner.to_arrow().num_rows == 0
    tables.write(table, frame(5, 10))
    assert numbers(scanner.to_arrow()) == list(range(10, 15))
    tables.write(table, frame(5, 15))
    assert numbers(scanner.poll_arrow(2000)) == list(range(15, 20))


def test_to_arrow_after_a_part_was_polled(thousand: fluss.FlussTable) -> None:
    scanner = scan(thousand)
    first = scanner.poll_record_batch(2000)
    rest = scanner.to_arrow()
    polled = [n for b in first for n in b.batch.column("n").to_pylist()]
    assert polled + numbers(rest) == list(range(1000))


def test_to_pandas(thousand: fluss.FlussTable) -> None:
    frame = scan(thousand, 990).to_pandas()
    assert frame["n"].tolist() == list(range(990, 1000))


def test_batch_reader_is_lazy(address: str, tables: Tables) -> None:
    table = tables(SCHEMA, properties={"table.log.arrow.compression.type": "NONE"})
    tables.write(table, frame(600_000))
    config = {
        "bootstrap.servers": address,
        "scanner.log.fetch.max-bytes-for-bucket": 200_000,
        "scanner.log.fetch.max-bytes": 400_000,
    }
    with fluss.connect(config) as connection:
        scanner = scan(connection.get_table(table.get_table_path()))
        reader = scanner.to_arrow_batch_reader()
        before = pa.total_allocated_bytes()
        first = reader.read_next_batch()
        assert first.num_rows < 400_000
        fetched = scanner.metrics.bytes_received
        total, most = first.num_rows, 0
        last = -1
        for batch in reader:
            total += batch.num_rows
            most = max(most, pa.total_allocated_bytes() - before)
            assert batch.column("n")[0].as_py() > last
            last = batch.column("n")[-1].as_py()
        assert total == 600_000
        assert fetched < scanner.metrics.bytes_received / 2
        assert most < scanner.metrics.bytes_received


def test_batch_reader_that_is_not_read_to_its_end(thousand: fluss.FlussTable) -> None:
    scanner = scan(thousand)
    reader = scanner.to_arrow_batch_reader()
    reader.read_next_batch()
    reader.close()
    del reader
    assert scanner.to_arrow().num_rows == 0  # the reader took it


# ---- subscriptions


@pytest.mark.parametrize("offset", [0, 1, 99, 100, 150, 999])
def test_from_the_middle(thousand: fluss.FlussTable, offset: int) -> None:
    assert numbers(scan(thousand, offset).to_arrow()) == list(range(offset, 1000))
    rows = poll_rows(scan(thousand, offset, records=True), 1000 - offset)
    assert [row["n"] for row in rows] == list(range(offset, 1000))
    assert scan(thousand, offset).poll_record_batch(2000)[0].base_offset == offset
    records = scan(thousand, offset, records=True).poll(2000)
    assert records[0].offset == offset


def test_latest(tables: Tables) -> None:
    table = tables(SCHEMA)
    tables.write(table, frame(10))
    scanner, records = scan(table, fluss.LATEST_OFFSET), scan(table, -1, records=True)
    assert scanner.to_arrow().num_rows == 0
    tables.write(table, frame(5, 10))
    assert numbers(scanner.to_arrow()) == list(range(10, 15))
    assert [row["n"] for row in poll_rows(records, 5)] == list(range(10, 15))


def test_the_end_is_no_error(thousand: fluss.FlussTable) -> None:
    assert scan(thousand, 1000).to_arrow().num_rows == 0
    assert scan(thousand, 1000).poll_arrow(50).num_rows == 0


@pytest.mark.parametrize("offset", [1001, 10**12])
def test_out_of_range(thousand: fluss.FlussTable, offset: int) -> None:
    """Never reset silently."""
    began = time.monotonic()
    error = drain(scan(thousand, offset))
    assert time.monotonic() - began < 20
    assert error.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
    assert str(offset) in error.message
    assert str(thousand.get_table_path()) in error.message


def test_out_of_range_bounded(thousand: fluss.FlussTable) -> None:
    """Nothing lies between an offset behind the end and the end."""
    with pytest.raises(FlussError) as raised:
        scan(thousand, 1001).to_arrow()
    assert raised.value.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION


def test_what_cannot_be_subscribed(tables: Tables, thousand: fluss.FlussTable) -> None:
    parted = tables(SCHEMA, partition_keys=["text"])
    plain = thousand.new_scan().create_log_scanner()
    scanner = parted.new_scan().create_log_scanner()
    cases: list[tuple[Callable[[], None], int, str]] = [
        (
            lambda: plain.subscribe(1, 0),
            ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
            "has no bucket 1: its buckets are 0 to 0",
        ),
        (
            lambda: plain.subscribe(0, -3),
            ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            "invalid start offset -3",
        ),
        (
            lambda: plain.subscribe_partition(1, 0, 0),
            ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION,
            "has no partitions: use subscribe",
        ),
        (
            lambda: scanner.subscribe(0, 0),
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            "use subscribe_partition",
        ),
        (
            lambda: scanner.subscribe_partition(10**9, 0, 0),
            ErrorCode.PARTITION_NOT_EXISTS,
            "has no partition with id 1000000000",
        ),
    ]
    for call, code, message in cases:
        with pytest.raises(FlussError) as raised:
            call()
        assert raised.value.error_code == code
        assert message in raised.value.message


def test_wrong_kind_of_scanner(thousand: fluss.FlussTable) -> None:
    with pytest.raises(FlussError, match="create_record_batch_log_scanner"):
        scan(thousand, records=True).to_arrow()
    with pytest.raises(FlussError, match="create_log_scanner"):
        scan(thousand).poll(1)
    with pytest.raises(FlussError, match="subscribed to nothing"):
        thousand.new_scan().create_log_scanner().poll(1)
    with scan(thousand) as scanner:
        pass
    with pytest.raises(FlussError, match="scanner is closed"):
        scanner.poll_arrow(1)


def test_unsubscribe_while_data_waits(tables: Tables) -> None:
    table = tables(SCHEMA, bucket_count=2, bucket_keys=["n"])
    tables.write(table, frame(2000))
    scanner = table.new_scan().create_log_scanner()
    tables.subscribe_all(scanner, table)
    seen = list(scanner.poll(2000))
    assert seen
    scanner.unsubscribe(0)
    after = []
    for _ in range(20):
        records = scanner.poll(50)
        assert {bucket.bucket_id for bucket in records.buckets()} <= {1}
        after += list(records)
    ones = numbers_of_bucket(table, 1)
    got = [r.row["n"] for r in [*seen, *after] if r.row["n"] in set(ones)]
    assert got == ones
    scanner.unsubscribe(1)
    assert scanner.poll(1).is_empty()  # as the official client has it
    scanner.subscribe(0, 5)
    assert scanner.poll(2000)[0].offset == 5


def numbers_of_bucket(table: fluss.FlussTable, bucket: int) -> list[int]:
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(bucket, fluss.EARLIEST_OFFSET)
    return numbers(scanner.to_arrow())


def test_subscribe_again_seeks(thousand: fluss.FlussTable) -> None:
    scanner = scan(thousand)
    scanner.poll_arrow(2000)
    scanner.subscribe(0, 995)
    assert numbers(scanner.poll_arrow(2000)) == list(range(995, 1000))
    scanner.subscribe(0, 0)
    assert numbers(scanner.to_arrow()) == list(range(1000))


def test_unsubscribe_partition(tables: Tables) -> None:
    table = tables(SCHEMA, partition_keys=["text"])
    data = pa.table({"n": range(6), "text": ["a", "b"] * 3}, schema=SCHEMA)
    tables.write(table, data, create_partitions=True)
    ids = tables.partitions(table)
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_partition_buckets({(ids["a"], 0): 0, (ids["b"], 0): 0})
    scanner.unsubscribe_partition(ids["a"], 0)
    assert numbers(scanner.to_arrow()) == [1, 3, 5]


# ---- what goes away


def drain(scanner: fluss.LogScanner) -> FlussError:
    """Poll until it fails."""
    end = time.monotonic() + 20
    with pytest.raises(FlussError) as raised:  # noqa: PT012
        while time.monotonic() < end:
            scanner.poll_arrow(200)
    return raised.value


def test_dropped_table(tables: Tables) -> None:
    table = tables(SCHEMA)
    tables.write(table, frame(10))
    scanner = scan(table)
    scanner.poll_arrow(2000)
    tables.connection.get_admin().drop_table(table.get_table_path())
    error = drain(scanner)
    assert error.error_code == ErrorCode.TABLE_NOT_EXIST
    assert str(table.get_table_path()) in error.message


def test_table_dropped_and_created_again(tables: Tables) -> None:
    """A scanner of the old table must not read the new one's rows."""
    table = tables(SCHEMA)
    path, admin = table.get_table_path(), tables.connection.get_admin()
    tables.write(table, frame(10))
    scanner = scan(table)
    scanner.poll_arrow(2000)
    admin.drop_table(path)
    admin.create_table(path, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1))
    tables.write(tables.connection.get_table(path), frame(20, 1000))
    error = drain(scanner)
    assert error.error_code == ErrorCode.TABLE_NOT_EXIST
    assert "dropped and created again" in error.message


def test_dropped_partition(tables: Tables) -> None:
    table = tables(SCHEMA, partition_keys=["text"])
    data = pa.table({"n": range(4), "text": ["a"] * 4}, schema=SCHEMA)
    tables.write(table, data, create_partitions=True)
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_partition(tables.partitions(table)["a"], 0, 0)
    assert numbers(scanner.poll_arrow(2000)) == [0, 1, 2, 3]
    tables.connection.get_admin().drop_partition(table.get_table_path(), {"text": "a"})
    error = drain(scanner)
    assert error.error_code == ErrorCode.PARTITION_NOT_EXISTS
    assert str(table.get_table_path()) in error.message
    assert "'a'" in error.message


# ---- live


def check_waiting_polls(table: fluss.FlussTable, scanner: fluss.LogScanner, records: bool) -> None:
    """Check that polls which would wait for two minutes end when a row comes."""
    found: list[int] = []

    def poll() -> None:
        if records:
            found.extend(r["n"] for r in rows_of(scanner.poll(120_000)))
        else:
            found.extend(numbers(scanner.poll_arrow(120_000)))

    with table.new_append().create_writer() as writer:
        writer.append((-1, "first")).wait()
        for number in range(-1, 3):
            waiting = threading.Thread(target=poll, daemon=True)
            waiting.start()
            if number >= 0:
                time.sleep(0.1)  # so that it waits, as a rule
                writer.append((number, "x")).wait()
            waiting.join(20)
            assert not waiting.is_alive()
            assert found == list(range(-1, number + 1))


@pytest.mark.parametrize("records", [True, False])
def test_a_waiting_poll_gets_a_row_at_once(tables: Tables, records: bool) -> None:
    table = tables(SCHEMA)
    check_waiting_polls(table, scan(table, records=records), records)


@pytest.mark.parametrize("records", [True, False])
def test_an_engine_answers_a_fetch_that_waits_when_a_row_comes(records: bool) -> None:
    """Servers of 0.9.1 do so at the end of its time, which here is a minute."""
    with (
        EmbeddedFluss(None, port=0) as engine,
        fluss.connect(
            {"bootstrap.servers": engine.address, "scanner.log.fetch.wait-max-time": 60_000}
        ) as connection,
    ):
        path = fluss.TablePath("fluss", "waited")
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
        connection.get_admin().create_table(path, descriptor)
        table = connection.get_table(path)
        check_waiting_polls(table, scan(table, records=records), records)


def test_polls_follow_a_writer(tables: Tables) -> None:
    table = tables(SCHEMA, bucket_count=2)
    scanner = table.new_scan().create_record_batch_log_scanner()
    tables.subscribe_all(scanner, table)

    def write() -> None:
        with table.new_append().create_writer() as writer:
            for i in range(50):
                writer.write_arrow(frame(20, i * 20)).wait()

    thread = threading.Thread(target=write)
    thread.start()
    seen: list[int] = []
    end = time.monotonic() + 20
    while len(seen) < 1000 and time.monotonic() < end:
        seen += numbers(scanner.poll_arrow(200))
    thread.join()
    assert sorted(seen) == list(range(1000))


def test_poll_without_waiting_comes_to_its_data(thousand: fluss.FlussTable) -> None:
    scanner = scan(thousand, records=True)
    end = time.monotonic() + 10
    count = 0
    while count < 1000 and time.monotonic() < end:
        count += len(scanner.poll(0))
        time.sleep(0.001)
    assert count == 1000


@pytest.mark.parametrize(
    ("kind", "number", "expected"),
    [
        (pa.date32(), 2**31 - 1, np.datetime64(2**31 - 1, "D")),
        (pa.timestamp("s"), -(2**40), np.datetime64(-(2**40), "s")),
        (pa.timestamp("ms", "UTC"), 2**60, np.datetime64(2**60, "ms")),
    ],
    ids=str,
)
def test_moments_beyond_the_years_of_python_are_read(
    tables: Tables, kind: pa.DataType, number: int, expected: np.datetime64
) -> None:
    whole = pa.int32() if kind == pa.date32() else pa.int64()
    values = pa.array([1, number, None], whole).cast(kind)
    data = pa.table({"n": [1, 2, 3], "v": values})
    table = tables(data.schema)
    tables.write(table, data)
    rows = poll_rows(scan(table, records=True), 3)
    assert [row["n"] for row in rows] == [1, 2, 3]
    assert [row["v"] for row in rows] == [values[0].as_py(), expected, None]
    keyed = tables(data.schema, ["n"])
    with keyed.new_upsert().create_writer() as writer:
        writer.write_arrow(data)
    lookuper = keyed.new_lookup().create_lookuper()
    assert lookuper.lookup({"n": 2}) == {"n": 2, "v": expected}


def test_a_moment_within_a_list_that_python_cannot_hold_is_named(tables: Tables) -> None:
    days = pa.array([[1], [2**31 - 1]], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    table = tables(pa.schema([("days", days.type)]))
    tables.write(table, pa.table({"days": days}))
    with pytest.raises(FlussError, match=r"'days'.*row 1.*to_arrow"):
        poll_rows(scan(table, records=True), 2)
