import datetime as dt
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from fluss_df.metadata import PartitionInfo, TablePath
from fluss_df.pushdown.column import col
from fluss_df.pushdown.evaluate import bind
from fluss_df.pushdown.from_polars import PolarsConjunct
from fluss_df.pushdown.plan import Bucket
from fluss_df.pushdown.predicate import Constant, Predicate
from fluss_df.pushdown.prune import (
    Conjunct,
    PredicateConjunct,
    Pruned,
    all_buckets,
    count_buckets,
    make_splits,
    prune,
    selected_keys,
)
from fluss_df.record.keys.bucketing import bucket_ids
from fluss_df.record.keys.keys import encode_keys
from fluss_df.schema import Schema, TableDescriptor, TableInfo

FIELDS = {
    "origin": pa.string(),
    "day": pa.date32(),
    "at": pa.time64("us"),
    "x": pa.int64(),
    "name": pa.string(),
    "ratio": pa.float64(),
}
METADATA = {"_partition": pa.string(), "_bucket": pa.int32(), "_log_offset": pa.int64()}
SCAN = pa.schema({**FIELDS, **METADATA})
ORIGINS = ("EWR", "JFK", "LGA")
DAYS = ("2024-01-01", "2024-02-01")


def table(
    partition_keys: Sequence[str] = (), bucket_keys: Sequence[str] = (), buckets: int = 4
) -> TableInfo:
    descriptor = TableDescriptor(
        Schema(pa.schema(FIELDS)),
        partition_keys=partition_keys,
        bucket_keys=bucket_keys,
        bucket_count=buckets,
    )
    return TableInfo(TablePath("db", "t"), 1, 1, descriptor, 0, 0)


def partitions(*names: str) -> list[PartitionInfo]:
    return [PartitionInfo(10 + i, name) for i, name in enumerate(names)]


FLIGHTS = table(["origin", "day"], buckets=2)
PARTS = partitions(*(f"{origin}${day}" for origin in ORIGINS for day in DAYS))


def conditions(*given: Predicate | pl.Expr) -> list[Conjunct]:
    found: list[Conjunct] = []
    for condition in given:
        if isinstance(condition, Predicate):
            found += PredicateConjunct.of(bind(condition, SCAN))
        else:
            found.append(PolarsConjunct(condition, SCAN))
    return found


def pruned(info: TableInfo, *given: Predicate | pl.Expr, metadata: Sequence[str] = ()) -> Pruned:
    buckets = all_buckets(info, PARTS if info.is_partitioned() else [])
    return prune(info, buckets, conditions(*given), metadata)


def names(found: Pruned) -> list[str]:
    return list(dict.fromkeys(str(b.partition_name) for b in found.buckets))


def test_buckets_come_by_partition_name_and_number() -> None:
    buckets = all_buckets(table(["origin"], buckets=2), partitions("b", "a"))
    assert list(map(str, buckets)) == ["a/0", "a/1", "b/0", "b/1"]
    assert buckets[0] == Bucket(11, "a", 0)
    assert list(map(str, all_buckets(table(buckets=2), []))) == ["0", "1"]


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        (col("origin") == "JFK", ["JFK$2024-01-01", "JFK$2024-02-01"]),
        (pl.col("origin") == "JFK", ["JFK$2024-01-01", "JFK$2024-02-01"]),
        (pl.col("origin").str.to_lowercase() == "jfk", ["JFK$2024-01-01", "JFK$2024-02-01"]),
        (pl.col("day").dt.month() == 2, [f"{origin}$2024-02-01" for origin in ORIGINS]),
        (col("day") < dt.date(2024, 1, 15), [f"{origin}$2024-01-01" for origin in ORIGINS]),
        (pl.col("origin").is_null(), []),
        (pl.lit(False), []),
        (Constant(None), []),
        (pl.col("origin") + pl.col("day").dt.to_string() == "LGA2024-02-01", ["LGA$2024-02-01"]),
    ],
    ids=str,
)
def test_partitions_are_chosen_by_conditions_on_their_columns(
    condition: Any, kept: list[str]
) -> None:
    found = pruned(FLIGHTS, condition)
    assert names(found) == kept
    assert len(found.buckets) == 2 * len(kept)
    assert len(found.pushed) == 1
    assert found.residual == ()


def test_all_conditions_have_to_hold() -> None:
    found = pruned(FLIGHTS, pl.col("origin") >= "JFK", col("day") > dt.date(2024, 1, 1))
    assert names(found) == ["JFK$2024-02-01", "LGA$2024-02-01"]


def test_a_condition_on_other_columns_is_left() -> None:
    found = pruned(FLIGHTS, pl.col("x") > 1, pl.col("x") + 1 > 1)
    assert len(found.buckets) == 12
    assert found.pushed == ()
    assert found.residual == ("x > 1", '[([(col("x")) + (dyn int: 1)]) > (dyn int: 1)]')


def test_the_part_of_a_mixed_condition_that_speaks_of_partitions_is_used() -> None:
    mixed = (col("origin") == "JFK") & (col("x") > 1) | (col("origin") == "LGA")
    for condition in (
        mixed,
        (pl.col("origin") == "JFK") & (pl.col("x") > 1) | (pl.col("origin") == "LGA"),
    ):
        found = pruned(FLIGHTS, condition)
        assert {name[:3] for name in names(found)} == {"JFK", "LGA"}
        assert found.pushed == ("origin == 'JFK' or origin == 'LGA'",)
        assert found.residual == ("origin == 'JFK' and x > 1 or origin == 'LGA'",)


def test_an_expression_that_fails_on_a_partition_prunes_nothing() -> None:
    condition = pl.col("origin").cast(pl.Int64, strict=True) > 1
    found = pruned(FLIGHTS, condition)
    assert len(found.buckets) == 12
    assert found.residual == (str(condition),)


def test_partitions_whose_names_do_not_read_back_are_kept_beside_those_that_match() -> None:
    info = table(["day"], buckets=1)
    buckets = all_buckets(info, partitions("2024-01-01", "2024-01-02", "yesterday"))
    found = prune(info, buckets, conditions(col("day") == dt.date(2024, 1, 1)))
    assert {bucket.partition_name for bucket in found.buckets} == {"2024-01-01", "yesterday"}
    # of these, a row may have any day
    assert found.pushed == found.residual
    assert len(found.pushed) == 1
    named = [bucket for bucket in buckets if bucket.partition_name != "yesterday"]
    assert prune(info, named, conditions(col("day") == dt.date(2024, 1, 1))).residual == ()


def test_a_time_finer_than_its_name_prunes_nothing() -> None:
    info = table(["at"], buckets=1)
    buckets = all_buckets(info, partitions("01-00-00_000", "02-00-00_000"))
    found = prune(info, buckets, conditions(col("at") == dt.time(1, 0, 0, 5)))
    assert found.buckets == buckets


def test_metadata_columns_choose_buckets_only_where_the_scan_has_them() -> None:
    condition = (pl.col("_partition").str.starts_with("LGA"), pl.col("_bucket") == 1)
    found = pruned(FLIGHTS, *condition, metadata=["_partition", "_bucket"])
    assert list(map(str, found.buckets)) == ["LGA$2024-01-01/1", "LGA$2024-02-01/1"]
    assert len(pruned(FLIGHTS, *condition).buckets) == 12


def test_offsets_are_limited_by_conditions_on_them() -> None:
    found = pruned(
        table(), col("_log_offset").between(5, 10, closed="left"), metadata=["_log_offset"]
    )
    assert (found.low, found.high) == (5, 10)
    assert found.residual == ()
    found = pruned(table(), pl.col("_log_offset") == 7, metadata=["_log_offset"])
    assert (found.low, found.high) == (7, 8)
    found = pruned(table(), pl.col("_log_offset") != 7, metadata=["_log_offset"])
    assert found.low == 0
    assert found.residual == ("_log_offset != 7",)
    assert pruned(table(), pl.col("_log_offset") == 7).low == 0


def test_equal_bucket_keys_leave_their_bucket() -> None:
    info = table(bucket_keys=["x", "name"], buckets=16)
    found = pruned(info, pl.col("x") == 7, col("name") == "a")
    types = [info.schema.columns[3].type, info.schema.columns[4].type]
    keys = encode_keys([pa.array([7], pa.int64()), pa.array(["a"])], types)
    assert [b.bucket_id for b in found.buckets] == bucket_ids(keys, 16).tolist()
    assert found.pushed == ("bucket key x, name: 1 hashed",)
    assert found.residual == ("x == 7", "name == 'a'")


def test_keys_in_a_list_leave_their_buckets() -> None:
    info = table(bucket_keys=["x"], buckets=64)
    wanted = [1, 5, 9]
    found = pruned(info, pl.col("x").is_in(wanted) & (pl.col("name") == "a"))
    keys = encode_keys([pa.array(wanted, pa.int64())], [info.schema.columns[3].type])
    expected = np.unique(bucket_ids(keys, 64)).tolist()
    assert [b.bucket_id for b in found.buckets] == expected
    assert pruned(info, col("x").is_in([])).buckets == ()


def test_what_does_not_name_all_bucket_keys_leaves_all_buckets() -> None:
    info = table(bucket_keys=["x", "name"])
    assert len(pruned(info, pl.col("x") == 7).buckets) == 4
    assert len(pruned(info, (col("x") == 7) | (col("name") == "a")).buckets) == 4
    # 0.0 equals -0.0, which is hashed differently
    assert len(pruned(table(bucket_keys=["ratio"]), col("ratio") == 0.0).buckets) == 4


def test_splits_keep_the_order_and_leave_out_what_is_empty() -> None:
    buckets = all_buckets(table(["origin"], buckets=2), partitions("b", "a"))
    stops = dict(zip(buckets, [5, 0, 9, 9], strict=True))
    starts = dict(zip(buckets, [0, 0, 3, 9], strict=True))
    assert list(map(str, make_splits(buckets, starts, stops))) == ["a/0[0:5]", "b/0[3:9]"]
    assert list(map(str, make_splits(buckets, starts, stops, 4, 8))) == ["a/0[4:5]", "b/0[4:8]"]


# ---- keys that are looked up


def keyed(*kinds: pa.DataType) -> TableInfo:
    fields = {f"k{i}": kind for i, kind in enumerate(kinds)}
    schema = Schema(pa.schema(fields), primary_keys=list(fields))
    return TableInfo(TablePath("db", "t"), 1, 1, TableDescriptor(schema, bucket_count=4), 0, 0)


def keys(info: TableInfo, *predicates: Predicate, names: Sequence[str] | None = None) -> Any:
    bound = [
        part for p in predicates for part in PredicateConjunct.of(bind(p, info.schema.arrow_schema))
    ]
    found = selected_keys(info, bound, names)
    return None if found is None else found.to_pylist()


def test_keys_are_every_combination_of_the_values_of_their_columns() -> None:
    info = keyed(pa.int64(), pa.string())
    found = keys(info, col("k1").is_in(["a", "b"]), col("k0").is_in([1, 2]), col("k0") != 3)
    assert found == [{"k0": x, "k1": y} for x in (1, 2) for y in "ab"]
    assert keys(info, col("k0") == 1) is None
    assert keys(info, col("k0") == 1, names=["k0"]) == [{"k0": 1}]
    assert keys(info, (col("k0") == 1) & (col("k1") == "a")) == [{"k0": 1, "k1": "a"}]
    assert keys(info, col("k0").is_in([]), col("k1") == "a") == []


def test_too_many_keys_are_not_looked_up() -> None:
    info = keyed(pa.int64(), pa.int64())
    some = col("k0").is_in(range(100))
    assert len(keys(info, some, col("k1").is_in(range(100)))) == 10_000
    assert keys(info, some, col("k1").is_in(range(101))) is None


def test_keys_that_are_numbers_with_a_point_are_not_looked_up() -> None:
    # -0.0 equals 0.0, and is another key
    assert keys(keyed(pa.float64()), col("k0") == 1.5) is None
    assert keys(keyed(pa.float32()), col("k0") == 1.5) is None


def test_partitions_have_their_own_number_of_buckets() -> None:
    info = table(["origin"], bucket_keys=["x"], buckets=2)
    parts = [PartitionInfo(1, "a", num_buckets=3), PartitionInfo(2, "b")]
    assert count_buckets(info, parts) == 5
    assert count_buckets(table(buckets=7), []) == 7
    buckets = all_buckets(info, parts)
    assert list(map(str, buckets)) == ["a/0", "a/1", "a/2", "b/0", "b/1"]
    for value in range(20):
        found = prune(info, buckets, conditions(col("x") == value))
        key = encode_keys([pa.array([value], pa.int64())], [info.schema.columns[3].type])
        expected = [f"{name}/{bucket_ids(key, n)[0]}" for name, n in (("a", 3), ("b", 2))]
        assert list(map(str, found.buckets)) == expected
        assert found.pushed == ("bucket key x: 1 hashed",)


def test_commit_timestamps_limit_where_reading_begins() -> None:
    kinds = {"_commit_timestamp": pa.timestamp("ms", "UTC"), "_log_offset": pa.int64()}
    scan = pa.schema(kinds)
    when = dt.datetime(2024, 1, 2, tzinfo=dt.UTC)
    predicate = bind((col("_commit_timestamp") >= when) & (col("_log_offset") != 3), scan)
    found = prune(table(), all_buckets(table(), []), PredicateConjunct.of(predicate), list(kinds))
    ms = int(when.timestamp() * 1000)
    assert (found.low, found.since) == (0, ms)
    assert found.pushed == (f"_commit_timestamp from {ms} ms on",)
    # rows of a batch may be older than the first that is wanted
    assert len(found.residual) == 2
    without = prune(table(), all_buckets(table(), []), PredicateConjunct.of(predicate))
    assert (without.since, without.pushed) == (0, ())
    soon = bind(col("_commit_timestamp") >= dt.datetime(1970, 1, 1, 0, 0, 0, 1000, dt.UTC), scan)
    found = prune(table(), all_buckets(table(), []), PredicateConjunct.of(soon), list(kinds))
    assert (found.since, found.pushed) == (1, ("_commit_timestamp from 1 ms on",))
