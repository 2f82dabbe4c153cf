"""Files that are loaded and dumped: whole, once, and where they are wrong with the place."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import math
import os
import random
import subprocess
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from typer.testing import Result

import fluss_df
from fluss_df.cli.loading.files import Source
from fluss_df.cli.loading.guessing import parse_schema
from fluss_df.io.base.names import all_exact
from fluss_df.types import TypeRoot, from_arrow

ROOT = Path(__file__).parents[2]
Run = Callable[..., Result]
TEXT_ENDINGS = [".csv", ".tsv", ".ndjson", ".jsonl"]
ENDINGS = [".parquet", ".arrow", *TEXT_ENDINGS, *(f"{e}.gz" for e in TEXT_ENDINGS)]


@pytest.fixture
def table() -> str:
    return f"t_{uuid.uuid4().hex[:12]}"


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(result: Result) -> str:
    """Return the message of a command that ended with one, and with no traceback."""
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())


def count(at: Run, table: str) -> int:
    return int(ok(at("count", table)))


def put(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return str(path)


# ---- what is wrong, and where

_MANY = "".join(f"{i},{i}\n" for i in range(20_000))
_HALVES = "".join(f"{i},{i}.5\n" for i in range(20_000))
_OBJECTS = "".join(f'{{"a": {i}}}\n' for i in range(20_000))
WRONG: list[tuple[str, str | bytes, str]] = [
    ("empty.csv", "", "empty.csv: it is empty, and has no names of columns"),
    ("empty.csv.gz", "", "empty.csv.gz: it is empty"),
    ("blank.ndjson", "\n \n", "it is empty: there are no columns"),
    ("long.csv", "a,b\n1,2\n3,4,5\n", "long.csv, line 3: the row has 3 values for 2 columns"),
    ("short.csv", 'a,b\n1,"x\ny"\n6\n', "line 4: the row has 1 values for 2 columns"),
    ("short.tsv", "a\tb\n6\n", "line 2: the row has 1 values for 2 columns"),
    ("twice.csv", "a,a\n1,2\n", "line 1, column 'a': the name stands there twice"),
    ("latin.csv", "a,b\n1,é\n".encode("latin-1"), "latin.csv, line 2: byte 0xe9 at 3 is not UTF-8"),
    ("latin.ndjson", '{"a": "é"}\n'.encode("latin-1"), "line 1: byte 0xe9 at 8 is not UTF-8"),
    ("quote.csv", 'a,b\n1,2\n2,"z\n', "line 3: the row cannot be read: unexpected end"),
    ("late.csv", f"a,b\n{_MANY}7,N/A\n", "line 20002, column 'b': 'N/A' is not a number"),
    ("late.csv.gz", f"a,b\n{_MANY}7,x\n", "line 20002, column 'b': 'x' is not a number"),
    (
        "huge.csv",
        f"a,b\n{_MANY}7,9223372036854775808\n",
        "line 20002, column 'b': '9223372036854775808' is not a whole number that BIGINT holds",
    ),
    (
        "late_long.csv",
        f"a,b\n{_HALVES}7,{2**62}\n{_HALVES}",
        f"line 20002, column 'b': '{2**62}' is not a number of at most 18 digits",
    ),
    (
        "half.csv",
        f"a,b\n{_MANY}7,{2**62}\n8,0.5\n",
        "line 20003, column 'b': '0.5' is not a whole number",
    ),
    (
        "later_half.csv",
        f"a,b\n{_MANY}7,{2**62}\n{_MANY * 60}8,0.5\n",
        "line 1220003, column 'b': '0.5' is not a whole number",
    ),
    ("separators.csv", "a,b\nx\u2028y\x85z\x0c,1\n1,2,3\n", "line 3: the row has 3 values for 2"),
    (
        "separators.tsv",
        "a\tb\n" + "x\u2028y\t1\n" * 20_000 + "x\tx\n",
        "line 20002, column 'b': 'x' is not a number",
    ),
    ("wide.csv", f"a,b\n{'x' * 200_000},1\n1,2,3\n", "line 3: the row has 3 values for 2 columns"),
    (
        "field_twice.ndjson",
        '{"a": 1}\n{"a": 1, "a": 2}\n',
        "line 2, column 'a': the field stands there twice",
    ),
    (
        "field_twice.jsonl.gz",
        f'{_OBJECTS}{{"b": 1, "b" : null, "c": 2}}\n{_OBJECTS}',
        "line 20001, column 'b': the field stands there twice",
    ),
    (
        "escaped_twice.ndjson",
        '{"ab": 1, "a\\u0062": 2}\n',
        "line 1, column 'ab': the field stands there twice",
    ),
    (
        "nested_twice.ndjson",
        '{"a": {"x": 1}}\n{"a": {"x": 1, "x": 2}}\n',
        "line 2, column 'x': the field stands there twice",
    ),
    (
        "listed_twice.ndjson",
        '{"a": [{"x": {"y": 1}}, {"x": {"y": 2}}]}\n{"a": [{"x": {"y": 1, "y": 2}}]}\n',
        "line 2, column 'y': the field stands there twice",
    ),
    (
        "mixed_twice.ndjson",
        '{"a": [{"x": 1}, {"x": 2}], "b": 1}\n{"a": [{"x": 1, "x": 2}], "b": "one"}\n',
        "line 2, column 'x': the field stands there twice",
    ),
    (
        "rows_twice.ndjson",
        '{"a": [{"x": 1}, {"x": 2}]}\n' * 200_000 + '{"a": [{"x": 1}, {"x": 2, "x": 3}]}\n',
        "line 200001, column 'x': the field stands there twice",
    ),
    ("cut.ndjson", '{"a": 1}\n\n{"a": 2', "line 3: no JSON object at character"),
    ("list.ndjson", '{"a": 1}\n[1]\n', "line 2: expected a JSON object, found"),
    ("null.ndjson", 'null\n{"a": 1}\n', "line 1: expected a JSON object, found"),
    ("number.ndjson", '{"a": 1}\n\n7\n', "line 3: expected a JSON object, found"),
    ("text.ndjson", f'{_OBJECTS}"a"\n', "line 20001: expected a JSON object, found"),
    ("bom.ndjson", b'\xef\xbb\xbf{"a": 1}\n', "line 1: the file begins with a byte order mark"),
    ("high.ndjson", '{"a": "\\ud800"}\n', "line 1: a text has half of a surrogate pair"),
    ("low.ndjson", '{"a": 1}\n{"a": "\\uDC00\\ud800"}\n', "line 2: a text has half of a"),
    ("parted.jsonl.gz", f'{_OBJECTS}{{"a": ["\\ud83cx"]}}\n', "line 20001: a text has half"),
    ("half_name.ndjson", '{"a\\udfff": 1}\n', "line 1: a text has half of a surrogate pair"),
    ("none.parquet", b"", "none.parquet: it is empty, and no parquet file"),
    ("none.arrow", b"", "none.arrow: it is empty, and no arrow file"),
    ("cut.parquet", b"PAR1xyz", "cut.parquet: it cannot be read: "),
    ("cut.arrow", b"ARROW1\0\0abc", "cut.arrow: it cannot be read: "),
    ("cut.csv.gz", gzip.compress(b"a\n" * 999)[:-9], "cut.csv.gz: it cannot be read: "),
]


@pytest.mark.parametrize(("name", "content", "message"), WRONG, ids=[w[0] for w in WRONG])
def test_a_wrong_file_is_named_with_the_place(
    at: Run, tmp_path: Path, table: str, name: str, content: str | bytes, message: str
) -> None:
    path = put(tmp_path, name, content)
    if name == "cut.csv.gz":
        assert isinstance(content, bytes)
        Path(path).write_bytes(content)
    found = refused(at("load", path, "--into", table, "--create"))
    assert message in found
    assert "nothing was loaded" in found
    # not even a table is left
    assert "does not exist" in refused(at("count", table))


def test_looking_for_fields_twice_costs_less_than_reading(tmp_path: Path) -> None:
    line = '{"id": 1, "rows": [{"a": 1, "b": [{"c": 2}, {"c": 3}]}, {"a": 4, "b": []}]}\n'
    source = Source(Path(put(tmp_path, "rows.ndjson", line * 100_000)))
    begun = time.process_time()
    fields = dict(pl.scan_ndjson(source.path, infer_schema_length=None).collect_schema())
    read = time.process_time()
    assert source.fields() == fields
    # it reads them as well, and looks then
    looked = time.process_time() - read - (read - begun)
    assert looked < 2 * (read - begun)


@pytest.mark.parametrize("ending", [".csv", ".ndjson", ".parquet"])
def test_a_value_that_does_not_fit_leaves_the_table_as_it_was(
    at: Run, tmp_path: Path, table: str, ending: str
) -> None:
    frame = pl.DataFrame({"id": range(30_000), "part": ["a"] * 29_999 + ["b"]})
    first = tmp_path / "first.parquet"
    frame.head(10).with_columns(pl.col("id").cast(pl.Int16)).write_parquet(first)
    options = ["--into", table, "--create", "--partition-by", "part", "--create-partitions"]
    ok(at("load", str(first), *options))
    good, bad = tmp_path / f"good{ending}", tmp_path / f"bad{ending}"
    write = {".csv": "write_csv", ".ndjson": "write_ndjson", ".parquet": "write_parquet"}[ending]
    getattr(frame, write)(good)
    getattr(frame.with_columns(pl.col("id") + 10_000), write)(bad)
    message = refused(at("load", str(good), str(bad), *options))
    assert "nothing was loaded" in message
    assert "id" in message
    if ending != ".parquet":
        line = 22_770 if ending == ".csv" else 22_769
        assert f"bad{ending}, line {line}, column 'id': '32768' is no value of Int16" in message
    assert count(at, table) == 10
    listed = ok(at("count", table, "--partitions", "--json")).splitlines()
    assert [json.loads(line)["partition"] for line in listed] == ["a"]
    # without the option for it no partition comes, and the option is named
    message = refused(at("load", str(good), "--into", table))
    assert "no partition 'b'" in message
    assert "--create-partitions" in message
    assert count(at, table) == 10


def test_the_way_to_a_table_is_an_option(at: Run, tmp_path: Path, table: str) -> None:
    message = refused(at("load", put(tmp_path, "a.csv", "a\n1\n"), "--into", table))
    assert message.endswith("--create creates it [TABLE_NOT_EXIST, code 7]")


# ---- nothing is left out


def test_fields_that_come_late_are_loaded(at: Run, tmp_path: Path, table: str) -> None:
    late = put(tmp_path, "late.ndjson", f'{_OBJECTS}{{"a": 7, "b": {{"c": "x"}}}}\n')
    later = put(tmp_path, "later.ndjson", '{"d": 1.5, "a": 8, "b": {"c": "y"}}\n')
    ok(at("load", late, later, "--into", table, "--create"))
    found = ok(at("head", table, "--json", "-n", "99999")).splitlines()
    rows = [json.loads(line) for line in found]
    assert len(rows) == 20_002
    assert {"a": 7, "b": {"c": "x"}, "d": None} in rows
    assert {"a": 8, "b": {"c": "y"}, "d": 1.5} in rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'{_OBJECTS}{{"a": 1, "extra": 2}}\n', "extra"),
        ('{"a": 1}\n{"b": {"c": "x", "deep": 1}}\n', "column 'b': the column has no field 'deep'"),
        ('{"a": [1]}\n', "column 'a': it has values of List(Int64), the column is of Int64"),
        ('{"b": "x"}\n', "column 'b': it has values of String"),
        ('{"a": "x"}\n', "line 1, column 'a': 'x' is no value of Int64"),
        ('{"a": 9223372036854775808}\n', "'9223372036854775808' is no value of Int64"),
        ('{"a": 1}\n{"a": 1.5}\n', "line 2, column 'a': '1.5' is no value of Int64"),
    ],
)
def test_fields_that_a_table_has_not_are_named(
    at: Run, tmp_path: Path, table: str, text: str, message: str
) -> None:
    ok(at("load", put(tmp_path, "a.ndjson", '{"a": 1, "b": {"c": "x"}}\n'), "--into", table,
          "--create"))  # fmt: skip
    assert message in refused(at("load", put(tmp_path, "b.ndjson", text), "--into", table))
    assert count(at, table) == 1


def test_columns_of_files_must_be_the_same(at: Run, tmp_path: Path, table: str) -> None:
    files = [put(tmp_path, "a.csv", "a,b\n1,2\n"), put(tmp_path, "b.csv", "a,c\n1,2\n")]
    message = refused(at("load", *files, "--into", table, "--create"))
    assert "its columns are a, c" in message


@pytest.mark.parametrize("ending", [".csv", ".tsv.gz", ".ndjson"])
def test_texts_that_readers_stumble_on_are_loaded(
    at: Run, tmp_path: Path, table: str, ending: str
) -> None:
    """Separators of lines that are none in files, long texts, and quotes that look like fields."""
    texts = ["a\u2028b\u2029c\x85d\x0b\x0c\x1c", "x" * 200_000, '"b":1,"b":2', "\\", '{"k":1}']
    rows = pl.DataFrame({"k": range(len(texts)), "b": texts})
    if ending == ".ndjson":
        content = rows.write_ndjson()
    else:
        content = rows.write_csv(separator="," if ending == ".csv" else "\t")
    ok(at("load", put(tmp_path, f"a{ending}", content), "--into", table, "--create"))
    found = [json.loads(line) for line in ok(at("head", table, "--json")).split("\n")[:-1]]
    assert {row["k"]: row["b"] for row in found} == dict(enumerate(texts))


def test_escapes_of_json_are_texts(at: Run, tmp_path: Path, table: str) -> None:
    texts = ["\U0001f389", "\\ud800", "\\\U0001f389", "\0", "a\U0010ffffb\U00010000"]
    lines = [f'{{"k": {k}, "b": {json.dumps(text)}}}\n' for k, text in enumerate(texts)]
    ok(at("load", put(tmp_path, "a.ndjson", "".join(lines)), "--into", table, "--create"))
    found = [json.loads(line) for line in ok(at("head", table, "--json")).split("\n")[:-1]]
    assert {row["k"]: row["b"] for row in found} == dict(enumerate(texts))


@pytest.mark.parametrize("ending", [".csv", ".tsv.gz"])
def test_rows_longer_than_a_block_are_loaded(
    at: Run, tmp_path: Path, table: str, ending: str
) -> None:
    rows = pl.DataFrame(
        {"k": range(50_003), "b": ["short"] * 50_000 + ["y" * (9 << 20), 'a\n"' * (7 << 20), "z"]}
    )
    content = rows.write_csv(separator="," if ending == ".csv" else "\t")
    ok(at("load", put(tmp_path, f"a{ending}", content), "--into", table, "--create"))
    path = tmp_path / "back.csv"
    ok(at("dump", table, str(path)))
    ok(at("load", str(path), "--into", f"{table}_back", "--create"))
    for name in (table, f"{table}_back"):
        found = json.loads(
            ok(at("sql", f"SELECT count(*) n, sum(length(b)) c FROM {name}", "--json"))
        )
        assert found == {"n": 50_003, "c": 5 * 50_000 + (9 << 20) + 3 * (7 << 20) + 1}


@pytest.mark.parametrize("content", ["k,b", "k,b\n", "\ufeffk,b", "k,b\r\n"])
def test_names_of_columns_alone_are_no_rows(
    at: Run, tmp_path: Path, table: str, content: str
) -> None:
    ok(at("sql", f"CREATE TABLE {table} (k INT, b STRING)"))
    ok(at("load", put(tmp_path, "a.csv", content), "--into", table))
    assert count(at, table) == 0
    assert "column 'b'" in refused(at("load", put(tmp_path, "b.csv", "k"), "--into", table))


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
    assert [row["^f.*$"] for row in shown] == ["NaN", "1.0"]
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


# ---- killed


def test_what_a_killed_load_left_is_removed_by_the_next(
    at: Run, tmp_path: Path, data_home: Path, table: str
) -> None:
    left = data_home / "fluss-df" / "loads" / "0123456789abcdef01234567.done-1"
    left.mkdir(parents=True)
    (left / "rows").write_text("rows")
    ok(at("load", put(tmp_path, "a.csv", "a\n1\n"), "--into", table, "--create"))
    assert not list(left.parent.iterdir())


ROWS = 300_000
KILLS = int(os.environ.get("FLUSS_TEST_KILLS", "2"))


@pytest.mark.parametrize("keyed", [False, True], ids=["log", "primary-key"])
def test_a_load_that_was_killed_is_completed(
    at: Run, place: str, tmp_path: Path, data_home: Path, table: str,
    command: Callable[..., list[str]], keyed: bool,
) -> None:  # fmt: skip
    path = tmp_path / "rows.parquet"
    pl.DataFrame(
        {"id": range(ROWS), "text": [f"{i * 7919 % ROWS:08}" for i in range(ROWS)]}
    ).write_parquet(path)
    options = ["--primary-key", "id"] if keyed else []
    line = command("load", str(path), "--into", table, "--create", "--buckets", "3", *options)
    chance = random.Random(table)
    done = killed = 0
    for round_ in range(10 * KILLS):
        process = subprocess.Popen(
            line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        # first in the middle of the reading, then of the sending
        begun = "loads/*/ledger/*.json" if round_ else "loads/*/ledger/.*.arrow*"
        while not list((data_home / "fluss-df").glob(begun)) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(chance.random() * 0.05)
        process.kill()
        said, _ = process.communicate()
        # who has said that it is done has it done
        done += b"rows" in said
        killed += b"rows" not in said
        if killed == KILLS:
            break
    assert killed == KILLS
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert f"{ROWS:,} rows" in ended.stdout
    wanted = ROWS if keyed else (done + 1) * ROWS
    found = fluss_df.read_fluss(table, connection=place)
    assert found.height == wanted
    assert found["id"].n_unique() == ROWS
    assert not list((data_home / "fluss-df" / "loads").iterdir())
    # and once more is once more
    if not keyed:
        ok(at("load", str(path), "--into", table))
        assert count(at, table) == wanted + ROWS


def test_a_load_that_was_interrupted_keeps_to_its_files(
    at: Run, tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fluss_df.client.write.writer import TableWriter

    def fail(*_: object) -> None:
        raise fluss_df.FlussError("the network is gone")

    path = put(tmp_path, "a.csv", "a\n1\n2\n")
    with monkeypatch.context() as broken:
        broken.setattr(TableWriter, "send_as", fail)
        assert "the network is gone" in refused(at("load", path, "--into", table, "--create"))
    put(tmp_path, "a.csv", "a\n1\n2\n3\n")
    message = refused(at("load", path, "--into", table))
    assert "the files have changed since" in message
    assert count(at, table) == 0
    os.utime(path, ns=(1, 1))
    put(tmp_path, "a.csv", "a\n1\n2\n")
    assert "changed" in refused(at("load", path, "--into", table))


# ---- partitions


def test_a_table_that_is_created_gets_its_partitions(at: Run, tmp_path: Path, table: str) -> None:
    first = put(tmp_path, "a.csv", "day,id\nmon,1\ntue,2\n")
    ok(at("load", first, "--into", table, "--create", "--partition-by", "day"))
    assert count(at, table) == 2
    # of a table that is there, only when it is said
    later = put(tmp_path, "b.csv", "day,id\nwed,3\n")
    message = refused(at("load", later, "--into", table, "--create"))
    assert "no partition 'wed'" in message
    assert "--create-partitions" in message
    assert count(at, table) == 2
    ok(at("load", later, "--into", table, "--create-partitions"))
    assert count(at, table) == 3


def test_a_table_whose_load_ended_before_its_partitions(
    at: Run, tmp_path: Path, table: str, place: str
) -> None:
    with fluss_df.connect(place) as connection:
        schema = fluss_df.Schema.from_columns(parse_schema("day STRING, id BIGINT"))
        descriptor = fluss_df.TableDescriptor(schema, partition_keys=["day"])
        connection.get_admin().create_table(fluss_df.TablePath("fluss", table), descriptor)
    file = put(tmp_path, "a.csv", "day,id\nmon,1\ntue,2\n")
    ok(at("load", file, "--into", table, "--create", "--partition-by", "day"))
    assert count(at, table) == 2
