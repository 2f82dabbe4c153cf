"""Values of every type, and servers that are gone."""

from __future__ import annotations

import decimal
import re
import time
from pathlib import Path
from urllib.parse import quote

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import fluss_df
from fluss_df.client.connection import FlussConnection
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError
from fluss_df.io.base.arrow import to_polars
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.types import Column, to_arrow
from fluss_df.ui.pages import forms, queries
from fluss_df.ui.pages.live import _filter
from fluss_df.ui.pages.rows import exact_value, value_of
from fluss_df.ui.server import ConsoleServer
from fluss_df.ui.settings import Settings
from fluss_df.ui.shown import plots, texts
from tests.ui.visiting import Visitor

COLUMNS = (
    "i TINYINT, d DECIMAL(20, 3), t TIME, ts TIMESTAMP(9), tz TIMESTAMP_LTZ(3), b BYTES,"
    " bi BINARY(3), a ARRAY<INT>, m MAP<STRING, INT>, r ROW<x INT, y ARRAY<STRING>>, c CHAR(4),"
    " f FLOAT, bo BOOLEAN, da DATE, `*` INT, `^x$` STRING"
)
VALUES = (
    "1, 1.5, TIME '10:00:00', TIMESTAMP '2026-01-01 00:00:00.123456789',"
    " TIMESTAMP '2026-01-01 00:00:00', X'00ff', X'010203', ARRAY[1, 2], MAP['a', 1],"
    " ROW(1, ARRAY['x', 'y']), 'abcd', 1.5, TRUE, DATE '2026-01-01', 7, 'p'"
)
SHOWN = (
    "1 1.500 10:00:00 2026-01-01 00:00:00.123456789 2026-01-01 00:00:00Z 00ff 010203 [1, 2]"
    " {'a': 1} {'x': 1, 'y': ['x', 'y']} abcd 1.5 true 2026-01-01 7 p"
)


def test_values_of_every_type(alone: Visitor, folder: FlussConnection) -> None:
    folder.get_admin()
    assert "The statement ran" in alone.sql(f"CREATE TABLE every ({COLUMNS})").words
    assert "1 written" in alone.sql(f"INSERT INTO every VALUES ({VALUES})").words
    nulls = pl.DataFrame(
        [[None]] * 16, schema=fluss_df.read_fluss("every", connection=folder).schema
    )
    fluss_df.write_fluss(nulls, "every", connection=folder)
    for part in ("rows", "rows?which=last", "changes"):
        words = alone.page(f"/table/fluss/every/{part}").words
        assert SHOWN in words, part
        assert " ".join(["null"] * 16) in words, part
    result = alone.sql("SELECT * FROM every").words
    assert SHOWN in result
    assert "timestamp_ltz" in result
    run = alone.server.state.queries.all()[0].id
    assert b'"[1,2]"' in alone.page(f"/sql/run/{run}/result.csv").body
    assert alone.page(f"/sql/run/{run}/result.parquet").body.startswith(b"PAR1")
    for axis in ("i", "d", "ts", "f", "bo", "*", "^x$", "c", "nothing"):
        alone.page(f"/sql/run/{run}?x={axis}&y=*")


@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMP_LTZ"])
def test_rows_are_looked_up_to_the_nanosecond(
    alone: Visitor, folder: FlussConnection, kind: str
) -> None:
    name = f"moments_{kind.lower()}"
    alone.sql(
        f"CREATE TABLE {name} (at {kind}(9), n INT, seen {kind}(9), day DATE, PRIMARY KEY (at, n))"
    )
    zone = "UTC" if kind == "TIMESTAMP_LTZ" else None
    moments = pl.Series([-1, 123_456_789_123_456_789, 2**62]).cast(pl.Datetime("ns", zone))
    rows = pl.DataFrame({"at": moments}).with_columns(
        n=pl.lit(1, pl.Int32),
        seen=pl.col("at") + pl.duration(nanoseconds=1, time_unit="ns"),
        # Python has no such year
        day=pl.lit(10_000_000, pl.Int32).cast(pl.Date),
    )
    fluss_df.write_fluss(rows, name, connection=folder)
    page = f"/table/fluss/{name}/rows?which=key&key.n=1&key.at="
    end = "Z" if zone else ""
    for at, seen in (
        ("1969-12-31 23:59:59.999999999", "1970-01-01 00:00:00"),
        ("1973-11-29 21:33:09.123456789", "1973-11-29 21:33:09.123456790"),
        ("2116-02-20 23:53:38.427387904", "2116-02-20 23:53:38.427387905"),
    ):
        found = alone.page(page + quote(at + end)).words
        assert f"{at}{end} 1 {seen}{end} 29349-01-26" in found
    assert "1 row" not in alone.page(page + quote("1973-11-29 21:33:09.123456788")).words
    for wrong in ("2026-01-01 00:00:00.1234567891", "9999-01-01 00:00:00.1234567"):
        assert "is no such value: write it as in" in alone.page(page + quote(wrong)).words
    assert "is no such value" in alone.page(page.replace("n=1", "n=3000000000") + quote(at)).words


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        # the years of Fluss have more digits than those of Python
        (pl.Series([10_000_000], dtype=pl.Int32).cast(pl.Date), "29349-01-26"),
        (pl.Series([[10_000_000]]).cast(pl.List(pl.Date)), "['29349-01-26']"),
        (pl.Series([{"a": 10_000_000}]).cast(pl.Struct({"a": pl.Date})), "{'a': '29349-01-26'}"),
        (pl.Series([2**55]).cast(pl.Datetime("ms")), "<value out of range: 36028797018963968>"),
        (pl.Series([2**62]).cast(pl.Datetime("us")), "+148108-07-06 14:00:27.387904"),
        # and Python has no nanoseconds
        (pl.Series([1_234_567_891]).cast(pl.Time), "00:00:01.234567891"),
        (
            pl.Series([[1_234_567_891]]).cast(pl.List(pl.Datetime("ns"))),
            "['1970-01-01 00:00:01.234567891']",
        ),
        (pl.Series([2**100], dtype=pl.Int128), str(2**100)),
    ],
)
def test_values_that_python_does_not_have_are_shown(values: pl.Series, shown: str) -> None:
    ((found,),) = texts.cells(values.alias("v").to_frame())
    assert found.text == shown


def test_a_difference_of_times_is_plotted() -> None:
    frame = pl.DataFrame({"x": pl.Series([1, 2]).cast(pl.Duration("us")), "y": [1, 2]})
    axes = queries._axes(frame, "x", "y")
    assert axes is not None
    assert str(queries._plot(frame, axes)).startswith("<svg")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("TIMESTAMP(9)", "2026-01-31 12:30:00.123456789"),
        ("TIMESTAMP(6)", "2026-01-31 12:30:00+02:00"),
        ("TIMESTAMP_LTZ(9)", "2026-01-31 12:30:00.0000001Z"),
        ("TIME(9)", "12:30:00.1234567"),
    ],
)
def test_no_digit_and_no_zone_is_passed_over(kind: str, text: str) -> None:
    with pytest.raises(FlussError, match="is no such value: write it as in"):
        value_of(Column("at", forms.type_of("at", kind)), text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("TIME(0)", "01:00:00.5"),
        ("TIME(3)", "01:00:00.0005"),
        ("TIMESTAMP(0)", "2026-01-01 00:00:00.7"),
        ("TIMESTAMP(3)", "2026-01-01 00:00:00.0007"),
        ("TIMESTAMP_LTZ(3)", "2026-01-01 00:00:00.0007Z"),
        ("TIMESTAMP(9)", "9999-01-01 00:00:00"),
        ("FLOAT", "1e300"),
        ("FLOAT", "-1e-300"),
        ("DOUBLE", "1e400"),
        ("DOUBLE", "1e-400"),
    ],
)
def test_no_other_value_takes_the_place_of_one(kind: str, text: str) -> None:
    """What was typed was cut to the digits of the column, and the row of another key was shown."""
    column = Column("k", forms.type_of("k", kind))
    with pytest.raises(FlussError, match=r"'k' is .* is no such value: write it as in"):
        exact_value(column, to_arrow(column.type), text)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("TIME(0)", "01:00:00.000", "01:00:00"),
        ("TIMESTAMP(3)", "2026-01-01 00:00:00.007000", "2026-01-01 00:00:00.007"),
        ("TIMESTAMP_LTZ(0)", "2026-01-01 02:00:00+02:00", "2026-01-01 00:00:00Z"),
        ("TIMESTAMP(9)", "2026-01-01 00:00:00.123456789", "2026-01-01 00:00:00.123456789"),
        ("FLOAT", "0.1", "0.1"),
        ("FLOAT", "-inf", "-inf"),
        ("FLOAT", "nan", "nan"),
        ("DOUBLE", "0e10", "0"),
    ],
)
def test_values_that_a_column_has_are_taken(kind: str, text: str, value: str) -> None:
    column = Column("k", forms.type_of("k", kind))
    assert exact_value(column, to_arrow(column.type), text).cast("string").to_pylist() == [value]


def test_a_row_is_looked_up_by_no_other_key(alone: Visitor) -> None:
    alone.sql("CREATE TABLE seconds (at TIMESTAMP(0), n INT, PRIMARY KEY (at))")
    alone.sql("INSERT INTO seconds VALUES (TIMESTAMP '2026-01-01 00:00:00', 77)")
    page = "/table/fluss/seconds/rows?which=key&key.at="
    assert "2026-01-01 00:00:00 77" in alone.page(page + quote("2026-01-01 00:00:00.0")).words
    words = alone.page(page + quote("2026-01-01 00:00:00.7")).words
    assert "is no such value: write it as in" in words
    assert " 77" not in words


@pytest.mark.parametrize("kind", ["TIMESTAMP(9)", "TIMESTAMP_LTZ(9)", "TIMESTAMP(3)"])
def test_a_filter_of_moments_has_all_digits(folder: FlussConnection, kind: str) -> None:
    """Polars compared microseconds with nanoseconds by microseconds."""
    columns = [Column("k", forms.type_of("k", "INT")), Column("at", forms.type_of("at", kind))]
    descriptor = TableDescriptor(Schema.from_columns(columns))
    path = TablePath("fluss", "fine")
    folder.get_admin().create_table(path, descriptor)
    info = folder.get_admin().get_table_info(path)
    unit = info.schema.arrow_schema.field("at").type
    step = 500 if unit.unit == "ns" else 5
    second = 1_767_268_800 * (10**9 if unit.unit == "ns" else 10**3)
    moments = pa.array([second, second + step]).cast(unit)
    rows = to_polars(pa.table({"k": pa.array([1, 2], pa.int32()), "at": moments}))
    zone = "Z" if unit.tz else ""
    exact = f"2026-01-01 12:00:00.{'0000005' if step == 500 else '005'}{zone}"
    for condition, text, found in (
        ("eq", f"2026-01-01 12:00:00{zone}", [1]),
        ("ne", f"2026-01-01 12:00:00{zone}", [2]),
        ("eq", exact, [2]),
        ("ge", exact, [2]),
        ("lt", exact, [1]),
    ):
        keep = _filter(info, "at", condition, text)
        assert keep is not None
        assert rows.filter(keep)["k"].to_list() == found, (condition, text)
    with pytest.raises(FlussError, match="is no such value"):
        _filter(info, "at", "eq", f"2026-01-01 12:00:00.0000000001{zone}")


def test_servers_that_are_gone_are_an_error_soon(tmp_path: Path) -> None:
    engine = EmbeddedFluss(tmp_path / "data", port=0)
    with (
        fluss_df.connect(engine.address) as connection,
        ConsoleServer(connection, Settings(), engine.address) as server,
    ):
        visitor = Visitor(server)
        visitor.sign_in()
        visitor.page("/")
        engine.close()
        began = time.monotonic()
        answer = visitor.get("/")
        assert answer.status == 502
        assert time.monotonic() - began < 20
        assert "Are the servers running" in answer.words


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1500, "1.5 KB"),
        (2.5e9, "2.5 GB"),
        (None, texts.UNKNOWN),
    ],
)
def test_sizes_have_units(number: float | None, shown: str) -> None:
    assert texts.size(number) == shown


@pytest.mark.parametrize(
    ("ticks", "shown"),
    [
        ([0.0, 2000.0, 4000.0], ["0", "2,000", "4,000"]),
        ([4999.5, 5000.0, 5000.5], ["4,999.5", "5,000.0", "5,000.5"]),
        ([0.0, 1e6, 2e6], ["0k", "1,000k", "2,000k"]),
        ([0.0, 5e7], ["0M", "50M"]),
        ([0.0, 1e-9], ["0.00e+00", "1.00e-09"]),
    ],
)
def test_numbers_of_axes_are_told_apart(ticks: list[float], shown: list[str]) -> None:
    assert plots.labels(ticks) == shown


@pytest.mark.parametrize("sign", [1, -1])
def test_bars_are_as_long_as_their_values(sign: int) -> None:
    values = np.array([74.25, 74.75, 148.5]) * sign
    drawn = plots.bars(["a", "b", "c"], plots.Line("v", values), "t")
    heights = [float(height) for height in re.findall(r'class="bar".*?height="([\d.]+)"', drawn)]
    assert heights[2] / heights[0] == pytest.approx(2, rel=0.01)
    assert heights[1] / heights[0] == pytest.approx(74.75 / 74.25, rel=0.01)


@pytest.mark.parametrize(("size", "told"), [(40, ""), (41, "The first 40 of 41 rows are drawn.")])
def test_bars_that_are_left_out_are_told(size: int, told: str) -> None:
    names = [f"<{n}>" for n in range(size)]
    drawn = plots.bars(names, plots.Line("v", np.arange(size, dtype=np.float64)), "t")
    assert drawn.count('class="bar"') == 40
    assert ("The first" in drawn) == bool(told)
    assert told in drawn
    assert "<1>" not in drawn


@pytest.mark.parametrize("size", [0, 1, 2, 599, 601, 65_536, 1_000_000])
def test_plots_have_no_more_points_than_pixels(size: int) -> None:
    at = np.arange(size, dtype=np.float64)
    values = np.where(at % 7 == 0, np.nan, np.sin(at / 50) * 1e6)
    drawn = plots.lines(at, [plots.Line("<v>", values)], "<t>")
    assert len(drawn) < 20_000
    assert "<v>" not in drawn
    points = plots.lines(at, [plots.Line("v", values)], "t", points=True)
    assert len(points) < 80_000
    for wrong in (np.full(size, np.nan), np.full(size, np.inf), np.zeros(size)):
        assert "nan" not in plots.lines(at, [plots.Line("v", wrong)], "t")


def test_properties_hide_what_is_secret() -> None:
    shown = texts.properties(
        {
            "s3.secret-key": "x",
            "client.password": "x",
            "uri": "https://ann:secret@host/?sig=1&token=abc",
            "table.log.ttl": "7d",
        }
    )
    assert shown == {
        "client.password": "***",
        "s3.secret-key": "***",
        "table.log.ttl": "7d",
        "uri": "https://***@host/?sig=1&token=***",
    }
    statement = "CREATE TABLE t (a INT) WITH ('my.password' = 'it''s', 'x' = 'y')"
    assert texts.statement(statement).endswith("WITH ('my.password' = '***', 'x' = 'y')")


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-inf", "1e60", "1e-60", "9" * 39, "0." + "1" * 39]
)
def test_decimals_that_no_column_has_are_no_values(text: str) -> None:
    with pytest.raises(FlussError, match=r"^column 'd' is decimal\(38,2\), and .* is no such"):
        value_of(Column("d", forms.type_of("d", "DECIMAL(38, 2)")), text)


@pytest.mark.parametrize(
    "text", ["1.50", "0e50", "1e37", "-0", "0." + "0" * 60, "1" + "0" * 37, "1" * 38]
)
def test_decimals_of_few_digits_are_values_however_written(text: str) -> None:
    found = value_of(Column("d", forms.type_of("d", "DECIMAL(38, 2)")), text)
    assert found == decimal.Decimal(text)
    assert pl.select(pl.lit(found)).dtypes[0].is_decimal()


def test_plots_of_one_large_number_and_of_places_without_values() -> None:
    drawn = plots.Line("v", np.array([1.0, 2.0]))
    assert "<svg" in plots.lines(np.array([1.75e18, 1.75e18]), [drawn], "t", points=True)
    half = plots.Line("v", np.array([1.0, np.nan]))
    assert "nothing to draw" in plots.lines(np.array([np.nan, 1.0]), [half], "t")


def test_a_result_is_shown_where_no_server_answers(
    alone: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone.sql("SELECT 7 AS lucky")
    run = alone.server.state.queries.all()[0].id

    def refuse(_: object) -> list[str]:
        raise FlussError("no server answers")

    monkeypatch.setattr(type(alone.server.state.admin), "list_databases", refuse)
    assert "lucky" in alone.page(f"/sql/run/{run}").words
