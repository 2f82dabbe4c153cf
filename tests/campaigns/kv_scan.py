"""Scans of the current rows beside a writer, compared with the changelog, many times over.

``python -m tests.campaigns.kv_scan`` runs it on a server of its own; a few runs are in the suite.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from tests.client.kv_support import SCHEMA, by_id, fold, random_changes


def run(table: fluss.FlussTable, runs: int, seed: int) -> int:
    """Scan while a writer changes rows; return how many scans equalled the folded changelog."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        rng = random.Random(seed)
        try:
            with table.new_upsert().create_writer() as writer:
                while not stop.is_set():
                    random_changes(writer, {}, rng, ids=200, calls=10)
                    time.sleep(0.01)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    equal = 0
    try:
        for number in range(runs):
            time.sleep(random.Random(number).random() / 5)
            scanner = table.new_scan().create_snapshot_scanner()
            rows = by_id(scanner.to_arrow())
            equal += rows == fold(table, scanner.offsets)
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]
    return equal


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10_000)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(folder, server_options={"kv.snapshot.interval": "2s"}) as cluster,
        fluss.connect(cluster.bootstrap_servers) as connection,
    ):
        schema = fluss.Schema(SCHEMA, primary_keys=["id"])
        equal = 0
        for first in range(0, options.runs, 20):
            # each scan is compared with the whole changelog: a new table keeps that short
            path = fluss.TablePath("fluss", f"kv{first}")
            descriptor = fluss.TableDescriptor(schema, bucket_count=3)
            connection.get_admin().create_table(path, descriptor)
            table = connection.get_table(path)
            runs = min(20, options.runs - first)
            equal += run(table, runs, options.seed + first)
            print(f"{equal} of {first + runs} scans equal the changelog", flush=True)
    if equal != options.runs:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
