"""Files that Ibis reads and writes."""

import datetime as dt
import gzip
import json
from pathlib import Path

import ibis
import polars as pl
import pytest

from fluss_df.backend import Backend
from fluss_df.errors import FlussError

ROWS = pl.DataFrame(
    {
        "id": [1, 2, 3],
        "text": ['a "b"', "two\nlines", None],
        "day": [dt.date(2024, 1, 31), None, dt.date(2024, 2, 1)],
        "at": [dt.datetime(2024, 1, 31, 12), None, None],
    }
)


@pytest.fixture
def con() -> Backend:
    made: Backend = Backend().connect(":memory:")
    made.create_table("t", ROWS, buckets=1)
    return made


def test_json_is_an_array_of_objects(con: Backend, tmp_path: Path) -> None:
    table, file = con.table("t"), tmp_path / "t.json"
    table.to_json(file)
    assert json.loads(file.read_text()) == [
        {"id": 1, "text": 'a "b"', "day": "2024-01-31", "at": "2024-01-31 12:00:00"},
        {"id": 2, "text": "two\nlines", "day": None, "at": None},
        {"id": 3, "text": None, "day": "2024-02-01", "at": None},
    ]
    con.to_json(table, tmp_path / "t.json.gz", dateformat="%d.%m.%Y", timestampformat="%H:%M")
    unpacked = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))
    assert (unpacked[0]["day"], unpacked[0]["at"]) == ("31.01.2024", "12:00")
    con.to_json(table.filter(table.id > 9), file)
    assert json.loads(file.read_text()) == []
    with pytest.raises(FlussError, match="compression='lzo': expected 'auto'"):
        con.to_json(table, file, compression="lzo")  # type: ignore[arg-type]


def test_json_is_read(con: Backend, tmp_path: Path) -> None:
    con.to_json(con.table("t"), tmp_path / "array.json")
    array = con.read_json(tmp_path / "array.json", table_name="of_array")
    lines = tmp_path / "lines.json"
    lines.write_text('{"id": 1, "x": 0.5}\n{"id": 2}\n')
    assert array.id.sum().execute() == 6
    assert con.raw_sql("SELECT max(text) AS m FROM of_array").item() == "two\nlines"
    assert con.read_json([lines, lines]).count().execute() == 4
    typed = con.read_json(lines, columns={"id": "string", "x": "float32"})
    assert [str(kind) for kind in typed.schema().types] == ["string", "float32"]
    con.insert("t", con.read_json(lines).select("id", text=ibis.literal("new")))
    assert con.table("t").count().execute() == 5


def test_csv(con: Backend, tmp_path: Path) -> None:
    table, file = con.table("t"), tmp_path / "t.csv"
    table.to_csv(file)
    assert con.read_csv(file, types={"id": "string"}).id.to_polars().to_list() == ["1", "2", "3"]
    whole = {"id": "int64", "text": "string", "day": "date", "at": "string"}
    assert con.read_csv(file, columns=whole).day.to_polars().max() == dt.date(2024, 2, 1)
    table.select("id").to_csv(file, header=False)
    assert file.read_text().splitlines() == ["1", "2", "3"]


def test_parquet_and_what_is_made_of_it(con: Backend, tmp_path: Path) -> None:
    con.table("t").to_parquet(tmp_path / "t.parquet")
    read = con.read_parquet(tmp_path / "*.parquet", table_name="files")
    con.create_table("copy", read)
    assert con.table("copy").to_polars().sort("id").equals(ROWS)
    con.raw_sql("CREATE TABLE of_files (PRIMARY KEY (id) NOT ENFORCED) AS SELECT * FROM files")
    con.raw_sql(
        "MERGE INTO of_files AS t USING (SELECT id + 2 AS id, text FROM files) AS s ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET text = s.text"
        " WHEN NOT MATCHED THEN INSERT (id, text) VALUES (s.id, s.text)"
    )
    assert con.raw_sql("SELECT id, text FROM of_files ORDER BY id").rows()[2:] == [
        (3, 'a "b"'),
        (4, "two\nlines"),
        (5, None),
    ]


def test_a_file_that_fails_leaves_the_old_one(con: Backend, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text("old")
    table = con.table("t")
    failing = table.mutate(n=table.text.cast("int64"))
    for write in (failing.to_json, failing.to_csv, failing.to_parquet):
        with pytest.raises((FlussError, pl.exceptions.PolarsError)):
            write(file)
        assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    with pytest.raises(FileNotFoundError):
        table.to_json(tmp_path / "nowhere" / "t.json")
