"""Flink SQL's own union read of tables that our service tiers, beside ours: they are equal.

A part of the rows is in the lake, the rest in the log. Flink 1.20 runs in one JVM, with Fluss's
connector, from Maven Central. Of primary-key tables in Iceberg it refuses the union. Reads of logs
do not end at times, of tables that either service tiered; they are cancelled after a minute.
``--by flink`` has Flink's own service tier the tables; ``--lake paimon`` has them in Paimon, and
``--merged`` has our service merge their small files there before Flink reads them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.cluster.servers import lake
from fluss_df.cluster.servers.jars import copy_artifact, made_once
from fluss_df.cluster.servers.java import find_java
from fluss_df.lake import TieringService
from tests.lake.tiering.support import KINDS, LakeTable
from tests.waiting import wait_until

_MAIN = Path(__file__).with_name("FlinkSql.java")
_PLANNER = "org.apache.flink:flink-table-planner-loader:1.20.3"
# one format for all of a row
_ROW = (
    "CAST(id AS STRING) || '|' || name || '|' || CAST(price AS STRING) || '|' ||"
    " DATE_FORMAT(`at`, 'yyyy-MM-dd HH:mm:ss') || '|' || CAST(small AS STRING) || '|' || `day`"
)
#: conditions of a query, and the same in Polars
CONDITIONS = {
    "": pl.lit(True),
    " WHERE id >= 1200": pl.col("id") >= 1200,
    " WHERE `day` = 'd1'": pl.col("day") == "d1",
    " WHERE name LIKE 'v1%'": pl.col("name").str.starts_with("v1"),
}


def statement(table: str, where: str) -> str:
    """Return a query of a table's rows, as :func:`texts` has them."""
    return f"SELECT {_ROW} FROM fluss.`{table}`{where}"


def sql(
    servers: str, queries: Sequence[str], datalake: str | None = None
) -> dict[int, list[str] | str]:
    """Return the rows of statements by their places, or why Flink refuses one."""

    def fill(folder: Path) -> None:
        copy_artifact(_PLANNER, "fetch the planner of Flink SQL", folder)

    planner = sorted(made_once("flink-planner-1.20.3", fill).glob("*.jar"))
    jars = [*lake._flink_jars(), *(lake.lake_jars(datalake) if datalake else ()), *planner]
    command = [str(find_java()), *lake._TIERING_JVM, "-cp", os.pathsep.join(map(str, jars))]
    done = subprocess.run(
        [*command, str(_MAIN), servers, *queries],
        capture_output=True,
        text=True,
        timeout=2400,
        check=False,
    )
    found: dict[int, list[str] | str] = {}
    rows: dict[int, list[str]] = {}
    for line in done.stdout.splitlines():
        what, _, text = line.partition("\t")
        word, _, number = what.partition(" ")
        if word == "row":
            rows.setdefault(int(number), []).append(text)
        elif word == "end":
            found[int(number) - 1] = sorted(rows.get(int(number), []))
        elif word == "refused":
            found[int(number) - 1] = text
    assert len(found) == len(queries), done.stderr[-4000:]
    return found


@contextlib.contextmanager
def tiering(
    cluster: LocalCluster,
    connection: fluss.FlussConnection,
    tables: Sequence[LakeTable],
    service: str,
) -> Iterator[None]:
    """Have a service tier tables meanwhile."""
    if service == "flink":
        cluster.start_flink_tiering()
        try:
            yield
        finally:
            cluster.stop_flink_tiering()
        return
    with TieringService(connection, [table.path for table in tables]) as ours:
        # errors are logged, and tables tried again
        thread = threading.Thread(target=ours.run)
        thread.start()
        try:
            yield
        finally:
            ours.stop()
            thread.join()


def merges(table: LakeTable) -> int:
    """Return how many snapshots of a Paimon table are of merged files."""
    snapshots = [json.loads(f.read_bytes()) for f in table.paimon().glob("snapshot/snapshot-*")]
    return sum(snapshot["commitKind"] == "COMPACT" for snapshot in snapshots)


def texts(frame: pl.DataFrame) -> list[str]:
    """Return rows as the queries of Flink show them."""
    at = pl.col("at").dt.strftime("%Y-%m-%d %H:%M:%S")
    price = pl.col("price").cast(pl.String)
    row = pl.concat_str(["id", "name", price, at, "small", "day"], separator="|")
    return sorted(frame.select(row).to_series().to_list())


def main(service: str, kinds: Sequence[str], datalake: str, *, merged: bool) -> None:
    """Compare, and say what was compared."""
    with (
        LocalCluster(datalake=datalake) as cluster,
        fluss.connect(cluster.bootstrap_servers) as connection,
    ):
        auto = {"table.datalake.auto-compaction": str(merged).lower()}
        tables = [LakeTable(cluster, kind, f"sql_{kind}", auto).create() for kind in kinds]
        with tiering(cluster, connection, tables, service):
            # as many rounds, and files, as it takes to have them merged
            for version in range(20 if merged else 2):
                first = version * (50 if merged else 500)
                for table in tables:
                    table.write(list(range(first, first + 1000)), version)
                    if table.keyed:
                        table.delete(list(range(first, first + 1000, 7)))
                wait_until(lambda: all(table.tiered() == table.ends() for table in tables), 300)
        for table in tables:
            assert not merged or merges(table), f"nothing of {table.name} was merged"
            table.write(list(range(1200, 1600)), 30)
            if table.keyed:
                table.delete(list(range(1200, 1600, 7)))
            assert table.tiered() != table.ends()
            print(f"{table.kind}: lake to {table.tiered()}, log to {table.ends()}", flush=True)
        asked = [(table, where) for table in tables for where in CONDITIONS]
        queries = [statement(table.name, where) for table, where in asked]
        began = time.monotonic()
        answers = sql(cluster.bootstrap_servers, queries, datalake)
        print(f"{len(queries)} queries of Flink in {time.monotonic() - began:.0f} s")
        equal = 0
        for number, (table, where) in enumerate(asked):
            frame = fluss.scan_fluss(table.name, connection=connection)
            ours = texts(frame.filter(CONDITIONS[where]).collect())
            assert ours == texts(table.expected().filter(CONDITIONS[where])), (table.kind, where)
            answer = answers[number]
            if isinstance(answer, str):
                print(f"{table.kind}{where}: Flink gives no answer: {answer[:200]}")
                continue
            assert answer == ours, (table.kind, where, len(answer), len(ours))
            equal += 1
            print(f"{table.kind}{where}: {len(ours)} rows, equal")
        print(f"{equal} of {len(queries)} queries are equal")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--by", choices=["ours", "flink"], default="ours", help="who tiers")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of tables")
    parser.add_argument("--lake", choices=["iceberg", "paimon"], default="iceberg", help="format")
    parser.add_argument("--merged", action="store_true", help="files are merged (Paimon)")
    given = parser.parse_args()
    main(given.by, given.kinds.split(","), given.lake, merged=given.merged)
