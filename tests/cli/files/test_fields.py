"""No field, row or column of a file is left out."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tests.cli.files.commands import OBJECTS, Run, count, ok, put, refused

# ---- nothing is left out


def test_fields_that_come_late_are_loaded(at: Run, tmp_path: Path, table: str) -> None:
    late = put(tmp_path, "late.ndjson", f'{OBJECTS}{{"a": 7, "b": {{"c": "x"}}}}\n')
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
        (f'{OBJECTS}{{"a": 1, "extra": 2}}\n', "extra"),
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


def test_many_fields_of_json_lines_keep_their_order(at: Run, tmp_path: Path, table: str) -> None:
    names = [f"c{number:02}" for number in range(70)]
    lines = [dict.fromkeys(names[:40], 0), {}, dict.fromkeys([*names[50:], names[45]], 1)]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    ok(at("load", put(tmp_path, "wide.ndjson", text), "--into", table, "--create"))
    found = ok(at("head", table, "--json", "-n", "1")).splitlines()
    assert list(json.loads(found[0])) == [*names[:40], *names[50:], names[45]]
