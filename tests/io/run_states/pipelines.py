"""Pipelines that come to a step and are gone on with, and the three ends that they may have."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.client.transport.folders import _engines
from fluss_df.errors import FlussError
from fluss_df.io import read_fluss, run, scan_fluss
from fluss_df.io.runs.checkpoint import Checkpoint
from fluss_df.io.runs.ledger import TableLedger
from fluss_df.io.runs.parquet_folder import ParquetFolder
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from tests.io.conftest import write

SCHEMA = pa.schema({"id": pa.int64(), "part": pa.string()})
TARGETS = ("folder", "log", "keyed")
#: Where a pipeline of three batches of 10 rows is when something happens to it.
STEPS = ("planned", "written", "committed")


def rows(start: int, stop: int, part: str = "a") -> pl.DataFrame:
    return pl.DataFrame({"id": range(start, stop)}, schema={"id": pl.Int64}).with_columns(
        part=pl.lit(part)
    )


class Killed(BaseException):
    """The process is as good as dead."""


@dataclass
class Pipeline:
    """A run from a log into one of the three kinds of targets, on an engine in a folder."""

    home: Path
    kind: str
    connection: FlussConnection = field(init=False)
    written: int = 0

    def __post_init__(self) -> None:
        self.home.mkdir(exist_ok=True)
        self.connection = FlussConnection.create(str(self.home / "fluss"))
        admin = self.connection.get_admin()
        admin.create_database("io", ignore_if_exists=True)
        if not admin.table_exists(self.source):
            self.make_source()
            self.make_target()

    source = TablePath("io", "source")
    target = TablePath("io", "target")

    @property
    def checkpoint(self) -> Path:
        return self.home / "checkpoint"

    @property
    def folder(self) -> Path:
        return self.home / "out"

    def make_source(self) -> None:
        descriptor = TableDescriptor(Schema(SCHEMA), partition_keys=["part"], bucket_count=1)
        self.connection.get_admin().create_table(self.source, descriptor)

    def make_target(self, path: TablePath | None = None) -> None:
        keys = ["id"] if self.kind == "keyed" else None
        descriptor = TableDescriptor(Schema(SCHEMA, keys), bucket_count=2)
        self.connection.get_admin().create_table(path or self.target, descriptor)

    def feed(self, count: int = 10, part: str = "a") -> None:
        write(self.connection, self.source, rows(self.written, self.written + count, part))
        self.written += count

    def run(self, **options: Any) -> int:
        given: dict[str, Any] = {
            "to": self.folder if self.kind == "folder" else self.target,
            "checkpoint": self.checkpoint,
            **options,
        }
        query = given.pop("query", None)
        if query is None:
            query = scan_fluss(self.source, connection=self.connection)
        return run(query, **given).batches

    def found(self) -> list[int]:
        """Return the ids in the target, each as often as it was written."""
        if self.kind == "folder":
            files = list(self.folder.glob("*.parquet"))
            return sorted(pl.concat(map(pl.read_parquet, files))["id"]) if files else []
        if not self.connection.get_admin().table_exists(self.target):
            return []
        mode: Any = "changelog" if self.kind == "keyed" else "log"
        return sorted(read_fluss(self.target, mode=mode, connection=self.connection)["id"])

    def batches(self, count: int) -> None:
        """Run a number of batches of 10 rows each."""
        for _ in range(count):
            self.feed()
            assert self.run() == 1

    def die(self, step: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        """Run a batch of 10 rows up to a step of it, as if the process was killed there."""
        self.feed()
        if step == "committed":
            assert self.run(**options) == 1
            return

        def dead(*_: Any) -> Any:
            raise Killed

        with monkeypatch.context() as patch:
            if step == "planned":
                patch.setattr(ParquetFolder, "write", dead)
                patch.setattr(TableLedger, "write", dead)
            else:
                patch.setattr(Checkpoint, "commit", dead)
            with pytest.raises(Killed):
                self.run(**options)

    def close(self) -> None:
        """Close the connection, and the engine behind it, which others could use else."""
        self.connection.close()
        _engines.pop((self.home / "fluss").resolve()).close()

    def keep(self, name: str) -> None:
        """Copy a part of the pipeline to put it back later."""
        shutil.copytree(self.home / name, self.home / f"{name}.kept", dirs_exist_ok=True)

    def put_back(self, name: str) -> None:
        shutil.rmtree(self.home / name, ignore_errors=True)
        shutil.copytree(self.home / f"{name}.kept", self.home / name)

    def reopened(self, put_back: bool = False) -> None:
        """Close the engine, put its folder back where wanted, and open it again."""
        self.close()
        if put_back:
            self.put_back("fluss")
        self.connection = FlussConnection.create(str(self.home / "fluss"))


def refused(pipeline: Pipeline, match: str, **options: Any) -> None:
    """Going on is refused, and leaves the target as it is; a second time, too."""
    before = pipeline.found()
    for _ in range(2):
        with pytest.raises(FlussError, match=match):
            pipeline.run(**options)
        assert pipeline.found() == before


def whole(pipeline: Pipeline) -> None:
    """Every row is in the target once."""
    assert pipeline.found() == list(range(pipeline.written))


BEHIND = "put back to an earlier state"
