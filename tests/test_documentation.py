"""What the README shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fluss_df
from fluss_df.cluster import LocalCluster

README = Path(__file__).parent.parent / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(
    number: int, fluss_cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    source = EXAMPLES[number].replace("127.0.0.1:9123", fluss_cluster.bootstrap_servers)
    source = source.replace("tablet_servers=3", "tablet_servers=1")
    try:
        exec(compile(source, f"README example {number}", "exec"), {})
    finally:
        fluss_df.set_default_connection(None)
    assert capsys.readouterr().out.strip()
