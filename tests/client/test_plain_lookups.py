"""Lookups of one key that are made without arrays: keys, partitions and rows of plain values."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fluss_df as fluss
from fluss_df.client.fetch.value_decoder import ValueReader
from fluss_df.client.lookup import keyed_requests
from fluss_df.client.routing.one_row import PlainPartitions
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.record.keys.partition_names import partition_names
from fluss_df.record.python.rows import rows_to_batch
from fluss_df.types import Column, DataField, DataType, TypeRoot

R = TypeRoot
AT = dt.datetime(2026, 1, 2, 3, 4, 5)
KINDS: list[tuple[DataType, Any]] = [
    (DataType(R.CHAR, length=3), "abc"),
    (DataType(R.BINARY, length=2), b"ab"),
    (DataType(R.FLOAT), 1.5),
    (DataType(R.DOUBLE), -0.0),
    (DataType(R.DECIMAL, precision=9, scale=2), Decimal("1.25")),
    (DataType(R.DECIMAL, precision=30, scale=2), Decimal("-1.25")),
    (DataType(R.TIME_WITHOUT_TIME_ZONE, precision=0), dt.time(1, 2, 3)),
    (DataType(R.TIME_WITHOUT_TIME_ZONE, precision=6), dt.time(1, 2, 3, 4000)),
    *((DataType(R.TIMESTAMP_WITHOUT_TIME_ZONE, precision=p), AT) for p in (0, 3, 6, 9)),
    *(
        (DataType(R.TIMESTAMP_WITH_LOCAL_TIME_ZONE, precision=p), AT.replace(tzinfo=dt.UTC))
        for p in (0, 3, 6, 9)
    ),
]


def refuse(*_: Any) -> Any:
    raise AssertionError("arrays were made for one key")


def create(
    connection: fluss.FlussConnection, columns: list[Column], keys: list[str], **others: Any
) -> fluss.FlussTable:
    path = fluss.TablePath("fluss", "t")
    schema = fluss.Schema.from_columns(columns, keys)
    connection.get_admin().create_table(
        path, fluss.TableDescriptor(schema, bucket_count=3, **others), False
    )
    return connection.get_table(path)


@pytest.mark.parametrize(("t", "value"), [pytest.param(t, v, id=str(t)) for t, v in KINDS])
def test_no_arrays_are_made(t: DataType, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedFluss() as engine, engine.connection() as connection:
        columns = [Column("key", t.with_nullable(False)), Column("again", t)]
        table = create(connection, columns, ["key"])
        with table.new_upsert().create_writer() as writer:
            # a frame, whose bytes are those of the vectorised codecs
            writer.write_arrow(pa.Table.from_batches([rows_to_batch([[value] * 2], columns, "t")]))
        lookuper = table.new_lookup().create_lookuper()
        [expected] = lookuper.lookup_arrow(
            pa.table([rows_to_batch([[value]], columns[:1], "t").column(0)], names=["key"])
        ).to_pylist()
        monkeypatch.setattr(keyed_requests, "rows_to_batch", refuse)
        monkeypatch.setattr(ValueReader, "decode", refuse)
        found = lookuper.lookup([value])
        assert found is not None
        assert found == expected
        assert list(map(type, found.values())) == list(map(type, expected.values()))


NESTED: list[tuple[DataType, Any]] = [
    (DataType(R.ARRAY, element=DataType(R.STRING)), ["a", None, "longer than 7"]),
    (
        DataType(R.MAP, key=DataType(R.BIGINT, nullable=False), value=DataType(R.DATE)),
        {1: AT.date()},
    ),
    (DataType(R.ROW, fields=(DataField("x", DataType(R.DOUBLE)),)), {"x": 1.5}),
]


@pytest.mark.parametrize(("t", "value"), NESTED, ids=str)
def test_no_arrays_are_made_of_nested_values(
    t: DataType, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedFluss() as engine, engine.connection() as connection:
        columns = [Column("key", DataType(R.BIGINT, nullable=False)), Column("value", t)]
        table = create(connection, columns, ["key"])
        with table.new_upsert().create_writer() as writer:
            writer.upsert([1, value])
        lookuper = table.new_lookup().create_lookuper()
        expected = lookuper.lookup_arrow(pa.table({"key": [1]})).to_pylist()
        monkeypatch.setattr(ValueReader, "decode", refuse)
        assert lookuper.lookup([1]) == expected[0]


PARTITIONS: list[tuple[DataType, Any, Any]] = [
    (DataType(R.DATE), dt.date(2026, 1, 2), dt.date(2026, 1, 3)),
    (DataType(R.BOOLEAN), True, False),
    (DataType(R.CHAR, length=2), "ab", "a"),
]


@pytest.mark.parametrize(("t", "value", "other"), PARTITIONS, ids=str)
def test_no_arrays_are_made_for_a_partition(
    t: DataType, value: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedFluss() as engine, engine.connection() as connection:
        bigint = DataType(R.BIGINT, nullable=False)
        columns = [Column("part", t.with_nullable(False)), Column("key", bigint)]
        table = create(connection, columns, ["part", "key"], partition_keys=["part"])
        with table.new_upsert().create_writer(create_partitions=True) as writer:
            writer.upsert([value, 7])
        lookuper = table.new_lookup().create_lookuper()
        # the partitions are asked for once
        assert lookuper.lookup([other, 7]) is None
        with monkeypatch.context() as patched:
            patched.setattr(keyed_requests, "rows_to_batch", refuse)
            assert lookuper.lookup([value, 7]) == {"part": value, "key": 7}
        with pytest.raises(SchemaMismatchError, match="'part'"):
            lookuper.lookup([b"abc", 7])


NAMED: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (DataType(R.DATE), st.dates()),
    (DataType(R.BOOLEAN), st.booleans()),
    (DataType(R.CHAR, length=3), st.text("aZ09_-", max_size=5)),
    (DataType(R.STRING), st.text("aZ09_-", max_size=5)),
    (DataType(R.BIGINT), st.integers(-(2**63), 2**63 - 1)),
]


@given(st.data())
def test_partitions_have_the_names_that_many_rows_give_them(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(NAMED), min_size=1, max_size=3))
    others = st.sampled_from([None, 1, True, "1", 1.5, AT])
    columns = [Column(f"c{i}", t.with_nullable(False)) for i, (t, _) in enumerate(kinds)]
    row = [
        data.draw(others if data.draw(st.integers(0, 9)) == 9 else values) for _, values in kinds
    ]
    info = SimpleNamespace(get_partition_keys=lambda: [column.name for column in columns])
    plain = PlainPartitions(cast(Any, info), columns)
    assert plain.usable
    name = plain.name(row)
    types = [column.type for column in columns]
    try:
        expected = partition_names(rows_to_batch([row], columns, "t").columns, types).to_pylist()
    except FlussError:
        # no partition has such a name, or the value does not fit the type
        fits = [isinstance(v, str) and (not v or v.startswith("__")) for v in row]
        assert name is None or any(fits)
        return
    assert [name] == expected


def test_partitions_of_other_types_are_for_others() -> None:
    columns = [Column("day", DataType(R.DATE)), Column("real", DataType(R.DOUBLE))]
    info = SimpleNamespace(get_partition_keys=lambda: ["day", "real"])
    plain = PlainPartitions(cast(Any, info), columns)
    assert not plain.usable
    assert plain.name([dt.date(2026, 1, 1), 1.5]) is None


def test_rows_from_before_a_column_was_added(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedFluss() as engine, engine.connection() as connection:
        kinds = [DataType(R.BIGINT, nullable=False), DataType(R.STRING)]
        table = create(connection, [Column("id", kinds[0]), Column("name", kinds[1])], ["id"])
        before = table.new_lookup().create_lookuper()
        with table.new_upsert().create_writer() as writer:
            writer.upsert([1, "a"])
        more = pa.schema([("more", pa.int64())])
        connection.get_admin().alter_table(table.get_table_path(), add_columns=more)
        table = connection.get_table(table.get_table_path())
        with table.new_upsert().create_writer() as writer:
            writer.upsert([2, "b", 3])
        after = table.new_lookup().create_lookuper()
        old = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]

        def check() -> None:
            assert [before.lookup([i]) for i in (1, 2)] == old
            found = after.lookup([1])
            assert found is not None
            assert list(found.items()) == [*old[0].items(), ("more", None)]
            assert after.lookup([2]) == {**old[1], "more": 3}

        check()
        # the schemas are known by now
        monkeypatch.setattr(ValueReader, "decode", refuse)
        check()
