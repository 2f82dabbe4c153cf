"""Values are loaded with all that files say of them, or refused with their place."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df
from fluss_df.cli.loading.files import Source
from tests.cli.files.commands import Run, count, lines, ok, put, refused

ROWS = pa.schema(
    [
        ("id", pa.int64()),
        ("row", pa.struct([("x", pa.int64())])),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("whole", pa.list_(pa.int64())),
        ("money", pa.list_(pa.decimal128(20, 10))),
        ("real", pa.list_(pa.float64())),
        ("text", pa.list_(pa.string())),
        ("rows", pa.list_(pa.struct([("x", pa.int64())]))),
    ]
)
WRONG = [
    ("row", '{"x":1,"y":2}', "column 'row': the column has no field 'y' (there are ['x'])"),
    ("row", '{"X":3}', "column 'row': the column has no field 'X' (there are ['x'])"),
    ("row", '{"x":4,"x":5}', "column 'row.x': the field stands there twice"),
    ("row", '{"x":4', "column 'row': no JSON at character 7: Expecting ',' delimiter"),
    ("row", '{"x":{"z":1}}', "column 'row.x': an object stands there, the column is of Int64"),
    ("map", '[{"key":"p","val":1}]', "column 'map': the column has no field 'val'"),
    ("map", '{"p":1}', "column 'map': an object stands there, the column is of List("),
    ("rows", '[{"x":1},{"x":1,"y":9}]', "column 'rows': the column has no field 'y'"),
    ("whole", '[1],"w":[2]', "column 'whole': no JSON at character 4: Extra data"),
    ("whole", '[1]},{"v":[2]', "column 'whole': no JSON at character 4: Extra data"),
    ("whole", '[1]}\n{"v":[2]', "column 'whole': no JSON at character 4: Extra data"),
    ("whole", "1", "column 'whole': 1 is a number, the column is of List(Int64)"),
    ("whole", '"5"', "column 'whole': '5' is a text, the column is of List(Int64)"),
    ("whole", "[true]", "column 'whole': true is no text or number, the column is of Int64"),
    ("whole", "[9007199254740993.0]", "column 'whole': numbers with a point are read with 15"),
    ("money", "[1234567890.0123456789]", "column 'money': numbers with a point are read with 15"),
    ("real", "[0.5, 1e400]", "column 'real': '1e400' is no value of Float64"),
    (
        "text",
        '["a", 1.50]',
        "column 'text': 1.50 is a number, the column is of String: write it as",
    ),
    ("text", '["\\ud800"]', "column 'text': a text has half of a surrogate pair"),
]


def cells(rows: list[dict[str, str]]) -> str:
    """Return a file of CSV with JSON in it."""
    quoted = [
        ",".join('"' + row[n].replace('"', '""') + '"' if n in row else "" for n in ROWS.names[1:])
        for row in rows
    ]
    return ",".join(ROWS.names) + "\n" + "".join(f"{i},{row}\n" for i, row in enumerate(quoted))


def make(place: str, table: str, schema: pa.Schema) -> None:
    descriptor = fluss_df.TableDescriptor(fluss_df.Schema(schema), bucket_count=1)
    with fluss_df.connect(place) as connection:
        connection.get_admin().create_table(fluss_df.TablePath("fluss", table), descriptor)


# ---- JSON in CSV


def test_json_in_csv_that_a_column_does_not_hold_is_refused(
    at: Run, place: str, tmp_path: Path, table: str
) -> None:
    make(place, table, ROWS)
    for column, text, message in WRONG:
        path = put(tmp_path, "a.csv", cells([{}, {"whole": "[1]"}, {column: text}]))
        assert f"a.csv, line 4, {message}" in refused(at("load", path, "--into", table))
    assert count(at, table) == 0


def test_json_in_csv_is_loaded(at: Run, place: str, tmp_path: Path, table: str) -> None:
    make(place, table, ROWS)
    full = {
        "row": '{ "x" :\n 1}',
        "map": '[{"value":1,"key":"p"}]',
        "whole": '[9007199254740993, "2", 1.0, null]',
        "money": '["1234567890.0123456789", 5]',
        "real": '[0.5, "NaN", 2]',
        "text": '["}\\n{\\"v\\":", "é"]',
        "rows": '[{"x":null},{},null]',
    }
    path = put(tmp_path, "a.csv", cells([full, dict.fromkeys(full, "null"), {}]))
    ok(at("load", path, "--into", table))
    assert lines(at("head", table, "--json")) == [
        {
            "id": 0,
            "row": {"x": 1},
            "map": [{"key": "p", "value": 1}],
            "whole": [9007199254740993, 2, 1, None],
            "money": ["1234567890.0123456789", "5.0000000000"],
            "real": [0.5, "NaN", 2.0],
            "text": ['}\n{"v":', "é"],
            "rows": [{"x": None}, {"x": None}, None],
        },
        *({name: i if name == "id" else None for name in ROWS.names} for i in (1, 2)),
    ]


# ---- numbers

LONG = 2**53 + 1


@pytest.mark.parametrize("other", ["0.5", "nan"])
@pytest.mark.parametrize("form", ["a.csv", "a.ndjson"])
def test_long_whole_numbers_beside_others_are_texts(
    at: Run, tmp_path: Path, table: str, other: str, form: str
) -> None:
    texts = [str(LONG), str(LONG - 1), other]
    if form == "a.csv":
        content = "id,b\n" + "".join(f"{text},{-(2**53)}\n" for text in texts) + "1,0.5\n"
    else:
        rows = [{"id": text, "b": str(-(2**53))} for text in texts]
        content = "".join(f"{json.dumps(row)}\n" for row in [*rows, {"id": "1", "b": "0.5"}])
    ok(at("load", put(tmp_path, form, content), "--into", table, "--create"))
    found = lines(at("head", table, "--json"))
    assert [row["id"] for row in found] == [*texts, "1"]
    # a double holds it
    assert {row["b"] for row in found} == {-9007199254740992.0, 0.5}


@pytest.mark.parametrize(
    ("text", "column"),
    [
        (f'{{"a": 1.5}}\n\n{{"a": {LONG}}}\n', "a"),
        (f'{{"a": 100000000000000000.0}}\n\n{{"a": {LONG}}}\n', "a"),
        (f'{{"a": [1.5]}}\n\n{{"a": [0, -{LONG}]}}\n', "a"),
        (f'{{"a": {{"b": 1.5}}}}\n\n{{"a": {{"b": {LONG}}}}}\n', "a.b"),
    ],
)
def test_long_whole_numbers_among_fractions_of_json_are_refused(
    at: Run, tmp_path: Path, table: str, text: str, column: str
) -> None:
    path = put(tmp_path, "a.ndjson", text)
    message = refused(at("load", path, "--into", table, "--create"))
    assert f"a.ndjson, line 3, column '{column}': " in message
    assert f"{LONG} is a whole number beyond 2^53" in message
    assert "does not exist" in refused(at("count", table))
    flat = column == "a" and "[" not in text
    assert ("or --schema 'a DOUBLE' rounds it" in message) == flat
    if flat:
        ok(at("load", path, "--into", table, "--create", "--schema", "a DOUBLE"))


@pytest.mark.parametrize("form", ["a.csv", "a.ndjson"])
def test_numbers_beyond_a_type_are_no_infinities(
    at: Run, place: str, tmp_path: Path, table: str, form: str
) -> None:
    make(place, table, pa.schema([("a", pa.float32()), ("b", pa.float64())]))
    numbers = [("1e39", "1"), ("-3.5e38", "1"), ("1", "1e400"), ("1", "-1e999")]
    for a, b in numbers:
        if form == "a.csv":
            content = f"a,b\n1,1\n{a},{b}\n"
        else:
            content = f'{{"a": "1", "b": "1"}}\n\n{{"a": "{a}", "b": "{b}"}}\n'
        text, column = (a, "a") if b == "1" else (b, "b")
        message = refused(at("load", put(tmp_path, form, content), "--into", table))
        assert f"line 3, column '{column}': '{text}' is no value of Float" in message
    fine = "a,b\ninf,-inf\nInfinity,-infinity\nNaN,nan\nINF,-INF\n"
    ok(at("load", put(tmp_path, "fine.csv", fine), "--into", table))
    found = [[row["a"], row["b"]] for row in lines(at("head", table, "--json"))]
    assert found == [["inf", "-inf"], ["inf", "-inf"], ["NaN", "NaN"], ["inf", "-inf"]]


def test_guessed_numbers_beyond_doubles_are_refused(at: Run, tmp_path: Path, table: str) -> None:
    load = ["--into", table, "--create"]
    message = refused(at("load", put(tmp_path, "a.csv", "a\n1.5\n1e400\n"), *load))
    assert "a.csv, line 3, column 'a': '1e400' is no value of Float64" in message
    message = refused(at("load", put(tmp_path, "a.ndjson", '{"a": 1.5}\n{"a": 1e400}\n'), *load))
    assert "a.ndjson, line 2: no JSON object: the number 1e400 is beyond" in message


# ---- JSON lines


@pytest.mark.parametrize("value", ["1.50", "1e2", "7", "100000000000000000000000.5", "true", "{}"])
@pytest.mark.parametrize("known", [True, False])
def test_numbers_beside_texts_of_json_are_refused(
    at: Run, tmp_path: Path, table: str, value: str, known: bool
) -> None:
    if known:
        ok(at("sql", f"CREATE TABLE {table} (a STRING)"))
    # the second one lies in a block of its own, in which all are of one type
    for first in ("x", "x" * 5_000_000):
        text = f'{{"a": "{first}"}}\n\n{{"a": {value}}}\n'
        path = put(tmp_path, "a.ndjson", text)
        message = refused(at("load", path, "--into", table, "--create"))
        assert "a.ndjson, line 3, column 'a': " in message
        assert "the column is of String" in message
        if value[0].isdigit():
            assert f'write it as a text, as "{value}"' in message


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (pa.decimal128(20, 10), '{"a": "1"}\n{"a": 1234567890.0123456789}\n', "with 15 digits"),
        (pa.int64(), '{"a": 1}\n{"a": 9007199254740993.0}\n', "with 15 digits"),
        (pa.int64(), '{"a": "1"}\n{"a": 9007199254740993.0}\n', "with 15 digits"),
    ],
)
def test_numbers_of_json_do_not_depend_on_other_rows(
    at: Run, place: str, tmp_path: Path, table: str, kind: pa.DataType, text: str, message: str
) -> None:
    make(place, table, pa.schema([("a", kind)]))
    found = refused(at("load", put(tmp_path, "a.ndjson", text), "--into", table))
    assert "a.ndjson, line 2, column 'a': " in found
    assert message in found


# ---- names of columns


@pytest.mark.parametrize("names", ["a,", '"",b', "a, ", "a,,"])
def test_a_column_without_a_name_is_told_first(
    at: Run, tmp_path: Path, table: str, names: str
) -> None:
    row = ",".join("1" for _ in names.split(","))
    message = refused(
        at("load", put(tmp_path, "a.csv", f"{names}\n{row}\n"), "--into", table, "--create")
    )
    assert "a.csv, line 1: column " in message
    assert "has no name: give it one" in message
    assert "CREATE_TABLE" not in message


def test_a_byte_order_mark_is_no_part_of_the_first_name(
    at: Run, tmp_path: Path, table: str
) -> None:
    path = put(tmp_path, "a.csv", '\ufeff"a,1\nx",b\n1,x\n2,y\n')
    assert Source(Path(path)).line_of(1) == 4
    message = refused(at("load", path, "--into", table, "--create", "--schema", "b INT"))
    assert "a.csv, line 3, column 'b': 'x' is no value of Int32" in message


def test_nothing_is_guessed_of_a_column_whose_type_is_given(
    at: Run, tmp_path: Path, table: str
) -> None:
    many = "".join(f"{i},{i}\n" for i in range(20_000))
    path = put(tmp_path, "a.csv", f"a,b\n{many}7,x\n")
    ok(at("load", path, "--into", table, "--create", "--schema", "b STRING"))
    assert count(at, table) == 20_001
