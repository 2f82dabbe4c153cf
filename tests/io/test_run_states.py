"""Runs whose checkpoint, target, notes, source or partitions were changed behind their back.

Each case lets a pipeline come to a step, does something to one of its parts, goes on, and asks for
one of three ends: refused by name with nothing more written; repaired, every row once; or, where
``on_data_loss="ignore"`` was said, gone on with exactly what there is.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.client.transport.folders import _engines
from fluss_df.engine.requests import data_requests
from fluss_df.errors import FlussError
from fluss_df.io import read_fluss, run, scan_fluss
from fluss_df.io.runs.checkpoint import Checkpoint
from fluss_df.io.runs.ledger import TableLedger
from fluss_df.io.runs.micro_batches import MicroBatches
from fluss_df.io.runs.parquet_folder import ParquetFolder
from fluss_df.io.runs.run_register import Link, RunNames, RunRegister
from fluss_df.io.scans.planning import ask_bounds
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
        """Run so many batches of 10 rows."""
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


@pytest.fixture(params=TARGETS)
def pipeline(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = Pipeline(tmp_path / "home", request.param)
    yield made
    made.close()


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


# ---- checkpoints


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kept_at", ["start", *STEPS])
def test_checkpoint_put_back(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, kept_at: str, step: str
) -> None:
    """A copy of a checkpoint is put back after two more batches, of which one may be open."""
    if kept_at == "start":
        assert pipeline.run() == 0
        pipeline.keep("checkpoint")
    else:
        pipeline.batches(1)
        pipeline.die(kept_at, monkeypatch)
        pipeline.keep("checkpoint")
        if kept_at != "committed":
            assert pipeline.run() == 1
    pipeline.batches(1)
    pipeline.die(step, monkeypatch)
    pipeline.put_back("checkpoint")
    pipeline.feed()
    refused(pipeline, BEHIND)
    # that would write rows twice, so nothing lets it pass
    refused(pipeline, BEHIND, on_data_loss="ignore")


@pytest.mark.parametrize("lost", ["commits", "offsets", "both", "ledger", "metadata", "start"])
@pytest.mark.parametrize("step", STEPS)
def test_checkpoint_lost_files(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, step: str, lost: str
) -> None:
    pipeline.batches(2)
    pipeline.die(step, monkeypatch)
    pipeline.feed()
    names = {"both": ("commits", "offsets"), "metadata": ("metadata.json",), "start": ()}
    if lost == "start":
        (pipeline.checkpoint / "start.json").unlink(missing_ok=True)
    for name in names.get(lost, (lost,)):
        path = pipeline.checkpoint / name
        if path.is_dir():
            for file in sorted(path.glob("0000000002.*")):
                file.unlink()
        else:
            path.unlink(missing_ok=True)
    try:
        pipeline.run()
    except FlussError as error:
        message = str(error)
        assert any(
            text in message for text in (BEHIND, "lost files", "no metadata.json", "put back")
        ), message
        assert pipeline.found() in ([*range(20)], [*range(30)])
        refused(pipeline, "checkpoint")
    else:
        whole(pipeline)


@pytest.mark.parametrize("step", STEPS)
def test_checkpoint_copied(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, step: str, tmp_path: Path
) -> None:
    """The one that goes on first is the run; the other one is refused then."""
    pipeline.batches(1)
    pipeline.die(step, monkeypatch)
    copy = tmp_path / "copy"
    shutil.copytree(pipeline.checkpoint, copy)
    pipeline.feed()
    pipeline.run()
    pipeline.feed()
    refused(pipeline, BEHIND, checkpoint=copy)
    pipeline.run()
    whole(pipeline)
    refused(pipeline, BEHIND, checkpoint=copy)


def test_copies_run_beside_each_other(pipeline: Pipeline, tmp_path: Path) -> None:
    """At the same time, each in its own process or thread: one is refused, no row is twice."""
    pipeline.batches(1)
    copies = [pipeline.checkpoint, *(tmp_path / f"copy{i}" for i in range(3))]
    for copy in copies[1:]:
        shutil.copytree(pipeline.checkpoint, copy)
    pipeline.feed(200)
    errors: list[FlussError] = []
    barrier = threading.Barrier(len(copies))

    def go(checkpoint: Path, size: int) -> None:
        barrier.wait()
        try:
            pipeline.run(checkpoint=checkpoint, max_batch_rows=size)
        except FlussError as error:
            errors.append(error)

    threads = [threading.Thread(target=go, args=(copy, 7 + 4 * i)) for i, copy in enumerate(copies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = pipeline.found()
    assert len(found) == len(set(found))
    assert len(errors) == len(copies) - 1
    for error in errors:
        assert BEHIND in str(error) or "another run" in str(error)
    whole(pipeline)


@pytest.mark.parametrize("step", STEPS)
def test_checkpoint_deleted(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    pipeline.batches(1)
    pipeline.die(step, monkeypatch)
    shutil.rmtree(pipeline.checkpoint)
    pipeline.feed()
    if pipeline.kind == "keyed":
        # the same rows again leave the same rows: nothing is written that was not there
        pipeline.run()
        now = read_fluss(pipeline.target, connection=pipeline.connection)
        assert sorted(now["id"]) == list(range(pipeline.written))
    elif pipeline.kind == "folder":
        refused(pipeline, "was not written with this checkpoint")
    else:
        refused(pipeline, "of the same query; go on with it")
        pipeline.run(on_data_loss="ignore")
        assert set(pipeline.found()) == set(range(pipeline.written))


@pytest.mark.parametrize("same", [True, False])
def test_a_second_run_of_a_query_with_rows_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, same: bool
) -> None:
    """What the text of a query does not show makes it another one."""
    pipeline = Pipeline(tmp_path / "home", "log")
    pipeline.feed(10)

    def query(first: int) -> pl.LazyFrame:
        kept = pl.LazyFrame({"id": [first, 8]}, schema={"id": pl.Int64})
        found = scan_fluss(pipeline.source, connection=pipeline.connection)
        return found.join(kept, on="id", how="semi")

    pipeline.run(query=query(1))
    assert pipeline.found() == [1, 8]
    shutil.move(pipeline.checkpoint, tmp_path / "first")
    second = query(1 if same else 2)
    if same:
        # a query that was collected is the same one
        assert second.collect().height == 2
        with pytest.raises(FlussError, match=r"the same query; go on .*'ignore' writes them a sec"):
            pipeline.run(query=second)
        assert pipeline.found() == [1, 8]
        pipeline.run(query=second, on_data_loss="ignore")
        assert pipeline.found() == [1, 1, 8, 8]
    else:
        with caplog.at_level(logging.WARNING):
            pipeline.run(query=second)
        assert "that reads the same as text; where it is the same, rows are there twice" in (
            caplog.text
        )
        assert pipeline.found() == [1, 2, 8, 8]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        pipeline.run(query=second, on_data_loss="ignore")
    assert "is another one" not in caplog.text
    with caplog.at_level(logging.WARNING):
        pipeline.run(query=query(3))
    assert "another one than before, in what its text does not show" in caplog.text
    pipeline.close()


@pytest.mark.parametrize("step", STEPS)
def test_checkpoint_replaced(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, step: str, tmp_path: Path
) -> None:
    """That of another query stands in its place: of another table, or of another destination."""
    pipeline.batches(1)
    pipeline.die(step, monkeypatch)
    other = TablePath("io", "other")
    pipeline.make_target(other)
    query = scan_fluss(pipeline.source, connection=pipeline.connection)
    run(query, to=tmp_path / "elsewhere", checkpoint=tmp_path / "other")
    shutil.rmtree(pipeline.checkpoint)
    shutil.copytree(tmp_path / "other", pipeline.checkpoint)
    refused(pipeline, "belongs to the folder .*elsewhere")


@pytest.mark.parametrize("step", STEPS)
def test_another_destination(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, step: str, tmp_path: Path
) -> None:
    pipeline.batches(1)
    pipeline.die(step, monkeypatch)
    other = TablePath("io", "other")
    pipeline.make_target(other)
    for to in (tmp_path / "elsewhere", other, print):
        refused(pipeline, "another destination needs a checkpoint of its own", to=to)
    pipeline.run()
    whole(pipeline)


def test_a_folder_that_was_moved_goes_on(tmp_path: Path) -> None:
    made = Pipeline(tmp_path / "home", "folder")
    made.batches(2)
    moved = tmp_path / "moved"
    made.folder.rename(moved)
    made.feed()
    assert made.run(to=moved) == 1
    moved.rename(made.folder)
    whole(made)
    made.close()


def test_a_changed_query_is_told(pipeline: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    pipeline.batches(1)
    pipeline.feed()
    with caplog.at_level(logging.WARNING):
        pipeline.run()
        assert not caplog.records
        query = scan_fluss(pipeline.source, connection=pipeline.connection)
        pipeline.feed()
        pipeline.run(query=query.filter(pl.col("id") % 2 == 0))
    assert "the query is another one than before" in caplog.text
    assert "FILTER" in caplog.text
    assert pipeline.found() == [*range(20), *range(20, 30, 2)]


# ---- targets


@pytest.mark.parametrize("step", STEPS)
def test_target_deleted(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    pipeline.batches(2)
    pipeline.die(step, monkeypatch)
    pipeline.feed()
    if pipeline.kind == "folder":
        shutil.rmtree(pipeline.folder)
        refused(pipeline, "files were deleted")
        pipeline.run(on_data_loss="ignore")
        start = 30 if step == "committed" else 20
        assert pipeline.found() == list(range(start, 40))
        return
    pipeline.connection.get_admin().drop_table(pipeline.target)
    refused(pipeline, "target")
    pipeline.make_target()
    refused(pipeline, "was dropped and made again")
    pipeline.run(on_data_loss="ignore")
    # a batch that was not committed goes whole into the new table
    start = 30 if step == "committed" else 20
    assert pipeline.found() == list(range(start, 40))
    pipeline.feed()
    pipeline.run()
    assert pipeline.found() == list(range(start, 50))


@pytest.mark.parametrize("step", STEPS)
def test_target_put_back(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A folder, or the engine with the tables and its notes; the checkpoint is newer."""
    pipeline.batches(1)
    name = "out" if pipeline.kind == "folder" else "fluss"
    if name == "fluss":
        pipeline.close()
    pipeline.keep(name)
    if name == "fluss":
        pipeline.connection = FlussConnection.create(str(pipeline.home / "fluss"))
    pipeline.batches(1)
    pipeline.die(step, monkeypatch)
    if name == "fluss":
        pipeline.reopened(put_back=True)
        # and the source has other rows than those that were read
        pipeline.feed(40)
        refused(pipeline, "put back to an earlier state")
    else:
        pipeline.put_back(name)
        pipeline.feed()
        refused(pipeline, "put back")
        pipeline.run(on_data_loss="ignore")
        start = 30 if step == "committed" else 20
        assert pipeline.found() == [*range(10), *range(start, 40)]


@pytest.mark.parametrize("step", STEPS)
def test_target_replaced(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, step: str, tmp_path: Path
) -> None:
    """What another run wrote stands in its place."""
    pipeline.batches(1)
    pipeline.die(step, monkeypatch)
    if pipeline.kind == "folder":
        query = scan_fluss(pipeline.source, connection=pipeline.connection)
        run(query, to=tmp_path / "other", checkpoint=tmp_path / "c")
        shutil.rmtree(pipeline.folder)
        shutil.copytree(tmp_path / "other", pipeline.folder)
        refused(pipeline, "was not written with this checkpoint")
        return
    admin = pipeline.connection.get_admin()
    admin.drop_table(pipeline.target)
    pipeline.make_target()
    write_ids = pipeline.connection.get_table(pipeline.target)
    writer = write_ids.new_append() if pipeline.kind == "log" else write_ids.new_upsert()
    with writer.create_writer() as opened:
        opened.write_arrow(rows(-5, 0))
    refused(pipeline, "was dropped and made again")


@pytest.mark.parametrize("step", STEPS)
def test_target_copied(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, step: str, tmp_path: Path
) -> None:
    """A copy is another destination; the run goes on with the one that it has."""
    pipeline.batches(1)
    pipeline.die(step, monkeypatch)
    if pipeline.kind == "folder":
        if pipeline.folder.exists():
            shutil.copytree(pipeline.folder, tmp_path / "copy")
        refused(pipeline, "another destination", to=tmp_path / "copy")
    else:
        copy = TablePath("io", "copy")
        pipeline.make_target(copy)
        refused(pipeline, "another destination", to=copy)
    pipeline.run()
    whole(pipeline)


# ---- the notes beside tables


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", ["deleted", "emptied"])
@pytest.mark.parametrize("kind", ["log", "keyed"])
def test_register_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, how: str, step: str
) -> None:
    pipeline = Pipeline(tmp_path / "home", kind)
    pipeline.batches(2)
    pipeline.die(step, monkeypatch)
    pipeline.feed()
    notes = TablePath("fluss_df_ledger", "runs")
    if how == "deleted":
        pipeline.connection.get_admin().drop_table(notes)
    else:
        run_id = json.loads((pipeline.checkpoint / "metadata.json").read_text())["run_id"]
        with pipeline.connection.get_table(notes).new_upsert().create_writer() as writer:
            writer.delete({"run_id": run_id})
    refused(pipeline, "was deleted or put back")
    pipeline.run(on_data_loss="ignore")
    pipeline.feed()
    pipeline.run()
    whole(pipeline)
    pipeline.close()


def test_without_a_register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(tmp_path / "home", "log")
    for step in STEPS:
        pipeline.feed()
        pipeline.run(ledger_database=None)
        pipeline.die(step, monkeypatch, ledger_database=None)
        pipeline.run(ledger_database=None)
    assert pipeline.connection.get_admin().list_databases() == ["fluss", "io"]
    pipeline.feed()
    pipeline.run(ledger_database="other")
    # in turns
    for database in ("other", None, "other", None, None, "other"):
        pipeline.feed()
        pipeline.run(ledger_database=database)
    whole(pipeline)
    pipeline.keep("checkpoint")
    pipeline.feed()
    pipeline.run(ledger_database="other")
    pipeline.put_back("checkpoint")
    pipeline.feed()
    refused(pipeline, BEHIND, ledger_database="other")
    pipeline.close()


def test_who_comes_second_gives_the_row_back(tmp_path: Path) -> None:
    """Also where the first one goes on between the two steps of the second."""
    with FlussConnection.create(":memory:") as connection:
        table = TablePath("io", "t")
        names = RunNames("run", table, 1, table, 2)
        first, second = (RunRegister(connection, "notes") for _ in range(2))
        links = [Link(number, f"first {number}") for number in range(4)]
        assert first.claim(names, links[0], None) is None
        assert second.find("run") == links[0]
        # it looked before the first one claimed batch 1, and writes behind it
        seen = second.find("run")
        assert first.claim(names, links[1], links[0]) is None
        second.find = lambda run_id: seen  # type: ignore[method-assign]
        put = second._put

        def meanwhile(names: RunNames, link: Link) -> None:
            second._put = put  # type: ignore[method-assign]
            put(names, link)
            thread.start()
            time.sleep(0.2)

        second._put = meanwhile  # type: ignore[method-assign]
        found: list[Link | None] = []
        thread = threading.Thread(
            target=lambda: found.append(first.claim(names, links[2], links[1]))
        )
        refused_by = second.claim(names, Link(1, "second 1"), links[0])
        thread.join()
        assert refused_by == links[1]
        assert found == [None]
        assert first.claim(names, links[3], links[2]) is None
        assert first.find("run") == links[3]
        first.close()
        second.close()


def test_a_claim_reads_what_came_since_it_began(tmp_path: Path) -> None:
    """Not what other runs claimed before, of which the beginning may have expired."""
    with FlussConnection.create(":memory:") as connection:
        table = TablePath("io", "t")
        idle, busy = (RunRegister(connection, "notes") for _ in range(2))
        names, others = (RunNames(name, table, 1, table, 2) for name in ("idle", "busy"))
        assert idle.claim(names, Link(0, "a"), None) is None
        before = None
        for number in range(20):
            link = Link(number, f"busy {number}")
            assert busy.claim(others, link, before) is None
            before = link
        ranges: list[int] = []
        read = idle._read

        def watched(run_id: str, start: int, stop: int) -> Any:
            ranges.append(stop - start)
            return read(run_id, start, stop)

        idle._read = watched  # type: ignore[method-assign]
        assert idle.claim(names, Link(1, "b"), Link(0, "a")) is None
        # the row before, and the row behind it
        assert ranges == [2]
        # what is asked for from before the first offset there is
        assert idle._changes("idle", -5, idle._end())[-1] == Link(1, "b")
        idle.close()
        busy.close()


@pytest.mark.parametrize("lost", ["source", "target"])
def test_a_run_that_cannot_begin_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    pipeline = Pipeline(tmp_path / "home", "log")
    pipeline.batches(1)
    opened: list[RunRegister] = []
    closed: list[RunRegister] = []
    init, close = RunRegister.__init__, RunRegister.close

    def opens(self: RunRegister, *given: Any) -> None:
        init(self, *given)
        opened.append(self)

    def closes(self: RunRegister) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(RunRegister, "__init__", opens)
    monkeypatch.setattr(RunRegister, "close", closes)
    query = scan_fluss(pipeline.source, connection=pipeline.connection)
    pipeline.connection.get_admin().drop_table(getattr(pipeline, lost))
    with pytest.raises(FlussError, match="does not exist"):
        pipeline.run(query=query)
    assert opened == closed
    pipeline.close()


def test_batches_by_hand_of_the_checkpoint_of_a_run(pipeline: Pipeline) -> None:
    pipeline.batches(1)
    pipeline.feed()
    query = scan_fluss(pipeline.source, connection=pipeline.connection)
    by_hand = MicroBatches(query, pipeline.checkpoint)
    with by_hand, pytest.raises(FlussError, match="belongs to a run into the"):
        next(iter(by_hand))
    pipeline.run()
    whole(pipeline)


# ---- sources


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("again", [False, True])
def test_source_partition_dropped(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, again: bool, step: str
) -> None:
    """With rows that were not read; and it may be there again, with others."""
    pipeline.feed(10, "b")
    pipeline.run()
    pipeline.die(step, monkeypatch)
    done = pipeline.found()
    pipeline.feed(5, "b")
    pipeline.connection.get_admin().drop_partition(pipeline.source, {"part": "b"})
    if again:
        pipeline.feed(5, "b")
    pipeline.feed(10, "a")
    with pytest.raises(FlussError, match=r"dropped.*bucket b/0 behind offset 10.*on_data_loss"):
        pipeline.run()
    pipeline.run(on_data_loss="ignore")
    lost = range(20, 25)
    assert pipeline.found() == [i for i in range(pipeline.written) if i not in lost]
    assert set(done) <= set(pipeline.found())
    pipeline.run()
    pipeline.feed()
    pipeline.run()
    assert pipeline.found() == [i for i in range(pipeline.written) if i not in lost]


@pytest.mark.parametrize("step", STEPS)
def test_source_made_anew(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    pipeline.batches(1)
    pipeline.die(step, monkeypatch)
    pipeline.connection.get_admin().drop_table(pipeline.source)
    pipeline.make_source()
    pipeline.feed(10)
    with pytest.raises(FlussError, match="was dropped and made again"):
        pipeline.run()
    pipeline.run(on_data_loss="ignore")
    lost = range(10, 20) if step == "planned" else ()
    assert pipeline.found() == [i for i in range(pipeline.written) if i not in lost]
    pipeline.feed()
    pipeline.run()
    assert pipeline.found() == [i for i in range(pipeline.written) if i not in lost]


def test_a_server_that_begins_anew_gives_the_same_ids_again(tmp_path: Path) -> None:
    """A table of the same id, in an engine that was made again, is another table."""
    pipeline = Pipeline(tmp_path / "home", "folder")
    pipeline.batches(1)
    before = pipeline.connection.get_table(pipeline.source).get_table_info().table_id
    pipeline.close()
    shutil.rmtree(tmp_path / "home" / "fluss")
    pipeline = Pipeline(tmp_path / "home", "folder", written=10)
    assert pipeline.connection.get_table(pipeline.source).get_table_info().table_id == before
    pipeline.feed(20)
    refused(pipeline, "was dropped and made again")
    pipeline.close()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("more", [0, 5, 30])
def test_source_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, more: int
) -> None:
    """Its log is shorter than what was read, or has other rows there."""
    pipeline = Pipeline(tmp_path / "home", "folder")
    pipeline.batches(1)
    pipeline.close()
    pipeline.keep("fluss")
    pipeline.connection = FlussConnection.create(str(tmp_path / "home" / "fluss"))
    pipeline.batches(1)
    pipeline.die(step, monkeypatch)
    pipeline.reopened(put_back=True)
    if more:
        pipeline.feed(more)
    refused(pipeline, "put back to an earlier state")
    pipeline.run(on_data_loss="ignore")
    pipeline.feed()
    pipeline.run()
    found = pipeline.found()
    assert len(found) == len(set(found))
    assert set(range(30, pipeline.written)) <= set(found)
    pipeline.close()


def test_clocks_of_servers_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of one is behind, and says nothing of one that is ahead: no log was put back."""
    pipeline = Pipeline(tmp_path / "home", "log")
    pipeline.feed(10, "a")
    pipeline.feed(10, "b")
    partitions = pipeline.connection.get_admin().list_partition_infos(pipeline.source)
    names = {found.partition_id: found.partition_name for found in partitions}
    ahead = {"a": -3_600_000, "b": 3_600_000}
    answer = data_requests._offset

    def by_its_clock(engine: Any, bucket: Any, request: Any) -> int:
        name = names.get(bucket.partition_id)
        if name is not None and request.HasField("start_timestamp"):
            shifted = type(request)()
            shifted.CopyFrom(request)
            shifted.start_timestamp -= ahead[name]
            request = shifted
        return answer(engine, bucket, request)

    monkeypatch.setattr(data_requests, "_offset", by_its_clock)
    pipeline.run()
    # the clock that was behind was set right
    ahead["a"] = 0
    pipeline.feed(10, "a")
    pipeline.run()
    whole(pipeline)
    pipeline.close()


@pytest.mark.parametrize("step", STEPS)
def test_source_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Offsets that the log no longer has, as its first offset says."""
    pipeline = Pipeline(tmp_path / "home", "folder")
    pipeline.batches(1)
    pipeline.die(step, monkeypatch)
    pipeline.feed()

    def expired(source: Any, info: Any, buckets: Any) -> Any:
        first, last, starts, stops = ask_bounds(source, info, buckets)
        first = dict.fromkeys(first, 25)
        return first, last, {b: max(s, 25) for b, s in starts.items()}, stops

    monkeypatch.setattr("fluss_df.io.runs.micro_batches.ask_bounds", expired)
    if step != "written":
        refused(pipeline, r"have expired before they were read: bucket a/0 offsets \d+ to 25")
    pipeline.run(on_data_loss="ignore")
    kept = 20 if step != "planned" else 10
    assert pipeline.found() == [*range(kept), *range(25, 30)]
    pipeline.close()


# ---- the start


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_the_start_is_fixed_before_the_first_rows(pipeline: Pipeline, start: str) -> None:
    pipeline.feed()
    query = scan_fluss(pipeline.source, start=start, connection=pipeline.connection)
    if start == "latest":
        assert pipeline.run(query=query) == 0
        pipeline.feed()
        # of a partition that came later
        pipeline.feed(10, "b")
    pipeline.run(query=query)
    assert pipeline.found() == list(range(0 if start == "earliest" else 10, pipeline.written))


def test_checkpoints_of_earlier_releases_go_on(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say less, and are upgraded; from then on they are held to it."""
    for step in STEPS:
        pipeline.batches(1)
        pipeline.die(step, monkeypatch)
        for path in pipeline.checkpoint.rglob("*.json"):
            found = json.loads(path.read_text())
            for key in ("destination", "query", "created", "clock", "link", "name", "digest"):
                found.pop(key, None)
            path.write_text(json.dumps(found))
        if pipeline.kind != "folder":
            pipeline.connection.get_admin().drop_table(TablePath("fluss_df_ledger", "runs"))
        pipeline.run()
        whole(pipeline)
    pipeline.keep("checkpoint")
    pipeline.batches(1)
    pipeline.put_back("checkpoint")
    pipeline.feed()
    refused(pipeline, BEHIND)


# ---- names


def test_a_name_that_is_a_table_and_may_be_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tmp_path / "home", "keyed")
    monkeypatch.chdir(tmp_path)
    pipeline.feed()
    connection = FlussConnection(pipeline.connection.config, "io")
    query = scan_fluss("source", connection=connection)
    with pytest.raises(FlussError, match=r"say to='io\.target' .* or to='\./target'"):
        run(query, to="target", checkpoint=tmp_path / "c")
    assert not Path("target").exists()
    run(query, to="./target", checkpoint=tmp_path / "c")
    run(query, to="nothing_of_the_name", checkpoint=tmp_path / "d")
    assert len(list(Path("nothing_of_the_name").glob("*.parquet"))) == 1
    current = scan_fluss("target", connection=connection)
    with pytest.raises(FlussError, match=r"current rows of table io\.target.*mode='changelog'"):
        run(current, to="./more", checkpoint=tmp_path / "e")
    follows = scan_fluss("source", connection=connection, follow=True, max_rows=5)
    with pytest.raises(FlussError, match=r"follows table io\.source"):
        run(follows, to="./more", checkpoint=tmp_path / "e")
    connection.close()
    pipeline.close()
