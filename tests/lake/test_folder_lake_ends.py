"""Programs that end while tables of a folder are due for tiering."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, folder_lake
from fluss_df.lake.rounds.split_reader import SplitReader
from tests.lake.folders import BY_HAND, MODULES, catalog, table
from tests.programs import command

ENDING = """
import sys, time
from pathlib import Path
import polars as pl
import pyarrow as pa
import fluss_df as fluss

folder, wait_s, how = sys.argv[1], float(sys.argv[2]), sys.argv[3]
properties = {"table.datalake.enabled": "true", "table.datalake.freshness": "100ms"}
schema = fluss.Schema(pa.schema([("id", pa.int64()), ("word", pa.string())]))
connection = fluss.FlussConnection.create(folder)
for number in range(4):
    path = fluss.TablePath("fluss", f"t{number}")
    connection.get_admin().create_table(
        path, fluss.TableDescriptor(schema, bucket_count=1, properties=properties)
    )
    rows = pl.select(id=pl.int_range(1000), word=pl.lit("some"))
    rows.lazy().sink_fluss(str(path), connection=folder)
# a round is under way
while not list(Path(folder).glob("lake/warehouse/**/*.parquet")):
    time.sleep(0.002)
time.sleep(wait_s)
if how == "close":
    connection.close()
elif how == "exit":
    sys.exit(3)
elif how == "error":
    raise KeyError("mine")
"""


@pytest.mark.parametrize("how", ["end", "exit", "close", "error"])
@pytest.mark.parametrize("wait_s", [0, 0.15])
def test_programs_say_nothing_at_their_end(tmp_path: Path, how: str, wait_s: float) -> None:
    program = [*command(preload=MODULES), "-c", ENDING, str(tmp_path), str(wait_s), how]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == {"exit": 3, "error": 1}.get(how, 0)
    said = done.stderr.splitlines()
    if how == "error":
        assert (said[0], said[-1]) == ("Traceback (most recent call last):", "KeyError: 'mine'")
    else:
        assert not said
    # nothing is lost, and nothing is there twice
    with EmbeddedFluss(tmp_path, port=0, options=BY_HAND) as engine:
        for number in range(4):
            rows = fluss.read_fluss(f"t{number}", connection=engine.address)
            assert rows.equals(pl.select(id=pl.int_range(1000), word=pl.lit("some")))


@pytest.mark.parametrize("ends", ["in time", "late"])
def test_a_round_has_a_little_time_when_the_process_ends(
    tmp_path: Path, ends: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(folder_lake, "_AT_END_S", 60.0 if ends == "in time" else 0.1)
    # one task after another
    monkeypatch.setattr("fluss_df.lake.tiering.service.processors", lambda: 1)
    begun, go_on = threading.Event(), threading.Event()
    whole = SplitReader.__init__

    def slow(self: SplitReader, *given: Any, **named: Any) -> None:
        begun.set()
        go_on.wait(60)
        whole(self, *given, **named)

    monkeypatch.setattr(SplitReader, "__init__", slow)
    with EmbeddedFluss(tmp_path, port=0) as engine:
        lake_table = table(engine, "partitioned", properties={"table.datalake.freshness": "1s"})
        lake_table.write([*range(100)], 1)
        assert begun.wait(60)
        [lake] = [each for each in folder_lake._open if each._owner == tmp_path.resolve()]
        ending = threading.Thread(target=lake.end)
        ending.start()
        if ends == "late":
            ending.join()
        go_on.set()
        ending.join()
    assert caplog.messages == []
    rows = catalog(tmp_path).load_table(("fluss", "partitioned")).scan().to_arrow().num_rows
    # all of them, or none: a round is committed as a whole
    assert rows == (100 if ends == "in time" else 0)
