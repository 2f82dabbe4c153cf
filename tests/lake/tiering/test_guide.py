"""What the pages of the lake show runs as it stands there, on tables that are tiered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.lake.tiering import TieringService
from tests.lake.tiering.support import LakeTable, tier_until_done
from tests.run_page import blocks_of

DOCS = Path(__file__).parents[3] / "docs"
TABLES = {"lake.md": "flights", "tiering.md": "events"}


@pytest.mark.parametrize("name", TABLES)
def test_examples(
    name: str, tiering_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # where a page makes a folder
    monkeypatch.chdir(tmp_path)
    page = DOCS / name
    address = tiering_cluster.bootstrap_servers
    table = LakeTable(tiering_cluster, "log", TABLES[name])
    with fluss.connect(address) as connection:
        table.create()
        table.write(list(range(10)), 0)
        with TieringService(connection, [str(table.path)]) as service:
            tier_until_done(service, [table])
        table.write(list(range(10, 15)), 0)
        names: dict[str, Any] = {}
        fluss.set_default_connection(connection)
        try:
            for block in blocks_of(page):
                if block.language == "python":
                    source = block.text.replace("localhost:9123", address)
                    # it would run until it is stopped
                    source = source.replace("service.run()", "service.run_due()")
                    exec(compile(source, page.name, "exec"), names)
            if name == "lake.md":
                heights = [names[name].collect().height for name in ("flights", "log", "lake")]
                assert heights == [15, 15, 10]
        finally:
            fluss.set_default_connection(None)
