"""``fluss-df tier``, where there is nothing to tier."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

import fluss_df
from fluss_df.cli import app


@pytest.fixture
def folder(tmp_path: Path) -> str:
    place = str(tmp_path / "data")
    fluss_df.write_fluss(
        pl.DataFrame({"a": [1]}), "plain", connection=place, create_if_not_exists=True
    )
    return place


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("plain", "table fluss.plain has no lake"),
        ("fluss.plain", "table.datalake.enabled=true"),
        ("plian", "fluss.plian"),
        ("nowhere.plain", "nowhere"),
    ],
)
def test_a_table_that_cannot_be_tiered_is_named(folder: str, table: str, told: str) -> None:
    done = CliRunner().invoke(app, ["tier", "-c", folder, "--once", "--table", table])
    assert done.exit_code == 1
    assert told in " ".join(done.output.split())


def test_nothing_to_tier_is_told(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUSS_BOOTSTRAP_SERVERS", folder)
    done = CliRunner().invoke(app, ["tier", "--once"])
    assert done.exit_code == 0, done.output
    assert "nothing was due" in done.output
