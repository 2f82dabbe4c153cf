"""What is exported of clients agrees with what they did, on a cluster and on an engine."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

import fluss_df as fluss
from tests.client.support import Tables
from tests.metrics.support import Scrape, Scraper, grown

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
FRAME = pa.table({"n": range(1000), "text": [f"text-{i}" for i in range(1000)]}, schema=SCHEMA)
KINDS = "fluss_client_request_duration_seconds_count"


def test_rows_bytes_and_batches_by_table(tables: Tables) -> None:
    scrape = Scraper()
    table, other = tables(SCHEMA), tables(SCHEMA)
    name = str(table.get_table_path())
    tables.write(table, FRAME)
    tables.write(table, FRAME.slice(0, 10))
    tables.write(other, FRAME.slice(0, 7))
    scanner = tables.scanner(table)
    assert scanner.to_arrow().num_rows == 1010
    after = scrape()
    assert after("fluss_client_writer_records_total", table=name) == 1010
    assert after("fluss_client_writer_batches_total", table=name) == 2
    assert after("fluss_client_scanner_records_total", table=name) == 1010
    assert after("fluss_client_scanner_batches_total", table=name) == 2
    # what was sent is what is read again
    written = after("fluss_client_writer_bytes_total", table=name)
    assert written == after("fluss_client_scanner_bytes_total", table=name)
    assert written == scanner.metrics.record_bytes > 1000
    another = str(other.get_table_path())
    assert after("fluss_client_writer_records_total", table=another) == 7
    assert after("fluss_client_scanner_records_total", table=another) == 0


def test_requests_bytes_and_errors(address: str, tables: Tables) -> None:
    scrape = Scraper()
    with fluss.connect(address) as connection:
        # the lanes and the answers of the fixtures' connection are at rest
        before, own = scrape(), dict(connection.metrics.as_dict())
        admin = connection.get_admin()
        for _ in range(5):
            admin.list_databases()
        with pytest.raises(fluss.FlussError):
            admin.get_table(fluss.TablePath(tables.database, "nothing"))
        after, own_after = scrape(), dict(connection.metrics.as_dict())
    assert grown(before, after, KINDS, request="LIST_DATABASES") == 5
    errors = "fluss_client_request_errors_total"
    assert grown(before, after, errors, request="LIST_DATABASES") == 0
    assert grown(before, after, errors, request="GET_TABLE_INFO") >= 1
    for exported, counter in (
        ("fluss_client_requests_sent_total", "requests"),
        ("fluss_client_bytes_out_total", "bytes_sent"),
        ("fluss_client_bytes_in_total", "bytes_received"),
        ("fluss_client_errors_total", "errors"),
        ("fluss_client_retries_total", "retries"),
    ):
        assert grown(before, after, exported) == own_after[counter] - own[counter], exported
    # every request that was sent is one that was answered
    assert after.sum(KINDS) - before.sum(KINDS) == own_after["requests"] - own["requests"]


def test_histograms_hold_each_request_once(tables: Tables) -> None:
    tables.connection.get_admin().list_databases()
    after = Scraper()()
    name = "fluss_client_request_duration_seconds_bucket"
    bounds = [dict(labels)["le"] for sample, labels in after.samples if sample == name]
    assert set(bounds) == {
        *("0.001", "0.005", "0.01", "0.05", "0.1", "0.5", "1.0", "5.0", "10.0", "+Inf")
    }
    for request in after.labels(name, "request"):
        counts = [after(name, request=request, le=le) for le in dict.fromkeys(bounds)]
        assert counts == sorted(counts)
        assert counts[-1] == after(KINDS, request=request) > 0
        assert after("fluss_client_request_duration_seconds_sum", request=request) > 0


def test_rows_that_were_refused(address: str, tables: Tables) -> None:
    table = tables(SCHEMA)
    with fluss.connect(address) as connection:
        writer = connection.get_table(table.get_table_path()).new_append().create_writer()
        connection.get_admin().drop_table(table.get_table_path())
        with pytest.raises(fluss.FlussError):
            writer.write_arrow(FRAME.slice(0, 3)).wait()
        with pytest.raises(fluss.FlussError):
            writer.close()
    name = str(table.get_table_path())
    after = Scraper()()
    assert after("fluss_client_writer_failed_records_total", table=name) == 3
    assert after("fluss_client_writer_records_total", table=name) == 0


def test_lookups(tables: Tables) -> None:
    table = tables(SCHEMA, ["n"])
    with table.new_upsert().create_writer() as writer:
        writer.write_arrow(FRAME)
    lookuper = table.new_lookup().create_lookuper()
    assert lookuper.lookup((1,)) == {"n": 1, "text": "text-1"}
    assert lookuper.lookup_arrow(pa.table({"n": [1, 2, 5000]})).num_rows == 3
    name = str(table.get_table_path())
    after = Scraper()()
    assert after("fluss_client_lookups_total", table=name) == 4
    assert after("fluss_client_scanner_records_total", table=name) == 2
    assert after("fluss_client_writer_records_total", table=name) == 1000


def test_what_a_closed_connection_counted_stays(address: str, tables: Tables) -> None:
    scrape = Scraper()
    table = tables(SCHEMA)
    name = str(table.get_table_path())
    before = scrape()
    connection = fluss.connect(address)
    assert grown(before, scrape(), "fluss_client_connections") == 1
    with connection.get_table(table.get_table_path()).new_append().create_writer() as writer:
        writer.write_arrow(FRAME)
    opened = scrape()
    connection.close()
    closed = scrape()
    assert grown(before, closed, "fluss_client_connections") == 0
    assert_no_counter_went_down(opened, closed)
    assert closed("fluss_client_writer_records_total", table=name) == 1000
    # and of one that nobody closed
    lost = fluss.connect(address)
    lost.get_admin().list_databases()
    opened = scrape()
    del lost
    gc.collect()
    collected = scrape()
    assert grown(before, collected, "fluss_client_connections") == 0
    assert_no_counter_went_down(opened, collected)


def assert_no_counter_went_down(before: Scrape, after: Scrape) -> None:
    fewer = {
        key: (value, after.samples.get(key))
        for key, value in before.samples.items()
        if key[0].endswith(("_total", "_count", "_sum", "_bucket"))
        and after.samples.get(key, 0) < value
    }
    assert fewer == {}


def test_rows_that_wait_are_bytes_of_the_buffer(address: str, tables: Tables) -> None:
    scrape = Scraper()
    table = tables(SCHEMA)
    with fluss.connect({"bootstrap.servers": address}) as connection:
        writer = connection.get_table(table.get_table_path()).new_append().create_writer()
        before = scrape()("fluss_client_writer_buffer_bytes")
        handle = writer.write_arrow(FRAME)
        assert writer.buffered_bytes >= 0
        handle.wait()
        writer.flush()
        assert writer.buffered_bytes == 0
        assert scrape()("fluss_client_writer_buffer_bytes") == before
