"""Files that are wrong are named with the place, and change nothing."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import polars as pl
import pytest

import fluss_df as fluss
from fluss_df.cli.loading.files import Source
from tests.cli.files.commands import OBJECTS, Run, count, ok, put, refused

# ---- what is wrong, and where

_MANY = "".join(f"{i},{i}\n" for i in range(20_000))
_HALVES = "".join(f"{i},{i}.5\n" for i in range(20_000))
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
        f"line 20002, column 'b': '{2**62}' is not a number whose digits DOUBLE keeps",
    ),
    (
        "late_id.csv",
        f"a,b\n{_HALVES}7,{2**53 + 1}\n",
        f"line 20002, column 'b': '{2**53 + 1}' is not a number whose digits DOUBLE keeps",
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
        f'{OBJECTS}{{"b": 1, "b" : null, "c": 2}}\n{OBJECTS}',
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
    ("text.ndjson", f'{OBJECTS}"a"\n', "line 20001: expected a JSON object, found"),
    ("bom.ndjson", b'\xef\xbb\xbf{"a": 1}\n', "line 1: the file begins with a byte order mark"),
    ("high.ndjson", '{"a": "\\ud800"}\n', "line 1: a text has half of a surrogate pair"),
    ("low.ndjson", '{"a": 1}\n{"a": "\\uDC00\\ud800"}\n', "line 2: a text has half of a"),
    ("parted.jsonl.gz", f'{OBJECTS}{{"a": ["\\ud83cx"]}}\n', "line 20001: a text has half"),
    ("half_name.ndjson", '{"a\\udfff": 1}\n', "line 1: a text has half of a surrogate pair"),
    ("none.parquet", b"", "none.parquet: it is empty, and no parquet file"),
    ("none.arrow", b"", "none.arrow: it is empty, and no arrow file"),
    ("cut.parquet", b"PAR1xyz", "cut.parquet: it cannot be read: "),
    ("cut.arrow", b"ARROW1\0\0abc", "cut.arrow: it cannot be read: "),
    (
        "semicolons.csv",
        "a;b\n1;1,5\n2;8,0\n",
        "name the character between columns with --separator",
    ),
    (
        "wide.csv",
        "a,b\n1,2\n".encode("utf-16"),
        "line 1: byte 0xff at 1 is not UTF-8, which files of"
        " text are read as: convert it, as with iconv -f UTF-16",
    ),
    ("columns.csv", b"PAR1\x15\xb5\n", "line 1: it is not text but Parquet"),
    ("squeezed.csv", gzip.compress(b"a\n1\n"), "it is not text but compressed by gzip: name it"),
    (
        "sheet.csv",
        b"PK\x03\x04\xff",
        "it is not text but a ZIP archive, or of Excel: save it as CSV",
    ),
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


def test_the_way_to_a_table_is_an_option(at: Run, tmp_path: Path, place: str, table: str) -> None:
    with fluss.connect(place):
        pass
    message = refused(at("load", put(tmp_path, "a.csv", "a\n1\n"), "--into", table))
    assert message.endswith("--create creates it [TABLE_NOT_EXIST, code 7]")


@pytest.mark.parametrize(
    ("name", "content"), [("b.csv", "a,town\n1,x\n"), ("b.jsonl", '{"town": 1}\n')]
)
def test_a_column_that_the_table_lacks_is_told_with_its_file(
    at: Run, tmp_path: Path, table: str, name: str, content: str
) -> None:
    ok(at("load", put(tmp_path, "a.csv", "a,city\n1,x\n"), "--into", table, "--create"))
    found = refused(at("load", put(tmp_path, name, content), "--into", table))
    assert f"{name}, column 'town': table " in found
    twisted = refused(at("load", put(tmp_path, "c.csv", "a,ctiy\n1,x\n"), "--into", table))
    assert "--add-columns'; did you mean 'city'?; nothing was loaded" in twisted
    assert "has no such column, but a, city: take it out of the file, or add it" in found
    assert "nothing was loaded" in found
    assert count(at, table) == 1


def test_a_value_that_can_name_no_partition_leaves_no_table(
    at: Run, tmp_path: Path, table: str
) -> None:
    path = put(tmp_path, "days.csv", "day,id\na,1\na b,2\n")
    found = refused(at("load", path, "--into", table, "--create", "--partition-by", "day"))
    assert "column 'day'" in found
    assert "'a b' cannot name a partition" in found
    assert "nothing was loaded" in found
    assert "does not exist" in refused(at("count", table))
