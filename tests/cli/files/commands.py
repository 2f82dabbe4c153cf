"""Commands that load and dump, and what they are expected to say."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import Result

ROOT = Path(__file__).parents[3]
Run = Callable[..., Result]
TEXT_ENDINGS = [".csv", ".tsv", ".ndjson", ".jsonl"]
ENDINGS = [".parquet", ".arrow", *TEXT_ENDINGS, *(f"{e}.gz" for e in TEXT_ENDINGS)]
OBJECTS = "".join(f'{{"a": {i}}}\n' for i in range(20_000))


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def lines(result: Result) -> list[Any]:
    return [json.loads(line) for line in ok(result).splitlines()]


def refused(result: Result) -> str:
    """Return the message of a command that ended with one, and with no traceback."""
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())


def count(at: Run, table: str) -> int:
    return int(ok(at("count", table)))


def put(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return str(path)
