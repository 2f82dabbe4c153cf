"""Micro-batches: exactly once into files, whatever happens in between."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.io.runs import checkpoint as checkpoints
from fluss_df.io.runs.micro_batches import MicroBatches
from fluss_df.io.runs.runner import run
from fluss_df.io.scan import scan_fluss
from tests.io.conftest import MakeTable, write

# more of them for a campaign
KILLS = int(os.environ.get("FLUSS_TEST_KILLS", "6"))
SCHEMA = pa.schema({"id": pa.int64(), "kind": pa.string()})


def rows(start: int, stop: int) -> pl.DataFrame:
    frame = pl.DataFrame({"id": range(start, stop)})
    return frame.with_columns(kind=pl.when(pl.col("id") % 3 == 0).then(pl.lit("a")).otherwise(None))


def written(folder: Path) -> list[int]:
    """Return the ids in the files of a folder; duplicates too."""
    assert not [path for path in folder.iterdir() if path.suffix != ".parquet"]
    return sorted(pl.read_parquet(folder / "*.parquet")["id"].to_list())


def test_runs_go_on_where_they_were(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    path = make_table(SCHEMA, rows(0, 1000), bucket_keys=["id"], bucket_count=3)
    query = scan_fluss(path, connection=connection).filter(pl.col("kind") == "a").select("id")
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    first = run(query, to=out, checkpoint=checkpoint)
    assert (first.batches, first.rows_read, first.rows_written) == (1, 1000, 334)
    again = run(query, to=out, checkpoint=checkpoint)
    assert (again.batches, again.rows_read) == (0, 0)
    write(connection, path, rows(1000, 1003))
    more = run(query, to=out, checkpoint=checkpoint)
    assert (more.batches, more.rows_read, more.rows_written) == (1, 3, 1)
    write(connection, path, rows(1003, 1005))  # nothing that the filter keeps: no file
    run(query, to=out, checkpoint=checkpoint)
    assert [file.name[-10:] for file in sorted(out.iterdir())] == ["00.parquet", "01.parquet"]
    assert written(out) == list(range(0, 1005, 3))


def test_large_batches_are_cut(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    path = make_table(SCHEMA, rows(0, 1000), bucket_keys=["id"], bucket_count=3)
    sizes: list[int] = []
    result = run(
        scan_fluss(path, connection=connection),
        to=tmp_path / "out",
        checkpoint=tmp_path / "checkpoint",
        max_batch_rows=300,
        on_batch=lambda _, read, __: sizes.append(read),
    )
    assert result.batches == len(sizes) == 4
    assert max(sizes) <= 300
    assert written(tmp_path / "out") == list(range(1000))


def test_partitions_join_and_metadata_comes_along(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    path = make_table(SCHEMA, partition_keys=["kind"], bucket_count=2)
    query = scan_fluss(path, connection=connection, include_metadata=True)
    seen: list[pl.DataFrame] = []

    def keep(frame: pl.DataFrame, number: int) -> None:
        assert number == len(seen)
        seen.append(frame)

    for i, kind in enumerate(["x", "y", "x", "z"]):
        frame = rows(i * 10, i * 10 + 10).with_columns(kind=pl.lit(kind))
        write(connection, path, frame)
        run(query, to=keep, checkpoint=tmp_path / "checkpoint")
    assert [sorted(frame["id"]) for frame in seen] == [
        list(range(i * 10, i * 10 + 10)) for i in range(4)
    ]
    assert [set(frame["_partition"]) for frame in seen] == [{"x"}, {"y"}, {"x"}, {"z"}]


def test_a_batch_that_failed_comes_again_with_the_same_rows(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    path = make_table(SCHEMA, rows(0, 100))
    query = scan_fluss(path, connection=connection)
    seen: list[tuple[int, int]] = []

    def fails(frame: pl.DataFrame, number: int) -> None:
        seen.append((number, frame.height))
        if len(seen) == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(query, to=fails, checkpoint=tmp_path)
    write(connection, path, rows(100, 150))
    run(query, to=fails, checkpoint=tmp_path)
    assert seen == [(0, 100), (0, 100), (1, 50)]


def test_plain_iteration_commits_by_hand(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    path = make_table(SCHEMA, rows(0, 100))
    query = scan_fluss(path, connection=connection).select("id")
    with MicroBatches(query, tmp_path) as batches:
        for batch in batches:
            assert batch.frame.collect().height == batch.rows == 100
            batch.commit()
            with pytest.raises(FlussError, match="not the one that is open"):
                batch.commit()
    write(connection, path, rows(100, 101))
    forgetful = MicroBatches(query, tmp_path)
    with forgetful, pytest.raises(FlussError, match="was not committed"):
        for _ in forgetful:
            pass
    with MicroBatches(query, tmp_path) as batches:
        assert next(iter(batches)).frame.collect()["id"].to_list() == [100]


def test_the_other_table_of_a_join_is_read_whole(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    log = make_table(SCHEMA, rows(0, 10))
    names = make_table(SCHEMA, rows(0, 10).with_columns(kind=pl.lit("known")))
    query = scan_fluss(log, connection=connection).join(
        scan_fluss(names, connection=connection), on="id", how="left"
    )
    with pytest.raises(FlussError, match="stream="):
        run(query, to=tmp_path / "out", checkpoint=tmp_path / "c")
    with pytest.raises(FlussError, match="does not read"):
        run(query, to=tmp_path / "out", checkpoint=tmp_path / "c", stream="io.other")
    run(query, to=tmp_path / "out", checkpoint=tmp_path / "c", stream=log)
    write(connection, log, rows(5, 8))
    run(query, to=tmp_path / "out", checkpoint=tmp_path / "c", stream=log)
    found = pl.read_parquet(tmp_path / "out" / "*.parquet")
    assert sorted(found["id"]) == sorted([*range(10), 5, 6, 7])
    assert set(found["kind_right"]) == {"known"}


def test_a_continuous_run_is_ended_by_its_event(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    path = make_table(SCHEMA, rows(0, 10))
    stop = threading.Event()
    came: list[int] = []

    def take(frame: pl.DataFrame, number: int) -> None:
        came.extend(frame["id"])
        if len(came) == 10:
            write(connection, path, rows(10, 20))
        else:
            stop.set()

    query = scan_fluss(path, connection=connection)
    began = time.monotonic()
    result = run(query, to=take, checkpoint=tmp_path, trigger="50ms", stop=stop)
    assert result.batches == 2
    assert came == list(range(20))
    assert time.monotonic() - began < 10


def test_the_namespace_offers_it(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    query: Any = scan_fluss(make_table(SCHEMA, rows(0, 10)), connection=connection)
    with query.fluss.micro_batches(tmp_path / "c") as batches:
        assert next(iter(batches)).rows == 10
    result = query.fluss.run(to=tmp_path / "out", checkpoint=tmp_path / "c")
    assert "1 batches, 10 rows read, 10 written" in str(result)


def test_what_cannot_be_run(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    path, other = make_table(SCHEMA, rows(0, 10)), make_table(SCHEMA, rows(0, 10))
    query = scan_fluss(path, connection=connection)
    with pytest.raises(FlussError, match="reads no Fluss table"):
        run(rows(0, 1).lazy(), to=tmp_path / "out", checkpoint=tmp_path / "c")
    with pytest.raises(FlussError, match="trigger='soon'"):
        run(query, to=tmp_path / "out", checkpoint=tmp_path / "c", trigger="soon")
    for most in (0, -1, True, "5", 2.5):
        expected = f"^max_batch_rows={most!r}: expected a whole number, at least 1"
        with pytest.raises(FlussError, match=expected):
            run(
                query,
                to=tmp_path / "out",
                checkpoint=tmp_path / "c",
                max_batch_rows=most,  # type: ignore[arg-type]
            )
        with pytest.raises(FlussError, match=f"^max_rows={most!r}: expected a whole number"):
            MicroBatches(query, tmp_path / "c", max_rows=most)  # type: ignore[arg-type]
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FlussError, match="is a file"):
        run(query, to=file, checkpoint=tmp_path / "c")
    run(query, to=tmp_path / "out", checkpoint=tmp_path / "c")
    with pytest.raises(FlussError, match=f"is of table {path}, not of {other}"):
        run(scan_fluss(other, connection=connection), to=print, checkpoint=tmp_path / "c")
    # another run's files are never replaced
    with pytest.raises(FlussError, match="a run needs a folder of its own"):
        run(query, to=tmp_path / "out", checkpoint=tmp_path / "c2")
    # nor files that cannot be read
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "batch-0000000000.parquet").touch()
    with pytest.raises(FlussError, match=r"batch-0000000000.parquet cannot be read as a Parquet"):
        run(query, to=tmp_path / "damaged", checkpoint=tmp_path / "c4")
    with pytest.raises(FlussError, match=r"checkpoint .*file cannot be used as a folder"):
        run(query, to=tmp_path / "out", checkpoint=file)
    with MicroBatches(query, tmp_path / "c3"), pytest.raises(FlussError, match="in use by process"):
        run(query, to=print, checkpoint=tmp_path / "c3")


def test_a_file_system_without_locks_is_said(
    connection: FlussConnection,
    make_table: MakeTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_locks(_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(checkpoints, "_lock", no_locks)
    query = scan_fluss(make_table(SCHEMA, rows(0, 1)), connection=connection)
    with pytest.raises(FlussError, match="cannot be locked: No locks available"):
        run(query, to=print, checkpoint=tmp_path / "c")


def test_damaged_checkpoints_are_said(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    query = scan_fluss(make_table(SCHEMA, rows(0, 10)), connection=connection)
    run(query, to=lambda *_: None, checkpoint=tmp_path)
    plan = tmp_path / "offsets" / "0000000000.json"
    good = json.loads(plan.read_text())
    for bad in ("", "[]", json.dumps({**good, "version": 9}), json.dumps({"version": 1})):
        plan.write_text(bad)
        with pytest.raises(FlussError, match=r"0000000000\.json"):
            run(query, to=lambda *_: None, checkpoint=tmp_path)
    plan.write_text(json.dumps({**good, "table_id": 10**6}))
    with pytest.raises(FlussError, match="was dropped and made again"):
        run(query, to=lambda *_: None, checkpoint=tmp_path)


RUNNER = """
import sys
import polars as pl
import fluss_df

address, table, out, checkpoint = sys.argv[1:]
query = fluss_df.scan_fluss(table, connection=address)
fluss_df.run(query, to=out, checkpoint=checkpoint, max_batch_rows=500, trigger="10ms")
"""


def test_killed_at_any_moment(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    """Every row exactly once in the files, after kills at random moments while rows come in."""

    path = make_table(SCHEMA, rows(0, 20_000), bucket_keys=["id"], bucket_count=3)
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    rng = random.Random(5)
    total = 20_000
    for _ in range(KILLS):
        command = [
            sys.executable,
            "-c",
            textwrap.dedent(RUNNER),
            connection.config.bootstrap_servers,
        ]
        write(connection, path, rows(total, total + 700))
        total += 700
        process = subprocess.Popen([*command, str(path), str(out), str(checkpoint)])
        _await_files(out, process)
        time.sleep(rng.random() * 0.4)
        process.send_signal(signal.SIGKILL)
        process.wait()
    run(scan_fluss(path, connection=connection), to=out, checkpoint=checkpoint)
    assert written(out) == list(range(total))
    assert not list(tmp_path.glob(".out-*"))


def _await_files(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the run made progress: a file more than before."""
    before = len(list(folder.glob("*.parquet"))) if folder.exists() else 0
    deadline = time.monotonic() + 30
    while not folder.exists() or len(list(folder.glob("*.parquet"))) <= before:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_others_may_read_what_is_written(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    path = make_table(SCHEMA, rows(0, 10))
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    before = os.umask(0o022)
    try:
        run(scan_fluss(path, connection=connection), to=out, checkpoint=checkpoint)
    finally:
        os.umask(before)
    files = [*out.glob("*"), *checkpoint.glob("*.json"), *checkpoint.glob("*/*.json")]
    assert len(files) >= 4
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o644}


def test_a_folder_whose_parent_is_another_disk(
    connection: FlussConnection,
    make_table: MakeTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = make_table(SCHEMA, rows(0, 10))
    query = scan_fluss(path, connection=connection)
    out = tmp_path / "above" / "out"
    out.mkdir(parents=True)
    stat_of = Path.stat

    def elsewhere(self: Path, **more: Any) -> os.stat_result:
        found = list(stat_of(self, **more))
        found[stat.ST_DEV] += self == out.parent
        return os.stat_result(found)

    written_as: list[Path] = []
    with monkeypatch.context() as patched:
        # what os.stat says of a folder that is mounted there
        patched.setattr(Path, "stat", elsewhere)
        link = os.link

        def linked(name: str, to: Path) -> None:
            written_as.append(Path(name))
            link(name, to)

        patched.setattr(os, "link", linked)
        run(query, to=out, checkpoint=tmp_path / "checkpoint")
    assert [place.parent for place in written_as] == [out]
    assert not written_as[0].name.endswith(".parquet")
    assert written(out) == list(range(10))
    # what a run that was killed left there
    written_as[0].touch()
    run(query, to=out, checkpoint=tmp_path / "checkpoint")
    assert written(out) == list(range(10))
