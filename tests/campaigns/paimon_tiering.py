"""Kills of our tiering service into Paimon, and hand-overs to and from Flink's, at length.

``python -m tests.campaigns.paimon_tiering --kills 100 --hand-overs 20``. After each, the lake has
each row that was written once. A table that a service was at when it ended is its own for two
minutes more: so hand-overs take their time.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.lake.tiering import TieringService
from tests.lake.tiering.support import KINDS, LakeTable, tier_until_done

_TAKE_OVER_S = 300
_LATEST_KILL_S = 2.0
_PROGRAM = "from fluss_df.cli import app; app()"


def written(tables: Sequence[LakeTable], version: int) -> None:
    """Write new rows, updates and deletes."""
    start = version * 300
    for table in tables:
        table.write(list(range(start, start + 1000)), version)
        if table.keyed:
            table.delete(list(range(start, start + 1000, 11)))


def checked(tables: Sequence[LakeTable]) -> None:
    """Hold the lake against the model."""
    for table in tables:
        table.check()


def kill(cluster: LocalCluster, kills: int, seed: int) -> None:
    """Kill the service at random moments, and have it go on."""
    chance = random.Random(seed)
    tables = [LakeTable(cluster, kind, f"killed_{kind}").create() for kind in KINDS]
    with tempfile.TemporaryDirectory() as folder:
        lease_file = Path(folder) / "leases"
        arguments = ["tier", "--connection", cluster.bootstrap_servers]
        arguments += ["--lease-file", str(lease_file), "--keep-snapshots", "1h"]
        for table in tables:
            arguments += ["--table", f"fluss.{table.name}"]
        for number in range(kills):
            written(tables, number)
            service = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *arguments],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert service.stderr is not None
            # how long it takes to start says nothing
            while not service.stderr.readline().startswith("tiering the tables of"):
                assert service.poll() is None, "the service ended by itself"
            time.sleep(_LATEST_KILL_S * chance.random())
            service.send_signal(signal.SIGKILL)
            service.wait()
            service.stderr.close()
            print(f"kill {number + 1} of {kills}", flush=True)
        with (
            fluss.connect(cluster.bootstrap_servers) as connection,
            TieringService(
                connection, [table.path for table in tables], lease_file=lease_file
            ) as service_,
        ):
            tier_until_done(service_, tables, _TAKE_OVER_S)
    checked(tables)
    for table in tables:
        snapshots = len(list(table.paimon().glob("snapshot/snapshot-*")))
        print(f"{table.kind}: {snapshots} snapshots, each row once", flush=True)


def hand_over(cluster: LocalCluster, hand_overs: int) -> None:
    """Have the services take turns."""
    tables = [LakeTable(cluster, kind, f"handed_{kind}").create() for kind in KINDS]
    for number in range(hand_overs):
        for part in range(2):
            written(tables, 2 * number + part)
            if number % 2:
                with (
                    fluss.connect(cluster.bootstrap_servers) as connection,
                    TieringService(connection, [table.path for table in tables]) as service,
                ):
                    tier_until_done(service, tables, _TAKE_OVER_S)
            else:
                if not part:
                    cluster.start_flink_tiering()
                until = time.monotonic() + _TAKE_OVER_S
                while any(table.tiered() != table.ends() for table in tables):
                    assert time.monotonic() < until, "Flink did not tier in time"
                    time.sleep(0.2)
            checked(tables)
        if number % 2 == 0:
            cluster.stop_flink_tiering()
        print(f"hand-over {number + 1} of {hand_overs}: each row once", flush=True)


def main(kills: int, hand_overs: int, seed: int) -> None:
    """Run both, and say how it went."""
    with LocalCluster(datalake="paimon") as cluster:
        kill(cluster, kills, seed)
        hand_over(cluster, hand_overs)
    print(f"{kills} kills and {hand_overs} hand-overs: each row once")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of our service")
    parser.add_argument("--hand-overs", type=int, default=20, help="between the services")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of kills")
    given = parser.parse_args()
    main(given.kills, given.hand_overs, given.seed)
