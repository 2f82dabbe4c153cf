"""Runs whose source was dropped, made again, put back or expired."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.requests import offset_requests
from fluss_df.errors import FlussError
from fluss_df.io import run, scan_fluss
from fluss_df.io.runs.micro_batches import MicroBatches
from fluss_df.io.scans.planning import ask_bounds
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from tests.io.conftest import write
from tests.io.run_states.pipelines import BEHIND, SCHEMA, STEPS, Pipeline, refused, rows, whole

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


@pytest.mark.parametrize("more", [0, 5, 30])
@pytest.mark.parametrize("losses", ["fail", "ignore"])
def test_source_put_back_while_a_run_lives(tmp_path: Path, losses: Any, more: int) -> None:
    """A server that is put back between two batches."""
    home = tmp_path / "fluss"
    engine = EmbeddedFluss(home, port=0)
    port = int(engine.address.rpartition(":")[2])
    path = TablePath("fluss", "source")
    with FlussConnection.create(engine.address) as connection:
        descriptor = TableDescriptor(Schema(SCHEMA), bucket_count=1)
        connection.get_admin().create_table(path, descriptor)
        write(connection, path, rows(0, 10))
        engine.close()
        shutil.copytree(home, tmp_path / "kept")
        engine = EmbeddedFluss(home, port=port)
        write(connection, path, rows(10, 20))
        query = scan_fluss(path, connection=connection)
        found: list[int] = []

        def go_on(batches: MicroBatches) -> None:
            for batch in batches:
                found.extend(batch.frame.collect()["id"])
                batch.commit()

        with MicroBatches(query, tmp_path / "checkpoint", on_data_loss=losses) as batches:
            go_on(batches)
            assert found == list(range(20))
            engine.close()
            shutil.rmtree(home)
            shutil.copytree(tmp_path / "kept", home)
            engine = EmbeddedFluss(home, port=port)
            if more:
                write(connection, path, rows(100, 100 + more))
            if losses == "fail":
                with pytest.raises(FlussError, match="put back to an earlier"):
                    go_on(batches)
            else:
                go_on(batches)
                write(connection, path, rows(200, 210))
                go_on(batches)
                assert found[20:] == [*range(100, 100 + more), *range(200, 210)]
    engine.close()


@pytest.mark.parametrize("choice", ["b", {"part": "b"}], ids=["name", "value"])
def test_a_partition_that_is_named_goes_while_a_run_lives(
    tmp_path: Path, choice: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its run ended for good, whatever was said about losses."""
    pipeline = Pipeline(tmp_path / "home", "log")
    for part in "ab":
        pipeline.feed(10, part)
    source, connection = pipeline.source, pipeline.connection
    query = scan_fluss(source, connection=connection, partitions=["a", choice])

    def go_on(losses: Any) -> list[int]:
        found: list[int] = []
        with MicroBatches(query, tmp_path / "named", on_data_loss=losses) as batches:
            for batch in batches:
                found.extend(batch.frame.collect()["id"])
                batch.commit()
        return sorted(found)

    assert go_on("fail") == list(range(20))
    connection.get_admin().drop_partition(source, {"part": "b"})
    pipeline.feed(10, "a")
    with pytest.raises(FlussError, match=r"dropped.*bucket b/0 behind offset 10.*on_data_loss"):
        go_on("fail")
    assert go_on("ignore") == list(range(20, 30))
    assert caplog.text.count("bucket b/0 behind offset 10") == 1
    # the checkpoint does not know it any more
    pipeline.feed(10, "a")
    with pytest.raises(FlussError, match="which the query reads, is not there any more"):
        go_on("fail")
    assert go_on("ignore") == list(range(30, 40))
    pipeline.close()


def test_clocks_of_servers_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of one is behind, and says nothing of one that is ahead: no log was put back."""
    pipeline = Pipeline(tmp_path / "home", "log")
    pipeline.feed(10, "a")
    pipeline.feed(10, "b")
    partitions = pipeline.connection.get_admin().list_partition_infos(pipeline.source)
    names = {found.partition_id: found.partition_name for found in partitions}
    ahead = {"a": -3_600_000, "b": 3_600_000}
    answer = offset_requests._offset

    def by_its_clock(engine: Any, bucket: Any, request: Any, there: Any) -> int:
        name = names.get(bucket.partition_id)
        if name is not None and request.HasField("start_timestamp"):
            shifted = type(request)()
            shifted.CopyFrom(request)
            shifted.start_timestamp -= ahead[name]
            request = shifted
        return answer(engine, bucket, request, there)

    monkeypatch.setattr(offset_requests, "_offset", by_its_clock)
    pipeline.run()
    # the clock that was behind was set right
    ahead["a"] = 0
    pipeline.feed(10, "a")
    pipeline.run()
    whole(pipeline)
    pipeline.close()


@pytest.mark.parametrize("ahead_h", [5, -30])
def test_a_clock_that_was_set_wrong_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_h: int
) -> None:
    """Rows that were committed later than now are no sign of a log that was put back."""
    shift_s = 0
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + shift_s)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + shift_s * 1_000_000_000)
    pipeline = Pipeline(tmp_path / "home", "folder")
    for moved_h in (0, ahead_h, 0, 0, ahead_h, 0):
        shift_s = moved_h * 3600
        pipeline.feed()
        pipeline.run()
        pipeline.reopened()
    whole(pipeline)
    pipeline.close()
    # and where the first batch has such rows
    shift_s = 5 * 3600
    first = Pipeline(tmp_path / "first", "folder")
    first.feed()
    shift_s = 0
    for _ in range(3):
        first.run()
        first.reopened()
        first.feed()
    first.run()
    whole(first)
    first.close()


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
