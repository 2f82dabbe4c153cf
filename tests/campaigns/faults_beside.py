"""Broken traffic and failing clusters, with this client and the official one: tables for the docs.

``python -m tests.campaigns.faults_beside [WORD]``: all cases, or those whose name has a word. Takes
half an hour, as the official client hangs in many of them.
"""

from __future__ import annotations

import sys

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from tests.client.put_recorder import recorded_cluster
from tests.client.support import Tables
from tests.faults.beside import beside
from tests.faults.fault_cases import CASES as TRAFFIC
from tests.faults.fault_cases import Case
from tests.faults.fault_proxy import FaultProxy
from tests.faults.halfway import CASES as HALFWAY
from tests.faults.halfway import EXPIRING_SERVER, HalfwayCase, Scene, run

_WATCHED_S = 45.0


def broken_traffic(cases: list[Case]) -> None:
    """Run cases of one answer or connection that breaks."""
    if not cases:
        return
    with beside(LocalCluster) as server:
        for case in cases:
            cells = []
            for client in ("ours", "official"):
                seen = server.run(case, client)
                assert seen["hit"] or seen["outcome"] != "ok", case.name
                cells.append(f"{seen['outcome']}; rows: {seen['rows']}, {seen['seconds']} s")
            _show(case.name, cells)


def changing_clusters(cases: list[HalfwayCase]) -> None:
    """Run cases of what happens to a cluster halfway through a program."""
    alone = [case for case in cases if case.servers == 1]
    several = [case for case in cases if case.servers > 1]
    if alone:
        with recorded_cluster(LocalCluster, server_options=EXPIRING_SERVER) as recorded:
            _halfway(alone, recorded.cluster, recorded.proxy, recorded.tables)
    if several:
        with (
            LocalCluster(tablet_servers=3) as cluster,
            fluss.connect(cluster.bootstrap_servers) as connection,
        ):
            _halfway(several, cluster, None, Tables(connection, "fluss"))


def _halfway(
    cases: list[HalfwayCase], cluster: LocalCluster, proxy: FaultProxy | None, tables: Tables
) -> None:
    for case in cases:
        cells = []
        for client in ("ours", "official"):
            scene = Scene.of(case, cluster, proxy, tables)
            cells.append(run(case, scene, client, _WATCHED_S))
            scene.repair()
        _show(case.name, cells)


def _show(name: str, cells: list[str]) -> None:
    shown = [" ".join(cell.split()).replace("|", "/") for cell in cells]
    print(f"| {name} | {shown[0]} | {shown[1]} |", flush=True)


def main(word: str = "") -> None:
    """Run the cases with both clients, and print what they saw."""
    print("| case | fluss_df | pyfluss |")
    print("|---|---|---|")
    broken_traffic([case for case in TRAFFIC if word in case.name])
    changing_clusters([case for case in HALFWAY if word in case.name])


if __name__ == "__main__":
    main(*sys.argv[1:])
