"""Kills of rounds of our tiering into Paimon, and hand-overs to and from Flink's, at length.

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
import time
from collections.abc import Sequence

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.lake.rounds.tasks import InThreads
from fluss_df.lake.tiering import TieringRound, TieringService
from fluss_df.lake.tiering.table_round import TableRound
from tests.lake.tiering.support import KINDS, LakeTable, tier_until_done
from tests.waiting import wait_until

_TAKE_OVER_S = 300
_LATEST_KILL_S = 0.5
_PROGRAM = """
import sys
from tests.campaigns.paimon_tiering import rounds
rounds(sys.argv[1], sys.argv[2:])
"""
_LATER = {"table.datalake.freshness": "1h"}


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
    """Kill a process that tiers round after round, and have the next one go on."""
    chance = random.Random(seed)
    tables = [LakeTable(cluster, kind, f"killed_{kind}", _LATER).create() for kind in KINDS]
    names = [table.name for table in tables]
    for number in range(kills):
        written(tables, number)
        service = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, cluster.bootstrap_servers, *names],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert service.stdout is not None
        # how long it takes to start says nothing: it is killed in one of its first rounds
        for _ in range(chance.randrange(1, 4)):
            assert service.stdout.readline().startswith("round"), "it ended by itself"
        time.sleep(_LATEST_KILL_S * chance.random())
        service.send_signal(signal.SIGKILL)
        service.wait()
        service.stdout.close()
        print(f"kill {number + 1} of {kills}", flush=True)
    with fluss.connect(cluster.bootstrap_servers) as connection:
        for table in tables:
            while one_round(connection, table.name).snapshot_id is not None:
                pass
    checked(tables)
    for table in tables:
        snapshots = len(list(table.paimon().glob("snapshot/snapshot-*")))
        print(f"{table.kind}: {snapshots} snapshots, each row once", flush=True)


def one_round(connection: fluss.FlussConnection, name: str) -> TieringRound:
    """Tier a small part of a table."""
    info = connection.get_admin().get_table_info(fluss.TablePath("fluss", name))
    round_ = TableRound(connection, info, max_rows=300, max_changes=300, run_tasks=InThreads(2))
    return round_.run(lambda: None)


def rounds(address: str, names: Sequence[str]) -> None:
    """Tier tables round after round, until it is killed."""
    with fluss.connect(address) as connection:
        while True:
            for name in names:
                one_round(connection, name)
                print("round", flush=True)


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
                wait_until(
                    lambda: all(table.tiered() == table.ends() for table in tables), _TAKE_OVER_S
                )
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
