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
PAGES = [page for name in ("lake.md", "tiering.md") if (page := DOCS / name).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples(page: Path, tiering_cluster: LocalCluster) -> None:
    address = tiering_cluster.bootstrap_servers
    table = LakeTable(tiering_cluster, "log", "flights")
    with fluss.connect(address) as connection:
        connection.get_admin().drop_table(table.path, ignore_if_not_exists=True)
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
            if page.name == "lake.md":
                heights = [names[name].collect().height for name in ("flights", "log", "lake")]
                assert heights == [15, 15, 10]
        finally:
            fluss.set_default_connection(None)
