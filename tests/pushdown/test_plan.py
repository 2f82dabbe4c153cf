import dataclasses
import pickle
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from fluss_df.errors import FlussError
from fluss_df.metadata import TablePath
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.pushdown.plan import (
    LakePlan,
    ScanPlan,
    Split,
    bind_columns,
    bind_metadata,
    slice_splits,
)
from fluss_df.pushdown.server_filter import ServerFilter
from fluss_df.schema import Schema, TableDescriptor, TableInfo


def table(*names: str, partition_keys: tuple[str, ...] = ()) -> TableInfo:
    schema = Schema(pa.schema({name: pa.string() for name in names}))
    descriptor = TableDescriptor(schema, partition_keys=partition_keys, bucket_count=4)
    return TableInfo(TablePath("db", "flights"), 7, 1, descriptor, 0, 0)


PLAN = ScanPlan(
    table=TablePath("db", "flights"),
    table_id=7,
    schema_id=1,
    columns=("origin", "delay"),
    metadata_columns=("_log_offset",),
    splits=(Split(3, "JFK", 0, 0, 10), Split(3, "JFK", 2, 5, 7)),
    limit=5,
    pushed=("origin == 'JFK'",),
    residual=("delay > 1",),
    of_columns=19,
    of_partitions=3,
    of_buckets=12,
)


def test_a_plan_is_a_value() -> None:
    again = pickle.loads(pickle.dumps(PLAN))
    assert again == PLAN
    assert hash(again) == hash(PLAN)
    with pytest.raises(dataclasses.FrozenInstanceError):
        again.limit = 3


def test_explain_tells_what_is_read() -> None:
    assert PLAN.rows == 12
    assert PLAN.explain() == (
        "FLUSS SCAN db.flights\n"
        "  columns    2 of 19: origin, delay\n"
        "  metadata   _log_offset\n"
        "  partitions 1 of 3: JFK\n"
        "  buckets    2 of 12\n"
        "  offsets    12 rows: JFK/0[0:10], JFK/2[5:7]\n"
        "  pushed     origin == 'JFK'\n"
        "  residual   delay > 1\n"
        "  limit      5"
    )


def test_explain_of_a_plan_that_reads_nothing() -> None:
    plan = dataclasses.replace(PLAN, splits=(), of_partitions=None, limit=None, residual=())
    assert "partitions" not in plan.explain()
    assert "  buckets    0 of 12\n  offsets    0 rows\n" in plan.explain()
    assert "residual   none" in plan.explain()


def test_explain_lists_only_some_splits() -> None:
    many = tuple(Split(None, None, i, 0, 1) for i in range(30))
    assert "11[0:1], ... 18 more" in dataclasses.replace(PLAN, splits=many).explain()


def test_slices_of_splits() -> None:
    splits = [Split(None, None, i, i, i + 3) for i in range(4)]
    assert list(map(str, slice_splits(splits, 0, 100))) == list(map(str, splits))
    assert list(map(str, slice_splits(splits, 2, 2))) == ["0[2:3]", "1[1:2]"]
    assert list(map(str, slice_splits(splits, 9, 2))) == ["3[3:5]"]
    assert slice_splits(splits, 12, 2) == ()
    assert slice_splits(splits, 3, 0) == ()


def test_columns_are_bound() -> None:
    info = table("origin", "carrier")
    assert bind_columns(info, None) == ("origin", "carrier")
    assert bind_columns(info, ["carrier"]) == ("carrier",)
    with pytest.raises(FlussError, match=r"table db\.flights: column 'carier' .*'carrier'\?"):
        bind_columns(info, ["carier"])
    with pytest.raises(FlussError, match="'carrier' is named more than once"):
        bind_columns(info, ["carrier", "carrier"])
    with pytest.raises(FlussError, match="expected a list of names"):
        bind_columns(info, "carrier")
    with pytest.raises(FlussError, match="expected names, not 3"):
        bind_columns(info, [3])  # type: ignore[list-item]


def test_metadata_is_bound() -> None:
    parted = table("origin", partition_keys=("origin",))
    assert bind_metadata(parted, False) == ()
    every = ("_partition", "_bucket", "_log_offset", "_commit_timestamp")
    assert bind_metadata(parted, True) == every
    assert bind_metadata(table("origin"), True) == every[1:]
    assert bind_metadata(parted, ["_log_offset", "_bucket"]) == ("_bucket", "_log_offset")
    assert bind_metadata(parted, "_bucket") == ("_bucket",)
    with pytest.raises(FlussError, match="no metadata column; there are _partition, _bucket"):
        bind_metadata(parted, ["offset"])
    with pytest.raises(FlussError, match="has no partitions"):
        bind_metadata(table("origin"), ["_partition"])


def test_a_metadata_column_that_is_a_column_of_the_table_is_refused() -> None:
    info = table("_bucket", "x")
    with pytest.raises(FlussError, match=r"'_bucket'.*include_metadata=\['_log_offset', '_c"):
        bind_metadata(info, True)
    assert bind_metadata(info, ["_log_offset"]) == ("_log_offset",)


def test_planning_imports_nothing_that_does_io() -> None:
    code = (
        "import sys, types\n"
        "package = types.ModuleType('fluss_df'); package.__path__ = [sys.argv[1]]\n"
        "sys.modules['fluss_df'] = package\n"
        "before = set(sys.modules)\n"
        "import fluss_df.pushdown.plan, fluss_df.pushdown.prune, fluss_df.pushdown.evaluate\n"
        "print(sorted(m for m in sys.modules if m.startswith('fluss_df.')))\n"
    )
    import fluss_df

    root = fluss_df.__path__[0]
    out = subprocess.run(
        [sys.executable, "-c", code, root], check=True, capture_output=True, text=True
    ).stdout
    for package in ("client", "io", "cluster"):
        assert f"'fluss_df.{package}" not in out


def test_a_plan_without_offsets_says_what_is_read() -> None:
    lake = LakePlan(5, 2, 3, 0, 1_000, 123_456)
    plan = dataclasses.replace(
        PLAN,
        splits=(),
        reads="current rows",
        chosen=("JFK", "LGA"),
        buckets=8,
        lake=lake,
        limit=None,
    )
    assert plan.partitions == ("JFK", "LGA")
    assert plan.rows == 0
    found = plan.properties()
    assert found["reads"] == "current rows"
    assert found["partitions"] == "2 of 3: JFK, LGA"
    assert found["buckets"] == "8 of 12"
    assert found["lake"] == "snapshot 5: 2 of 3 files, 1,000 rows, 123,456 bytes"
    assert "offsets" not in found
    assert "limit" not in found
    some = dataclasses.replace(lake, delete_files=1)
    assert "2 of 3 files, 1 with deletes, 1,000 rows" in str(some)
    keys = dataclasses.replace(plan, chosen=None, buckets=None, lookups=3)
    assert not {"partitions", "buckets"} & keys.properties().keys()


def test_filters_of_servers_are_shown() -> None:
    info = table("origin")
    made = ServerFilter(pb.Predicate(type=0), info.schema_id, "origin == 'JFK'")
    plan = dataclasses.replace(PLAN, server_filter=made)
    assert plan.properties()["batches"] == "skipped by statistics unless origin == 'JFK'"
    assert "batches" not in PLAN.properties()


@pytest.mark.parametrize("count", [12, 13])
def test_long_lists_are_cut(count: int) -> None:
    names = tuple(f"c{i}" for i in range(count))
    found = dataclasses.replace(PLAN, columns=names).properties()["columns"]
    assert found.endswith("c11" if count == 12 else "c11, ... 1 more")


def test_slices_are_within_their_splits() -> None:
    splits = [Split(None, None, 0, 10, 20), Split(None, None, 1, 0, 5), Split(None, None, 2, 3, 9)]
    rows = [(s.bucket_id, offset) for s in splits for offset in range(s.start, s.stop)]
    for offset in range(24):
        for length in range(24):
            found = slice_splits(splits, offset, length)
            assert all(split.rows for split in found)
            assert [(s.bucket_id, at) for s in found for at in range(s.start, s.stop)] == rows[
                offset : offset + length
            ]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ("origin", r"expected a list of names, as in \['origin'\]"),
        ([1], "expected names, not 1"),
        (["origin", "origin"], "'origin' is named more than once"),
        (["orign"], "origin"),
    ],
)
def test_columns_that_are_none_are_refused(columns: Any, text: str) -> None:
    with pytest.raises(FlussError, match=text):
        bind_columns(table("origin", "delay"), columns)
