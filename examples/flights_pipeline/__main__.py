"""Run the pipeline: ``python -m examples.flights_pipeline``; it may be killed and started again."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
from polars.testing import assert_frame_equal
from pyspark.sql.streaming.query import StreamingQuery

import fluss_df as fluss
from examples.flights_pipeline.data import Results, events, expected, reference
from examples.flights_pipeline.picture import Progress, draw
from examples.flights_pipeline.streams import Streams, session
from examples.flights_pipeline.tables import CLEAN, DELAYS, QUARANTINE, RAW, Feeder, create
from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss

_LOOK_S = 1.0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="flights_pipeline", description=__doc__)
    parser.add_argument("--engine", choices=("embedded", "cluster"), default="embedded",
                        help="what is started for the run without --connection")  # fmt: skip
    parser.add_argument("--connection", help="a cluster, a running fluss-df serve, or a folder")
    parser.add_argument("--master", default="local[2]", help="the Spark cluster")
    parser.add_argument("--remote", help="Spark Connect instead: sc://host:port, or local[2]")
    parser.add_argument("--events", type=int, help="how many flights; all by default")
    parser.add_argument("--rate", type=float, default=20_000, help="events sent in a second")
    parser.add_argument("--per-batch", type=int, default=50_000, help="rows read in a batch")
    parser.add_argument("--folder", type=Path, default=Path("flights_pipeline_data"),
                        help="where checkpoints and the picture are")  # fmt: skip
    parser.add_argument("--timeout", type=float, default=900, help="give up after so many seconds")
    return parser.parse_args(argv)


@contextlib.contextmanager
def _address(given: str | None, engine: str, folder: Path) -> Iterator[str]:
    """Give what the option ``connection`` of Spark takes."""
    if given is not None:
        yield given
        return
    if engine == "embedded":
        print("starting an embedded Fluss")
        # Spark's workers are other processes: they reach the folder by this one's socket
        with EmbeddedFluss(folder / "fluss"):
            yield str(folder / "fluss")
        return
    print("starting a Fluss cluster")
    with LocalCluster() as cluster:
        yield cluster.bootstrap_servers


def main(argv: Sequence[str] | None = None) -> None:
    """Run the pipeline to its end, and hold its tables against what Polars computes."""
    options = arguments(argv)
    sent, known = events(options.events), reference()
    wanted = expected(sent, known)
    folder = options.folder.resolve()
    if options.connection is None:
        # checkpoints of another run's tables are of no use
        folder = folder / f"run-{int(time.time())}"
    folder.mkdir(parents=True, exist_ok=True)
    with (
        _address(options.connection, options.engine, folder) as address,
        fluss.connect(address) as connection,
    ):
        create(connection, sent, known, wanted)
        spark = session(options.master, options.remote)
        try:
            queries = Streams(spark, address, folder, options.per_batch).start()
            batch = max(500, int(options.rate / 4))
            with Feeder(connection, sent, batch, options.rate) as feeder:
                progress = _watch(connection, wanted, sent.height, queries, feeder, options.timeout)
            for query in queries:
                query.stop()
        finally:
            spark.stop()
        found = Results(*(_table(connection, name) for name in (CLEAN, QUARANTINE, DELAYS)))
        check(found, wanted)
        picture = folder / "flights_pipeline.png"
        draw(picture, progress, found.delays, found.quarantine)
        print(
            f"equal to the batch computation in Polars: {found.clean.height:,} clean rows,"
            f" {found.quarantine.height:,} in quarantine, {found.delays.height} groups\n{picture}"
        )


def _table(connection: fluss.FlussConnection, name: str) -> pl.DataFrame:
    frame: pl.LazyFrame = pl.scan_fluss(name, connection=connection)  # type: ignore[attr-defined]
    return frame.collect()


def _watch(
    connection: fluss.FlussConnection,
    wanted: Results,
    total: int,
    queries: Sequence[StreamingQuery],
    feeder: Feeder,
    timeout: float,
) -> Progress:
    """Query the tables live until all events are through."""
    began = time.monotonic()
    progress: Progress = []
    while True:
        counts = [
            pl.scan_fluss(name, connection=connection).select(pl.len()).collect().item()  # type: ignore[attr-defined]
            for name in (RAW, CLEAN, QUARANTINE)
        ]
        counted = int(_table(connection, DELAYS)["flights"].sum())
        seconds = time.monotonic() - began
        progress.append((seconds, *counts, counted))
        print(
            f"{seconds:6.1f} s   raw {counts[0]:>8,}   clean {counts[1]:>8,}"
            f"   quarantine {counts[2]:>6,}   counted {counted:>8,}",
            flush=True,
        )
        if feeder.error is not None:
            raise feeder.error
        for query in queries:
            error = query.exception()
            if error is not None:
                raise error
        if counts[0] >= total and counted >= wanted.clean.height and (
            counts[2] >= wanted.quarantine.height
        ):  # fmt: skip
            return progress
        if seconds > timeout:
            raise SystemExit(f"not through after {timeout:g} s")
        time.sleep(_LOOK_S)


def check(found: Results, wanted: Results) -> None:
    """Raise where a table is not what Polars computes."""
    for name in ("clean", "quarantine", "delays"):
        assert_frame_equal(
            getattr(found, name),
            getattr(wanted, name),
            check_row_order=False,
            check_column_order=False,
        )


if __name__ == "__main__":
    main()
