"""What users can get wrong with the admin: each is an error that says what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError, TableBucket

BUCKET = TableBucket(1, 0)
MISTAKES: list[tuple[str, Callable[[Any], object]]] = [
    (r"'x'.* TableBucket", lambda a: a.get_kv_snapshot_metadata("x", 1)),
    ("snapshot_id 'x'", lambda a: a.get_kv_snapshot_metadata(BUCKET, "x")),
    ("snapshot_id None", lambda a: a.get_lake_snapshot("fluss.t", None)),
    ("invalid table 5", lambda a: a.get_latest_kv_snapshots(5)),
    ("lease id ''", lambda a: a.create_kv_snapshot_lease("", 1000)),
    ("lease id None", lambda a: a.create_kv_snapshot_lease(None, 1000)),
    (r"lease id '\.\.'", lambda a: a.create_kv_snapshot_lease("..", 1000)),
    ("lease id 'a/'", lambda a: a.create_kv_snapshot_lease("a/", 1000)),
    ("control character", lambda a: a.create_kv_snapshot_lease("a\nb", 1000)),
    ("lease_duration_ms 0", lambda a: a.create_kv_snapshot_lease("a", 0)),
    ("lease_duration_ms 1.5", lambda a: a.create_kv_snapshot_lease("a", 1.5)),
    (r"renew\(\)", lambda a: lease(a).acquire_snapshots({})),
    ("dict of TableBucket", lambda a: lease(a).acquire_snapshots([BUCKET])),
    (r"bucket \(1, 0\)", lambda a: lease(a).acquire_snapshots({(1, 0): 1})),
    ("of TableBucket.* None", lambda a: lease(a).acquire_snapshots({BUCKET: None})),
    ("list of TableBucket", lambda a: lease(a).release_snapshots(BUCKET)),
    ("bucket 1099511627776", lambda a: lease(a).release_snapshots([TableBucket(1, 2**40)])),
    ("partition id 'p'", lambda a: lease(a).release_snapshots([TableBucket(1, 0, "p")])),  # type: ignore[arg-type]
    ("producer id ''", lambda a: a.get_producer_offsets("")),
    ("producer id", lambda a: a.delete_producer_offsets("\ud800")),
    ("dict of TableBucket", lambda a: a.register_producer_offsets("p", None)),
    (r"1\.5: expected an integer", lambda a: a.register_producer_offsets("p", {BUCKET: 1.5})),
    ("ttl_ms '5'", lambda a: a.register_producer_offsets("p", {}, ttl_ms="5")),
    (r"list of ids, such as \[0\]", lambda a: a.add_server_tag("0", "temporary_offline")),
    ("tablet server True", lambda a: a.add_server_tag([True], "temporary_offline")),
    ("TEMPORARY_OFFLINE.*did you mean", lambda a: a.add_server_tag([0], "temporary_ofline")),
    ("no ServerTag 5: .*PERMANENT_OFFLINE", lambda a: a.remove_server_tag([0], 5)),
    ("no ServerTag None", lambda a: a.remove_server_tag([0], None)),
    ("needs a goal: REPLICA_DISTRIBUTION", lambda a: a.rebalance([])),
    ("invalid goals None", lambda a: a.rebalance(None)),
    ("no GoalType True", lambda a: a.rebalance([True])),
    ("rebalance_id ''", lambda a: a.cancel_rebalance("")),
    ("rebalance_id 5", lambda a: a.list_rebalance_progress(5)),
    ("no setting to change", lambda a: a.alter_cluster_configs()),
    ("reset_configs: .*'abc'", lambda a: a.alter_cluster_configs(reset_configs="abc")),
    ("reset_configs: .*5", lambda a: a.alter_cluster_configs(reset_configs=5)),
    ("set_configs: .*'a=b'", lambda a: a.alter_cluster_configs(set_configs="a=b")),
    (r"\[1\] of the property 'x'", lambda a: a.alter_cluster_configs(set_configs={"x": [1]})),
    ("text 1 as the key", lambda a: a.alter_cluster_configs(set_configs={1: "x"})),
    ("text None as the key", lambda a: a.alter_cluster_configs(reset_configs=[None])),
    ("value of the property", lambda a: a.alter_cluster_configs(set_configs={"x": "\ud800"})),
    (
        "servers of Fluss 0.9.1 crash with it",
        lambda a: a.alter_cluster_configs(
            set_configs={"kv.rocksdb.shared-rate-limiter.bytes-per-sec": "0 mb"}
        ),
    ),
    (
        "'x' is named twice",
        lambda a: a.alter_cluster_configs(set_configs={"x": 1}, append_configs={"x": 1}),
    ),
]


def lease(admin: fluss.FlussAdmin) -> Any:
    return admin.create_kv_snapshot_lease("lease", 1000)


@pytest.mark.parametrize(("words", "call"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_told(
    admin: fluss.FlussAdmin, words: str, call: Callable[[Any], object]
) -> None:
    with pytest.raises(FlussError, match=words):
        call(admin)


@pytest.mark.parametrize("name", ["get_latest_kv_snapshots", "list_kv_snapshots"])
def test_unknown_names(admin: fluss.FlussAdmin, database: str, name: str) -> None:
    ask = getattr(admin, name)
    with pytest.raises(FlussError, match=f"{database}.nothing_here does not exist") as raised:
        ask(fluss.TablePath(database, "nothing_here"))
    assert raised.value.error_code == ErrorCode.TABLE_NOT_EXIST
    with pytest.raises(FlussError, match="there is no database 'nothing_here'") as raised:
        ask(fluss.TablePath("nothing_here", "t"))
    assert raised.value.error_code == ErrorCode.DATABASE_NOT_EXIST


@pytest.mark.parametrize("name", ["", " \t", "\u2003", "\x1c"])
def test_names_that_nobody_could_see(admin: fluss.FlussAdmin, database: str, name: str) -> None:
    path = fluss.TablePath(database, "blank")
    nested = pa.list_(pa.struct([(name, pa.int64())]))
    for field in ((name, pa.int64()), ("x", nested)):
        columns = pa.schema([field])
        with pytest.raises(FlussError, match="at least one non-whitespace") as raised:
            admin.create_table(path, fluss.TableDescriptor(fluss.Schema(columns)))
        assert raised.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
    # a space that is none to Java
    seen = fluss.Schema(pa.schema([("\u00a0", pa.int64())]))
    admin.create_table(path, fluss.TableDescriptor(seen))
    for field in ((name, pa.int64()), ("y", nested)):
        with pytest.raises(FlussError, match="at least one non-whitespace"):
            admin.alter_table(path, add_columns=pa.schema([field]))
    assert admin.get_table_info(path).get_column_names() == ["\u00a0"]
    admin.drop_table(path)
