"""What notebooks show: escaped, small, without colours, and without secrets."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fluss_df
from fluss_df.client.send.batch import BucketResult
from fluss_df.io.runs.micro_batches import MicroBatch, MicroBatches
from fluss_df.io.runs.runner import RunResult
from fluss_df.io.scans.report import ScanReport, ScanReports
from fluss_df.io.sinks.sink import SinkResult
from fluss_df.metadata import TablePath
from fluss_df.pushdown.plan import Explanation, ScanPlan, Split
from fluss_df.schema import Schema, TableDescriptor, TableInfo
from fluss_df.texts import html_tables

NASTY = "<script>alert('x')</script>&\"\u202e$a$"
TAGS = {"table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
PATH = TablePath("fluss", NASTY)


class Page(HTMLParser):
    """The texts of a page of which every tag is closed, and known."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        self.open.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(thing: object) -> Page:
    page = Page(thing._repr_html_())  # type: ignore[attr-defined]
    assert {name for name, _ in page.attributes} <= {"class", "style", "scope", "colspan"}
    styles = " ".join(value or "" for name, value in page.attributes if name == "style")
    assert not re.search(r"color|background|#|rgb|url", styles)
    return page


def plan(splits: int = 1, columns: Sequence[str] = (NASTY,)) -> ScanPlan:
    return ScanPlan(
        PATH,
        1,
        1,
        tuple(columns),
        (),
        tuple(Split(i, f"{NASTY}{i}", 0, 0, 5) for i in range(splits)),
        pushed=(f"x == '{NASTY}'",),
        of_columns=len(columns),
        of_partitions=splits,
        of_buckets=splits,
    )


def report(**changed: object) -> ScanReport:
    figures = {
        "plan": plan(), "columns": (NASTY,), "partitions": (NASTY,), "buckets": 1, "requests": 1,
        "retries": 0, "bytes": 1234567, "bytes_received": 1300000, "rows": 98765, "batches": 3,
        "remote_segments": 0, "remote_bytes": 0, "wait_seconds": 0.1, "seconds": 0.25,
    }  # fmt: skip
    return ScanReport(**{**figures, **changed})  # type: ignore[arg-type]


def descriptor(columns: int = 2, properties: dict[str, str] | None = None) -> TableDescriptor:
    names = [NASTY, *(f"c{i}" for i in range(columns - 1))]
    schema = Schema(pa.schema([(name, pa.string()) for name in names]), primary_keys=[NASTY])
    return TableDescriptor(
        schema, bucket_count=3, comment=NASTY, properties=properties, custom_properties={NASTY: "1"}
    )


THINGS = {
    "plan": plan(),
    "explanation": Explanation([plan(), plan()]),
    "report": report(),
    "reports": ScanReports([report(), report(lookups=4)]),
    "schema": descriptor().schema,
    "descriptor": descriptor(),
    "info": TableInfo(PATH, 1, 1, descriptor(), 0, 0),
    "run": RunResult(PATH, 3, 1000, 900),
    "sink": SinkResult(PATH, 5, (BucketResult(NASTY, 0, 0, 5, 5),), True, (NASTY,), 0.1),
    "batch": MicroBatch(7, pl.LazyFrame(), plan().splits, None, lambda *_: None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", THINGS)
def test_names_are_escaped(what: str) -> None:
    page = shown(THINGS[what])
    assert any("<script>alert('x')</script>&\"\ufffd$a$" in text for text in page.texts)


@pytest.mark.parametrize("what", THINGS)
def test_formulas_are_not_typeset(what: str) -> None:
    classes = [value for name, value in shown(THINGS[what]).attributes if name == "class"]
    assert set(classes) == {"tex2jax_ignore mathjax_ignore"}


def test_sizes_stay_small() -> None:
    many = 10_000
    splits = plan(many).splits
    buckets = tuple(BucketResult(f"p{i}", 0, 0, 5, 5) for i in range(many))
    for thing in (
        plan(many, [f"c{i}" for i in range(many)]),
        Explanation([plan()] * many),
        ScanReports([report()] * many),
        descriptor(many).schema,
        TableInfo(PATH, 1, 1, descriptor(many, {f"k{i}": "v" * 400 for i in range(many)}), 0, 0),
        SinkResult(PATH, 5, buckets, False, tuple(f"p{i}" for i in range(many)), 0.1),
        MicroBatch(7, pl.LazyFrame(), splits, None, lambda *_: None),  # type: ignore[arg-type]
    ):
        html = thing._repr_html_()
        assert len(html) < 64 << 10, type(thing)
        assert re.search(r"(9,9\d\d|9988) more", html), type(thing)


def test_what_is_shown_of_a_table() -> None:
    texts = shown(THINGS["info"]).texts
    assert texts[texts.index("string NOT NULL") + 1] == "primary key"
    assert "buckets" in texts
    assert "3" in texts


def test_secrets_are_not_shown() -> None:
    properties = {
        "table.datalake.iceberg.s3.secret-access-key": "hidden-1",
        "table.datalake.iceberg.uri": "https://me:hidden-2@host/?token=hidden-3",
        "table.sasl.jaas.config": "hidden-4",
    }
    for thing in (
        descriptor(properties=properties),
        TableInfo(PATH, 1, 1, descriptor(properties=properties), 0, 0),
    ):
        assert "hidden" not in thing._repr_html_()
        assert "***" in thing._repr_html_()


def test_what_a_report_shows() -> None:
    texts = shown(report()).texts
    for name, value in (("bytes", "1,234,567"), ("rows", "98,765"), ("partitions", "1 of 1")):
        assert texts[texts.index(name) + 1] == value
    # what a scan has not is left out
    assert "lookups" not in texts
    assert "lookups" in shown(report(lookups=3)).texts


def test_reports_are_a_list() -> None:
    reports = ScanReports([report()])
    assert reports == [report()]
    assert repr(reports) == repr([report()])
    assert shown(ScanReports()).texts == ["no scans"]


def test_an_explanation_is_a_text() -> None:
    found = Explanation([plan(), plan()])
    assert found == repr(found) == "\n".join([plan().explain()] * 2)
    for other in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert other == found
        assert other._repr_html_() == found._repr_html_()
    assert Explanation([]) == ""
    assert shown(Explanation([])).texts == ["no scans"]


@given(st.text(max_size=40))
def test_any_text_comes_back(value: str) -> None:
    page = Page(html_tables.pairs(value, {"key": value}))
    cleaned = html_tables._UNSHOWN.sub("\ufffd", value)
    assert "".join(page.texts) == f"{cleaned}key{cleaned}"
    # a notebook is a file of UTF-8
    assert "".join(page.texts).encode()


def test_a_run_and_its_queries(tmp_path: Path) -> None:
    connection = fluss_df.connect(":memory:")
    rows = pl.DataFrame({"id": [1, 2, 3]})
    written = fluss_df.write_fluss(rows, "t", connection=connection, create_if_not_exists=True)
    assert "fluss.t" in "".join(shown(written).texts)
    query = fluss_df.scan_fluss("t", connection=connection)
    explained = fluss_df.explain(query)
    assert shown(explained).texts[:3] == ["Scan of fluss.t", "columns", "1 of 1: id"]
    with fluss_df.track_scans() as scans:
        query.collect()
    assert "fluss.t" in shown(scans).texts
    assert "fluss.t" in shown(fluss_df.fetched(query)).texts
    with MicroBatches(query, tmp_path / "checkpoint") as batches:
        for batch in batches:
            assert shown(batch).texts[0] == "Micro-batch 0: 3 rows"
            batch.commit()
            texts = shown(batches).texts
    assert texts[texts.index("batches committed") + 1] == "1"
    info = connection.get_table(TablePath("fluss", "t")).get_table_info()
    assert shown(info).texts[0] == "fluss.t"
    connection.close()
