"""What is exported of embedded engines agrees with what they were asked, and what they hold."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, Limits
from tests.embedded.raw import RawClient
from tests.metrics.support import Scraper, grown

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
FRAME = pa.table({"n": range(1000), "text": ["some text"] * 1000}, schema=SCHEMA)


def log_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.log") if "/log/" in str(file))


def make(connection: fluss.FlussConnection, name: str, key: list[str] | None = None) -> None:
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA, key), bucket_count=2)
    connection.get_admin().create_table(fluss.TablePath("fluss", name), descriptor)


@pytest.mark.parametrize("port", [None, 0], ids=["in process", "tcp"])
def test_requests_rows_and_bytes(tmp_path: Path, port: int | None) -> None:
    scrape = Scraper()
    before = scrape()
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(EmbeddedFluss(tmp_path / "d", port=port))
        where = tmp_path / "d" if port is None else engine.address
        with fluss.connect(where) as connection:
            make(connection, "log")
            make(connection, "keyed", ["n"])
            for name in ("log", "keyed"):
                table = connection.get_table(name)
                write = table.new_append() if name == "log" else table.new_upsert()
                with write.create_writer() as writer:
                    writer.write_arrow(FRAME)
            rows = fluss.read_fluss("log", connection=connection)
            assert rows.height == 1000
            with pytest.raises(fluss.FlussError):
                connection.get_table("nothing")
            after = scrape()
            own = connection.metrics
            assert after("fluss_server_engines") - before("fluss_server_engines") == 1
            for name in ("log", "keyed"):
                full = f"fluss.{name}"
                count = "fluss_server_table_messages_in_total"
                assert after(count, table=full) - before(count, table=full) == 1000
                assert grown(
                    before, after, "fluss_server_table_bytes_in_total", table=full
                ) == grown(before, after, "fluss_client_writer_bytes_total", table=full)
            sent = grown(before, after, "fluss_server_table_bytes_out_total", table="fluss.log")
            assert sent == grown(
                before, after, "fluss_client_scanner_bytes_total", table="fluss.log"
            )
            for request in ("PRODUCE_LOG", "PUT_KV", "CREATE_TABLE", "FETCH_LOG", "GET_TABLE_INFO"):
                served = "fluss_server_request_duration_seconds_count"
                sent_of = "fluss_client_request_duration_seconds_count"
                assert grown(before, after, served, request=request) > 0
                assert grown(before, after, served, request=request) >= grown(
                    before, after, sent_of, request=request
                )
            errors = "fluss_server_request_errors_total"
            assert grown(before, after, errors, request="GET_TABLE_INFO") >= 1
            assert grown(before, after, errors, request="PRODUCE_LOG") == 0
            for kind in ("log", "kv"):
                flushes = "fluss_server_log_flush_duration_seconds_count"
                assert grown(before, after, flushes, kind=kind) >= 1
            if port is not None:
                received = grown(before, after, "fluss_server_bytes_in_total")
                assert received >= own.bytes_sent > 0
                assert grown(before, after, "fluss_server_bytes_out_total") >= own.bytes_received
                assert grown(before, after, "fluss_server_connections_accepted_total") >= 1
                assert after("fluss_server_connections", transport="tcp") >= 1
    ended = scrape()
    assert ended("fluss_server_engines") == before("fluss_server_engines")
    assert ended("fluss_server_table_messages_in_total", table="fluss.log") >= 1000


def test_sizes_of_logs_in_use_and_at_rest(tmp_path: Path) -> None:
    scrape = Scraper()
    folder = tmp_path / "d"
    name = "fluss_server_table_log_size_bytes"
    before = scrape()
    for _ in range(2):
        with EmbeddedFluss(folder), fluss.connect(folder) as connection:
            if not connection.get_admin().table_exists(fluss.TablePath("fluss", "sized")):
                make(connection, "sized")
                make(connection, "empty")
            at_rest = scrape()
            assert at_rest(name, table="fluss.sized") == log_bytes(folder)
            with connection.get_table("sized").new_append().create_writer() as writer:
                writer.write_arrow(FRAME)
            in_use = scrape()
            assert in_use(name, table="fluss.sized") == log_bytes(folder) > 1000
            assert in_use(name, table="fluss.empty") == 0
            assert grown(before, in_use, "fluss_server_tables") == 2
            assert grown(before, in_use, "fluss_server_open_buckets") >= 1


def test_rows_in_rocksdb(tmp_path: Path) -> None:
    scrape = Scraper()
    name = "fluss_server_table_kv_size_bytes"
    with EmbeddedFluss(tmp_path / "d") as engine, fluss.connect(tmp_path / "d") as connection:
        make(connection, "rows", ["n"])
        with connection.get_table("rows").new_upsert().create_writer() as writer:
            writer.write_arrow(FRAME)
        in_memory = scrape()
        assert in_memory(name, table="fluss.rows") > 10_000
        for state in ("running", "pending"):
            assert in_memory("fluss_server_kv_compactions", state=state) == 0
        for opened in engine.engine.open_buckets().values():
            assert opened.release_files()
        files = sum(file.stat().st_size for file in (tmp_path / "d").rglob("*.sst"))
        at_rest = scrape()(name, table="fluss.rows")
        assert 0 < files <= at_rest
        # it is read again, and measured again
        row = connection.get_table("rows").new_lookup().create_lookuper().lookup((1,))
        assert row == {"n": 1, "text": "some text"}
        assert scrape()(name, table="fluss.rows") > 0


def test_a_table_that_is_dropped_has_no_size(tmp_path: Path) -> None:
    scrape = Scraper()
    with EmbeddedFluss(tmp_path / "d"), fluss.connect(tmp_path / "d") as connection:
        make(connection, "gone")
        assert "fluss.gone" in scrape().labels("fluss_server_table_log_size_bytes", "table")
        connection.get_admin().drop_table(fluss.TablePath("fluss", "gone"))
        assert "fluss.gone" not in scrape().labels("fluss_server_table_log_size_bytes", "table")


def test_refused_logins(tmp_path: Path) -> None:
    scrape = Scraper()
    before = scrape()
    with EmbeddedFluss(tmp_path / "d", port=0, sasl={"alice": "right"}) as engine:
        settings = {
            "bootstrap.servers": engine.address,
            "security.protocol": "sasl",
            "security.sasl.mechanism": "plain",
            "security.sasl.username": "alice",
        }
        with pytest.raises(fluss.FlussError):
            fluss.connect({**settings, "security.sasl.password": "wrong"})
        assert grown(before, scrape(), "fluss_server_logins_refused_total") == 1
        fluss.connect({**settings, "security.sasl.password": "right"}).close()
        after = scrape()
    assert grown(before, after, "fluss_server_logins_refused_total") == 1
    assert grown(before, after, "fluss_server_connections_accepted_total") == 2


def test_refused_connections(tmp_path: Path) -> None:
    scrape = Scraper()
    limits = Limits(connections_per_address=1)
    with EmbeddedFluss(tmp_path / "d", port=0, limits=limits) as engine:
        host, port = engine.address.split(":")
        with fluss.connect(engine.address) as connection:
            # one that asked a moment ago is not closed for another one
            connection.get_admin().list_databases()
            before = scrape()
            with socket.create_connection((host, int(port)), 20) as peer:
                assert peer.recv(1) == b""
            after = scrape()
    assert grown(before, after, "fluss_server_connections_refused_total") == 1
    assert grown(before, after, "fluss_server_connections_accepted_total") == 0


def test_requests_that_nobody_knows_have_one_name(tmp_path: Path) -> None:
    scrape = Scraper()
    with EmbeddedFluss(tmp_path / "d", port=0) as engine:
        before = scrape()
        client = RawClient(engine.address)
        for key in range(20_000, 20_050):
            client.send(key, 0, b"")
            assert client.receive().type == 1
        client.socket.close()
        after = scrape()
    errors = "fluss_server_request_errors_total"
    assert grown(before, after, errors, request="UNKNOWN") == 50
    new = after.labels(errors, "request") - before.labels(errors, "request")
    assert new <= {"UNKNOWN"}
