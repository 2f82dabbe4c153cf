"""The admin as coroutines: it has what the synchronous one has, and answers the same."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Awaitable
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as core
import fluss_df.aio as fluss
from fluss_df.embedded import EmbeddedFluss
from tests.client.support import Tables

KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64())])
# older names, what scans ask themselves, and what no coroutine needs
SYNCHRONOUS_ONLY = {"get_table", "get_bucket_offsets", "get_offsets_by_clock", "io"}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("ours", "theirs", "missing"),
    [
        (core.FlussAdmin, fluss.FlussAdmin, SYNCHRONOUS_ONLY),
        (core.KvSnapshotLease, fluss.KvSnapshotLease, {"io"}),
    ],
)
def test_it_has_every_method(ours: type, theirs: type, missing: set[str]) -> None:
    # coroutines that others on the I/O thread await are no part of what users call
    called = {name for name in public(ours) if not inspect.iscoroutinefunction(getattr(ours, name))}
    assert called - public(theirs) == missing


def test_the_cluster_as_such(address: str, tables: Tables, tmp_path: Path) -> None:
    table = tables(KEYED, ["id"])
    with EmbeddedFluss(tmp_path, port=0) as engine, core.connect(engine.address) as connection:
        of_engine = Tables(connection, "aio_admin")
        connection.get_admin().create_database("aio_admin")
        there = of_engine(KEYED, ["id"])
        expected = asyncio.run(asked(address, table))
        assert asyncio.run(asked(engine.address, there)) == expected


async def rebalanced(admin: fluss.FlussAdmin) -> str:
    """Rebalance as soon as every bucket of the cluster has a leader."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await admin.rebalance(["leader_distribution"])
            except fluss.FlussError as error:
                if error.error_code != fluss.ErrorCode.REBALANCE_FAILURE_EXCEPTION:
                    raise
            await asyncio.sleep(0.2)


async def asked(address: str, table: core.FlussTable) -> list[object]:
    """Return what every method answers, without what is a server's own."""
    info = table.get_table_info()
    path, bucket = info.table_path, fluss.TableBucket(info.table_id, 0)
    producer = f"aio-{uuid.uuid4()}"
    async with await fluss.FlussConnection.create({"bootstrap.servers": address}) as connection:
        admin = connection.get_admin()
        configs = await admin.describe_cluster_configs()
        assert "data.dir" in {entry.key for entry in configs}
        server = (await admin.get_server_nodes())[-1].id
        latest = await admin.get_latest_kv_snapshots(path)
        registered = await admin.register_producer_offsets(producer, {bucket: 4})
        known = await admin.get_producer_offsets(producer)
        assert known is not None
        assert known.offsets == {bucket: 4}
        lease = admin.create_kv_snapshot_lease(producer, 60_000)
        last = await rebalanced(admin)
        progress = await admin.list_rebalance_progress(last)
        assert progress is not None
        await admin.delete_producer_offsets(producer)
        await lease.release_snapshots([bucket])
        await lease.renew()
        await lease.drop_lease()
        await admin.add_server_tag([server], "temporary_offline")
        await admin.remove_server_tag([server], fluss.ServerTag.TEMPORARY_OFFLINE)
        await admin.alter_cluster_configs(reset_configs=["datalake.format"])
        answers: list[object] = [
            progress.status,
            latest.snapshot_ids,
            registered,
            await admin.get_producer_offsets(producer),
            (lease.lease_id == producer, lease.lease_duration_ms),
            {s.database_name: s.table_count for s in await admin.list_database_summaries()}[
                path.database_name
            ],
        ]
        calls: list[Awaitable[object]] = [
            admin.get_kv_snapshot_metadata(bucket, 1),
            admin.get_lake_snapshot(path, 1),
            admin.get_readable_lake_snapshot(path),
            admin.cancel_rebalance("none"),
            admin.list_rebalance_progress("none"),
            admin.rebalance([]),
            lease.acquire_snapshots({}),
        ]
        for call in calls:
            try:
                answers.append(await call)
            except fluss.FlussError as error:
                answers.append(error.error_code)
        return answers
