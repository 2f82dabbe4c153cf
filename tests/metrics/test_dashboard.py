"""The dashboard, the page and the alerts ask only for what is exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.metrics import start_http_server
from fluss_df.metrics.families import FAMILIES
from tests.metrics.support import Scraper

DOCS = Path(fluss.__file__).parents[1] / "docs"
DASHBOARD = json.loads((DOCS / "grafana.json").read_text())
# set by Prometheus itself
OF_PROMETHEUS = {"instance", "job"}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return name -> labels of what is exported once all that can be counted has been."""
    folder = tmp_path_factory.mktemp("dashboard")
    schema = pa.schema([("n", pa.int64())])
    frame = pa.table({"n": range(10)}, schema=schema)
    with (
        start_http_server(max_tables=1000) as server,
        EmbeddedFluss(folder / "d", port=0) as engine,
        fluss.connect(engine.address) as connection,
    ):
        admin = connection.get_admin()
        for name, key in (("log", None), ("keyed", ["n"]), ("gone", None)):
            descriptor = fluss.TableDescriptor(fluss.Schema(schema, key), bucket_count=1)
            admin.create_table(fluss.TablePath("fluss", name), descriptor)
        with connection.get_table("log").new_append().create_writer() as appends:
            appends.write_arrow(frame)
        with connection.get_table("keyed").new_upsert().create_writer() as upserts:
            upserts.write_arrow(frame)
        connection.get_table("keyed").new_lookup().create_lookuper().lookup((1,))
        lost = connection.get_table("gone").new_append().create_writer()
        admin.drop_table(fluss.TablePath("fluss", "gone"))
        with pytest.raises(fluss.FlussError):
            lost.append((1,)).wait()
        with pytest.raises(fluss.FlussError):
            lost.close()
        found: dict[str, set[str]] = {}

        def scrape(frame: pl.DataFrame, number: int) -> None:
            for name, labels in Scraper(url=server.url)().samples:
                found.setdefault(name, set()).update(dict(labels))

        query = fluss.scan_fluss("log", connection=connection)
        # the first is committed by then
        fluss.run(query, to=scrape, checkpoint=folder / "run", max_batch_rows=5)
    return found


def test_each_query_finds_what_it_asks_for(exported: dict[str, set[str]]) -> None:
    seen = set()
    for query, legend in queries():
        names = re.findall(r"\b(?:fluss|process)_\w+", query)
        assert names, query
        assert query.count("(") == query.count(")")
        assert query.count("{") == query.count("}")
        for name in names:
            assert name in exported, query
            seen.add(name)
            there = exported[name] | OF_PROMETHEUS
            for selector in re.findall(r"\{(.*?)\}", query):
                assert set(re.findall(r"(\w+)\s*=~?", selector)) <= there, query
            for by in re.findall(r"by \((.*?)\)", query):
                assert set(by.split(", ")) <= there, query
        left = set(re.findall(r"\{\{(\w+)\}\}", legend))
        grouped = {name for by in re.findall(r"by \((.*?)\)", query) for name in by.split(", ")}
        assert left <= grouped, (query, legend)
        if "histogram_quantile" in query:
            assert all(name.endswith("_bucket") for name in names)
            assert "le" in grouped
        elif "rate(" in query:
            assert all(name.endswith(("_total", "_count", "_sum")) for name in names), query
    assert len(seen) > 40


def test_the_dashboard_shows_every_metric() -> None:
    text = " ".join(query for query, _ in queries())
    missing = [family.name for family in FAMILIES if family.name not in text]
    assert missing == []


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        assert 0 <= place["x"] <= place["x"] + place["w"] <= 24
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    # the rest are Grafana's own
    assert {name for name in used if not name.startswith("__")} == variables


def test_the_page_lists_every_metric_with_its_labels(exported: dict[str, set[str]]) -> None:
    page = (DOCS / "metrics.md").read_text()
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        assert f"| `{family.name}` | {family.kind} | {labels} | {family.text} |" in page
        suffix = "_bucket" if family.kind == "histogram" else ""
        expected = {*family.labels, *(["le"] if suffix else [])}
        assert exported[family.name + suffix] == expected, family.name
    listed = set(re.findall(r"^\| `(fluss_\w+)` \|", page, re.MULTILINE))
    assert listed == {family.name for family in FAMILIES}


def test_alerts_ask_for_what_is_exported(exported: dict[str, set[str]]) -> None:
    page = (DOCS / "metrics.md").read_text()
    alerts = page.partition("### Alerts worth having")[2].partition("\n## ")[0]
    names = re.findall(r"\bfluss_\w+", alerts)
    assert len(names) >= 6
    assert set(names) <= set(exported)
