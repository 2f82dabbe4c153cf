"""Types of files: found out, given, and the same after a dump and a load."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import math
import os
import stat
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df
from fluss_df.io.base.names import all_exact
from fluss_df.types import TypeRoot, from_arrow
from tests.cli.files.commands import ENDINGS, TEXT_ENDINGS, Run, count, ok, put, refused

# ---- types


def kinds(at: Run, table: str) -> dict[str, str]:
    described = json.loads(ok(at("describe", table, "--json")))
    return {column["column"]: column["type"] for column in described["schema"]}


FOUND_OUT = {
    "whole": ("1", "bigint"),
    "real": ("-1.5e3", "double"),
    "day": ("2024-02-29", "date"),
    "moment": ("2024-02-29T12:30:00.25", "timestamp"),
    "spaced": ("2024-02-29 12:30:00", "timestamp"),
    "fine": ("2024-02-29 12:30:00.123456789", "timestamp(9)"),
    "instant": ("2024-02-29T12:30:00+02:00", "timestamp_ltz"),
    "clock": ("12:30:00", "time(9)"),
    "truth": ("true", "boolean"),
    "post_code": ("00123", "string"),
    "big": ("9223372036854775807", "bigint"),
    "least": ("-9223372036854775808", "bigint"),
    "beyond": ("9223372036854775808", "string"),
    "elsewhere": ("١٢٣", "string"),
    "long": ("123456789012345678901234567890", "string"),
    "text": ("x", "string"),
}


@pytest.mark.parametrize("ending", [".csv", ".ndjson"])
def test_types_are_found_out(at: Run, tmp_path: Path, table: str, ending: str) -> None:
    if ending == ".csv":
        text = ",".join(FOUND_OUT) + "\n" + ",".join(v for v, _ in FOUND_OUT.values()) + "\n"
        text += "," * (len(FOUND_OUT) - 1) + "\n"
    else:
        text = json.dumps({name: value for name, (value, _) in FOUND_OUT.items()}) + "\n{}\n"
    ok(at("load", put(tmp_path, f"a{ending}", text), "--into", table, "--create"))
    found = kinds(at, table)
    for name, (_, kind) in FOUND_OUT.items():
        assert found[name].startswith(kind.split("(")[0]), name
    row = json.loads(ok(at("head", table, "--json")).splitlines()[0])
    assert row["fine"] == "2024-02-29T12:30:00.123456789"
    assert row["instant"] == "2024-02-29T10:30:00Z"
    assert (row["post_code"], row["long"]) == ("00123", "123456789012345678901234567890")


def test_columns_with_another_character_between_them(at: Run, tmp_path: Path, table: str) -> None:
    path = put(tmp_path, "a.csv", "id;city\n1;Rome\n")
    load = ["load", path, "--into", table, "--create"]
    found = at(*load)
    assert found.exit_code == 1
    assert "its only column is 'id;city'" in found.output
    assert "--separator, which may be ';', or ',' if that is one column" in found.output
    assert "expected one character" in at(*load, "--separator", ";;").output
    ok(at(*load, "--separator", ";"))
    assert kinds(at, table) == {"id": "bigint", "city": "string"}
    tabs = put(tmp_path, "b.csv", "id\tcity\n2\tOslo\n")
    ok(at("load", tabs, "--into", table, "--separator", "\\t"))
    assert len(ok(at("head", table, "--json")).splitlines()) == 2
    # a column may be called so
    ok(at("load", path, "--into", f"{table}_one", "--create", "--separator", ","))
    assert list(kinds(at, f"{table}_one")) == ["id;city"]


def test_types_and_nulls_that_are_given(at: Run, tmp_path: Path, table: str) -> None:
    path = put(tmp_path, "a.csv", 'id,code,price,day\n1,7,1.50,2024-01-01\n2,N/A,-,"-"\n')
    options = ["--into", table, "--create", "--primary-key", "id"]
    schema = "id INT, code CHAR(3), price DECIMAL(10, 2), `day` VARCHAR"
    ok(at("load", path, *options, "--schema", schema, "--null-values", "N/A",
          "--null-values", "-"))  # fmt: skip
    assert kinds(at, table) == {
        "id": "int NOT NULL", "code": "char(3)", "price": "decimal(10,2)", "day": "string",
    }  # fmt: skip
    rows = sorted(ok(at("head", table, "--json")).splitlines())
    assert [json.loads(row) for row in rows] == [
        {"id": 1, "code": "7", "price": "1.50", "day": "2024-01-01"},
        # what stands in quotes is a text
        {"id": 2, "code": None, "price": None, "day": "-"},
    ]
    for wrong, message in (
        ("id INTT", "there is no type INTT"),
        ("id", "expected a name and a type"),
        ("nothing INT", "no file has a column 'nothing'"),
        ("price DECIMAL(99, 2)", "column 'price'"),
    ):
        assert message in refused(at("load", path, *options, "--schema", wrong))
    for text in ("1.505", "1e2", "x"):
        other = put(tmp_path, "b.csv", f"id,code,price,day\n1,a,{text},b\n")
        message = refused(at("load", other, "--into", table))
        assert f"b.csv, line 2, column 'price': '{text}' is no value of" in message


# ---- there and back

EVERY = pa.schema(
    [
        pa.field("k", pa.int32(), False),
        ("b", pa.bool_()), ("i1", pa.int8()), ("i2", pa.int16()), ("i8", pa.int64()),
        ("f4", pa.float32()), ("f8", pa.float64()), ("n", pa.decimal128(38, 9)),
        ("s", pa.string()), ("y", pa.binary()), ("y3", pa.binary(3)),
        ("d", pa.date32()), ("w", pa.time64("ns")), ("m3", pa.timestamp("ms")),
        ("m", pa.timestamp("us")), ("m9", pa.timestamp("ns")),
        ("z", pa.timestamp("us", "UTC")), ("z9", pa.timestamp("ns", "UTC")),
        ("ls", pa.list_(pa.string())), ("ly", pa.list_(pa.binary())),
        ("lf", pa.list_(pa.float64())), ("ll", pa.list_(pa.list_(pa.date32()))),
        ("r", pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.decimal128(20, 2))]))])),
        ("mp", pa.map_(pa.string(), pa.int64())),
    ]
)  # fmt: skip


def _every_row() -> pa.Table:
    noon = dt.datetime(2024, 2, 29, 12, 30, 0, 123456)
    full: dict[str, Any] = {
        "b": True, "i1": -128, "i2": 300, "i8": -(2**63), "f4": 0.1, "f8": 5e-324,
        "n": Decimal("12345678901234567890123456789.123456789"), "s": 'a,"\n\té\\', "y": b"\0\xff",
        "y3": b"\1\2\3", "d": dt.date(1969, 12, 31), "w": dt.time(23, 59, 59, 999999),
        "m3": noon.replace(microsecond=5000), "m": noon, "m9": noon,
        "z": noon.replace(tzinfo=dt.UTC), "z9": noon.replace(tzinfo=dt.UTC),
        "ls": ["a", None, "", '"'], "ly": [b"\xff", None], "lf": [math.nan, 0.1, None, -math.inf],
        "ll": [[dt.date(2024, 1, 1), None], None, []], "r": {"x": 1, "y": {"z": Decimal("1.50")}},
        "mp": [("a", 1), ("b", None)],
    }  # fmt: skip
    odd: dict[str, Any] = {
        "f4": math.nan, "f8": math.inf, "s": "", "y": b"", "ls": [], "lf": [], "ll": [],
        "r": {"x": None, "y": None}, "mp": [],
    }  # fmt: skip
    texts = [{"s": text} for text in ("null", "NA", " a ", "-", "true", "1e5", "2024-01-01", "\r")]
    rows = [full, {}, odd, {"f8": -0.0, "r": {"x": 1, "y": {"z": None}}}, *texts]
    return pa.Table.from_pylist([{"k": k, **row} for k, row in enumerate(rows)], EVERY)


@pytest.mark.parametrize("ending", ENDINGS)
def test_dump_then_load_is_the_identity(
    at: Run, place: str, tmp_path: Path, table: str, ending: str
) -> None:
    roots = {from_arrow(f.type).root for f in EVERY}
    assert set(TypeRoot) - roots == {TypeRoot.CHAR}
    with fluss_df.connect(place) as connection:
        admin = connection.get_admin()
        for name in (table, f"{table}_2"):
            descriptor = fluss_df.TableDescriptor(fluss_df.Schema(EVERY), bucket_count=1)
            admin.create_table(fluss_df.TablePath("fluss", name), descriptor)
        with (
            connection.get_table(fluss_df.TablePath("fluss", table))
            .new_append()
            .create_writer() as w
        ):
            w.write_arrow(_every_row())
    file = str(tmp_path / f"rows{ending}")
    ok(at("dump", table, file))
    ok(at("load", file, "--into", f"{table}_2"))
    ok(at("dump", f"{table}_2", file, "--force"))
    one, two = (fluss_df.read_fluss(name, connection=place) for name in (table, f"{table}_2"))
    assert one.schema == two.schema
    assert one.height == 12
    for column in one.columns:
        # NaN is NaN
        assert one[column].equals(two[column], null_equal=True), column
        assert str(one[column].to_list()) == str(two[column].to_list()), column


ODD = ["^b.*$", "b", "*", "^.*$", "^", "a b"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_whose_name_is_a_pattern_is_that_file(
    at: Run, place: str, tmp_path: Path, table: str, ending: str
) -> None:
    one, two = (pl.DataFrame({"k": [k]}) for k in (1, 2))
    fluss_df.write_fluss(one, table, connection=place, create_if_not_exists=True)
    file = tmp_path / f"rows[1]{ending}"
    ok(at("dump", table, str(file)))
    fluss_df.write_fluss(two, table, connection=place)
    # what the name means as a pattern
    ok(at("dump", table, str(tmp_path / f"rows1{ending}")))
    ok(at("load", str(file), "--into", table))
    assert sorted(fluss_df.read_fluss(table, connection=place)["k"]) == [1, 1, 2]


@pytest.mark.parametrize("ending", [".parquet", *TEXT_ENDINGS])
def test_names_that_are_patterns(
    at: Run, place: str, tmp_path: Path, table: str, ending: str
) -> None:
    rows = pl.DataFrame(
        {
            "k": [0, 1],
            **{name: [10 * i, None] for i, name in enumerate(ODD)},
            "^n.*$": [{name: f"{i}" for i, name in enumerate(ODD)}, None],
            "n": [[{name: 0.5 + i for i, name in enumerate(ODD)}], []],
            "^days$": [[dt.date(2024, 1, 1)], [None]],
            "days": [[dt.date(1969, 1, 1)], None],
            "^f.*$": [math.nan, 1.0],
            "f": [0.5, 2.0],
        }
    )
    first = tmp_path / "first.parquet"
    rows.write_parquet(first)
    ok(at("load", str(first), "--into", table, "--create", "--buckets", "1"))
    again = f"{table}_2"
    ok(at("load", str(first), "--into", again, "--create", "--buckets", "1"))
    file = str(tmp_path / f"rows{ending}")
    ok(at("dump", table, file))
    ok(at("load", file, "--into", again))
    found = fluss_df.read_fluss(again, connection=place).sort("k", maintain_order=True)
    wanted = pl.concat([rows, rows]).sort("k", maintain_order=True)
    assert str(found.rows(named=True)) == str(wanted.rows(named=True))
    shown = [json.loads(line) for line in ok(at("head", table, "--json")).splitlines()]
    assert [{name: row[name] for name in ODD} for row in shown] == rows.select(all_exact(ODD)).rows(
        named=True
    )
    assert [row["^f.*$"] for row in shown] == ["NaN", 1.0]
    assert [row["f"] for row in shown] == [0.5, 2.0]
    assert shown[0]["^n.*$"] == {name: f"{i}" for i, name in enumerate(ODD)}
    assert shown[0]["n"] == [{name: 0.5 + i for i, name in enumerate(ODD)}]


@pytest.mark.parametrize("ending", [".csv", ".ndjson"])
def test_types_of_columns_whose_names_are_patterns(
    at: Run, tmp_path: Path, table: str, ending: str
) -> None:
    rows = pl.DataFrame(
        {"^b.*$": ["1", "2"], "b": ["x", "y"], "*": ["p", "q"], "bc": ["1.5", None]}
    )
    file = tmp_path / f"a{ending}"
    (rows.write_csv if ending == ".csv" else rows.write_ndjson)(file)
    ok(at("load", str(file), "--into", table, "--create", "--partition-by", "*",
          "--create-partitions"))  # fmt: skip
    found = {name: kind.removesuffix(" NOT NULL") for name, kind in kinds(at, table).items()}
    assert found == {"^b.*$": "bigint", "b": "string", "*": "string", "bc": "double"}
    shown = sorted(ok(at("head", table, "--json")).splitlines())
    assert [json.loads(line) for line in shown] == [
        {"^b.*$": 1, "b": "x", "*": "p", "bc": 1.5}, {"^b.*$": 2, "b": "y", "*": "q", "bc": None},
    ]  # fmt: skip
    counts = ok(at("count", table, "--partitions", "--json")).splitlines()
    assert [json.loads(line) for line in counts] == [
        {"partition": "p", "rows": 1}, {"partition": "q", "rows": 1},
    ]  # fmt: skip


def test_one_column_of_nulls_comes_back(at: Run, tmp_path: Path, table: str) -> None:
    path = put(tmp_path, "a.csv", "a\n1\n\n3\n\n")
    ok(at("load", path, "--into", table, "--create"))
    assert count(at, table) == 4
    file = str(tmp_path / "b.csv")
    ok(at("dump", table, file))
    ok(at("load", file, "--into", table))
    assert count(at, table) == 8


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_rows_come_back_as_none(at: Run, tmp_path: Path, table: str, ending: str) -> None:
    ok(at("load", put(tmp_path, "a.csv", "a,b\n"), "--into", table, "--create",
          "--schema", "a INT, b DATE"))  # fmt: skip
    file = str(tmp_path / f"b{ending}")
    ok(at("dump", table, file))
    ok(at("load", file, "--into", table))
    assert count(at, table) == 0


def test_others_may_read_what_is_dumped(at: Run, place: str, tmp_path: Path, table: str) -> None:
    fluss_df.write_fluss(
        pl.DataFrame({"a": [1]}), table, connection=place, create_if_not_exists=True
    )
    new, old = tmp_path / "new.csv.gz", tmp_path / "old.csv"
    old.touch()
    old.chmod(0o640)
    before = os.umask(0o022)
    try:
        ok(at("dump", table, str(new)))
        ok(at("dump", table, str(old), "--force"))
    finally:
        os.umask(before)
    assert [stat.S_IMODE(file.stat().st_mode) for file in (new, old)] == [0o644, 0o640]
    # what it is called inside, for tools that unpack it to that name
    assert new.read_bytes()[10:18] == b"new.csv\0"
    assert gzip.decompress(new.read_bytes()) == old.read_bytes() == b"a\n1\n"
    assert sorted(file.name for file in tmp_path.glob("*.csv*")) == ["new.csv.gz", "old.csv"]
