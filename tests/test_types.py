from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fluss_df.types
from fluss_df.errors import FlussError, ProtocolError
from fluss_df.types import (
    Column,
    DataField,
    DataType,
    TypeRoot,
    arrow_schema,
    from_arrow,
    to_arrow,
    to_wire_arrow,
    type_from_json,
    type_to_json,
    wire_arrow_schema,
)

R = TypeRoot

# what Schema.get_column_types() of pyfluss 1.0.0 answers
OFFICIAL = [
    (pa.bool_(), "boolean"),
    (pa.int8(), "tinyint"),
    (pa.int16(), "smallint"),
    (pa.int32(), "int"),
    (pa.int64(), "bigint"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.string(), "string"),
    (pa.large_string(), "string"),
    (pa.string_view(), "string"),
    (pa.binary(), "bytes"),
    (pa.large_binary(), "bytes"),
    (pa.binary(4), "binary(4)"),
    (pa.date32(), "date"),
    (pa.date64(), "date"),
    (pa.time32("s"), "time"),
    (pa.time32("ms"), "time(3)"),
    (pa.time64("us"), "time(6)"),
    (pa.time64("ns"), "time(9)"),
    (pa.timestamp("s"), "timestamp(0)"),
    (pa.timestamp("ms"), "timestamp(3)"),
    (pa.timestamp("us"), "timestamp"),
    (pa.timestamp("ns"), "timestamp(9)"),
    (pa.timestamp("s", "UTC"), "timestamp_ltz(0)"),
    (pa.timestamp("us", "Europe/Berlin"), "timestamp_ltz"),
    (pa.decimal128(10, 2), "decimal(10,2)"),
    (pa.decimal128(38, 38), "decimal(38,38)"),
    (pa.list_(pa.int32()), "array<int>"),
    (pa.large_list(pa.int32()), "array<int>"),
    (pa.list_(pa.field("item", pa.int32(), nullable=False)), "array<int NOT NULL>"),
    (pa.map_(pa.string(), pa.int64()), "map<string NOT NULL,bigint>"),
    (
        pa.struct([("a", pa.int32()), pa.field("b", pa.string(), nullable=False)]),
        "row<a: int, b: string NOT NULL>",
    ),
    (pa.dictionary(pa.int32(), pa.string()), "string"),
]


@pytest.mark.parametrize(("arrow", "text"), OFFICIAL, ids=lambda v: str(v)[:30])
@pytest.mark.parametrize("nullable", [True, False])
def test_names_are_those_of_the_official_client(
    arrow: pa.DataType, text: str, nullable: bool
) -> None:
    made = from_arrow(arrow, nullable)
    assert str(made) == (text if nullable else f"{text} NOT NULL")


@pytest.mark.parametrize(("arrow", "text"), OFFICIAL[:5], ids=lambda v: str(v)[:30])
def test_the_installed_official_client_says_the_same(arrow: pa.DataType, text: str) -> None:
    fluss = pytest.importorskip("fluss")
    assert fluss.Schema(pa.schema([("c", arrow)])).get_column_types() == [text]


REFUSED = [
    (pa.uint8(), "int16"),
    (pa.uint16(), "int32"),
    (pa.uint32(), "int64"),
    (pa.uint64(), "decimal128"),
    (pa.float16(), "float32"),
    (pa.null(), "a type"),
    (pa.duration("us"), "int64"),
    (pa.decimal256(40, 2), "decimal128"),
    (pa.list_(pa.int32(), 3), "list"),
    (pa.list_view(pa.int32()), "list"),
    (pa.month_day_nano_interval(), "cast"),
    (pa.list_(pa.uint8()), "int16"),
]


@pytest.mark.parametrize(("arrow", "way_out"), REFUSED, ids=lambda v: str(v))
def test_refused_types_name_the_way_out(arrow: pa.DataType, way_out: str) -> None:
    with pytest.raises(FlussError, match=way_out):
        from_arrow(arrow)


@pytest.mark.parametrize(
    ("arrow", "text"),
    [
        (pa.uint8(), "smallint"),
        (pa.uint16(), "int"),
        (pa.uint32(), "bigint"),
        (pa.float16(), "float"),
        (pa.list_(pa.uint8(), 3), "array<smallint>"),
        (pa.list_view(pa.int8()), "array<tinyint>"),
        (pa.struct([("a", pa.uint16())]), "row<a: int>"),
        (pa.map_(pa.string(), pa.uint8()), "map<string NOT NULL,smallint>"),
    ],
    ids=str,
)
def test_coerce_widens(arrow: pa.DataType, text: str) -> None:
    assert str(from_arrow(arrow, coerce=True)) == text


def test_uint64_is_refused_even_with_coerce() -> None:
    with pytest.raises(FlussError, match="decimal128"):
        from_arrow(pa.uint64(), coerce=True)


def test_extension_types_stand_for_their_storage() -> None:
    assert str(from_arrow(pa.uuid())) == "binary(16)"


@pytest.mark.parametrize(
    ("precision", "time", "timestamp"),
    [(p, u, t) for ps, u, t in [
        ((0,), pa.time32("s"), "s"), ((1, 2, 3), pa.time32("ms"), "ms"),
        ((4, 5, 6), pa.time64("us"), "us"), ((7, 8, 9), pa.time64("ns"), "ns"),
    ] for p in ps],
)  # fmt: skip
def test_units_of_precisions(precision: int, time: pa.DataType, timestamp: str) -> None:
    assert to_arrow(DataType(R.TIME_WITHOUT_TIME_ZONE, precision=precision)) == time
    ltz = DataType(R.TIMESTAMP_WITH_LOCAL_TIME_ZONE, precision=precision)
    assert to_arrow(ltz) == pa.timestamp(timestamp, "UTC")
    assert to_wire_arrow(ltz) == pa.timestamp(timestamp)
    ntz = DataType(R.TIMESTAMP_WITHOUT_TIME_ZONE, precision=precision)
    assert to_arrow(ntz) == to_wire_arrow(ntz) == pa.timestamp(timestamp)


def test_nested_wire_types_have_no_zone() -> None:
    ltz = DataType(R.TIMESTAMP_WITH_LOCAL_TIME_ZONE, precision=6)
    t = DataType(R.ARRAY, element=DataType(R.ROW, fields=(DataField("at", ltz),)))
    assert to_wire_arrow(t) == pa.list_(pa.struct([("at", pa.timestamp("us"))]))
    assert to_arrow(t) == pa.list_(pa.struct([("at", pa.timestamp("us", "UTC"))]))


def test_schemas() -> None:
    columns = [
        Column("id", DataType(R.BIGINT, nullable=False)),
        Column("at", DataType(R.TIMESTAMP_WITH_LOCAL_TIME_ZONE, precision=3)),
    ]
    expected = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("ms", "UTC"))]
    )
    assert arrow_schema(columns).equals(expected)
    assert wire_arrow_schema(columns).field("at").type == pa.timestamp("ms")


def nested() -> st.SearchStrategy[DataType]:
    simple = st.sampled_from(
        [R.STRING, R.BOOLEAN, R.BYTES, R.TINYINT, R.SMALLINT, R.INTEGER, R.BIGINT, R.FLOAT,
         R.DOUBLE, R.DATE]
    )  # fmt: skip
    flags = st.booleans()
    leaf = st.one_of(
        st.builds(DataType, simple, flags),
        st.builds(
            lambda r, n, k: DataType(r, n, length=k),
            st.sampled_from([R.CHAR, R.BINARY]), flags, st.integers(1, 2**31 - 1),
        ),
        st.builds(
            lambda n, p, s: DataType(R.DECIMAL, n, precision=p, scale=min(s, p)),
            flags, st.integers(1, 38), st.integers(0, 38),
        ),
        st.builds(
            lambda r, n, p: DataType(r, n, precision=p),
            st.sampled_from([R.TIME_WITHOUT_TIME_ZONE, R.TIMESTAMP_WITHOUT_TIME_ZONE,
                             R.TIMESTAMP_WITH_LOCAL_TIME_ZONE]),
            flags, st.integers(0, 9),
        ),
    )  # fmt: skip
    names = st.text(min_size=1, max_size=3)

    def extend(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
        fields = st.lists(
            st.builds(DataField, names, inner, st.none() | st.text(max_size=3),
                      st.none() | st.integers(0, 100)),
            max_size=3, unique_by=lambda f: f.name,
        )  # fmt: skip
        return st.one_of(
            st.builds(lambda n, e: DataType(R.ARRAY, n, element=e), flags, inner),
            st.builds(
                lambda n, k, v: DataType(R.MAP, n, key=k.with_nullable(False), value=v),
                flags, inner, inner,
            ),
            st.builds(lambda n, f: DataType(R.ROW, n, fields=tuple(f)), flags, fields),
        )  # fmt: skip

    return st.recursive(leaf, extend, max_leaves=6)


@given(nested())
def test_json_round_trip(t: DataType) -> None:
    assert type_from_json(type_to_json(t)) == t


@given(nested())
def test_every_type_has_arrow_types(t: DataType) -> None:
    kind = to_arrow(t)
    pa.schema([pa.field("c", kind, t.nullable)]).serialize()
    assert str(t)
    wire = to_wire_arrow(t)
    assert "tz=" not in str(wire)


def test_json_is_that_of_the_server() -> None:
    t = type_from_json(
        {
            "type": "ROW",
            "nullable": False,
            "fields": [
                {"name": "a", "field_type": {"type": "INTEGER"}, "field_id": 2},
                {"name": "b", "field_type": {"type": "CHAR", "length": 3}, "description": "d"},
            ],
        }
    )
    assert str(t) == "row<a: int, b: char(3)> NOT NULL"
    assert t.fields[0].field_id == 2
    assert t.fields[1].field_id is None
    assert type_to_json(t)["fields"][1] == {
        "name": "b",
        "field_type": {"type": "CHAR", "length": 3},
        "description": "d",
        "field_id": -1,
    }


BAD_JSON: list[Any] = [
    None,
    [],
    "STRING",
    {},
    {"type": "VARIANT"},
    {"type": 3},
    {"type": ["STRING"]},
    {"type": "STRING", "nullable": "yes"},
    {"type": "CHAR"},
    {"type": "CHAR", "length": 0},
    {"type": "CHAR", "length": "3"},
    {"type": "DECIMAL", "precision": 39, "scale": 0},
    {"type": "DECIMAL", "precision": 5, "scale": 6},
    {"type": "DECIMAL", "precision": True, "scale": 0},
    {"type": "TIME_WITHOUT_TIME_ZONE", "precision": 10},
    {"type": "ARRAY"},
    {"type": "MAP", "key_type": {"type": "STRING"}},
    {"type": "ROW"},
    {"type": "ROW", "fields": [3]},
    {"type": "ROW", "fields": [{"field_type": {"type": "STRING"}}]},
    {"type": "ROW", "fields": [{"name": "a", "field_type": {"type": "INTEGER"}, "field_id": "1"}]},
]


@pytest.mark.parametrize("value", BAD_JSON, ids=lambda v: str(v)[:60])
def test_bad_json_is_a_fluss_error(value: Any) -> None:
    with pytest.raises(FlussError):
        type_from_json(value)


def test_deep_json_does_not_exhaust_the_stack() -> None:
    deep: dict[str, Any] = {"type": "STRING"}
    for _ in range(5000):
        deep = {"type": "ARRAY", "element_type": deep}
    with pytest.raises(ProtocolError, match="nested"):
        type_from_json(deep)


def test_parameters_are_checked() -> None:
    for arguments in (
        {"root": R.CHAR},
        {"root": R.DECIMAL, "precision": 40, "scale": 0},
        {"root": R.DECIMAL, "precision": 4, "scale": -1},
        {"root": R.ARRAY},
        {"root": R.MAP, "key": DataType(R.STRING)},
    ):
        with pytest.raises(FlussError):
            DataType(**arguments)


FORBIDDEN = {"asyncio", "socket", "ssl", "selectors", "subprocess", "os", "io", "pathlib",
             "tempfile", "threading", "urllib", "http", "mmap"}  # fmt: skip


def test_types_and_record_do_no_io() -> None:
    package = Path(fluss_df.types.__file__).parent
    for path in [package / "types.py", *sorted((package / "record").glob("*.py"))]:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "open", path
            for name in names:
                assert name.split(".")[0] not in FORBIDDEN, (path, name)
        assert len(path.read_text().splitlines()) <= 500, path
