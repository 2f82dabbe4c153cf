"""Names, paths, buckets, database descriptors: checks and JSON forms."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError, OffsetSpec, TableBucket
from fluss_df.metadata import TablePath, check_name, property_texts

# ---- names


@pytest.mark.parametrize("name", ["a", "A-b_9", "_x", "-", "1", "x" * 200])
@pytest.mark.parametrize("kind", ["database", "table", "partition"])
def test_good_names(name: str, kind: str) -> None:
    assert check_name(name, kind) == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "empty"),
        (".", "not allowed"),
        ("..", "not allowed"),
        ("__x", "reserved"),
        ("x" * 201, "201 characters"),
        ("a b", "only letters"),
        ("a/b", "only letters"),
        ("a.b", "only letters"),
        ("ä", "only letters"),
        ("a\n", "only letters"),
        ("a\0", "only letters"),
        (None, "expected a string"),
        (7, "expected a string"),
    ],
)
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("database", ErrorCode.INVALID_DATABASE_EXCEPTION),
        ("table", ErrorCode.INVALID_TABLE_EXCEPTION),
        ("partition", ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION),
    ],
)
def test_bad_names(name: Any, problem: str, kind: str, code: int) -> None:
    with pytest.raises(FlussError, match=problem) as raised:
        check_name(name, kind)
    assert raised.value.error_code == code
    assert f"invalid {kind} name" in raised.value.message


@given(st.text(max_size=20))
def test_allowed_names_are_safe_in_paths(name: str) -> None:
    try:
        check_name(name, "table")
    except FlussError:
        return
    assert name.isascii()
    assert name.replace("-", "a").isidentifier() or name[0].isdigit() or name[0] == "-"
    assert not set(name) & set("/\\. \0\n")


# ---- paths


def test_paths() -> None:
    path = TablePath.parse("db.t")
    assert path == TablePath("db", "t") == TablePath.parse(path)
    assert str(path) == path.table_path_str() == "db.t"
    assert repr(path) == "TablePath('db', 't')"
    assert TablePath.parse("t") == TablePath("fluss", "t")
    assert TablePath.parse("t", "other") == TablePath("other", "t")
    assert TablePath.parse("db.t", "other") == TablePath("db", "t")
    assert len({path, TablePath("db", "t")}) == 1


@pytest.mark.parametrize("source", ["", ".", "a.", ".b", "a.b.c", "a b", None, 3, ("a", "b")])
def test_bad_paths(source: Any) -> None:
    with pytest.raises(FlussError) as raised:
        TablePath.parse(source)
    assert raised.value.error_code in (
        ErrorCode.INVALID_TABLE_EXCEPTION,
        ErrorCode.INVALID_DATABASE_EXCEPTION,
    )


def test_buckets() -> None:
    plain, partitioned = TableBucket(1, 2), TableBucket.with_partition(1, 3, 2)
    assert plain != partitioned
    assert (partitioned.table_id, partitioned.partition_id, partitioned.bucket_id) == (1, 3, 2)
    assert "partition_id=3" in str(partitioned)
    assert "partition" not in str(plain)


def test_offset_specs() -> None:
    assert repr(OffsetSpec.earliest()) == "OffsetSpec.earliest()"
    assert repr(OffsetSpec.latest()) == "OffsetSpec.latest()"
    assert repr(OffsetSpec.timestamp(0)) == "OffsetSpec.timestamp(0)"
    assert OffsetSpec.timestamp(5) == OffsetSpec.timestamp(5) != OffsetSpec.timestamp(6)


def test_database_descriptor() -> None:
    made = fluss.DatabaseDescriptor("sales", {"owner": "me"})
    read = fluss.DatabaseDescriptor.from_json(made.to_json())
    assert (read.comment, read.get_custom_properties()) == ("sales", {"owner": "me"})
    empty = fluss.DatabaseDescriptor.from_json(fluss.DatabaseDescriptor().to_json())
    assert (empty.comment, empty.get_custom_properties()) == (None, {})


def test_change_types() -> None:
    shown = [kind.short_string() for kind in fluss.ChangeType]
    assert shown == ["+A", "+I", "-U", "+U", "-D"]


def test_server_nodes() -> None:
    node = fluss.ServerNode(3, "h", 1, "TabletServer")
    assert (node.uid, node.address) == ("ts-3", "h:1")
    assert fluss.ServerNode(0, "h", 1, "CoordinatorServer").uid == "cs-0"


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b'{"custom_properties": 1}'])
def test_database_json_that_is_none(text: bytes) -> None:
    with pytest.raises(FlussError):
        fluss.DatabaseDescriptor.from_json(text)


def test_a_secret_that_is_no_text_is_not_shown() -> None:
    with pytest.raises(FlussError, match=r"invalid value .*'s3.secret-key'") as told:
        property_texts({"s3.secret-key": b"hidden"}, "the property")
    assert "hidden" not in str(told.value)
    with pytest.raises(FlussError, match="b'seen'"):
        property_texts({"a": b"seen"}, "the property")
