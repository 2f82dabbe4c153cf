"""What the README and the guides show runs as it stands there, page by page."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

import fluss_df
from fluss_df.cluster import LocalCluster

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "docs" / "streaming.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples(
    page: Path,
    fluss_cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    # the table that the README begins with, for pages that go on with it
    visits = pl.DataFrame({"day": ["mon"] * 3, "user": [1, 2, 1], "seconds": [3.5, 8.0, 2.25]})
    if page.name != "README.md":
        visits.pipe(
            fluss_df.write_fluss,
            "visits",
            connection=fluss_cluster.bootstrap_servers,
            create_if_not_exists=True,
            partition_keys=["day"],
            create_partitions=True,
        )
    names: dict[str, object] = {}
    examples = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert examples
    for number, example in enumerate(examples):
        source = example.replace("127.0.0.1:9123", fluss_cluster.bootstrap_servers)
        source = source.replace("tablet_servers=3", "tablet_servers=1")
        try:
            exec(compile(source, f"{page.name} example {number}", "exec"), names)
        finally:
            fluss_df.set_default_connection(None)
        assert capsys.readouterr().out.strip(), example
