"""Rows of Python, gathered: what fits is taken as it is, what does not is refused by name."""

from __future__ import annotations

import datetime as dt
import enum
from collections import OrderedDict, defaultdict, namedtuple
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss_df.errors import SchemaMismatchError
from fluss_df.record.python import row_collector
from fluss_df.record.python.fits import Limits, checker
from fluss_df.record.python.row_collector import RowCollector, limits_of_rows
from fluss_df.record.python.rows import rows_to_batch
from fluss_df.types import Column, DataField, DataType, TypeRoot, from_arrow

R = TypeRoot
STAMP, ZONED = R.TIMESTAMP_WITHOUT_TIME_ZONE, R.TIMESTAMP_WITH_LOCAL_TIME_ZONE
COLUMNS = [Column("id", DataType(R.BIGINT, nullable=False)), Column("name", DataType(R.STRING))]

UTC, CET = dt.UTC, ZoneInfo("Europe/Berlin")
ODD = dt.timezone(dt.timedelta(microseconds=1))
MOMENTS: list[Any] = [
    dt.datetime(2024, 1, 2, 3, 4, 5, micros, zone)
    for micros in (0, 100_000, 120_000, 123_000, 123_400, 123_456)
    for zone in (None, UTC, CET, ODD)
]
TWO = dt.timezone(dt.timedelta(hours=2))
MOMENTS += [dt.datetime(2024, 1, 2, 3, 4, 5, micros, TWO) for micros in (0, 120_000, 123_456)]
MOMENTS += [pd.Timestamp("2024-01-02 00:00:00.1", tz=zone) for zone in (None, "UTC", "CET")]
MOMENTS += [pd.Timestamp("1500-01-01").as_unit("s"), pd.NaT]
# years that Python does not have
MOMENTS += [
    pd.Timestamp(np.datetime64(text, "s")) for text in ("20000-05-06T07:08:09", "-0044-03-15")
]
MOMENTS += [pd.Timestamp(1_700_000_000_000_000_000 + nanos) for nanos in (120, 100, 1, 1000)]
MOMENTS += [dt.datetime(year, 1, 1) for year in (1, 1677, 1678, 2261, 2262, 9999)]
MOMENTS += [dt.datetime(year, 1, 1, tzinfo=CET) for year in (1, 2, 1678, 2262, 9999)]


class Number(enum.IntEnum):
    ONE = 1
    MANY = 1000


class Word(enum.StrEnum):
    LONG = "long"


SCALARS: dict[str, list[Any]] = {
    "INT8": [
        Number.ONE,
        Number.MANY,
        np.uint64(3),
        np.uint64(2**64 - 1),
        127,
        128,
        -128,
        -129,
        True,
        np.int8(3),
        np.int64(128),
        np.uint8(3),
        1.0,
    ],
    "DECIMALS": [
        *(Decimal(text) for text in ("1." + "0" * 40, "9" * 36 + ".990", "0.5" + "0" * 40)),
        *(
            Decimal(text)
            for text in (
                "1.25",
                "-99.99",
                "100",
                "1.250",
                "1E+1",
                "0E+9",
                "0E-30",
                "1.2500",
                "1.20500",
            )
        ),
        *(
            Decimal(text)
            for text in ("0.00", "0.000000", "1E+3", "12E+1", "9.9E+1", "0.001", "0.010")
        ),
        *(Decimal(text) for text in ("NaN", "sNaN", "Infinity", "1.255")),
        *(99, -100, 7, np.int64(5), 1.5, True, "1"),
    ],
    "TIMES": [dt.time(1, 2, 3, moment.microsecond, moment.tzinfo) for moment in MOMENTS[:24]],
    "MOMENTS": [
        *MOMENTS,
        *(pd.Timestamp("2024-01-02 03:04:05.123456789"), pd.Timestamp("2024-01-02", tz="CET")),
        *(np.datetime64("2024-01-02T03:04:05.123456789"), np.datetime64("2024-01-02")),
        *(dt.date(2024, 1, 2), "2024-01-02", 5),
    ],
}
ITEMS: dict[TypeRoot, list[Any]] = {
    R.BYTES: [[b"a", b"c"], [b"a"], [b"b", None], ["a"]],
    R.TINYINT: [[1, None], [128], [np.int8(1)], (1, 2), [True], [], np.array([1], "i1"), [[1]]],
    R.BIGINT: [[2**63], [2**63 - 1, 1], np.array([1, 2]), np.array([[1]]), np.array([1.0]), "12"],
    R.FLOAT: [
        np.array([1.5]),
        np.array([1e300]),
        np.array([1, 2]),
        np.array([True]),
        [1.5, float("nan")],
        [float("nan"), 1e300],
        [1e300, 1.0],
        [1, 2**24 + 1],
    ],
    R.DOUBLE: [[1.5], [1], [2**60 + 1], np.array([1.5]), np.array([1.5], "f4"), [None, 2.5]],
    R.STRING: [
        np.array(["a", "b"]),
        np.array([1]),
        np.array(["a"], object),
        ["a", None],
        ["a"],
        ["\ud800"],
        np.array(["a"]),
        ["a", 1],
        {"a": 1},
    ],
}
EDGES: list[tuple[DataType, list[Any]]] = [
    (DataType(R.BOOLEAN), [True, 1, "true", np.bool_(True)]),
    (DataType(R.TINYINT), SCALARS["INT8"]),
    (DataType(R.SMALLINT), [32_767, 32_768, -32_768, -32_769]),
    (DataType(R.INTEGER), [2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 1.5, "1"]),
    (DataType(R.BIGINT), [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, np.uint64(2**63)]),
    (
        DataType(R.FLOAT),
        [
            *(1.5, 3.4028234e38, 3.5e38, -3.5e38, float("inf"), -float("inf"), float("nan")),
            *(1, 2**24, 2**24 + 1, True, np.float64(1.5), np.float32(1.5), np.float64(1e300)),
            *(np.float64("inf"), np.float32("-inf"), np.float64("nan"), np.float32(3.4028235e38)),
        ],
    ),
    (
        DataType(R.DOUBLE),
        [
            np.float32(1.1),
            np.float64("inf"),
            np.float16(2),
            1.5,
            1e308,
            float("inf"),
            1,
            2**53,
            2**53 + 1,
            np.float64(1),
            False,
        ],
    ),
    (DataType(R.STRING), [np.str_("a"), Word.LONG, np.str_("\ud800"), "a", "é", "\ud800", b"a", 1]),
    (DataType(R.CHAR, length=2), ["", "a", "éé", "\U0001f600a", "abc", "\ud800", b"a"]),
    (DataType(R.BYTES), [b"a", "a", bytearray(b"a"), memoryview(b"ab")]),
    (
        DataType(R.BINARY, length=2),
        [bytearray(b"a"), memoryview(b"ab"), b"ab", b"a", b"abc", bytearray(b"ab"), "ab"],
    ),
    (DataType(R.DATE), [dt.date(1, 1, 1), dt.datetime(2024, 1, 1), "2024-01-01", 1]),
    *(
        (DataType(R.DECIMAL, precision=p, scale=s), SCALARS["DECIMALS"])
        for p, s in [(4, 2), (2, 0), (1, 0)]
    ),
    *((DataType(R.DECIMAL, precision=38, scale=s), SCALARS["DECIMALS"]) for s in (0, 30, 38)),
    *((DataType(R.TIME_WITHOUT_TIME_ZONE, precision=p), SCALARS["TIMES"]) for p in range(10)),
    *(
        (DataType(R.TIMESTAMP_WITHOUT_TIME_ZONE, precision=p), SCALARS["MOMENTS"])
        for p in range(10)
    ),
    *(
        (DataType(R.TIMESTAMP_WITH_LOCAL_TIME_ZONE, precision=p), SCALARS["MOMENTS"])
        for p in range(10)
    ),
    *((DataType(R.ARRAY, element=DataType(root)), values) for root, values in ITEMS.items()),
    *(
        (DataType(R.ARRAY, element=DataType(root, nullable=False)), values)
        for root, values in ITEMS.items()
    ),
    (
        DataType(R.ARRAY, element=DataType(R.DECIMAL, precision=4, scale=2)),
        [
            [1, Decimal("1.5")],
            [1],
            [Decimal("1.25"), None],
            np.array([1, 2]),
            [100],
            np.array([1.5]),
        ],
    ),
    (
        DataType(
            R.MAP, key=DataType(R.STRING, nullable=False), value=DataType(R.TINYINT, nullable=False)
        ),
        [
            *(
                [("a", 1), ("b", 2)],
                [["a", 1]],
                [("a", 300)],
                [(None, 1)],
                [("a", 1), ("a", 2)],
                [()],
            ),
            *(OrderedDict(a=1), defaultdict(int, a=1), (("a", 1),), ["ab"]),
            *(
                {"a": 1},
                {},
                {None: 1},
                {"a": None},
                {"a": 300},
                [("a", 1)],
                [("a", 1), ("a",)],
                "a",
            ),
        ],
    ),
    (
        DataType(
            R.ROW,
            fields=(
                DataField("x", DataType(R.TINYINT, nullable=False)),
                DataField("y", DataType(R.ARRAY, element=DataType(R.DATE))),
            ),
        ),
        [
            *({"x": 1, "y": [dt.date(2024, 1, 2)]}, {"x": 1}, {"y": None}, {"x": 1, "z": 2}),
            *({"x": None, "y": None}, {"x": 300, "y": []}, (1, None), [1], {"y": ["a"], "x": 1}, 5),
            *(
                (1, [dt.date(2024, 1, 2)]),
                [1, None],
                (None, None),
                OrderedDict(x=1),
                {"x": 1, "y": 2},
            ),
        ],
    ),
]


def converted(row: Any, columns: list[Column]) -> tuple[pa.RecordBatch | None, str]:
    """Return a row as a batch, or why it is none."""
    return converted_rows([row], columns)


def converted_rows(rows: list[Any], columns: list[Column]) -> tuple[pa.RecordBatch | None, str]:
    """Return rows as a batch, or why they are none."""
    try:
        return rows_to_batch(rows, columns, "db.t"), ""
    except SchemaMismatchError as error:
        return None, str(error)


# what is copied, or moved to UTC
CHANGEABLE = (bytearray, memoryview, OrderedDict, defaultdict, dt.datetime)


def same(value: Any, expected: Any) -> bool:
    return value is expected or (type(value), str(value)) == (type(expected), str(expected))


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize(
    ("kind", "values"), EDGES, ids=lambda part: str(part) if isinstance(part, DataType) else ""
)
def test_a_row_is_taken_exactly_where_its_conversion_succeeds(
    kind: DataType, values: list[Any], nullable: bool
) -> None:
    columns = [Column("c", kind.with_nullable(nullable))]
    collector = RowCollector(columns, "db.t")
    fits = checker(columns[0].type)
    quickly = 0
    every: list[Any] = []
    for value in [*values, None]:
        for row in ({"c": value}, (value,), [value]):
            expected, refusal = converted(row, columns)
            if expected is None:
                assert not fits(value)
                with pytest.raises(SchemaMismatchError) as caught:
                    collector.values(row)
                assert str(caught.value) == refusal
                continue
            quickly += fits(value)
            every.append(value)
            taken = collector.values(row)
            assert len(taken) == 1
            # what can be changed later is copied
            assert same(taken[0], value) or (isinstance(value, CHANGEABLE) and taken[0] == value)
            found = collector.batch(list(taken))
            assert found.schema.equals(expected.schema)
            assert str(found) == str(expected)
            found.validate(full=True)
    expected, _ = converted_rows([(value,) for value in every], columns)
    assert expected is not None
    assert str(collector.batch(every)) == str(expected)
    # of each type some are known without a conversion
    assert quickly > (3 if nullable else 0)


@pytest.mark.parametrize(
    "row",
    [
        {"name": "a"},
        {"id": 1, "name": "a", "more": 2},
        {"id": 1, "nam": "a"},
        (1,),
        (1, "a", 2),
        [],
        7,
    ],
    ids=str,
)
def test_rows_of_another_form_are_refused(row: Any) -> None:
    with pytest.raises(SchemaMismatchError, match=r"db\.t"):
        RowCollector(COLUMNS, "db.t").values(row)


def test_other_mappings_are_read_by_name() -> None:
    collector = RowCollector(COLUMNS, "db.t")
    assert collector.values(OrderedDict(name="a", id=1)) == (1, "a")
    assert collector.values({"name": "a", "id": 1}) == (1, "a")
    # what is not named is null
    assert collector.values({"id": 1}) == (1, None)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (
            DataType(R.TIMESTAMP_WITHOUT_TIME_ZONE, precision=9),
            pd.Timestamp(1_700_000_000_000_000_001),
        ),
        (
            DataType(R.TIMESTAMP_WITHOUT_TIME_ZONE, precision=3),
            pd.Timestamp("2024-01-02 00:00:00.1"),
        ),
        (
            DataType(R.TIMESTAMP_WITH_LOCAL_TIME_ZONE, precision=6),
            pd.Timestamp("2024-01-02", tz="CET"),
        ),
        (
            DataType(R.TIMESTAMP_WITH_LOCAL_TIME_ZONE, precision=0),
            dt.datetime(2024, 1, 2, tzinfo=TWO),
        ),
        (DataType(R.DECIMAL, precision=10, scale=2), Decimal("1.250")),
        (DataType(R.DECIMAL, precision=10, scale=2), Decimal("1E+2")),
        (DataType(R.ARRAY, element=DataType(R.STRING)), np.array(["a"])),
        (DataType(R.ARRAY, element=DataType(R.FLOAT)), np.array([1.5])),
        (DataType(R.BIGINT), Number.ONE),
        (DataType(R.STRING), Word.LONG),
        (DataType(R.BINARY, length=1), bytearray(b"a")),
    ],
    ids=str,
)
def test_what_programs_have_at_hand_is_not_converted(
    kind: DataType, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = RowCollector([Column("c", kind)], "db.t")
    monkeypatch.setattr(row_collector, "rows_to_batch", None)
    assert str(collector.values((value,))[0]).strip("b'") in str(value)


def test_buffers_within_lists_are_copied() -> None:
    collector = RowCollector([Column("c", DataType(R.ARRAY, element=DataType(R.BYTES)))], "db.t")
    buffer = bytearray(b"abc")
    values = collector.values({"c": [buffer]})
    buffer[:] = b"zz"
    assert collector.batch(list(values)).to_pylist() == [{"c": [b"abc"]}]


FINE = dt.time(1, 2, 3, 4)
TIME = DataType(R.TIME_WITHOUT_TIME_ZONE, precision=6)
FIELDS = (DataField("t", TIME),)
TEXT = DataType(R.STRING, nullable=False)


@pytest.mark.parametrize(
    ("row_format", "kind", "good", "bad"),
    [
        ("compacted", TIME, dt.time(1), FINE),
        ("compacted", DataType(R.ARRAY, element=TIME), [None, dt.time(1)], [FINE]),
        (
            "compacted",
            DataType(R.MAP, key=DataType(R.STRING, nullable=False), value=TIME),
            {"a": dt.time(1)},
            {"a": FINE},
        ),
        ("compacted", DataType(R.ROW, fields=FIELDS), {"t": dt.time(1)}, {"t": FINE}),
        ("indexed", DataType(R.CHAR, length=3), "é", "é😀"),
        ("indexed", DataType(R.CHAR, length=3), "ab", "a\0"),
        ("indexed", DataType(R.BINARY, length=2), b"ab", b"a\0"),
        ("indexed", DataType(R.BINARY, length=2), bytearray(b"ab"), memoryview(b"a\0")),
    ],
)
def test_what_the_rows_of_a_table_cannot_hold_is_refused_alone(
    row_format: str, kind: DataType, good: Any, bad: Any
) -> None:
    collector = RowCollector([Column("c", kind)], "db.t", limits_of_rows(row_format))
    assert len(collector.values((good,))) == 1
    with pytest.raises(SchemaMismatchError, match="'c"):
        collector.values((bad,))
    # another format has no such limit
    assert len(RowCollector([Column("c", kind)], "db.t").values((bad,))) == 1


def test_a_null_bucket_key_is_refused_alone() -> None:
    limits = Limits(required=frozenset({"name"}))
    collector = RowCollector(COLUMNS, "db.t", limits)
    for row in ((1, None), {"id": 1}, {"id": 1, "name": None}):
        with pytest.raises(SchemaMismatchError, match="bucket key column 'name' is null"):
            collector.values(row)
    assert collector.values({"id": 1, "name": "a"}) == (1, "a")


Pair = namedtuple("Pair", ["id", "name"])


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ({"id": 1}, (1, None)),
        (OrderedDict(name="a", id=1), (1, "a")),
        (defaultdict(int, id=1), (1, None)),
        (MappingProxyType({"id": 1, "name": "a"}), (1, "a")),
        (Pair(1, "a"), (1, "a")),
    ],
    ids=str,
)
def test_rows_of_other_forms_are_not_converted(
    row: Any, values: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = RowCollector(COLUMNS, "db.t")
    given = str(row)
    monkeypatch.setattr(row_collector, "rows_to_batch", None)
    assert collector.values(row) == values
    # a default is not asked for, and the row stays as it is
    assert str(row) == given


ROWS = st.lists(
    st.tuples(st.integers(-(2**63), 2**63 - 1), st.none() | st.text(max_size=4)), max_size=6
)


@settings(max_examples=40, deadline=None)
@given(rows=ROWS)
def test_what_was_gathered_becomes_the_rows(rows: list[tuple[int, str | None]]) -> None:
    collector = RowCollector(COLUMNS, "db.t")
    values = [value for row in rows for value in collector.values(row)]
    assert [tuple(row.values()) for row in collector.batch(values).to_pylist()] == rows


def test_nested_values_are_tried_one_by_one() -> None:
    columns = [Column("tags", from_arrow(pa.list_(pa.int8()))), *COLUMNS]
    collector = RowCollector(columns, "db.t")
    assert collector.values(([1, None], 1, "a")) == ([1, None], 1, "a")
    with pytest.raises(SchemaMismatchError, match=r"'tags\[\]'.*300"):
        collector.values(([300], 1, "a"))
    batch = collector.batch([[1], 1, "a", None, 2, None])
    assert batch.to_pylist() == [
        {"tags": [1], "id": 1, "name": "a"},
        {"tags": None, "id": 2, "name": None},
    ]


def test_rows_that_fit_are_not_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = RowCollector(COLUMNS, "db.t")

    def convert(*_: object) -> None:
        raise AssertionError("converted")

    monkeypatch.setattr(row_collector, "rows_to_batch", convert)
    for row in ({"id": 1, "name": "a"}, (1, "a"), [1, "a"]):
        assert collector.values(row) == (1, "a")
