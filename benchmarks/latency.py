"""How soon Polars sees a row: ``python -m benchmarks.latency``; see ``--help``.

From the acknowledgement of a row to the batch of a query that follows its table.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from typing import Annotated

import pyarrow as pa
import typer

import fluss_df as fluss
from fluss_df.cluster import LocalCluster

ROWS = 100
WARM_UP = 20
AIM_MS = 50


def follow(connection: fluss.FlussConnection) -> list[float]:
    """Return the seconds from a row's acknowledgement to the batch it is in, one for each row."""
    schema = pa.schema({"id": pa.int64()})
    path = fluss.TablePath("fluss", "latency_log")
    connection.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(schema)))
    count = ROWS + WARM_UP
    acknowledged: dict[int, float] = {}
    came: dict[int, float] = {}
    query = fluss.scan_fluss(path, connection=connection, follow=True, max_rows=count)

    def consume() -> None:
        for batch in query.collect_batches():
            now = time.perf_counter()
            came.update(dict.fromkeys(batch["id"], now))

    consumer = threading.Thread(target=consume)
    consumer.start()
    with connection.get_table(path).new_append().create_writer() as writer:
        for i in range(count):
            # not in step with anything
            time.sleep(0.02 + (i * 7 % 13) / 500)
            writer.append([i]).wait()
            acknowledged[i] = time.perf_counter()
    consumer.join(60)
    # a batch can come before its writer hears of it
    return [max(0.0, came[i] - acknowledged[i]) for i in range(WARM_UP, count)]


def main(
    engine: Annotated[str, typer.Option(help="embedded, cluster or host:port.")] = "cluster",
) -> None:
    """Measure, and print the median."""
    with contextlib.ExitStack() as stack:
        address = engine
        if engine == "cluster":
            address = stack.enter_context(LocalCluster()).bootstrap_servers
        elif engine == "embedded":
            address = ":memory:"
        connection = stack.enter_context(fluss.connect(address))
        ms = sorted(seconds * 1000 for seconds in follow(connection))
    print(
        f"{engine}: acknowledged row to the batch of a following query: median"
        f" {statistics.median(ms):.1f} ms, 95 % {ms[int(len(ms) * 0.95)]:.1f} ms (aim: {AIM_MS} ms)"
    )


if __name__ == "__main__":
    typer.run(main)
