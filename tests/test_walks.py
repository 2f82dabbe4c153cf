"""The walks in docs/architecture.md: their functions are called, and in the order told there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fluss_df as fluss

PAGE = Path(fluss.__file__).parent.parent / "docs" / "architecture.md"
STEP = re.compile(r"^\d+\. `([^`]+)` `([^`]+)`:", re.MULTILINE)
# rows pass no more files
MOST_FILES = {"A scan": 10, "An append": 7}

# Writes and reads on another process's server. A thread is followed from its beginning only.
PROGRAM = """
import json, subprocess, sys, threading
from pathlib import Path

calls, root = [], ""

def note(frame, event, argument):
    file = frame.f_code.co_filename
    if event == "call" and root and file.startswith(root):
        calls.append((file.removeprefix(root), frame.f_code.co_qualname))

threading.setprofile(note)
sys.setprofile(note)
import polars as pl
import pyarrow as pa
import fluss_df as fluss

SERVER = '''
import sys
from fluss_df.embedded import EmbeddedFluss
with EmbeddedFluss(sys.argv[1], port=0, sasl=None) as engine:
    print(engine.address, flush=True)
    sys.stdin.read()
'''
fields = [pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())]
rows = pa.table({"id": range(50_000), "text": ["a"] * 50_000}, schema=pa.schema(fields))
server = subprocess.Popen(
    [sys.executable, "-c", SERVER, sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    text=True,
)
ways = {}
with fluss.connect(server.stdout.readline().strip()) as connection:
    for name, keys in (("log", None), ("rows", ["id"])):
        descriptor = fluss.TableDescriptor(fluss.Schema(rows.schema, keys), bucket_count=2)
        connection.get_admin().create_table(fluss.TablePath("fluss", name), descriptor)
    root = str(Path(fluss.__file__).parent) + "/"
    with connection.get_table("fluss.log").new_append().create_writer() as writer:
        writer.write_arrow(rows)
    ways["An append"], calls = calls, []
    with connection.get_table("fluss.rows").new_upsert().create_writer() as writer:
        writer.write_arrow(rows)
    ways["An upsert"], calls = calls, []
    frame = fluss.scan_fluss("fluss.log", connection=connection).filter(pl.col("id") >= 0)
    assert frame.collect().height == rows.num_rows
    ways["A scan"] = ways["A predicate"] = calls
    root = ""
server.communicate()
print(json.dumps(ways))
"""


def walks() -> dict[str, list[tuple[str, str]]]:
    """Return files and functions of each walk, by the first words of the sentence before it."""
    text = PAGE.read_text().split("\n## Four walks\n")[1].split("\n## ")[0]
    paragraphs = text.strip().split("\n\n")
    return {
        " ".join(told.split()[:2]).rstrip(","): STEP.findall(steps)
        for told, steps in zip(paragraphs[1::2], paragraphs[2::2], strict=True)
    }


def test_a_walk_is_the_way_that_a_program_takes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "d")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ways = json.loads(done.stdout)
    told = walks()
    assert told.keys() == ways.keys()
    for name, steps in told.items():
        way = iter(ways[name])
        for number, step in enumerate(steps, 1):
            # the calls up to it are taken from the way: the next one is looked for behind
            assert list(step) in way, f"{name}: step {number}, {step}, is not called there"


def test_a_step_that_cannot_be_read_is_none() -> None:
    lines = re.findall(r"^\d+\. .*", PAGE.read_text(), re.MULTILINE)
    assert len(lines) == sum(map(len, walks().values()))


@pytest.mark.parametrize("name", MOST_FILES)
def test_rows_pass_few_files(name: str) -> None:
    files = {file for file, _ in walks()[name]}
    assert len(files) <= MOST_FILES[name]
