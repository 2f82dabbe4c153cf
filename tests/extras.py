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
assert lake_frame(table, files)[0].collect()["a"].to_list() == [1, 2]
"""
# extra, or none, and programs that need it: Python, or a command line
TRIALS: dict[str, list[list[str]]] = {
    "": [
        ["python", "-c", _WRITE],
        ["fluss-df", "tables", "--connection", "./data"],
    ],
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
        ],
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
        ],
    ],
    "lake": [["python", "-c", _LAKE]],
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
