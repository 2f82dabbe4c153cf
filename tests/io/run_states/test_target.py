"""Runs whose target was deleted, put back, replaced or copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.io import run, scan_fluss
from fluss_df.metadata import TablePath
from tests.io.run_states.pipelines import STEPS, Pipeline, refused, rows, whole

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
