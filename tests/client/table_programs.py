"""Programs that work with one table, each in a process of its own, and what they are given."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import pyarrow as pa

import fluss_df as fluss
from tests.client.support import Tables
from tests.programs import command

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
ROOT = Path(fluss.__file__).parent.parent

PROLOGUE = """
import logging, multiprocessing, os, signal, sys, threading, time
import pyarrow as pa
import fluss_df as fluss
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
address, table_name = sys.argv[1:]
connection = fluss.connect(address)
table = connection.get_table(table_name)
def frame(rows, start=0):
    n = range(start, start + rows)
    return pa.table({"n": n, "text": [str(i) for i in n]})
def scanner():
    made = table.new_scan().create_record_batch_log_scanner()
    made.subscribe(0, fluss.EARLIEST_OFFSET)
    return made
"""


def start(code: str, address: str, table: fluss.FlussTable) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(*command("-X", "dev", "-W", "error"), "-c", PROLOGUE + textwrap.dedent(code)),
            *(address, str(table.get_table_path())),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(code: str, address: str, table: fluss.FlussTable, timeout: float = 30) -> tuple[str, str]:
    """Run a program to its end; it must be a good one."""
    process = start(code, address, table)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "Traceback" not in err, err
    assert "ResourceWarning" not in err, err
    return out, err


def filled_table(tables: Tables) -> fluss.FlussTable:
    """Return a table of ten rows."""
    table = tables(SCHEMA)
    numbers = range(10)
    data = pa.table({"n": numbers, "text": [str(i) for i in numbers]}, schema=SCHEMA)
    tables.write(table, data)
    return table


def numbers(tables: Tables, table: fluss.FlussTable) -> list[int]:
    """Return the numbers of all rows."""
    found: list[int] = tables.read(table).column("n").to_pylist()
    return found
