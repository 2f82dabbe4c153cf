"""Killing and restarting servers while rows are upserted: nothing lost, doubled or reordered.

Rows of new keys are written: a put that counted twice would show as an update in the changelog.
"""

from __future__ import annotations

import threading
import time

import pyarrow as pa

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from tests.faults.rest import Rest, wait_for_checkpoint
from tests.faults.test_killed_servers import BUCKETS, SCHEMA, batch


def make_table(connection: fluss.FlussConnection, name: str) -> fluss.FlussTable:
    admin = connection.get_admin()
    admin.create_database("faults", ignore_if_exists=True)
    path = fluss.TablePath("faults", name)
    schema = fluss.Schema(SCHEMA, primary_keys=["id"])
    admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=BUCKETS))
    return connection.get_table(path)


def assert_exactly(table: fluss.FlussTable, rows: int) -> None:
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
    changes = scanner.to_arrow()
    assert set(changes.column("_change_type").to_pylist()) == {"+I"}
    assert sorted(changes.column("id").to_pylist()) == list(range(rows))
    current = table.new_scan().create_snapshot_scanner().to_arrow().sort_by("id")
    assert current.column("id").to_pylist() == list(range(rows))
    assert current.column("text").to_pylist() == [f"text-{i}" for i in range(rows)]


def test_upserts_while_the_only_server_restarts(one_server: LocalCluster) -> None:
    with fluss.connect(one_server.bootstrap_servers) as connection:
        table = make_table(connection, "upsert_kill")
        rest, done = Rest(one_server, table), threading.Event()

        def disturb() -> None:
            try:
                for _ in range(2):
                    time.sleep(0.5)
                    rest.kill()
                    one_server.start_tablet_server(0)
            finally:
                done.set()

        thread = threading.Thread(target=disturb)
        thread.start()
        written = after = 0
        with table.new_upsert().create_writer() as writer:
            while not done.is_set() or after < 20:
                after += done.is_set()
                rest.here(writer.flush)
                # single rows and frames, several on their way at once
                for i in range(written, written + 20):
                    writer.upsert({"id": i, "text": f"text-{i}"})
                writer.write_arrow_batch(batch(written + 20, 480))
                written += 500
                if written % 2000 == 0:
                    writer.flush()
        thread.join()
        assert connection.metrics.retries > 0
        assert_exactly(table, written)


def test_lookups_while_the_only_server_restarts(one_server: LocalCluster) -> None:
    with fluss.connect(one_server.bootstrap_servers) as connection:
        table = make_table(connection, "lookups")
        with table.new_upsert() as writer:
            writer.write_arrow(pa.Table.from_batches([batch(0, 1000)]))
        wait_for_checkpoint(one_server, table)
        one_server.kill_tablet_server(0)
        restart = threading.Thread(target=one_server.start_tablet_server, args=(0,))
        restart.start()
        lookuper = table.new_lookup().create_lookuper()
        assert lookuper.lookup([5]) == {"id": 5, "text": "text-5"}
        rows = lookuper.lookup_arrow(pa.table({"id": range(1000)}))
        assert rows.column("text").to_pylist() == [f"text-{i}" for i in range(1000)]
        restart.join()
        assert connection.metrics.retries > 0


def test_a_scan_begins_anew_after_a_restart(one_server: LocalCluster) -> None:
    with fluss.connect(one_server.bootstrap_servers) as connection:
        table = make_table(connection, "scans")
        with table.new_upsert() as writer:
            writer.write_arrow(pa.Table.from_batches([batch(0, 50_000)]))
        wait_for_checkpoint(one_server, table)
        scanner = table.new_scan().create_snapshot_scanner()
        one_server.kill_tablet_server(0)
        restart = threading.Thread(target=one_server.start_tablet_server, args=(0,))
        restart.start()
        rows = scanner.to_arrow().sort_by("id")
        restart.join()
        assert rows.column("id").to_pylist() == list(range(50_000))
        assert len(scanner.offsets) == BUCKETS
