"""What the guide to Spark shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

from fluss_df import read_fluss, write_fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from tests.run_page import ADDRESS, blocks_of

GUIDE = Path(__file__).parents[2] / "docs" / "spark.md"
FLIGHTS = {"origin": ["JFK", "LGA"], "carrier": ["B6", "B6"], "arr_delay": [5.0, 7.0]}


def test_examples(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = [block.text for block in blocks_of(GUIDE) if block.language == "python"]
    assert len(examples) == 8
    options = EngineOptions(lake_tiering=False)
    with EmbeddedFluss(None, port=0, options=options) as engine, engine.connection() as connection:
        flights = pl.DataFrame(FLIGHTS)
        write_fluss(flights, "flights", connection=connection, create_if_not_exists=True)
        airlines = pl.DataFrame({"carrier": ["B6"], "name": ["JetBlue"]})
        write_fluss(airlines, "airlines", connection=connection, create_if_not_exists=True)
        days = pl.DataFrame({"day": ["2026-01-31"], "id": [1]})
        write_fluss(
            days,
            "by_day",
            connection=connection,
            create_if_not_exists=True,
            partition_keys=["day"],
            create_partitions=True,
        )
        delays = pl.DataFrame(schema={"carrier": pl.String, "arr_delay": pl.Float64})
        write_fluss(delays, "delays", connection=connection, create_if_not_exists=True)
        write_fluss(
            days,
            "visits",
            connection=connection,
            create_if_not_exists=True,
            properties={"table.datalake.enabled": "true", "table.datalake.freshness": "1ms"},
        )
        names: dict[str, Any] = {
            "rows": spark.createDataFrame([("LGA", "B6", 1.0)], list(FLIGHTS)),
            "new_rows": spark.createDataFrame([("2026-01-31", 2)], ["day", "id"]),
        }
        for example in examples:
            source = example.replace(ADDRESS, engine.address)
            for folder in ("delays", "copies"):
                # the folder of the JVM is not that of the test
                source = re.sub(rf'"({folder}(\.checkpoint)?)"', rf'"{tmp_path}/\1"', source)
            exec(compile(source, GUIDE.name, "exec"), names)
        assert "JetBlue" in capsys.readouterr().out
        assert [tiered.rows for tiered in names["done"]] == [1]
        delays = read_fluss("delays", connection=connection)
        assert delays.rows() == [("B6", 7.0)]
        assert read_fluss("flights", connection=connection).height == 3
        assert read_fluss("by_day", connection=connection)["id"].to_list() == [2]
