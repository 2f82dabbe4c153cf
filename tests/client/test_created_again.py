"""Tables and partitions that another client drops and creates again under open handles.

Each handle goes on with what has the name now, or says what happened: none answers from what is
gone, and none is stuck. What each does is in docs/faults.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
import fluss_df.aio
from fluss_df.client.cluster import in_process_questions as direct_questions
from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import ErrorCode, FlussError
from tests.client.support import Tables

SCHEMA = pa.schema([("p", pa.string()), ("b", pa.int64()), ("id", pa.int64()), ("v", pa.int64())])
GONE = (ErrorCode.PARTITION_NOT_EXISTS, ErrorCode.TABLE_NOT_EXIST)
# a real server goes on with what is dropped for a moment
SETTLE_S = 0.3


class Settle:
    """Waits until what was dropped is gone."""

    seconds = SETTLE_S

    def __call__(self) -> None:
        time.sleep(self.seconds)


settle = Settle()


@pytest.fixture(autouse=True)
def embedded_engines_settle_at_once(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.node.callspec.params["address"] == "embedded":
        monkeypatch.setattr(settle, "seconds", 0.0)


def rows(value: int) -> pa.Table:
    ids = [0, 1, 2, 3]
    return pa.table({"p": ["a"] * 4, "b": ids, "id": ids, "v": [value] * 4})


class Case:
    """A table that is open here, and is changed by another client."""

    def __init__(self, tables: Tables, other: fluss.FlussConnection, keys: bool) -> None:
        self.keys = keys
        self.other = other
        self.admin = other.get_admin()
        self.connection = tables.connection
        self.path = tables.path()
        self.descriptor = fluss.TableDescriptor(
            fluss.Schema(SCHEMA, ["p", "b", "id"] if keys else None),
            bucket_count=2,
            bucket_keys=["b"] if keys else None,
            partition_keys=["p"],
        )
        self.create()
        self.table = tables.connection.get_table(self.path)

    def create(self) -> None:
        self.admin.create_table(self.path, self.descriptor)
        self.admin.create_partition(self.path, {"p": "a"})
        self.fill(1)

    def fill(self, value: int) -> None:
        with self.writer(self.other.get_table(self.path)) as writer:
            writer.write_arrow(rows(value))

    def writer(self, table: fluss.FlussTable, **options: bool) -> Any:
        new = table.new_upsert() if self.keys else table.new_append()
        return new.create_writer(**options)

    def change(self, what: str) -> None:
        """Drop and create again, with other values."""
        if what == "table":
            self.admin.drop_table(self.path)
            self.admin.create_table(self.path, self.descriptor)
        else:
            self.admin.drop_partition(self.path, {"p": "a"})
        self.admin.create_partition(self.path, {"p": "a"})
        settle()
        self.fill(2)

    def values(self) -> list[int]:
        """Return the values that are there, as another client reads them."""
        frame = fluss.scan_fluss(self.path, connection=self.other).collect()
        return sorted(frame.get_column("v").to_list())


@pytest.fixture(scope="module")
def other(address: str) -> Iterator[fluss.FlussConnection]:
    with fluss.connect(address) as connection:
        yield connection


def refuses(error: FlussError, case: Case) -> None:
    assert error.error_code in GONE
    assert case.path.table_name in error.message
    assert "java" not in error.message


@pytest.mark.parametrize("what", ["partition", "table"])
@pytest.mark.parametrize("keys", [True, False])
def test_frames_read_what_is_there_now(
    tables: Tables, other: fluss.FlussConnection, what: str, keys: bool
) -> None:
    case = Case(tables, other, keys)
    frame = fluss.scan_fluss(case.path, connection=case.connection)
    filtered = frame.filter(pl.col("b") == 1).select("v")
    assert frame.collect().height == 4
    case.change(what)
    assert frame.collect().get_column("v").to_list() == [2] * 4
    assert filtered.collect().get_column("v").to_list() == [2]


@pytest.mark.parametrize("what", ["partition", "table"])
def test_lookups(tables: Tables, other: fluss.FlussConnection, what: str) -> None:
    """A partition is found by its name; a table that was opened is another one now."""
    case = Case(tables, other, keys=True)
    keys = pa.table({"p": ["a", "b", "a"], "b": [1, 1, 2], "id": [1, 1, 2]})
    one, many = (case.table.new_lookup().create_lookuper() for _ in range(2))
    prefix = case.table.new_lookup().lookup_by(["p", "b"]).create_lookuper()
    prefixes = case.table.new_lookup().lookup_by(["p", "b"]).create_lookuper()
    asked: list[tuple[Callable[[], Any], Any]] = [
        (lambda: one.lookup(["a", 1, 1]), {"p": "a", "b": 1, "id": 1, "v": 2}),
        (lambda: many.lookup_arrow(keys).column("v").to_pylist(), [2, None, 2]),
        (lambda: prefix.lookup(["a", 1]), [{"p": "a", "b": 1, "id": 1, "v": 2}]),
        (lambda: prefixes.lookup_arrow(keys.select(["p", "b"])).column("v").to_pylist(), [2, 2]),
    ]
    for ask, _ in asked:
        ask()
    case.change(what)
    for ask, wanted in asked:
        for _ in range(2):
            if what == "partition":
                assert ask() == wanted
            else:
                with pytest.raises(FlussError, match="open it again") as raised:
                    ask()
                refuses(raised.value, case)


def test_a_partition_that_is_gone_has_nothing(tables: Tables, other: fluss.FlussConnection) -> None:
    case = Case(tables, other, keys=True)
    lookuper = case.table.new_lookup().create_lookuper()
    assert lookuper.lookup(["a", 1, 1])
    case.admin.drop_partition(case.path, {"p": "a"})
    settle()
    assert lookuper.lookup(["a", 1, 1]) is None
    assert lookuper.lookup_arrow(rows(1).select(["p", "b", "id"])).column("v").null_count == 4


@pytest.mark.parametrize("what", ["partition", "table"])
async def test_an_awaited_lookup(address: str, tables: Tables, what: str) -> None:
    with fluss.connect(address) as other:
        case = Case(tables, other, keys=True)
        config = fluss_df.aio.Config({"bootstrap.servers": address})
        connection = await fluss_df.aio.FlussConnection.create(config)
        path = fluss_df.aio.TablePath(case.path.database_name, case.path.table_name)
        table = await connection.get_table(path)
        lookuper = table.new_lookup().create_lookuper()
        found = await lookuper.lookup({"p": "a", "b": 1, "id": 1})
        assert found is not None
        assert found["v"] == 1
        writer = table.new_upsert().create_writer()
        case.change(what)
        if what == "partition":
            found = await lookuper.lookup({"p": "a", "b": 1, "id": 1})
            assert found is not None
            assert found["v"] == 2
            writer.upsert({"p": "a", "b": 1, "id": 1, "v": 3})
            await writer.flush()
            assert case.values() == [2, 2, 2, 3]
        else:
            with pytest.raises(FlussError) as raised:
                await lookuper.lookup({"p": "a", "b": 1, "id": 1})
            refuses(raised.value, case)
        await connection.close()


@pytest.mark.parametrize("what", ["partition", "table"])
@pytest.mark.parametrize("keys", [True, False])
def test_writers(tables: Tables, other: fluss.FlussConnection, what: str, keys: bool) -> None:
    """A writer goes on into the partition that has the name now; into another table it does not."""
    case = Case(tables, other, keys)
    writer = case.writer(case.table)
    writer.write_arrow(rows(1))
    writer.flush()
    case.change(what)
    for turn in range(2):
        writer.write_arrow(rows(3))
        if what == "table":
            with pytest.raises(FlussError, match="open it again") as raised:
                writer.flush()
            refuses(raised.value, case)
            continue
        writer.flush()
        assert case.values() == ([3] * 4 if keys else [2] * 4 + [3] * 4 * (turn + 1))
    writer.close()
    assert writer.unflushed_rows == 0
    if what == "table":
        assert case.values() == [2] * 4
    else:
        # of the partition that is there, not of the one before
        assert sum(result.rows for result in writer.offsets()) == 8


@pytest.mark.parametrize("keys", [True, False])
def test_rows_that_wait_go_to_the_partition_that_is_there(
    tables: Tables, other: fluss.FlussConnection, keys: bool
) -> None:
    """What was accepted before the drop, and not acknowledged, is written once, and in order."""
    case = Case(tables, other, keys)
    config = tables.connection.config.copy(writer_batch_timeout_ms=60_000)
    with fluss.connect(config) as connection:
        writer = case.writer(connection.get_table(case.path))
        writer.write_arrow(rows(1))
        writer.flush()
        for value in range(3, 8):
            for row in rows(value).to_pylist():
                (writer.upsert if keys else writer.append)(row)
        case.change("partition")
        writer.close()
    assert case.values() == ([7] * 4 if keys else sorted([2, 3, 4, 5, 6, 7] * 4))


def test_rows_on_their_way_are_written_or_reported(
    tables: Tables, other: fluss.FlussConnection
) -> None:
    """A writer that never rests while partitions come and go: every row has a fate."""
    case = Case(tables, other, keys=True)
    writer = case.writer(case.table)
    for turn in range(4):
        for i in range(300):
            writer.upsert(("a", i % 50, turn * 1000 + i, i))
        case.admin.drop_partition(case.path, {"p": "a"})
        case.admin.create_partition(case.path, {"p": "a"})
        for i in range(300):
            writer.upsert(("a", i % 50, turn * 1000 + 500 + i, i))
    settle()
    try:
        writer.flush()
    except FlussError as error:  # rows that were sent while there was none
        refuses(error, case)
    assert (writer.unflushed_rows, writer.failed_rows) == (0, 0)
    writer.upsert(("a", 1, -1, 77))
    writer.close()
    assert writer.unflushed_rows == 0
    found = case.table.new_lookup().create_lookuper().lookup(["a", 1, -1])
    assert found is not None
    assert found["v"] == 77


@pytest.mark.parametrize("keys", [True, False])
def test_a_writer_without_a_partition(
    tables: Tables, other: fluss.FlussConnection, keys: bool
) -> None:
    """Rows of a partition that nobody created again are reported; the writer goes on after."""
    case = Case(tables, other, keys)
    writer = case.writer(case.table)
    writer.write_arrow(rows(1))
    writer.flush()
    case.admin.drop_partition(case.path, {"p": "a"})
    settle()
    writer.write_arrow(rows(3))
    with pytest.raises(FlussError, match=r"partition 'a' of table .* was dropped") as raised:
        writer.flush()
    refuses(raised.value, case)
    case.admin.create_partition(case.path, {"p": "a"})
    writer.write_arrow(rows(4))
    writer.close()
    assert case.values() == [4] * 4


@pytest.mark.parametrize("keys", [True, False])
def test_a_writer_that_creates_partitions_does_so_again(
    tables: Tables, other: fluss.FlussConnection, keys: bool
) -> None:
    case = Case(tables, other, keys)
    writer = case.writer(case.table, create_partitions=True)
    writer.write_arrow(rows(1))
    writer.flush()
    case.admin.drop_partition(case.path, {"p": "a"})
    settle()
    writer.write_arrow(rows(3))
    writer.close()
    assert case.values() == [3] * 4


@pytest.mark.parametrize("what", ["partition", "table"])
@pytest.mark.parametrize("keys", [True, False])
def test_scanners_of_a_bucket_say_that_it_is_gone(
    tables: Tables, other: fluss.FlussConnection, what: str, keys: bool
) -> None:
    """What was given the id of a partition does not read another one."""
    case = Case(tables, other, keys)
    [partition] = case.admin.list_partition_infos(case.path)
    info = case.table.get_table_info()
    old_id = partition.partition_id
    bucket = fluss.TableBucket(info.table_id, 1, old_id)
    limited = case.table.new_scan().limit(3).create_bucket_batch_scanner(bucket)
    scanner = case.table.new_scan().create_record_batch_log_scanner()
    for number in range(2):
        scanner.subscribe_partition(partition.partition_id, number, 0)
    read = 0
    while read < 4:
        read += scanner.poll_arrow(10_000).num_rows
    case.change(what)
    reads: list[Callable[[], Any]] = [
        limited.to_arrow,
        lambda: scanner.poll_arrow(10_000),
        lambda: scanner.poll_arrow(10_000),
    ]
    for call in reads:
        began = time.monotonic()
        with pytest.raises(FlussError) as raised:
            call()
        refuses(raised.value, case)
        assert time.monotonic() - began < 10
    # the new one can be read beside
    if what == "partition":
        [partition] = case.admin.list_partition_infos(case.path)
        scanner.unsubscribe_partition(old_id, 0)
        scanner.unsubscribe_partition(old_id, 1)
        for number in range(2):
            scanner.subscribe_partition(partition.partition_id, number, 0)
        read = 0
        while read < 4:
            read += scanner.poll_arrow(10_000).num_rows


@pytest.mark.parametrize("what", ["partition", "table"])
def test_key_scans(tables: Tables, other: fluss.FlussConnection, what: str) -> None:
    case = Case(tables, other, keys=True)
    before = case.table.new_scan().create_snapshot_scanner()
    case.change(what)
    for scanner in (before, case.table.new_scan().create_snapshot_scanner()):
        if what == "partition":
            assert scanner.to_arrow().column("v").to_pylist() == [2] * 4
        else:
            with pytest.raises(FlussError, match="open it again") as raised:
                scanner.to_arrow()
            refuses(raised.value, case)


@pytest.mark.parametrize("again", [True, False])
def test_a_partition_goes_during_a_key_scan(
    tables: Tables, other: fluss.FlussConnection, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, in words of its own: no rows of two partitions, and no stack trace."""
    case = Case(tables, other, keys=True)
    for name in "bc":
        case.admin.create_partition(case.path, {"p": name})
    original = TableQuestions.partition_infos
    dropped: list[str] = []

    def drop() -> None:
        dropped.append("b")
        case.admin.drop_partition(case.path, {"p": "b"})
        if again:
            case.admin.create_partition(case.path, {"p": "b"})
        settle()

    async def listed(self: TableQuestions, *args: Any) -> list[fluss.PartitionInfo]:
        found = await original(self, *args)
        if not dropped:
            await asyncio.to_thread(drop)
        return found

    monkeypatch.setattr(TableQuestions, "partition_infos", listed)
    monkeypatch.setattr(direct_questions, "partition_infos", lambda *_: None)
    with pytest.raises(FlussError) as raised:
        case.table.new_scan().create_snapshot_scanner().to_arrow()
    assert dropped
    refuses(raised.value, case)
