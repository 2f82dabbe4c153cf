"""The tables of the pipeline, and the events that stream into the first of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import polars as pl

import fluss_df as fluss
from examples.flights_pipeline.data import Reference, Results

DATABASE = "flights_pipeline"
RAW = f"{DATABASE}.raw_flights"
CLEAN = f"{DATABASE}.clean_flights"
QUARANTINE = f"{DATABASE}.quarantine"
DELAYS = f"{DATABASE}.delays"
REFERENCES = ("airlines", "airports", "weather")
_KEYS = {"airlines": ["carrier"], "airports": ["faa"], "weather": ["origin", "time_hour"]}


def create(
    connection: fluss.FlussConnection, events: pl.DataFrame, known: Reference, results: Results
) -> None:
    """Create what does not exist, and fill the tables that events are enriched with."""
    admin = connection.get_admin()
    admin.create_database(DATABASE, ignore_if_exists=True)
    _create(connection, RAW, events, bucket_count=4)
    _create(connection, CLEAN, results.clean, bucket_count=2)
    _create(connection, QUARANTINE, results.quarantine, bucket_count=1)
    _create(connection, DELAYS, results.delays, ["carrier", "origin"], bucket_count=1)
    for name in REFERENCES:
        rows: pl.DataFrame = getattr(known, name)
        _create(connection, f"{DATABASE}.{name}", rows, _KEYS[name], bucket_count=1)
        # the same rows again change nothing
        rows.write_fluss(f"{DATABASE}.{name}", connection=connection)  # type: ignore[attr-defined]


def _create(
    connection: fluss.FlussConnection,
    name: str,
    rows: pl.DataFrame,
    keys: Sequence[str] | None = None,
    *,
    bucket_count: int,
) -> None:
    schema = rows.head(0).to_arrow(compat_level=pl.CompatLevel.oldest()).schema
    descriptor = fluss.TableDescriptor(fluss.Schema(schema, keys), bucket_count=bucket_count)
    path = fluss.TablePath.parse(name)
    connection.get_admin().create_table(path, descriptor, ignore_if_exists=True)


class Feeder:
    """Sends events into the raw table, those first that are not there: it may be killed.

    Parameters
    ----------
    connection
        The cluster.
    events
        All events, in their order.
    batch
        How many go at once.
    rate
        How many go in a second.
    """

    def __init__(
        self, connection: fluss.FlussConnection, events: pl.DataFrame, batch: int, rate: float
    ) -> None:
        there = pl.scan_fluss(RAW, connection=connection).select("event_id").collect()  # type: ignore[attr-defined]
        self._left = events.join(there, on="event_id", how="anti", maintain_order="left")
        self._connection = connection
        self._batch = batch
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: Exception | None = None

    def _run(self) -> None:
        try:
            for start in range(0, self._left.height, self._batch):
                began = time.monotonic()
                part = self._left.slice(start, self._batch)
                part.write_fluss(RAW, connection=self._connection)  # type: ignore[attr-defined]
                if self._stop.wait(max(0.0, part.height / self._rate - time.monotonic() + began)):
                    return
        except Exception as error:
            self.error = error

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
