"""A large folder: ``python -m tests.campaigns.embedded_large [GB=10] [--dir PATH]``.

Writes a folder of so many GB, then opens it and scans all of it, in a process of its own each: once
after it was closed, once after its owner was killed. Fails where opening takes a second, where a
scan grows anonymous memory by more than a cap, or where a sum is not what was written.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions

OPEN_S = 1.0
CAP = 400 << 20
CHUNK = 1_000_000
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("score", pa.float64()), ("at", pa.int64())]
)
# so many tenths of the folder
TENTHS = {"NONE": 9, "ZSTD": 1}
READER = """
import json, sys, time
import polars as pl
import fluss_df
from fluss_df.embedded import EmbeddedFluss
from tests.memory import PeakMemory

began = time.perf_counter()
engine = EmbeddedFluss(sys.argv[1])
opened = time.perf_counter() - began
connection = engine.connection()
tables = {name: fluss_df.scan_fluss(name, connection=connection) for name in sys.argv[2:]}
first = []
for scan in tables.values():
    began = time.perf_counter()
    scan.head(1).collect()  # threads and pools are there
    first.append(time.perf_counter() - began)
with PeakMemory() as memory:
    began = time.perf_counter()
    answers = []
    for scan in tables.values():
        query = scan.select(pl.len(), pl.col("id").sum(), pl.col("name").str.len_bytes().sum(),
                            pl.col("score").max(), pl.col("at").max())
        answers.append(query.collect(engine="streaming").rows()[0])
    took = time.perf_counter() - began
print(json.dumps({"opened": opened, "first": first, "took": took, "before": memory.before,
                  "peak": memory.peak, "answers": answers}), flush=True)
sys.stdin.readline()  # to be closed, or killed
engine.close()
"""


def write(folder: Path, size: int) -> dict[str, list[float]]:
    """Fill tables until the folder has so many bytes; return what a scan of each is to answer."""
    rng = np.random.default_rng(3)
    names = pa.array([f"customer-{i:06}" for i in range(10_000)])
    expected: dict[str, list[float]] = {}
    options = EngineOptions(durability="interval")
    with EmbeddedFluss(folder, options=options) as engine, engine.connection() as connection:
        for codec, tenths in TENTHS.items():
            path = fluss.TablePath("fluss", codec.lower())
            properties = {"table.log.arrow.compression.type": codec}
            descriptor = fluss.TableDescriptor(
                fluss.Schema(SCHEMA), bucket_count=4, properties=properties
            )
            connection.get_admin().create_table(path, descriptor)
            target = bytes_in(folder) + size * tenths // 10
            rows, highest = 0, 0.0
            with connection.get_table(path).new_append().create_writer() as writer:
                while bytes_in(folder) < target:
                    score = rng.random(CHUNK)
                    ids = np.arange(rows, rows + CHUNK)
                    name = names.take(pa.array(rng.integers(0, len(names), CHUNK)))
                    writer.write_arrow(pa.table([ids, name, score, ids * 1000], schema=SCHEMA))
                    rows += CHUNK
                    highest = max(highest, float(score.max()))
                    writer.flush()
            last = (rows - 1) * 1000
            expected[str(path)] = [rows, rows * (rows - 1) // 2, rows * 15, highest, last]
    return expected


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files of a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def read(folder: Path, expected: dict[str, list[float]], *, kill: bool) -> bool:
    """Open and scan the folder in a process of its own; return whether all was as it should be."""
    command = [sys.executable, "-c", READER, str(folder), *expected]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        if kill:
            process.kill()
        else:
            process.stdin.write("\n")
            process.stdin.close()
        process.wait()
    if not line:
        print("the reader failed")
        return False
    seen = json.loads(line)
    grown = seen["peak"] - seen["before"]
    size = bytes_in(folder)
    print(
        f"opened {size / 1e9:.1f} GB in {seen['opened']:.2f} s, first rows after"
        f" {', '.join(f'{s:.2f}' for s in seen['first'])} s; all scanned in {seen['took']:.1f} s"
        f" ({size / 1e9 / seen['took']:.2f} GB/s), anonymous memory grew by {grown >> 20} MiB"
        f" to {seen['peak'] >> 20} MiB"
    )
    good = True
    for (table, wanted), answer in zip(expected.items(), seen["answers"], strict=True):
        if answer != wanted:
            print(f"{table}: {answer} rather than {wanted}")
            good = False
    return good and seen["opened"] < OPEN_S and grown <= CAP


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gigabytes", nargs="?", type=float, default=10.0)
    parser.add_argument("--dir", help="where to write it; else the folder for temporary files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        folder = Path(name)
        expected = write(folder, int(options.gigabytes * 1e9))
        # as it was closed; after its owner was killed; and closed again
        met = [read(folder, expected, kill=kill) for kill in (True, False, False)]
    if not all(met):
        sys.exit("missed: see above")


if __name__ == "__main__":
    main()
