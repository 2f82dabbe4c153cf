"""One key at a time, against the vectorised codecs."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluss_df.errors import FlussError
from fluss_df.record.keys.bucketing import bucket_ids
from fluss_df.record.keys.cut_digits import CutDigits
from fluss_df.record.keys.keys import encode_keys
from fluss_df.record.layout.bytes_columns import EncodedRows
from fluss_df.record.python.rows import rows_to_batch
from fluss_df.record.rows.compacted import RowEncoder
from fluss_df.record.rows.single import bucket_id, key_encoder, row_encoder
from fluss_df.types import Column, DataType, TypeRoot

from . import row_models as m

R = TypeRoot
slow = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=150)

KEY_VALUES: dict[TypeRoot, st.SearchStrategy[Any]] = {
    R.BOOLEAN: st.booleans(),
    R.TINYINT: st.integers(-(2**7), 2**7 - 1),
    R.SMALLINT: st.integers(-(2**15), 2**15 - 1),
    R.INTEGER: st.integers(-(2**31), 2**31 - 1),
    R.BIGINT: st.integers(-(2**63), 2**63 - 1),
    R.STRING: st.text(max_size=200),
    R.BYTES: st.binary(max_size=200),
    R.DATE: st.dates(),
}


@slow
@given(st.data())
def test_keys_and_buckets_are_those_of_many(data: st.DataObject) -> None:
    roots = data.draw(st.lists(st.sampled_from(list(KEY_VALUES)), min_size=1, max_size=4))
    columns = [Column(f"c{i}", DataType(root, nullable=False)) for i, root in enumerate(roots)]
    values = [data.draw(KEY_VALUES[root]) for root in roots]
    encode = key_encoder(columns, None)
    assert encode is not None
    batch = rows_to_batch([values], columns, "t")
    keys = encode_keys(batch.columns, [column.type for column in columns])
    key = encode(values)
    assert key == keys[0]
    found = bucket_id(key, 7)
    assert found == int(bucket_ids(keys, 7)[0]) or (found is None and len(key) > 64)


@slow
@given(st.binary(min_size=1, max_size=64), st.integers(1, 200))
def test_buckets(key: bytes, buckets: int) -> None:
    many = EncodedRows(np.frombuffer(key, np.uint8), np.array([0, len(key)]))
    assert bucket_id(key, buckets) == int(bucket_ids(many, buckets)[0])


@pytest.mark.parametrize(
    ("root", "value"),
    [
        (R.BIGINT, 2**63),
        (R.BIGINT, True),
        (R.INTEGER, -(2**31) - 1),
        (R.TINYINT, np.int8(1)),
        (R.STRING, "\ud800"),
        (R.STRING, None),
        (R.DATE, dt.datetime(2026, 1, 1)),
        (R.BOOLEAN, 1),
        (R.BYTES, bytearray(b"a")),
    ],
)
def test_a_key_of_other_values_is_for_others(root: TypeRoot, value: Any) -> None:
    encode = key_encoder([Column("k", DataType(root, nullable=False))], None)
    assert encode is not None
    assert encode([value]) is None


def test_keys_of_other_encodings_and_types_are_for_others() -> None:
    number = Column("k", DataType(R.BIGINT, nullable=False))
    assert key_encoder([number], "paimon") is None
    assert key_encoder([number], "lance") is not None
    numbers = DataType(R.ARRAY, nullable=False, element=DataType(R.BIGINT))
    assert key_encoder([number, Column("n", numbers)], None) is None


STAMP = R.TIMESTAMP_WITHOUT_TIME_ZONE
LTZ = R.TIMESTAMP_WITH_LOCAL_TIME_ZONE
TIME = R.TIME_WITHOUT_TIME_ZONE

OFFSETS = st.builds(
    dt.timedelta,
    seconds=st.integers(-50_000, 50_000),
    microseconds=st.sampled_from([0, 0, 0, 1, 500_000, 999_999]),
)
ZONES = st.one_of(st.none(), st.just(dt.UTC), OFFSETS.map(dt.timezone), st.timezones())


def cut(moment: Any, digits: int) -> Any:
    return moment.replace(microsecond=moment.microsecond // 10**digits * 10**digits)


def given_values(t: DataType) -> st.SearchStrategy[Any]:
    """Values as users give them, of which some fit the type and some do not."""
    fine = st.integers(0, 6)
    known: dict[TypeRoot, st.SearchStrategy[Any]] = {
        R.FLOAT: st.one_of(st.floats(), st.floats(width=32), m.integers(-(2**60), 2**60)),
        R.DOUBLE: st.one_of(st.floats(), m.integers(-(2**60), 2**60)),
        R.DECIMAL: st.one_of(
            st.builds(
                lambda sign, digits, exponent: Decimal((sign, digits, exponent)),
                st.integers(0, 1),
                st.lists(st.integers(0, 9), min_size=1, max_size=t.precision or 1).map(tuple),
                st.one_of(st.just(-(t.scale or 0)), st.integers(-40, 40)),
            ),
            st.decimals(),
            m.integers(-(10**19), 10**19),
        ),
        TIME: st.one_of(st.builds(cut, st.times(), fine), st.times(timezones=ZONES)),
        STAMP: st.builds(cut, st.datetimes(timezones=st.one_of(st.none(), ZONES)), fine),
        LTZ: st.builds(cut, st.datetimes(timezones=ZONES), fine),
        R.CHAR: st.text(max_size=14),
        R.BINARY: st.one_of(
            st.binary(max_size=14), st.binary(min_size=t.length or 0, max_size=t.length or 0)
        ),
    }
    others = st.sampled_from([None, True, 0, -1.5, "a", b"a", dt.date(2026, 1, 1), Decimal("1.5")])
    chosen = known[t.root] if t.root in known else KEY_VALUES[t.root]
    return st.one_of(chosen, others)


@settings(slow, max_examples=1500)
@given(st.data())
def test_keys_of_all_types_are_those_of_many(data: st.DataObject) -> None:
    t = data.draw(m.simple_types()).with_nullable(False)
    value = data.draw(given_values(t))
    columns = [Column("k", t)]
    encode = key_encoder(columns, None)
    assert encode is not None
    key = encode([value])
    try:
        batch = rows_to_batch([[value]], columns, "t")
        expected = encode_keys(batch.columns, [t])[0]
    except FlussError:
        assert key is None
        return
    if CutDigits(columns, columns, None).impossible(batch) is not None:
        assert key is None
    assert key in (None, expected)


UTC_AT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
BERLIN = dt.datetime(1920, 1, 2, 3, 4, 5, tzinfo=ZoneInfo("Europe/Berlin"))
AT = dt.datetime(1969, 12, 31, 23, 59, 59)
EDGES: list[tuple[DataType, list[Any]]] = [
    (DataType(R.FLOAT), [0.0, -0.0, 1.5, 0.1, -3, 2**24, float("inf"), 3.4028234e38]),
    (DataType(R.DOUBLE), [0.0, -0.0, 0.1, -3, 2**53, float("-inf"), 5e-324]),
    (DataType(R.CHAR, length=3), ["", "a", "äöü"]),
    (DataType(R.BINARY, length=2), [b"ab", b"\0\0"]),
    *(
        (DataType(R.DECIMAL, precision=p, scale=2), [
            *map(Decimal, ["0", "-0.00", "1.25", "-1.2", "-1.28", "1.27", "-327.68"]),
            Decimal((0, (9,) * p, -2)), Decimal((1, (9,) * p, -2)), 7, -300,
        ])
        for p in (9, 18, 19, 38)
    ),
    *((DataType(TIME, precision=p), [dt.time(), dt.time(23, 59, 59)]) for p in range(10)),
    *(
        (DataType(TIME, precision=p), [dt.time(23, 59, 59, 999_000), dt.time(0, 0, 0, 1000)])
        for p in (3, 4, 6, 9)
    ),
    *(
        (DataType(root, precision=p), [AT, AT.replace(year=1700), AT.replace(year=2200)])
        for root in (STAMP, LTZ)
        for p in range(10)
    ),
    *((DataType(LTZ, precision=p), [UTC_AT, BERLIN]) for p in range(10)),
    *((DataType(STAMP, precision=p), [dt.datetime.min, AT.replace(year=9999)]) for p in range(7)),
    *(
        (DataType(root, precision=p), [AT.replace(microsecond=999_999), AT.replace(microsecond=1)])
        for root in (STAMP, LTZ)
        for p in (6, 7, 9)
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("t", "value"), [pytest.param(t, v, id=f"{t}-{v}") for t, values in EDGES for v in values]
)
def test_a_plain_value_is_encoded_alone(t: DataType, value: Any) -> None:
    """Guards the test above: the encoder may give up on values, not on all of them."""
    columns = [Column("k", t.with_nullable(False))]
    key, row = key_encoder(columns, None), row_encoder(columns, "compacted")
    assert key is not None
    assert row is not None
    batch = rows_to_batch([[value]], columns, "t")
    assert key([value]) == encode_keys(batch.columns, [t])[0]
    assert row([value]) == RowEncoder(columns).encode(pa.Table.from_batches([batch]))[0]


@pytest.mark.parametrize(
    ("t", "value"),
    [
        (DataType(R.DOUBLE), float("nan")),
        (DataType(R.FLOAT), float("nan")),
        (DataType(R.FLOAT), 1e39),
        (DataType(R.FLOAT), 2**24 + 1),
        (DataType(R.DOUBLE), 2**53 + 1),
        (DataType(R.DOUBLE), True),
        (DataType(R.CHAR, length=3), "abcd"),
        (DataType(R.CHAR, length=3), "\ud800"),
        (DataType(R.BINARY, length=2), b"abc"),
        (DataType(R.DECIMAL, precision=9, scale=2), Decimal("1.234")),
        (DataType(R.DECIMAL, precision=9, scale=2), Decimal("1E+2")),
        (DataType(R.DECIMAL, precision=9, scale=2), Decimal("NaN")),
        (DataType(R.DECIMAL, precision=9, scale=2), Decimal("-Infinity")),
        (DataType(R.DECIMAL, precision=9, scale=2), Decimal(10_000_000)),
        (DataType(R.DECIMAL, precision=38, scale=2), 10**36),
        (DataType(TIME, precision=0), dt.time(0, 0, 0, 1000)),
        (DataType(TIME, precision=2), dt.time(0, 0, 0, 1000)),
        (DataType(TIME, precision=6), dt.time(0, 0, 0, 1)),
        (DataType(TIME, precision=3), dt.time(tzinfo=dt.UTC)),
        (DataType(STAMP, precision=0), AT.replace(microsecond=1000)),
        (DataType(STAMP, precision=4), AT.replace(microsecond=10)),
        (DataType(STAMP, precision=3), UTC_AT),
        (DataType(STAMP, precision=3), dt.date(2026, 1, 1)),
        (DataType(STAMP, precision=9), AT.replace(year=2300)),
        (DataType(LTZ, precision=9), UTC_AT.replace(year=1600)),
        (DataType(LTZ, precision=6),
         AT.replace(tzinfo=dt.timezone(dt.timedelta(microseconds=1)))),
    ],
    ids=str,
)  # fmt: skip
def test_a_value_that_is_not_plain_is_for_others(t: DataType, value: Any) -> None:
    columns = [Column("k", t.with_nullable(False))]
    key, row = key_encoder(columns, None), row_encoder(columns, "compacted")
    assert key is not None
    assert row is not None
    assert key([value]) is None
    assert row([value]) is None
    assert key([None]) is None
