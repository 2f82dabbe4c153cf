"""Each extra by itself in a clean environment: ``python -m tests.extras``.

It is installed with pip from this tree, under the constraints of the repository, and what it is
for is run in an empty folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]

_WRITE = """
import polars as pl
import fluss_df
frame = pl.DataFrame({"a": [1, 2], "b": ["x", None]})
frame.write_fluss("t", connection="./data", create_if_not_exists=True)
assert fluss_df.read_fluss("t", connection="./data").sort("a").equals(frame)
"""
_UI = """
import os, pathlib, signal, subprocess, urllib.request
command = ["fluss-df", "ui", "--connection", "./data", "--port", "0"]
console = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
link = console.stdout.readline().split()[-1]
page = urllib.request.urlopen(link.partition("#")[0]).read().decode()
assert "Log in" in page and "/static/style.css" in page, page
console.send_signal(signal.SIGINT)
assert console.wait(30) == 0
"""
_NOTEBOOK = """
import nbformat, os, sys
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=300).execute(cwd=os.getcwd())
"""
_LAKE = """
import os, pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from fluss_df import TablePath
from fluss_df.lake.iceberg.catalog import CATALOG_NAME, open_lake_table
from fluss_df.lake.iceberg.files import snapshot_files
from fluss_df.lake.iceberg.frames import lake_frame
from fluss_df.lake.options import LakeOptions
place = {"uri": f"sqlite:///{os.getcwd()}/c.db", "warehouse": f"file://{os.getcwd()}/w"}
catalog = SqlCatalog(CATALOG_NAME, **place)
catalog.create_namespace("db")
rows = pa.table({"a": [1, 2]})
catalog.create_table("db.t", rows.schema).append(rows)
options = {"type": "jdbc", **place, "uri": f"jdbc:sqlite:{os.getcwd()}/c.db"}
table = open_lake_table(LakeOptions(TablePath("db", "t"), "iceberg", options))
files = snapshot_files(table, table.current_snapshot().snapshot_id)
assert lake_frame(table, files).collect()["a"].to_list() == [1, 2]
"""
_PAIMON = """
import json, os, fastavro, polars as pl
from fluss_df import TablePath
from fluss_df.lake.options import LakeOptions
from fluss_df.lake.paimon.catalog import open_paimon
home = os.getcwd() + "/w/db.db/t"
for name in ("schema", "snapshot", "manifest", "bucket-0"):
    os.makedirs(f"{home}/{name}")
pl.DataFrame({"a": [1, 2]}).write_parquet(f"{home}/bucket-0/x.parquet")
columns = [{"id": 0, "name": "a", "type": "BIGINT"}]
schema = {"id": 0, "fields": columns, "partitionKeys": [], "primaryKeys": [], "options": {}}
snapshot = {"schemaId": 0, "baseManifestList": "none", "deltaManifestList": "list"}
for name, content in (("schema/schema-0", schema), ("snapshot/snapshot-1", snapshot)):
    with open(f"{home}/{name}", "w") as file:
        json.dump(content, file)
def avro(name, types, rows):
    fields = [{"name": key, "type": kind} for key, kind in types.items()]
    schema = {"type": "record", "name": "r", "fields": fields}
    with open(f"{home}/manifest/{name}", "wb") as file:
        fastavro.writer(file, schema, rows, codec="zstandard")
avro("none", {"_FILE_NAME": "string"}, [])
avro("list", {"_FILE_NAME": "string"}, [{"_FILE_NAME": "m"}])
of_stats = {"_MIN_VALUES": "bytes", "_MAX_VALUES": "bytes", "_NULL_COUNTS": ["null", "long"]}
of_file = {
    "_FILE_NAME": "string", "_FILE_SIZE": "long", "_ROW_COUNT": "long", "_MIN_KEY": "bytes",
    "_MAX_KEY": "bytes", "_MIN_SEQUENCE_NUMBER": "long", "_MAX_SEQUENCE_NUMBER": "long",
    "_SCHEMA_ID": "long", "_LEVEL": "int", "_DELETE_ROW_COUNT": "long",
}
def record(name, types):
    return {
        "type": "record", "name": name, "fields": [{"name": k, "type": t} for k, t in types.items()]
    }
of_file["_VALUE_STATS"] = record("s", of_stats)
types = {"_KIND": "int", "_PARTITION": "bytes", "_BUCKET": "int", "_FILE": record("f", of_file)}
stats = {"_MIN_VALUES": b"", "_MAX_VALUES": b"", "_NULL_COUNTS": None}
entry = {
    "_FILE_NAME": "x.parquet", "_FILE_SIZE": 1, "_ROW_COUNT": 2, "_MIN_KEY": b"", "_MAX_KEY": b"",
    "_MIN_SEQUENCE_NUMBER": 0, "_MAX_SEQUENCE_NUMBER": 1, "_SCHEMA_ID": 0, "_LEVEL": 0,
    "_DELETE_ROW_COUNT": 0, "_VALUE_STATS": stats,
}
avro("m", types, [{"_KIND": 0, "_PARTITION": b"", "_BUCKET": 0, "_FILE": entry}])
options = LakeOptions(TablePath("db", "t"), "paimon", {"warehouse": f"{os.getcwd()}/w"})
table = open_paimon(options, 1)
assert table.frame(table.wanted([])).collect()["a"].to_list() == [1, 2]
"""
_LANCE = """
import os, lance, polars as pl
from fluss_df import TablePath
from fluss_df.lake.lance.snapshot import LanceFile, LanceSnapshot
place = os.getcwd() + "/t.lance"
dataset = lance.write_dataset(pl.DataFrame({"a": [1, 2]}).to_arrow(), place)
files = [LanceFile(place, 2, 1, {}, one.fragment_id) for one in dataset.get_fragments()]
table = LanceSnapshot(TablePath("db", "t"), dataset, files, ())
assert table.frame(table.wanted([])).collect()["a"].to_list() == [1, 2]
"""
_METRICS = """
import urllib.request, polars as pl
import fluss_df
from fluss_df.metrics import start_http_server
frame = pl.DataFrame({"a": [1, 2]})
with start_http_server() as server:
    frame.write_fluss("t", connection="./data", create_if_not_exists=True)
    text = urllib.request.urlopen(server.url).read().decode()
assert 'fluss_client_writer_records_total{table="fluss.t"} 2.0' in text
"""
# without the SDK: spans are made, and nobody keeps them
_OTEL = """
import polars as pl
import fluss_df
from fluss_df.metrics import start_tracing, stop_tracing
start_tracing()
frame = pl.DataFrame({"a": [1, 2]})
frame.write_fluss("t", connection="./data", create_if_not_exists=True)
assert fluss_df.read_fluss("t", connection="./data").sort("a").equals(frame)
stop_tracing()
"""
_FLIGHT = """
from fluss_df.embedded import EmbeddedFluss
from fluss_df.flight import FlightSqlServer, FolderAccess
import pyarrow.flight
with EmbeddedFluss(None) as engine, FlightSqlServer(FolderAccess(engine)) as server:
    client = pyarrow.flight.connect(server.url)
    assert client.list_actions()
    client.close()
"""
# extra, or none, and programs that need it: Python, or a command line
TRIALS: dict[str, list[list[str]]] = {
    "": [["python", "-c", _WRITE], ["fluss-df", "tables", "--connection", "./data"]],
    "ibis": [
        [
            "python",
            "-c",
            "import ibis\n"
            "con = ibis.fluss.connect(':memory:')\n"
            "con.raw_sql('CREATE TABLE t (a INT)')\n"
            "con.raw_sql('INSERT INTO t VALUES (1), (NULL)')\n"
            "assert con.table('t').a.sum().execute() == 1\n",
        ],
        ["fluss-df", "sql", "SELECT 1 AS a", "--connection", ":memory:"],
    ],
    "pandas": [
        [
            "python",
            "-c",
            "import pandas as pd, fluss_df\n"
            "frame = pd.DataFrame({'a': [1]})\n"
            "fluss_df.write_fluss(frame, 't', connection='./data', create_if_not_exists=True)\n"
            "assert fluss_df.read_fluss('t', connection='./data').to_pandas()['a'][0] == 1\n",
        ]
    ],
    "spark": [
        [
            "python",
            "-c",
            "import fluss_df.spark\n"
            "from pyspark.sql import SparkSession\n"
            "import pyspark.sql.connect.dataframe, pyspark.pipelines\n"
            "from pyspark_fluss import DefaultSource\n"
            "assert DefaultSource.name() == 'fluss' and callable(fluss_df.spark.sql)\n",
        ]
    ],
    "lake": [["python", "-c", _LAKE]],
    "paimon": [["python", "-c", _PAIMON]],
    "lance": [["python", "-c", _LANCE]],
    "metrics": [["python", "-c", _METRICS]],
    "otel": [["python", "-c", _OTEL]],
    "flight": [["python", "-c", _FLIGHT]],
    "ui": [["python", "-c", _UI]],
    "demo": [["fluss-df", "demo", "--plot", "demo.png"]],
    "notebook": [
        ["python", "-c", _NOTEBOOK, str(path)]
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    ],
}


def tried(extra: str, folder: Path) -> str | None:
    """Install an extra and run its programs; return what failed."""
    home = folder / "venv"
    venv.create(home, with_pip=True)
    scripts = home / ("Scripts" if sys.platform == "win32" else "bin")
    constraints = str(ROOT / "constraints.txt")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FLUSS_", "PYTHON", "VIRTUAL_ENV"))
    }
    environment |= {
        "PATH": os.pathsep.join([str(scripts), environment.get("PATH", "")]),
        "PIP_CONSTRAINT": constraints,
        "PIP_BUILD_CONSTRAINT": constraints,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    what = str(ROOT) + (f"[{extra}]" if extra else "")
    work = folder / "work"
    work.mkdir()
    for line in (["python", "-m", "pip", "install", "--quiet", what], *TRIALS[extra]):
        done = subprocess.run(
            [str(scripts / line[0]), *line[1:]],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        if done.returncode:
            shown = " ".join(line)[:200]
            return f"{shown}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", help=f"of: {' '.join(TRIALS)}")
    given = parser.parse_args().extras or list(TRIALS)
    if unknown := sorted(set(given) - set(TRIALS)):
        parser.error(f"there is no extra {unknown[0]!r}")
    failed = 0
    for extra in given:
        with tempfile.TemporaryDirectory() as folder:
            reason = tried(extra, Path(folder))
        name = f"fluss-df[{extra}]" if extra else "fluss-df"
        print(f"{name}: {'ok' if reason is None else f'FAILED: {reason}'}", flush=True)
        failed += reason is not None
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
