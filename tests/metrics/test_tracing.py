"""Spans, as the SDK of OpenTelemetry collects them, agree with what was done."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.metrics import start_tracing, stop_tracing
from tests.client.support import Tables

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
FRAME = pa.table({"n": range(100), "text": ["some text"] * 100}, schema=SCHEMA)


class Spans:
    """A provider of the SDK, and what it was given."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer: Tracer = self.provider.get_tracer("test")

    def __call__(self, name: str) -> list[ReadableSpan]:
        found = self._exporter.get_finished_spans()
        return [span for span in found if span.name == name]

    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    start_tracing(made.provider)
    yield made
    stop_tracing()
    made.provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_flushes_scans_and_lookups(tables: Tables, spans: Spans) -> None:
    table, keyed = tables(SCHEMA), tables(SCHEMA, ["n"])
    name, keyed_name = str(table.get_table_path()), str(keyed.get_table_path())
    with spans.tracer.start_as_current_span("whole") as whole:
        with table.new_append().create_writer() as writer:
            writer.write_arrow(FRAME)
            writer.flush()
        with keyed.new_upsert().create_writer() as writer:
            writer.write_arrow(FRAME)
        scanned = fluss.read_fluss(name, connection=tables.connection)
        lookuper = keyed.new_lookup().create_lookuper()
        lookuper.lookup((1,))
        lookuper.lookup_arrow(pa.table({"n": [1, 2, 3]}))
    assert scanned.height == 100
    whole_id = whole.get_span_context().span_id
    flush = spans(f"send {name}")[0]
    assert flush.kind is SpanKind.PRODUCER
    assert attributes(flush)["messaging.batch.message_count"] == 100
    assert attributes(flush)["messaging.destination.name"] == name
    assert attributes(flush)["messaging.system"] == "fluss"
    assert len(spans(f"send {keyed_name}")) == 1
    (scan,) = spans(f"scan {name}")
    report = fluss.last_scan()
    assert report is not None
    assert scan.kind is SpanKind.CLIENT
    found = attributes(scan)
    assert found["db.response.returned_rows"] == report.rows == 100
    assert found["fluss.record_bytes"] == report.bytes > 0
    assert found["fluss.requests"] == report.requests
    assert found["db.collection.name"] == table.get_table_path().table_name
    assert found["db.namespace"] == tables.database
    one, many = spans(f"lookup {keyed_name}")
    assert "db.operation.batch.size" not in attributes(one)
    assert attributes(many)["db.operation.batch.size"] == 3
    for span in (flush, scan, one, many):
        assert parent(span) == whole_id
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time < span.end_time
        assert span.status.status_code is not StatusCode.ERROR


def test_what_fails_says_why(tables: Tables, spans: Spans) -> None:
    table = tables(SCHEMA)
    name = str(table.get_table_path())
    writer = table.new_append().create_writer()
    tables.connection.get_admin().drop_table(table.get_table_path())

    def write_until_it_is_gone() -> None:
        # a cluster takes rows for a moment after the drop was answered
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            writer.append((1, "a"))
            writer.flush()

    with pytest.raises(fluss.FlussError):
        write_until_it_is_gone()
    with pytest.raises(fluss.FlussError):
        writer.append((1, "a")).wait()
    with pytest.raises(fluss.FlussError):
        writer.close()
    sent = spans(f"send {name}")
    span = next(one for one in sent if one.status.status_code is StatusCode.ERROR)
    assert attributes(span)["error.type"] in {
        "TABLE_NOT_EXIST",
        "UNKNOWN_TABLE_OR_BUCKET_EXCEPTION",
    }
    assert span.events[0].name == "exception"


def test_what_fails_does_not_say_of_which_rows(tables: Tables, spans: Spans) -> None:
    table = tables(SCHEMA, primary_keys=["n"])
    lookuper = table.new_lookup().create_lookuper()
    with pytest.raises(fluss.FlussError, match="4111-secret"):
        lookuper.lookup({"n": "4111-secret"})
    told = spans(f"lookup {table.get_table_path()}")
    assert told
    assert all("4111-secret" not in span.to_json() for span in told)


def test_micro_batches_are_parents_of_what_they_do(tmp_path: Path, spans: Spans) -> None:
    checkpoint = tmp_path / "run"
    with EmbeddedFluss(tmp_path / "d"), fluss.connect(tmp_path / "d") as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
        for name in ("from", "into"):
            connection.get_admin().create_table(fluss.TablePath("fluss", name), descriptor)
        with connection.get_table("from").new_append().create_writer() as writer:
            for first in range(0, 100, 25):
                writer.write_arrow(FRAME.slice(first, 25))
                writer.flush()
        frame = fluss.scan_fluss("from", connection=connection).filter(pl.col("n") >= 0)
        result = fluss.run(
            frame, to="fluss.into", checkpoint=checkpoint, max_batch_rows=50, connection=connection
        )
    assert (result.batches, result.rows_written) == (2, 100)
    batches = spans("process fluss.from")
    assert [attributes(span)["messaging.batch.message_count"] for span in batches] == [50, 50]
    assert [attributes(span)["fluss.run.batch"] for span in batches] == [0, 1]
    for span in batches:
        assert span.kind is SpanKind.CONSUMER
        assert attributes(span)["messaging.consumer.group.name"] == str(checkpoint)
        assert span.context is not None
        scans = [s for s in spans("scan fluss.from") if parent(s) == span.context.span_id]
        assert sum(int(str(attributes(s)["db.response.returned_rows"])) for s in scans) == 50
        sends = [s for s in spans("send fluss.into") if parent(s) == span.context.span_id]
        assert sends


def test_a_query_that_outlives_the_span_it_was_made_in_is_a_trace_of_its_own(
    tables: Tables, spans: Spans
) -> None:
    table = tables(SCHEMA)
    tables.write(table, FRAME)
    name = str(table.get_table_path())
    with spans.tracer.start_as_current_span("made"):
        frame = fluss.scan_fluss(name, connection=tables.connection)
    frame.collect()
    assert [parent(span) for span in spans(f"scan {name}")] == [None]


def test_a_query_that_needs_no_more_rows_ends_its_span(tables: Tables, spans: Spans) -> None:
    table = tables(SCHEMA)
    tables.write(table, FRAME)
    name = str(table.get_table_path())
    assert fluss.scan_fluss(name, connection=tables.connection).head(3).collect().height == 3
    report = fluss.last_scan()
    assert report is not None
    assert [attributes(s)["fluss.buckets"] for s in spans(f"scan {name}")] == [report.buckets]


def test_no_spans_before_and_after(tables: Tables) -> None:
    made = Spans()
    table = tables(SCHEMA)
    tables.write(table, FRAME)
    start_tracing(made.provider)
    stop_tracing()
    tables.write(table, FRAME)
    fluss.read_fluss(str(table.get_table_path()), connection=tables.connection)
    assert made.names() == []
    made.provider.shutdown()


def test_without_the_extra() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
import fluss_df.metrics
try:
    fluss_df.metrics.start_tracing()
except fluss_df.FlussError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install 'fluss-df[otel]'" in done.stdout


def test_nothing_of_opentelemetry_is_imported_when_off(tmp_path: Path) -> None:
    program = """
import sys, polars as pl, fluss_df, fluss_df.metrics
pl.DataFrame({"a": [1]}).write_fluss("t", connection=sys.argv[1], create_if_not_exists=True)
fluss_df.read_fluss("t", connection=sys.argv[1])
print([m for m in sys.modules if m.startswith(("opentelemetry", "prometheus"))])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, f"file:{tmp_path / 'd'}"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
