"""Speed by processors, and the share of time that the interpreter lock is held.

``python -m benchmarks.cores``. The same work is done by child processes that may use 1, 2, 4, 8 ...
processors (their affinity): on an engine in the process, over TCP from a server in another one, by
the official client, and by Polars from files. Children take turns, and the least time counts.

``--lock`` also samples who holds the interpreter lock, by ``py-spy`` (``pip install py-spy``), in
two ways. *Held* is the share of samples of a scan as it is: it counts a thread that the system has
suspended while it holds the lock, which happens when there are more threads than processors.
*Needed* is the time that the lock is held where one thread does all the work, so that nobody is
suspended, as a share of one processor's time. By Amdahl's law the needed share says what more
processors can bring.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet
import typer
from rich.console import Console
from rich.table import Table

import fluss_df as fluss
from benchmarks.data import DATABASE
from benchmarks.embedded import append, log_data, serving, write_ipc
from benchmarks.official import Official
from fluss_df.client.fetch import parallel
from fluss_df.embedded import EmbeddedFluss

_LOG: Final = fluss.TablePath(DATABASE, "log")
_APPENDED: Final = fluss.TablePath(DATABASE, "appended")
_KEYED: Final = fluss.TablePath(DATABASE, "keyed")
_UPSERTED: Final = fluss.TablePath(DATABASE, "upserted")
_BUCKETS: Final = 4
_LOOKUPS: Final = 100_000
# a work is repeated in one child, which has compiled and opened by then what it needs
_REPEATS: Final = 4
# samples a second
_RATE: Final = 400
_WATCHED_S: Final = 6.0
# functions
_SHOWN: Final = 12

Work = Callable[[], object]


def make_tables(connection: fluss.FlussConnection, data: pa.Table) -> None:
    """Create the tables, and fill those that are read, and the one whose rows are replaced."""
    admin = connection.get_admin()
    admin.create_database(DATABASE)
    for path, keys in ((_LOG, []), (_APPENDED, []), (_KEYED, ["id"]), (_UPSERTED, ["id"])):
        schema = fluss.Schema(data.schema, keys)
        admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=_BUCKETS))
    append(connection, _LOG, data)
    fluss.write_fluss(data.slice(0, len(data) // 8), _KEYED, connection=connection)
    # inserts take half the time of updates: whoever came first would have them
    fluss.write_fluss(data.slice(0, len(data) // 16), _UPSERTED, connection=connection)


def works(connection: fluss.FlussConnection, rows: int) -> dict[str, Work]:
    """Return what is done with a connection, by name."""
    data = log_data(rows)
    appended, upserted = data.slice(0, rows // 4), data.slice(0, rows // 16)
    keys = data.select(["id"]).slice(0, _LOOKUPS)
    lookuper = connection.get_table(_KEYED).new_lookup().create_lookuper()

    def scan(name: str = str(_LOG)) -> pl.LazyFrame:
        return fluss.scan_fluss(name, connection=connection)

    return {
        "scan": lambda: scan().collect(engine="streaming"),
        "sum of two columns": lambda: summed(scan()),
        "append": lambda: append(connection, _APPENDED, appended),
        "upsert": lambda: fluss.write_fluss(upserted, _UPSERTED, connection=connection),
        "lookup": lambda: lookuper.lookup_arrow(keys),
        "changelog": lambda: scan(f"{_KEYED}$changelog").collect(engine="streaming"),
    }


def summed(frame: pl.LazyFrame) -> pl.DataFrame:
    """Return the sums of two columns."""
    return frame.select(pl.col("a").sum(), pl.col("c").sum()).collect(engine="streaming")


def official_works(client: Official, rows: int) -> dict[str, Work]:
    """Return what the official client is asked for; its lookups are one by one, and left out."""
    appended = log_data(rows).slice(0, rows // 4)
    return {
        "scan": lambda: client.scan(_LOG.table_name),
        "sum of two columns": lambda: summed(
            pl.DataFrame(client.scan(_LOG.table_name, ["a", "c"])).lazy()
        ),
        "append": lambda: client.append_arrow(_APPENDED.table_name, appended),
    }


def works_of(
    contender: str, place: str, rows: int, alone: bool, stack: contextlib.ExitStack
) -> dict[str, Work]:
    """Return the works of a contender, opened; ``alone`` for reads by the caller's thread."""
    if contender == "in process":
        lanes = {"scanner.fetch.connections": 1} if alone else {}
        properties = {"bootstrap.servers": place, **lanes}
        return works(stack.enter_context(fluss.connect(properties)), rows)
    if contender == "TCP":
        return works(stack.enter_context(fluss.connect(place)), rows)
    if contender == "official":
        client = Official(place)
        stack.callback(client.close)
        return official_works(client, rows)
    read = pl.scan_ipc if contender == "scan_ipc" else pl.scan_parquet
    return {
        "scan": lambda: read(place).collect(engine="streaming"),
        "sum of two columns": lambda: summed(read(place)),
    }


def child(contender: str, place: str, rows: int, work: str, alone: bool) -> None:
    """Do the works of a contender, and print the least seconds of each; or one, again and again."""
    with contextlib.ExitStack() as stack:
        if alone:
            one = unittest.mock.patch.object(parallel, "compute_threads", return_value=1)
            stack.enter_context(one)
        found = works_of(contender, place, rows, alone, stack)
        if not work:
            least = {}
            for name, act in found.items():
                took = []
                for _ in range(_REPEATS):
                    began = time.perf_counter()
                    kept = act()
                    took.append(time.perf_counter() - began)
                    # is not part of it
                    del kept
                least[name] = min(took)
            print(json.dumps(least))
            return
        found[work]()
        print("ready", flush=True)
        sys.stdin.readline()
        times, spent = 0, 0.0
        while spent < _WATCHED_S:
            began = time.perf_counter()
            kept = found[work]()
            spent += time.perf_counter() - began
            del kept
            times += 1
        print(json.dumps({"times": times, "seconds": spent}), flush=True)
        sys.stdin.readline()


def command(contender: str, place: str, rows: int, **more: str) -> list[str]:
    """Return how a child is started."""
    options = [f"--{name}={value}" for name, value in more.items()]
    return [
        *(sys.executable, "-m", "benchmarks.cores", f"--rows={rows}"),
        *(f"--contender={contender}", f"--place={place}", *options),
    ]


def measure(contender: str, place: str, rows: int, cores: int) -> dict[str, float]:
    """Return the seconds of each work of a contender on some processors."""
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    environment = {**os.environ, "POLARS_MAX_THREADS": str(cores), "OMP_NUM_THREADS": str(cores)}
    line = ["taskset", "--cpu-list", ",".join(map(str, chosen)), *command(contender, place, rows)]
    done = subprocess.run(line, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def lock(
    spy: str, place: str, rows: int, work: str, alone: bool
) -> tuple[float, float, collections.Counter[str]]:
    """Return the seconds that one work holds the interpreter lock, those that it takes, and where.

    A place is the innermost function of ours, and its value is the samples that were in it.
    """
    line = command("in process", place, rows, work=work, **({"alone": "yes"} if alone else {}))
    environment = {**os.environ, **({"POLARS_MAX_THREADS": "1"} if alone else {})}
    with (
        tempfile.NamedTemporaryFile("r") as samples,
        subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        while "ready" not in process.stdout.readline():
            assert process.poll() is None, "the child ended"
        watch = [spy, "record", "--gil", "--nonblocking", "--format", "raw"]
        watch += ["--rate", str(_RATE), "--output", samples.name, "--pid", str(process.pid)]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(watch, stdout=quiet, stderr=quiet) as spying:
            # it has found its process by then
            time.sleep(1.5)
            process.stdin.write("\n")
            process.stdin.flush()
            done = json.loads(process.stdout.readline())
            spying.send_signal(signal.SIGINT)
        process.stdin.write("\n")
        process.stdin.flush()
        held = 0
        places: collections.Counter[str] = collections.Counter()
        for sample in samples:
            stack, count = sample.rsplit(" ", 1)
            if re.search(r"\bchild \(", stack) is None or ";" in stack.split("child (")[1]:
                # other than the loop itself, which frees what the work returned
                held += int(count)
                ours = [frame for frame in stack.split(";") if " (fluss_df/" in frame]
                places[re.sub(r":\d+\)$", ")", ours[-1]) if ours else "others"] += int(count)
    return held / _RATE / done["times"], done["seconds"] / done["times"], places


def show(console: Console, seconds: dict[tuple[str, str, int], float], counts: list[int]) -> None:
    """Print the least seconds, and how many times as fast as one processor."""
    table = Table(title="milliseconds, and how many times as fast as one processor")
    for heading in ("work", "contender", *map(str, counts)):
        table.add_column(heading, justify="left" if heading in ("work", "contender") else "right")
    for work, contender in dict.fromkeys((work, contender) for work, contender, _ in seconds):
        row = [seconds[work, contender, count] for count in counts]
        cells = [f"{taken * 1000:,.0f} ({row[0] / taken:.2f})" for taken in row]
        table.add_row(work, contender, *cells)
    console.print(table)


def main(
    rows: Annotated[int, typer.Option(help="Rows of the log table, of 40 bytes.")] = 12_000_000,
    rounds: Annotated[int, typer.Option(help="Children of each contender and number.")] = 3,
    works_wanted: Annotated[str, typer.Option("--works", help="Of --lock: which.")] = (
        "scan,sum of two columns,append,upsert"
    ),
    lock_only: Annotated[bool, typer.Option("--lock", help="The lock alone.")] = False,
    contender: Annotated[str, typer.Option(hidden=True)] = "",
    place: Annotated[str, typer.Option(hidden=True)] = "",
    work: Annotated[str, typer.Option(hidden=True)] = "",
    alone: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Compare them."""
    if contender:
        child(contender, place, rows, work, bool(alone))
        # the official client may abort when its process ends
        sys.stdout.flush()
        os._exit(0)
    console = Console(highlight=False, width=140)
    spy = shutil.which("py-spy")
    if lock_only and spy is None:
        raise SystemExit("py-spy is not installed: pip install py-spy")
    data = log_data(rows)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        engine = home / "in process"
        with EmbeddedFluss(engine) as opened, opened.connection() as connection:
            make_tables(connection, data)
        if lock_only:
            assert spy is not None
            for name in works_wanted.split(","):
                held, taken, _ = lock(spy, str(engine), rows, name, False)
                needed, by_one, where = lock(spy, str(engine), rows, name, True)
                console.print(
                    f"{name}: {taken * 1000:,.0f} ms, the lock held {held / taken:.1%} of them;"
                    f" needed {needed * 1000:,.1f} ms, {needed / taken:.1%} of these and"
                    f" {needed / by_one:.1%} of one thread's {by_one * 1000:,.0f} ms"
                )
                for function, samples in where.most_common(_SHOWN):
                    console.print(f"  {samples / where.total():5.1%} {function}")
            return
        address = stack.enter_context(serving(home / "TCP", "interval"))
        with fluss.connect(address) as connection:
            make_tables(connection, data)
        write_ipc(home / "log.arrow", data, "ZSTD")
        pa.parquet.write_table(data, home / "log.parquet", compression="zstd")
        places = {"in process": str(engine), "TCP": address, "official": address}
        places |= {"scan_ipc": str(home / "log.arrow"), "scan_parquet": str(home / "log.parquet")}
        usable = len(os.sched_getaffinity(0))
        counts = [1 << n for n in range(usable.bit_length()) if 1 << n < usable] + [usable]
        seconds: dict[tuple[str, str, int], float] = {}
        turns = [(name, count) for name in places for count in counts]
        for _ in range(rounds):
            for name, count in random.sample(turns, len(turns)):
                for done, taken in measure(name, places[name], rows, count).items():
                    key = done, name, count
                    seconds[key] = min(taken, seconds.get(key, taken))
        order = list(dict.fromkeys(work for work, _, _ in seconds))
        ordered = sorted(seconds, key=lambda key: (order.index(key[0]), list(places).index(key[1])))
        show(console, {key: seconds[key] for key in ordered}, counts)


if __name__ == "__main__":
    typer.run(main)
