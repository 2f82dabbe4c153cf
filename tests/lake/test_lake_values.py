"""Values at the ends of what types have, and long ones, through the lake of a folder and back."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.errors import FlussError
from fluss_df.lake.iceberg_writing import compaction
from fluss_df.lake.rounds import lake_rows
from tests.lake.tables_by_hand import Folder

col = pl.col


def test_a_long_text_behind_short_ones_is_found(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_rows, "_GROUP_ROWS", 10)
    folder.create("t", {"text": pa.string(), "data": pa.binary(), "other": pa.string()})
    short = pl.DataFrame({"text": ["aaa"] * 10, "data": [b"aaa"] * 10, "other": ["b"] * 10})
    # Parquet has no statistics of values of more than 4 kB
    long = pl.DataFrame({"text": ["z" * 5000], "data": [b"z" * 5000], "other": [None]})
    for rows in (short, long):
        folder.write("t", rows)
    assert folder.tier("t").files == 1
    assert folder.scan("t").filter(col("text") > "b").collect().height == 1
    assert folder.scan("t").filter(col("text").str.starts_with("zz")).collect().height == 1
    assert folder.scan("t").filter(col("data") > b"b").collect().height == 1
    # what is null has no bounds, and hides none
    assert "0 of 1 files" in fluss.explain(folder.scan("t").filter(col("other") > "c"))


def test_a_text_whose_next_one_is_none_has_an_upper_bound(folder: Folder) -> None:
    folder.create("t", {"text": pa.string()})
    texts = ["\ud7ff" * 20, "\U0010ffff" * 20, "a"]
    for part in texts[:1], texts[1:]:
        folder.write("t", pl.DataFrame({"text": part}))
        folder.tier("t")
    for text in texts:
        assert folder.scan("t").filter(col("text") >= text).collect().height == sum(
            other >= text for other in texts
        )
    assert "1 of 2 files" in fluss.explain(folder.scan("t").filter(col("text") >= "\ue001"))


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        (pa.date32(), [-(2**31), -719163, 0, 2932897, 2**31 - 1]),
        (pa.timestamp("us"), [-(2**63) + 1, -1, 0, 253402300800000000, 2**63 - 1]),
        (pa.timestamp("us", "UTC"), [-(2**63) + 1, -1, 0, 253402300800000000, 2**63 - 1]),
        (pa.timestamp("ms"), [-(2**63 // 1000), -1, 0, 253402300800000, 2**63 // 1000]),
    ],
)
def test_moments_that_python_does_not_have(
    folder: Folder, kind: pa.DataType, numbers: list[int]
) -> None:
    folder.create("t", {"moment": kind})
    folder.write("t", pa.table({"moment": pa.array(numbers, kind)}))
    folder.tier("t")
    moments = folder.scan("t").collect()
    assert moments["moment"].to_physical().to_list() == numbers
    for number in numbers:
        later = col("moment").to_physical() >= number
        typed = col("moment") >= pl.lit(number).cast(moments.schema["moment"])
        expected = [other for other in numbers if other >= number]
        for condition in (later, typed):
            found = folder.scan("t").filter(condition).collect()["moment"]
            assert found.to_physical().to_list() == expected


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us")])
def test_keys_that_python_does_not_have(folder: Folder, kind: pa.DataType) -> None:
    folder.create("t", [("at", kind), ("n", pa.int64())], keys=["at"])
    far = 2**31 - 1 if pa.types.is_date(kind) else 2**63 - 10**6
    for n, numbers in enumerate([[far, -far], [0], [far], [-far]]):
        rows = {"at": pa.array(numbers, kind), "n": pa.array([n] * len(numbers))}
        folder.write("t", pa.table(rows))
        folder.tier("t")
    found = folder.scan("t$lake").collect()
    rows_of = dict(zip(found["at"].to_physical(), found["n"], strict=True))
    assert (found.height, rows_of) == (3, {far: 2, 0: 1, -far: 3})


def test_conditions_that_polars_cannot_write(folder: Folder) -> None:
    folder.create("t", {"at": pa.timestamp("us")})
    far = 2**63 - 1
    folder.write("t", pa.table({"at": pa.array([far, 0, None], pa.timestamp("us"))}))
    moments = pl.Series([far, None]).cast(pl.Datetime("us"))
    found = folder.scan("t").filter(col("at").is_in(moments.implode(), nulls_equal=True)).collect()
    assert found["at"].to_physical().to_list() == [far, None]


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_a_moment_beyond_microseconds_is_refused_and_not_another(folder: Folder, unit: str) -> None:
    folder.create("t", {"moment": pa.timestamp(unit)})
    far = 2**63 // 1000 if unit == "s" else 2**63 - 1
    folder.write("t", pa.table({"moment": pa.array([0, far], pa.timestamp(unit))}))
    with pytest.raises(FlussError, match=rf"column 'moment' of table fluss\.t .*{far}"):
        folder.tier("t")
    assert folder.scan("t").collect().height == 2


def test_keys_in_nanoseconds_are_in_the_lake_once(folder: Folder) -> None:
    kind = pa.timestamp("ns")
    folder.create("t", [("at", kind), ("n", pa.int64())], keys=["at"])
    model: dict[int, int] = {}
    for n, at in enumerate([1, 2, -1, 0, 999, 1000, -1000, -999, -1001]):
        folder.write("t", pa.table({"at": pa.array([at], kind), "n": pa.array([n])}))
        model[at // 1000] = n
        if n % 3 == 1:
            folder.tier("t")
    fluss.write_fluss(
        pa.table({"at": pa.array([-2000], kind)}), "t", connection=folder.connection, mode="delete"
    )
    del model[-2]
    folder.tier("t")
    for name in ("t", "t$lake"):
        rows = folder.scan(name).collect()
        found = dict(zip(rows["at"].to_physical() // 1000, rows["n"], strict=True))
        assert (rows.height, found) == (len(model), model)


def test_nanoseconds_within_others_are_those_of_the_microsecond_before(folder: Folder) -> None:
    at = pa.timestamp("ns")
    kinds = {
        "list": pa.list_(at),
        "row": pa.struct([("at", at), ("n", pa.int8())]),
        "map": pa.map_(pa.string(), at),
        "deep": pa.list_(pa.struct([("at", pa.list_(at))])),
    }
    folder.create("t", kinds)
    values = [-1001, -1, None, 1, 1999]
    rows = [
        {
            "list": [value, None],
            "row": {"at": value, "n": None},
            "map": [("a", value)],
            "deep": [None, {"at": [value]}, {"at": None}],
        }
        for value in values
    ]
    nothing = {"list": None, "row": None, "map": None, "deep": None}
    folder.write("t", pa.Table.from_pylist([*rows, nothing, rows[0]], pa.schema(kinds)))
    folder.tier("t")
    found = folder.scan("t").select(
        col("list").list.eval(pl.element().to_physical()),
        col("row").struct.field("at").to_physical().alias("row"),
        "map",
        col("deep")
        .list.get(1, null_on_oob=True)
        .struct.field("at")
        .list.get(0)
        .to_physical()
        .alias("deep"),
    )
    whole = [None if value is None else value // 1000 * 1000 for value in values]
    expected = [*whole, None, whole[0]]
    frame = found.collect()
    assert frame["list"].list.get(0).to_list() == expected
    assert frame["row"].to_list() == expected
    maps = frame.get_column("map").to_arrow()
    items = pa.concat_arrays([maps.items]).cast(pa.int64()).to_pylist()
    assert (items, maps.is_null().to_pylist()) == ([*whole, whole[0]], [False] * 5 + [True, False])
    assert frame["deep"].to_list() == expected
    assert frame["list"].is_null().to_list() == [False] * 5 + [True, False]


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_times_of_day_between_two_microseconds(folder: Folder, unit: Any) -> None:
    folder.create("t", {"at": pa.time64(unit)})
    values = [0, 1000, 5000] if unit == "ns" else [0, 1, 5]
    folder.write("t", pa.table({"at": pa.array(values, pa.time64(unit))}))
    folder.tier("t")
    rows = folder.scan("t").collect()
    for nanoseconds in (0, 1, 999, 1000, 4999, 5000, 5001):
        time = pl.lit(nanoseconds).cast(pl.Time)
        for condition in (col("at") < time, col("at") >= time, col("at") == time, col("at") > time):
            assert folder.scan("t").filter(condition).collect().equals(rows.filter(condition))


KEYS_OF_MAPS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [1, -128]),
    (pa.int16(), [1, -32768]),
    (pa.bool_(), [True, False]),
    (pa.date32(), [1, -1]),
    (pa.time32("s"), [1, 0]),
    (pa.timestamp("s"), [1, -1]),
    (pa.timestamp("ms"), [1, -1]),
    (pa.timestamp("ns"), [1000, -1000]),
    (pa.timestamp("ms", "UTC"), [1, -1]),
    (pa.decimal128(38, 10), [1, -1]),
    (pa.binary(2), [b"ab", b"\0\0"]),
    (pa.string(), ["a", ""]),
]


@pytest.mark.parametrize(("kind", "values"), KEYS_OF_MAPS, ids=lambda given: str(given)[:30])
def test_maps_by_keys_that_the_lake_has_in_other_types(
    folder: Folder, kind: pa.DataType, values: list[Any]
) -> None:
    entries = pa.map_(kind, kind)
    kinds = {"map": entries, "deep": pa.list_(pa.struct([("map", pa.map_(kind, entries))]))}
    folder.create("t", kinds)
    # the values as the type has them
    first, second = pa.array(values, kind).to_pylist()
    one = [(first, second), (second, None)]
    rows = [
        {"map": one, "deep": [{"map": [(first, one), (second, [])]}, None, {"map": None}]},
        {"map": [], "deep": None},
        {"map": None, "deep": []},
    ]
    folder.write("t", pa.Table.from_pylist(rows, pa.schema(kinds)))
    before = folder.scan("t").collect()
    folder.tier("t")
    assert folder.scan("t").collect().equals(before)
    assert before.to_arrow().cast(pa.schema(kinds)).to_pylist() == rows


@pytest.mark.parametrize("keyed", [False, True])
def test_rows_with_odd_names_are_keys_and_values_of_maps(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    # merged, too
    monkeypatch.setattr(compaction, "_SMALL_FILES", 2)
    row = pa.struct([("a b", pa.int32()), ("a_x20b", pa.int32())])
    kinds = {"id": pa.int64(), "map": pa.map_(row, row), "lists": pa.map_(pa.int8(), pa.list_(row))}
    folder.create("t", kinds, ["id"] if keyed else [])
    rows = []
    for number in range(4):
        one = {"a b": number, "a_x20b": None}
        rows.append({"id": number, "map": [(one, one)], "lists": [(1, [one, None])]})
        folder.write("t", pa.Table.from_pylist(rows[-1:], pa.schema(kinds)))
        folder.tier("t")
    for name in ("t", "t$lake"):
        assert folder.scan(name).sort("id").collect().to_arrow().to_pylist() == rows


@pytest.mark.parametrize(
    "names", [["a b", "a_x20b"], ["_1a", "1a"], ["a b_", "a_x20b", "a b", "a_x20b_"]]
)
@pytest.mark.parametrize("keyed", [False, True])
def test_columns_whose_names_in_files_would_be_the_same(
    folder: Folder, names: list[str], keyed: bool
) -> None:
    row = pa.struct([(name, pa.int64()) for name in names])
    kinds = {"id": pa.int64(), **dict.fromkeys(names, pa.string()), "row": row}
    folder.create("t", kinds, ["id"] if keyed else [])
    rows = []
    for number in range(4):
        rows.append(
            {
                "id": number,
                **{name: f"{name}{number}" for name in names},
                "row": {name: 10 * number + at for at, name in enumerate(names)},
            }
        )
        folder.write("t", pa.Table.from_pylist(rows[-1:], pa.schema(kinds)))
        folder.tier("t")
    assert folder.scan("t$lake").sort("id").collect().to_dicts() == rows
    for name in names:
        found = folder.scan("t").filter(col(name) == f"{name}2").collect().to_dicts()
        assert found == rows[2:3]
