"""Reads of a scanner that fail: the next one returns every row."""

from __future__ import annotations

import subprocess
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.fetch import table_decoder
from fluss_df.client.fetch.table_decoder import TableDecoder
from fluss_df.client.scan import batch_scanner, log_scanner
from fluss_df.embedded import EmbeddedFluss
from fluss_df.record.change_tables import BinlogMaker
from tests.programs import command


@pytest.fixture
def table() -> Iterator[fluss.FlussTable]:
    """A table with ten rows in two batches."""
    with EmbeddedFluss() as engine, engine.connection() as connection:
        path = fluss.TablePath("fluss", "t")
        schema = fluss.Schema(pa.schema([("x", pa.int64())]))
        descriptor = fluss.TableDescriptor(schema, bucket_count=1)
        connection.get_admin().create_table(path, descriptor, False)
        table = connection.get_table(path)
        with table.new_append().create_writer() as writer:
            for half in (range(5), range(5, 10)):
                writer.write_arrow(pa.table({"x": half}))
                writer.flush()
        yield table


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has each log batch decoded for itself."""
    monkeypatch.setattr(table_decoder, "_PIECE_ROWS", 5)


def scanner_of(
    table: fluss.FlussTable, predicate: fluss.Predicate | None = None
) -> fluss.LogScanner:
    scan = table.new_scan()
    if predicate is not None:
        scan = scan.filter(predicate)
    scanner = scan.create_record_batch_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    return scanner


def test_rows_of_a_lazy_reader_that_nobody_iterated_come_next(table: fluss.FlussTable) -> None:
    with scanner_of(table) as scanner:
        reader = scanner.to_arrow_batch_reader()
        del reader
        assert scanner.poll_arrow(5_000)["x"].to_pylist() == list(range(10))
        assert scanner.to_arrow().num_rows == 0


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("least", [None, 3, 5, 7])
def test_a_lazy_reader_that_is_left_is_gone_on_with(
    table: fluss.FlussTable, least: int | None
) -> None:
    predicate = None if least is None else fluss.col("x") >= least
    with scanner_of(table, predicate) as scanner:
        reader = scanner.to_arrow_batch_reader()
        found: list[Any] = []
        while not found:
            found = reader.read_next_batch()["x"].to_pylist()
        del reader
        assert len(found) <= 5
        found += scanner.to_arrow()["x"].to_pylist()
        assert found == list(range(least or 0, 10))


@pytest.mark.usefixtures("pieces")
def test_rows_of_a_lazy_reader_that_failed_come_with_the_next(
    table: fluss.FlussTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = TableDecoder._decode

    def fail(self: TableDecoder, part: Any) -> pa.Table:
        if part.first:
            raise fluss.FlussError("a batch is damaged")
        return decode(self, part)

    with scanner_of(table) as scanner:
        reader = scanner.to_arrow_batch_reader()
        with monkeypatch.context() as patch:
            patch.setattr(TableDecoder, "_decode", fail)
            assert reader.read_next_batch()["x"].to_pylist() == list(range(5))
            with pytest.raises(fluss.FlussError, match="damaged"):
                reader.read_next_batch()
        assert scanner.to_arrow_batch_reader().read_all()["x"].to_pylist() == list(range(5, 10))


def test_rows_that_were_polled_since_do_not_come_again(table: fluss.FlussTable) -> None:
    with scanner_of(table) as scanner:
        reader = scanner.to_arrow_batch_reader()
        with table.new_append().create_writer() as writer:
            writer.write_arrow(pa.table({"x": [10]}))
        assert scanner.poll_arrow(5_000)["x"].to_pylist() == [10]
        del reader
        assert scanner.to_arrow().num_rows == 0
        # a bucket that is subscribed to again is read from the offset that was named then
        reader = scanner.to_arrow_batch_reader()
        scanner.subscribe(0, 8)
        del reader
        assert scanner.to_arrow()["x"].to_pylist() == [8, 9, 10]


def test_a_read_of_changes_that_cannot_be_made_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise fluss.FlussError("an update is torn")

    with EmbeddedFluss() as engine, engine.connection() as connection:
        path = fluss.TablePath("fluss", "t")
        schema = fluss.Schema(pa.schema([("x", pa.int64())]), primary_keys=["x"])
        descriptor = fluss.TableDescriptor(schema, bucket_count=1)
        connection.get_admin().create_table(path, descriptor, False)
        with connection.get_table(path).new_upsert().create_writer() as writer:
            writer.write_arrow(pa.table({"x": [1, 2]}))
            writer.flush()
            writer.write_arrow(pa.table({"x": [2, 3]}))
        with scanner_of(connection.get_table("fluss.t$binlog")) as scanner:
            with monkeypatch.context() as patch:
                patch.setattr(BinlogMaker, "add", fail)
                with pytest.raises(fluss.FlussError, match="torn"):
                    scanner.to_arrow()
                with pytest.raises(fluss.FlussError, match="torn"):
                    scanner.to_arrow_batch_reader().read_all()
            found = scanner.to_arrow()
            assert found["_change_type"].to_pylist() == ["insert", "insert", "update", "insert"]


def test_a_forked_child_has_the_rows_that_its_parent_did_not_take(tmp_path: Path) -> None:
    with EmbeddedFluss(tmp_path, port=0) as engine:
        code = """
        import os, sys, warnings
        import pyarrow as pa
        import fluss_df as fluss
        warnings.simplefilter("ignore", DeprecationWarning)
        options = {"bootstrap.servers": sys.argv[1], "scanner.log.max-poll-records": 4}
        with fluss.connect(options) as connection:
            path = fluss.TablePath("fluss", "t")
            schema = fluss.Schema(pa.schema([("x", pa.int64())]))
            connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
            table = connection.get_table(path)
            with table.new_append().create_writer() as writer:
                writer.write_arrow(pa.table({"x": range(10)}))
            scanner, closed = (table.new_scan().create_log_scanner() for _ in range(2))
            closed.close()
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            def rows():
                return [record.row["x"] for record in scanner.poll(5000)]
            assert rows() == [0, 1, 2, 3]
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    assert [*rows(), *rows()] == [4, 5, 6, 7, 8, 9]
                    try:
                        closed.poll(0)
                    except fluss.FlussError as error:
                        assert "closed" in str(error), error
                        code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert [*rows(), *rows()] == [4, 5, 6, 7, 8, 9]
        """
        program = [*command("-W", "error"), "-c", textwrap.dedent(code), engine.address]
        subprocess.run(program, check=True, timeout=60)


def test_rows_that_were_decoded_before_a_read_that_failed_are_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise fluss.FlussError("the server is gone")

    with EmbeddedFluss() as engine, engine.connection() as connection:
        path = fluss.TablePath("fluss", "t")
        descriptor = fluss.TableDescriptor(
            fluss.Schema(pa.schema([("x", pa.int64())])), bucket_count=1
        )
        connection.get_admin().create_table(path, descriptor, False)
        table = connection.get_table(path)
        with table.new_append().create_writer() as writer:
            writer.write_arrow(pa.table({"x": range(10)}))
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        # as a poll that Ctrl-C ended leaves it: rows are decoded, and nobody has them
        scanner._buffer.fill(scanner._subscriptions.values(), 5_000)
        with monkeypatch.context() as patch:
            patch.setattr(log_scanner, "read_table", fail)
            with pytest.raises(fluss.FlussError, match="gone"):
                scanner.to_arrow()
        assert scanner.poll_arrow(5_000)["x"].to_pylist() == list(range(10))
        scanner.close()


def test_the_last_rows_are_several_batches_where_columns_are_large(
    table: fluss.FlussTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        batch_scanner, "_as_few_batches", lambda rows: rows.to_batches(max_chunksize=3)
    )
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)

    def scanner() -> fluss.BatchScanner:
        return table.new_scan().limit(8).create_bucket_batch_scanner(bucket)

    def rows(batches: list[fluss.RecordBatch]) -> list[tuple[int, list[int]]]:
        return [(b.base_offset, b.batch["x"].to_pylist()) for b in batches]

    found = rows(scanner().collect_all_batches())
    assert [row for _, part in found for row in part] == list(range(2, 10))
    assert all(offset == part[0] for offset, part in found)
    assert len(found) > 2
    one = scanner()
    first = one.next_batch()
    assert first is not None
    assert rows([first, *one.collect_all_batches()]) == found
    assert one.next_batch() is None


@pytest.mark.parametrize("call", ["close", "subscribe", "unsubscribe"])
def test_a_poll_that_waits_lets_other_threads_in(
    table: fluss.FlussTable, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanner = scanner_of(table)
    assert scanner.to_arrow().num_rows == 10
    waits = threading.Event()
    sent = scanner._buffer._send_all

    def sending(*arguments: Any) -> Any:
        waits.set()
        return sent(*arguments)

    monkeypatch.setattr(scanner._buffer, "_send_all", sending)
    poll = threading.Thread(target=scanner.poll_arrow, args=(300_000,))
    poll.start()
    assert waits.wait(60)
    # or the test takes longer than it may
    arguments = {"close": (), "subscribe": (0, 5), "unsubscribe": (0,)}
    getattr(scanner, call)(*arguments[call])
    poll.join()
    if call == "subscribe":
        assert scanner.poll_arrow(5_000)["x"].to_pylist() == list(range(5, 10))
    scanner.close()
