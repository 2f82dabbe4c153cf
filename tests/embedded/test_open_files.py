"""More buckets than a process may have files open: those that are not used give theirs back."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.files.open_files import OpenFiles
from fluss_df.engine.kv.kv_store import KvResources, KvState, KvStore
from fluss_df.engine.log import segment as segments
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from tests.programs import command

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


def open_files(folder: Path) -> int:
    """Return how many files of a folder this process has open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith(f"{folder}/data/")
        except FileNotFoundError:  # the descriptor that lists them
            continue
    return count


def run(program: str, *arguments: object) -> list[str]:
    """Run a program; return the lines that it printed."""
    done = subprocess.run(
        [*command(), "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


_MANY = """
import resource, sys
folder, keys = sys.argv[1], sys.argv[2].split()
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
import polars as pl
import fluss_df
frame = pl.DataFrame({"id": range(400), "p": [f"p{i % 20}" for i in range(400)], "v": range(400)})
for shift in (0, 1000):
    changed = frame.with_columns(pl.col("v") + shift)
    changed.write_fluss("t", connection=folder, create_if_not_exists=True, create_partitions=True,
        primary_keys=keys or None, partition_keys=["p"], bucket_count=3)
scan = pl.scan_fluss("t", connection=folder)
print(scan.select(pl.len(), pl.col("v").sum(), pl.col("id").n_unique()).collect().row(0))
print(scan.filter(pl.col("id") == 77, pl.col("p") == "p17").collect()["v"].sort().to_list())
"""


@pytest.mark.parametrize("keys", ["", "id p"])
def test_60_buckets_in_a_process_that_may_open_200_files(tmp_path: Path, keys: str) -> None:
    told = run(_MANY, tmp_path / "d", keys)
    old, new = sum(range(400)), sum(range(1000, 1400))
    if keys:
        assert told == [f"(400, {new}, 400)", "[1077]"]
    else:
        assert told == [f"(800, {old + new}, 400)", "[77, 1077]"]


_RAISED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1000))
from fluss_df.embedded import EmbeddedFluss
with EmbeddedFluss(sys.argv[1]):
    print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_is_raised(tmp_path: Path) -> None:
    assert run(_RAISED, tmp_path / "d") == ["(1000, 1000)"]


_SHORT = """
import os, resource, sys
import polars as pl
import fluss_df
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
connection = fluss_df.connect(sys.argv[1])
frame = pl.DataFrame({"id": range(10), "v": range(10)})
for name in ("used", "t"):
    frame.clear().write_fluss(
        name, connection=connection, create_if_not_exists=True, primary_keys=["id"])
frame.write_fluss("used", connection=connection)
resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
taken = []
while True:
    try:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        break
try:
    frame.write_fluss("t", connection=connection)
    frame.write_fluss("used", connection=connection)
except fluss_df.FlussError as error:
    print(error.error_code, error)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
for name in ("used", "t"):
    frame.with_columns(pl.col("v") + 1).write_fluss(name, connection=connection)
    print(pl.scan_fluss(name, connection=connection).collect()["v"].sum())
"""


def test_a_lack_of_files_is_told_at_once_and_destroys_nothing(tmp_path: Path) -> None:
    error, *totals = run(_SHORT, tmp_path / "d")
    assert error.startswith(f"{int(ErrorCode.UNKNOWN_SERVER_ERROR)} ")
    assert "Too many open files" in error
    assert "may have 300 files open" in error
    assert "ulimit -n" in error
    assert totals == ["55", "55"]


def test_files_of_buckets_that_are_not_used_are_closed(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    frame = pl.DataFrame({"id": range(1000), "v": range(1000)})
    with (
        EmbeddedFluss(folder, options=EngineOptions(open_files=40)) as engine,
        engine.connection() as connection,
    ):
        for number in range(12):
            fluss.write_fluss(
                frame,
                f"t{number}",
                connection=connection,
                create_if_not_exists=True,
                primary_keys=["id"],
                bucket_count=2,
            )
        assert 0 < open_files(folder) <= 40
        for number in range(12):
            got = fluss.read_fluss(f"t{number}", connection=connection)
            assert got.sort("id").equals(frame)
            assert 0 < open_files(folder) <= 40


def test_many_threads_and_few_files(tmp_path: Path) -> None:
    """Upserts, appends, lookups and scans of eight tables at once; each bucket rests in between."""

    def work(number: int, connection: fluss.FlussConnection) -> None:
        choose = random.Random(number)
        table = connection.get_table(fluss.TablePath("fluss", f"t{number % 8}"))
        model: dict[int, int] = {}
        first = number * 1000
        writer = table.new_upsert().create_writer()
        lookups = table.new_lookup().create_lookuper()
        for step in range(12):
            keys = sorted(choose.sample(range(first, first + 50), 5))
            writer.write_arrow(pa.table({"id": keys, "v": [step] * 5}, schema=SCHEMA))
            writer.flush()
            model |= dict.fromkeys(keys, step)
            asked = list(range(first, first + 50))
            found = lookups.lookup_arrow(pa.table({"id": pa.array(asked, pa.int64())}))
            got = dict(zip(asked, found["v"].to_pylist(), strict=True))
            assert {k: v for k, v in got.items() if v is not None} == model
            if step % 6 == 5:
                rows = table.new_scan().create_snapshot_scanner().to_arrow()
                own = [row for row in rows.to_pylist() if first <= row["id"] < first + 50]
                assert {row["id"]: row["v"] for row in own} == model
        writer.close()

    with (
        EmbeddedFluss(tmp_path / "d", options=EngineOptions(open_files=1)) as engine,
        engine.connection() as connection,
    ):
        admin = connection.get_admin()
        for number in range(8):
            descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA, ["id"]), bucket_count=2)
            admin.create_table(fluss.TablePath("fluss", f"t{number}"), descriptor)
        with ThreadPoolExecutor(10) as threads:
            list(threads.map(work, range(10), [connection] * 10))


def test_a_store_rests_only_when_nobody_reads_it(tmp_path: Path) -> None:
    store = KvStore(tmp_path / "kv", "bucket", KvResources())
    values: dict[bytes, bytes | None] = {bytes([i]): bytes([i, i]) for i in range(1, 200)}
    store.write(values, KvState(applied=7, rows=199))
    scan = store.scan()
    first = next(scan)
    assert first[0] == b"\x01\x01"
    prefix = store.prefix(b"\x02")
    assert next(prefix) == [b"\x02\x02"]
    assert not store.release_files()
    assert first + list(itertools.chain.from_iterable(scan)) == list(values.values())
    assert not store.release_files()
    del prefix
    assert store.release_files()
    # it is opened again by what is asked of it, and has everything
    assert store.get([b"\x05", b"nothing"]) == [b"\x05\x05", None]
    assert store.release_files()
    assert list(itertools.chain.from_iterable(store.scan())) == list(values.values())
    assert store.state == KvState(applied=7, rows=199)
    store.close()
    with pytest.raises(FlussError, match="closed"):
        store.get([b"\x05"])


def test_a_store_that_changed_while_it_rested_is_refused(tmp_path: Path) -> None:
    resources = KvResources()
    store = KvStore(tmp_path / "kv", "bucket", resources)
    store.write({b"a": b"1"}, KvState(applied=1))
    assert store.release_files()
    other = KvStore(tmp_path / "kv", "bucket", resources)
    other.write({b"a": b"2"}, KvState(applied=2))
    other.flush()
    other.close()
    with pytest.raises(FlussError, match="not as they were left"):
        store.get([b"a"])
    store.close()


class _User:
    def __init__(self, *, busy: bool = False) -> None:
        self.busy = busy
        self.files = 3
        self.rests = 0

    def release_files(self) -> bool:
        self.rests += not self.busy
        return not self.busy


def test_who_was_used_last_rests_last() -> None:
    files: OpenFiles[str] = OpenFiles(9)
    users = {name: _User(busy=name == "b") for name in "abcdef"}
    for name in "abcad":
        files.use(name, users[name])
    # four have twelve: b is the oldest and busy, c is next
    assert [users[name].rests for name in "abcd"] == [0, 0, 1, 0]
    files.use("e", users["e"])
    assert [users[name].rests for name in "abcde"] == [1, 0, 1, 0, 0]
    files.forget("d")
    files.use("f", users["f"])
    assert [users[name].rests for name in "abcdef"] == [1, 0, 1, 0, 0, 0]
    files.rest_all()
    assert [users[name].rests for name in "abcdef"] == [1, 0, 1, 0, 1, 1]


def test_no_room_for_files_is_a_mistake() -> None:
    with pytest.raises(FlussError, match="open_files"):
        EngineOptions(open_files=0)


_LONG = """
import resource, sys
import polars as pl
import fluss_df
from fluss_df.embedded import EmbeddedFluss, EngineOptions
resource.setrlimit(resource.RLIMIT_NOFILE, (90, 90))
options = EngineOptions(segment_bytes=400)
for _ in range(2):
    with EmbeddedFluss(sys.argv[1], options=options) as engine, engine.connection() as connection:
        for part in range(60):
            ids = pl.int_range(part * 100, part * 100 + 100)
            rows = pl.select(id=ids.hash().reinterpret(signed=True))
            fluss_df.write_fluss(
                rows, "t", connection=connection, create_if_not_exists=True, bucket_count=1
            )
        print(fluss_df.read_fluss("t", connection=connection).height)
"""


def test_a_log_of_more_segments_than_files_is_opened_and_read(tmp_path: Path) -> None:
    assert run(_LONG, tmp_path / "d") == ["6000", "12000"]
    assert len(list((tmp_path / "d" / "data").rglob("*.log"))) > 90


def test_maps_of_segments_are_not_kept_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Python 3.13 each keeps a file open."""
    monkeypatch.setattr(segments, "_MAP", {})
    monkeypatch.setattr(segments, "_MOST_MAPS", 5)
    options = EngineOptions(segment_bytes=400)
    with EmbeddedFluss(tmp_path, options=options) as engine, engine.connection() as connection:
        for part in range(20):
            start = part * 100
            rows = pl.DataFrame({"id": range(start, start + 100)}).select(
                pl.col("id").hash().reinterpret(signed=True)
            )
            fluss.write_fluss(
                rows, "t", connection=connection, create_if_not_exists=True, bucket_count=1
            )
        for _ in range(2):
            assert fluss.read_fluss("t", connection=connection).height == 2000
        tablet = engine.engine.bucket(TableBucket(0, 0))[1]
        assert len(list(tablet._segments)) > 15
        assert sum(segment._map is not None for segment in tablet._segments) <= 5


def test_a_segment_that_grows_keeps_its_map_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_MAP", {})
    monkeypatch.setattr(segments, "_MOST_MAPS", 5)
    with EmbeddedFluss(tmp_path) as engine, engine.connection() as connection:
        for name in ("grown", "other"):
            for part in range(8):
                fluss.write_fluss(
                    pl.DataFrame({"id": [part]}), name, connection=connection,
                    create_if_not_exists=True, bucket_count=1,
                )  # fmt: skip
                assert fluss.read_fluss(name, connection=connection).height == part + 1
        # each growth had a map of its own: no older one of them counts any more
        for table in range(2):
            tablet = engine.engine.bucket(TableBucket(table, 0))[1]
            assert tablet._segments[-1]._map is not None
