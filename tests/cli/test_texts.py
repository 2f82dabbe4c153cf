"""What rows are as JSON: numbers where JSON has them, and texts of what it has not."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path

import polars as pl
import pytest
import typer

from fluss_df.cli.base.console import errors_as_messages, show_frame
from fluss_df.cli.commands import rows
from fluss_df.errors import FlussError
from fluss_df.io.base.texts import for_csv, json_lines, writable

NAN, INFINITY = float("nan"), float("inf")


def test_floats_are_numbers_beside_those_that_json_has_no_number_for() -> None:
    frame = pl.DataFrame(
        {
            'a "b"': [1.5, NAN, None, -INFINITY],
            "list": [[1.0, NAN, None], [], None, [2.0]],
            "row": [{"x": NAN, "y": 'q"\n'}, None, {"x": 1.0, "y": None}, {"x": 2.5, "y": "ä"}],
            "day": [dt.date(2026, 1, 31)] * 4,
            "n": [1, 2, None, 4],
        }
    )
    found = [json.loads(line) for line in json_lines(frame).splitlines()]
    assert [row['a "b"'] for row in found] == [1.5, "NaN", None, "-inf"]
    assert [row["list"] for row in found] == [[1.0, "NaN", None], [], None, [2.0]]
    assert [row["row"] for row in found] == [
        {"x": "NaN", "y": 'q"\n'}, None, {"x": 1.0, "y": None}, {"x": 2.5, "y": "ä"},
    ]  # fmt: skip
    assert [row["day"] for row in found] == ["2026-01-31"] * 4
    assert [row["n"] for row in found] == [1, 2, None, 4]
    # a batch without them is written alike
    assert (
        json_lines(frame[3:].drop('a "b"'))
        == json_lines(frame).splitlines()[3].replace('"a \\"b\\"":"-inf",', "") + "\n"
    )


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_moments_that_polars_cannot_write_are_numbers(unit: str) -> None:
    kind = pl.Datetime("ms") if unit == "ms" else pl.Datetime("us", "UTC")
    far = 2**63 - 1
    frame = pl.DataFrame({"t": pl.Series([0, far, -far, None]).cast(kind)})
    zone = "" if unit == "ms" else "Z"
    texts = [f"1970-01-01T00:00:00{zone}", str(far), str(-far), None]
    assert [json.loads(line)["t"] for line in json_lines(frame).splitlines()] == texts
    assert frame.select(for_csv(frame.schema))["t"].to_list() == texts


def test_dates_that_polars_cannot_write_are_numbers() -> None:
    days = pl.Series([0, 2**31 - 1, -(2**31), None], dtype=pl.Int32)
    frame = pl.DataFrame({"d": days.cast(pl.Date)})
    texts = ["1970-01-01", "2147483647", "-2147483648", None]
    assert [json.loads(line)["d"] for line in json_lines(frame).splitlines()] == texts
    assert frame.select(for_csv(frame.schema))["d"].to_list() == texts


def test_far_dates_and_moments_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    far = 9 * 10**18
    frame = pl.DataFrame(
        {
            "t": pl.Series([far, 0]).cast(pl.Datetime("us")),
            "z": pl.Series([0, -far]).cast(pl.Datetime("us", "UTC")),
            "d": pl.Series([2**31 - 1, 0], dtype=pl.Int32).cast(pl.Date),
            "l": pl.Series([[2**31 - 1], []], dtype=pl.List(pl.Int32)).cast(pl.List(pl.Date)),
            "near": pl.Series([0, None], dtype=pl.Int32).cast(pl.Date),
            "n": pl.Series([far, 0]).cast(pl.Datetime("ns")),
        }
    )
    frame = frame.with_columns(r=pl.struct("t", "n"))
    assert writable(frame).schema["near"] == pl.Date
    assert writable(frame).schema["n"] == pl.Datetime("ns")
    show_frame(frame, as_json=False)
    shown = capsys.readouterr().out
    assert shown.count(str(far)) == 3
    assert shown.count(str(2**31 - 1)) == 2
    assert "1970-01-01T00:00:00Z" in shown


def test_what_polars_cannot_do_is_a_message() -> None:
    with pytest.raises(typer.Exit), errors_as_messages():
        raise pl.exceptions.PanicException("out of range")


def test_a_dump_replaces_no_file_that_came_meanwhile(tmp_path: Path) -> None:
    part, file = tmp_path / "part", tmp_path / "out.csv"
    part.write_text("new")
    file.write_text("of another")
    with pytest.raises(FlussError, match="came while it was written"):
        rows._publish(str(part), file, force=False)
    assert (part.read_text(), file.read_text()) == ("new", "of another")
    rows._publish(str(part), file, force=True)
    assert file.read_text() == "new"
    os.rename(file, part)
    rows._publish(str(part), file, force=False)
    assert (file.read_text(), part.exists()) == ("new", False)
