"""Statements that change tables, killed: ``python -m tests.campaigns.statements_killed``.

A process runs INSERT OVERWRITE of a partitioned log, of a plain log and of a primary-key table, or
MERGE, and is killed: before each step that changes something, one after the other, and at random
moments. Then what docs/ibis.md promises must hold: the rows are the
old ones or the new ones, or the new ones are all in the table beside; of a primary-key table no key
is missing that both have; each row is wholly the old or the new one; and the statement run again
completes.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Annotated

import polars as pl
import typer

import fluss_df as fluss
from fluss_df.backend import Backend
from fluss_df.cluster import LocalCluster
from fluss_df.errors import ErrorCode

ROWS = 20_000
# generation g: keys g*1000 .. g*1000+ROWS, all values g
_CHILD = """
import os, signal, sys
from fluss_df.backend import Backend
from fluss_df.client.admin.admin import FlussAdmin
from fluss_df.io.sinks.writing import Writing
con = Backend().connect(sys.argv[1])
con.raw_sql("INSERT OVERWRITE warm SELECT k + 1 AS k FROM warm")
left = int(sys.argv[3])

def counted(kind, name):
    old = getattr(kind, name)
    def new(*args, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return old(*args, **options)
    setattr(kind, name, new)

for name in ("create_table", "drop_table", "create_partition", "drop_partition"):
    counted(FlussAdmin, name)
for name in ("_hand", "__exit__"):
    counted(Writing, name)
print("ready", flush=True)
con.raw_sql(sys.argv[2])
print("done", flush=True)
"""


def rows(generation: int) -> pl.DataFrame:
    at = pl.int_range(ROWS, eager=True).cast(pl.Int64)
    return pl.DataFrame(
        {"k": at + generation * 1000, "g": pl.repeat(generation, ROWS, dtype=pl.Int64, eager=True)}
    ).with_columns(dt=pl.lit("p") + (pl.col("k") % 3).cast(pl.String))


STATEMENTS = {
    "log": "INSERT OVERWRITE log SELECT * FROM new_{0}",
    "parts": "INSERT OVERWRITE parts SELECT * FROM new_{0}",
    "keyed": "INSERT OVERWRITE keyed SELECT * FROM new_{0}",
    "merged": "MERGE INTO merged AS t USING new_{0} AS s ON t.k = s.k AND t.dt = s.dt"
    " WHEN MATCHED THEN UPDATE SET g = s.g WHEN NOT MATCHED THEN INSERT *"
    " WHEN NOT MATCHED BY SOURCE THEN DELETE",
}


def prepare(con: Backend) -> None:
    for name, keys, parts in (
        ("log", None, None),
        ("parts", None, "dt"),
        ("keyed", ["k", "dt"], "dt"),
        ("merged", ["k", "dt"], None),
    ):
        con.create_table(name, rows(0), primary_key=keys, partition_by=parts, buckets=2)
    con.create_table("warm", pl.DataFrame({"k": [1]}), buckets=1)
    for generation in (0, 1):
        con.create_table(f"new_{generation}", rows(generation), buckets=2)


def content(con: Backend, name: str) -> Counter[tuple[object, ...]]:
    return Counter(con.raw_sql(f"SELECT * FROM {name}").rows())


def content_beside(con: Backend, name: str) -> Counter[tuple[object, ...]]:
    """As ``content``, of a table beside: one that its killed creator could not look after is empty.

    Where the coordinator of 0.9.1 missed it, it has no leader, ever.
    """
    try:
        return content(con, name)
    except fluss.FlussError as error:
        if error.error_code != ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION:
            raise
        print(f"{name}: {error}", flush=True)
        return Counter()


def check(con: Backend, name: str, old: int, new: int) -> str:
    """Return what was found; raise where a promise does not hold."""
    before, after = Counter(rows(old).rows()), Counter(rows(new).rows())
    beside = [t for t in con.list_tables() if t.startswith(f"{name}_overwrite_")]
    exists = con.connection.get_admin().table_exists(fluss.TablePath("fluss", name))
    found = content(con, name) if exists else Counter()
    if name in ("keyed", "merged"):
        assert not beside
        by_key = {(k, dt): g for k, g, dt in found}
        assert len(by_key) == sum(found.values()), "a key twice"
        old_rows = {(k, dt): g for k, g, dt in before}
        new_rows = {(k, dt): g for k, g, dt in after}
        for key, value in by_key.items():
            assert value in (old_rows.get(key), new_rows.get(key)), f"{key} has {value}"
        missing = (old_rows.keys() & new_rows.keys()) - by_key.keys()
        assert not missing, f"{len(missing)} keys of both are gone"
        state = "old" if found == before else "new" if found == after else "part"
    else:
        whole = [t for t in beside if content_beside(con, t) == after]
        state = "old" if found == before else "new" if found == after else "part"
        if state == "part":
            assert whole, f"{sum(found.values())} rows left, and {beside} has not the new ones"
            if not exists:
                comment = con.table_info(whole[0]).comment or ""
                con.raw_sql(comment.partition("created by: ")[2])
            con.raw_sql(f"INSERT OVERWRITE {name} SELECT * FROM {whole[0]}")
            assert content(con, name) == after
    for table in beside:
        con.drop_table(table)
    con.raw_sql(STATEMENTS[name].format(new))
    assert content(con, name) == after, f"{name}: run again, it has other rows"
    return state if exists else f"{state}, table gone"


def trial(
    where: str, name: str, new: int, step: int, delay: float | None
) -> tuple[str, bool, float]:
    """Kill a statement before a step, or after a delay.

    Return what was found, whether the statement ended, and for how long it ran.
    """
    statement = STATEMENTS[name].format(new)
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, where, statement, str(step)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    begun = time.monotonic()
    if delay is not None:
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
    child.wait()
    took = time.monotonic() - begun
    ended = child.stdout.read() == "done\n"
    config = {"bootstrap.servers": where, "retry-timeout": 20_000}
    with fluss.connect(config) as connection:
        con = Backend()
        con.do_connect(connection)
        return check(con, name, 1 - new, new), ended, took


def main(
    rounds: Annotated[int, typer.Option(help="Kills at random moments.")] = 10,
    engine: Annotated[str, typer.Option(help="embedded or cluster.")] = "embedded",
    seed: Annotated[int, typer.Option(help="Of the random moments.")] = 1,
    only: Annotated[str, typer.Option(help="Names of tables, comma-separated; all if empty.")] = "",
) -> None:
    """Kill statements, and look at what is left."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        cluster = LocalCluster().start() if engine == "cluster" else None
        where = cluster.bootstrap_servers if cluster else folder
        try:
            with fluss.connect(where) as connection:
                con = Backend()
                con.do_connect(connection)
                prepare(con)
            names = [name for name in STATEMENTS if not only or name in only.split(",")]
            found: dict[str, Counter[str]] = {name: Counter() for name in names}
            for name in names:
                new, step, ended, took = 1, 0, False, 0.0
                while not ended:
                    step += 1
                    state, ended, took = trial(where, name, new, step, None)
                    new = 1 - new
                    found[name][state] += 1
                    print(f"{name}: killed before step {step}: {state}", flush=True)
                for _ in range(rounds):
                    # the end of its process takes about half of that; some kills come too late
                    delay = rng.random() * took * 0.55
                    state, ended, _ = trial(where, name, new, -1, delay)
                    new = 1 - new
                    found[name][f"{state}, ended" if ended else state] += 1
                    print(f"{name}: killed after {delay:.2f} s: {state}, {ended=}", flush=True)
        finally:
            if cluster is not None:
                cluster.stop()
    for name, states in found.items():
        print(f"{name}: {dict(states)}")


if __name__ == "__main__":
    typer.run(main)
