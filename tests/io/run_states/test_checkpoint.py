"""Runs whose checkpoint was put back, lost, copied, deleted or replaced."""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path

import polars as pl
import pytest

from fluss_df.errors import FlussError
from fluss_df.io import read_fluss, run, scan_fluss
from fluss_df.metadata import TablePath
from tests.io.run_states.pipelines import BEHIND, STEPS, Pipeline, refused, whole

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
