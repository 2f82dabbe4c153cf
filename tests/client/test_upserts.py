"""Writing to primary-key tables: order, partial updates, merge engines, what is refused."""

from __future__ import annotations

import datetime as dt
import functools
import random
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError
from fluss_df.client.send import sender
from fluss_df.errors import SchemaMismatchError
from fluss_df.protocol.produce import PutKv, Written
from tests.client.kv_support import (
    SCHEMA,
    OfficialKv,
    Rows,
    by_id,
    changelog,
    random_changes,
    state,
)
from tests.client.support import Official, Tables, soon
from tests.client.test_types import COLUMNS


def make(tables: Tables, **options: Any) -> fluss.FlussTable:
    return tables(SCHEMA, ["id"], **options)


def write(table: fluss.FlussTable, data: pa.Table) -> None:
    with table.new_upsert() as writer:
        writer.write_arrow(data)


@pytest.fixture(scope="module")
def official(official_client: Official) -> OfficialKv:
    return OfficialKv(official_client)


@pytest.mark.parametrize("seed", range(4))
def test_changes_count_in_their_order(tables: Tables, seed: int) -> None:
    """Rows, deletes and frames in turn leave what the same changes of a dict leave."""
    table = make(tables, bucket_count=3)
    model: Rows = {}
    with table.new_upsert().create_writer() as writer:
        random_changes(writer, model, random.Random(seed), ids=50, calls=80)
    assert state(table) == model


def test_the_last_row_of_a_key_in_a_frame_wins(tables: Tables) -> None:
    table = make(tables)
    frame = pa.table({"id": [1, 2] * 5000, "name": [str(i) for i in range(10_000)]})
    with table.new_upsert(columns=["id", "name"]).create_writer() as writer:
        writer.write_arrow(frame)
    assert {row["name"] for row in state(table).values()} == {"9998", "9999"}


def test_wait_does_not_linger(address: str, tables: Tables) -> None:
    table = make(tables)
    config = fluss.Config({"bootstrap.servers": address}).copy(writer_batch_timeout_ms=60_000)
    with fluss.connect(config) as connection:
        opened = connection.get_table(table.get_table_path())
        with opened.new_upsert() as writer:
            began = time.monotonic()
            writer.upsert([1, "a", None]).wait()
            writer.delete([1]).wait()
            assert time.monotonic() - began < 10
    assert state(table) == {}


def test_threads_share_a_writer(tables: Tables) -> None:
    table = make(tables, bucket_count=2)
    with table.new_upsert().create_writer() as writer:

        def work(first: int) -> None:
            for i in range(first, first + 500):
                writer.upsert({"id": i, "name": str(i), "score": None})
                if i % 3 == 0:
                    writer.delete({"id": i})

        threads = [threading.Thread(target=work, args=(n * 500,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(state(table)) == [i for i in range(2000) if i % 3]


def test_partial_update_and_partial_delete(tables: Tables) -> None:
    table = make(tables)
    with table.new_upsert() as writer:
        writer.upsert([1, "a", 1.0])
    with table.new_upsert().partial_update_by_name(["score", "id"]).create_writer() as writer:
        writer.upsert([2.0, 1])
        writer.upsert({"id": 2, "score": 5.0})
    assert state(table) == {
        1: {"id": 1, "name": "a", "score": 2.0},
        2: {"id": 2, "name": None, "score": 5.0},
    }
    with table.new_upsert().partial_update_by_index([0, 2]).create_writer() as writer:
        writer.delete({"id": 1})
        writer.delete_arrow(pa.table({"id": [2]}))
    assert state(table) == {1: {"id": 1, "name": "a", "score": None}}


def test_the_builder_is_a_writer(tables: Tables) -> None:
    table = make(tables)
    writer = table.new_upsert(columns=["id", "name"])
    writer.upsert({"id": 1, "name": "a"}).wait()
    writer.delete({"id": 2})
    writer.flush()
    writer.close()
    assert state(table) == {1: {"id": 1, "name": "a", "score": None}}
    with pytest.raises(AttributeError, match="'TableUpsert' has no attribute 'uspert'"):
        writer.uspert({})


def test_changes_of_one_table_make_another(tables: Tables) -> None:
    """A changelog read as Arrow and applied with write_changes gives the same rows."""
    source, copy = make(tables, bucket_count=2), make(tables, bucket_count=3)
    model: Rows = {}
    with source.new_upsert() as writer:
        random_changes(writer, model, random.Random(9), ids=20, calls=60)
    changes = changelog(tables, source)
    with copy.new_upsert() as writer:
        writer.write_changes(changes)
    assert state(copy) == state(source) == model
    codes = [fluss.ChangeType(4), fluss.ChangeType(1), fluss.ChangeType(2)]
    with copy.new_upsert() as writer:
        frame = pa.table([[1, 1, 1], ["a", "b", "c"], [0.0, 1.0, 2.0]], schema=SCHEMA)
        writer.write_changes(frame.append_column("kind", pa.array(codes, pa.int8())), "kind")
    assert state(copy)[1]["name"] == "b"


# ---- both clients

WRITABLE = {name: column for name, column in COLUMNS.items() if name not in ("time(6)", "time(9)")}


def everything(rows: int = 7) -> pa.Table:
    columns = {"id": pa.array(range(rows), pa.int32())}
    for name, column in WRITABLE.items():
        columns[name] = column.take(pa.array([i % len(column) for i in range(rows)]))
    return pa.table(columns)


@pytest.mark.parametrize("kv_format", ["compacted", "indexed"])
def test_every_type_comes_back(tables: Tables, kv_format: str) -> None:
    """Through lookups and scans (values of the server), and the changelog (its Arrow)."""
    data = everything()
    table = tables(data.schema, ["id"], kv_format=kv_format)
    if kv_format == "indexed":
        # servers take zeros at the end for filling, and fail
        place = data.schema.get_field_index("binary")
        with pytest.raises(FlussError, match=r"'binary' .*row 0 ends with a zero byte.*compacted"):
            write(table, data)
        whole = pa.array([b"\0\0\1", b"\xff\xff\xff", None], pa.binary(3))
        whole = whole.take(pa.array([i % 3 for i in range(data.num_rows)]))
        data = data.set_column(place, "binary", whole)
    write(table, data)
    looked_up = table.new_lookup().lookup_arrow(data.select(["id"]))
    limited = (
        table.new_scan()
        .limit(100)
        .create_bucket_batch_scanner(fluss.TableBucket(table.get_table_info().table_id, 0))
    )
    changes = changelog(tables, table)
    for name in data.schema.names:
        assert looked_up.column(name).equals(data.column(name)), name
        assert changes.column(name).equals(data.column(name)), name
    assert limited.to_arrow().sort_by("id").equals(looked_up)
    assert table.new_scan().create_snapshot_scanner().to_arrow().sort_by("id").equals(looked_up)


def test_the_official_client_reads_what_we_write(tables: Tables, official: OfficialKv) -> None:
    # its Python values do not reach our extremes
    names = [n for n in WRITABLE if not n.startswith("time")]
    moments = [dt.datetime(1969, 7, 20, 20, 17, 40), dt.datetime(2024, 2, 29, 1, 2, 3, 456789)]
    data = everything().select(["id", *names])
    times = pa.array([moments[i % 2] for i in range(data.num_rows)], pa.timestamp("us"))
    data = data.append_column("when", times)
    # it reads the names of formats in capitals alone
    table = tables(data.schema, ["id"], kv_format="compacted", log_format="arrow")
    with table.new_upsert() as writer:
        writer.write_arrow(data)
        writer.delete([3])
    found = official.lookup(table, [[i] for i in range(data.num_rows)])
    expected = data.to_pylist()
    assert found[3] is None
    assert [row for row in found if row] == [row for row in expected if row["id"] != 3]
    changes = official.changes(table, data.num_rows + 1)
    assert [kind for kind, _, _ in changes] == ["+I"] * data.num_rows + ["-D"]
    assert changes[-1][2] == expected[3]


def test_we_read_what_the_official_client_writes(tables: Tables, official: OfficialKv) -> None:
    # it refuses timestamps before 1970 with microseconds
    names = [n for n in WRITABLE if not n.startswith("time")]
    data = everything().select(["id", *names])
    table = tables(data.schema, ["id"])
    rows = data.to_pylist()
    official.write(table, [*rows, rows[0]], [{"id": 3}])
    expected = data.filter(pa.array([i != 3 for i in range(data.num_rows)]))
    got = table.new_lookup().lookup_arrow(expected.select(["id"]))
    for name in names:
        assert got.column(name).equals(expected.column(name)), name
    kinds = changelog(tables, table).column("_change_type").to_pylist()
    assert kinds == ["+I"] * data.num_rows + ["-U", "+U", "-D"]


# ---- merge engines


def test_first_row(tables: Tables) -> None:
    table = make(tables, properties={"table.merge-engine": "first_row"})
    with table.new_upsert() as writer:
        writer.upsert([1, "first", None])
        writer.flush()
        writer.upsert([1, "second", None])
        writer.upsert([2, "other", None])
    assert {row["name"] for row in state(table).values()} == {"first", "other"}
    assert changelog(tables, table).column("_change_type").to_pylist() == ["+I", "+I"]


def test_versioned(tables: Tables) -> None:
    table = tables(
        pa.schema([("id", pa.int64()), ("name", pa.string()), ("version", pa.int64())]),
        ["id"],
        properties={
            "table.merge-engine": "versioned",
            "table.merge-engine.versioned.ver-column": "version",
        },
    )
    with table.new_upsert() as writer:
        for name, version in [("a", 2), ("old", 1), ("same", 2), ("none", None)]:
            writer.upsert([1, name, version])
            writer.flush()
    assert state(table)[1]["name"] == "same"


def test_deletes_that_the_table_forbids(tables: Tables) -> None:
    table = make(tables, properties={"table.delete.behavior": "disable"})
    writer = table.new_upsert().create_writer()
    writer.upsert([1, "a", None])
    writer.flush()
    writer.delete([1])
    with pytest.raises(FlussError) as raised:
        writer.close()
    assert raised.value.error_code == ErrorCode.DELETION_DISABLED_EXCEPTION
    assert list(state(table)) == [1]


def test_aggregation(tables: Tables) -> None:
    """Without functions of its own, a column keeps its last value that is not null."""
    table = make(tables, properties={"table.merge-engine": "aggregation"})
    with table.new_upsert() as writer:
        for row in ([1, "a", None], [1, None, 2.0], [2, "b", None]):
            writer.upsert(row)
            writer.flush()
    assert state(table) == {
        1: {"id": 1, "name": "a", "score": 2.0},
        2: {"id": 2, "name": "b", "score": None},
    }


def test_auto_increment(tables: Tables) -> None:
    """The server numbers new rows; a writer leaves the column out by itself."""
    columns = fluss.Schema(SCHEMA.append(pa.field("number", pa.int64())), ["name"]).columns
    numbered = fluss.Schema.from_columns(columns, ["name"], auto_increment=["number"])
    path = tables.path()
    admin = tables.connection.get_admin()
    admin.create_table(path, fluss.TableDescriptor(numbered, bucket_count=1))
    table = tables.connection.get_table(path)
    assert table.get_table_info().schema.auto_increment == ("number",)
    with table.new_upsert() as writer:
        writer.write_arrow(pa.table([[7, 8], ["a", "b"], [0.5, None]], schema=SCHEMA))
        writer.upsert({"id": 9, "name": "a"})
    rows = table.new_scan().create_snapshot_scanner().to_arrow().sort_by("name").to_pylist()
    assert [(row["id"], row["name"]) for row in rows] == [(9, "a"), (8, "b")]
    assert len({row["number"] for row in rows} - {None}) == 2
    with pytest.raises(FlussError, match="'number' is numbered by the server"):
        table.new_upsert(columns=["name", "number"])


# ---- partitions and lakes


def test_partitions(tables: Tables) -> None:
    schema = pa.schema([("id", pa.int64()), ("region", pa.string()), ("name", pa.string())])
    table = tables(schema, ["id", "region"], partition_keys=["region"], bucket_count=2)
    frame = pa.table({"region": ["eu", "us", "eu"], "id": [1, 1, 2], "name": ["a", "b", "c"]})
    writer = table.new_upsert().create_writer()
    with pytest.raises(FlussError, match=r"no partition 'eu', 'us'.*create_partitions=True"):
        writer.write_arrow(frame).wait()
    with pytest.raises(FlussError):
        writer.close()
    with table.new_upsert().create_writer(create_partitions=True) as writer:
        writer.write_arrow(frame)
        writer.delete({"region": "eu", "id": 2})
    rows = table.new_scan().create_snapshot_scanner().to_arrow()
    expected = [{"id": 1, "region": "eu", "name": "a"}, {"id": 1, "region": "us", "name": "b"}]
    assert sorted(rows.to_pylist(), key=lambda row: row["region"]) == expected
    scanner = table.new_scan().create_snapshot_scanner(partitions=["us"])
    assert scanner.to_arrow().to_pylist() == expected[1:]
    with pytest.raises(FlussError, match="no partition 'asia'"):
        table.new_scan().create_snapshot_scanner(partitions=["asia"]).to_arrow()


@pytest.mark.parametrize("lake", ["paimon", "iceberg"])
def test_keys_of_lake_tables(tables: Tables, lake: str) -> None:
    """Their keys and buckets are encoded as the lake does."""
    table = make(tables, bucket_count=4, properties={"table.datalake.format": lake})
    data = pa.table([range(200), [str(i) for i in range(200)], [None] * 200], schema=SCHEMA)
    with table.new_upsert() as writer:
        writer.write_arrow(data)
        writer.delete_arrow(pa.table({"id": range(100)}))
        writer.write_arrow(data.slice(150))
    assert sorted(state(table)) == list(range(100, 200))
    assert (
        table.new_lookup()
        .lookup_arrow(data.select(["id"]).slice(100))
        .equals(data.slice(100).cast(pa.schema([f.with_nullable(True) for f in data.schema])))
    )


# ---- what is refused


def test_what_is_refused_before_it_is_sent(tables: Tables) -> None:
    strict = pa.schema([SCHEMA.field(0), pa.field("name", pa.string(), nullable=False)])
    table = tables(strict, ["id"])
    with table.new_upsert() as writer:
        bad: Any
        for bad, match in [
            ({"id": None, "name": "a"}, "'id'"),
            ({"id": 1, "name": None}, "'name'"),
            ({"id": 1}, "'name'"),
            ({"id": "1", "name": "a"}, "'id'"),
            ({"id": 1, "name": "a", "more": 1}, "'more' is none of id, name"),
        ]:
            with pytest.raises(SchemaMismatchError, match=match):
                writer.upsert(bad)
        with pytest.raises(SchemaMismatchError, match="'name' is none of id"):
            writer.delete({"id": 1, "name": "a"})
        with pytest.raises(SchemaMismatchError, match="null in row 1"):
            writer.write_arrow(pa.table({"id": [1, None], "name": ["a", "b"]}))
        with pytest.raises(SchemaMismatchError, match=r"'name'.*null in row 1"):
            writer.write_changes(
                pa.table({"id": [1, 2], "name": [None, None], "_change_type": ["-D", "+U"]})
            )
        with pytest.raises(SchemaMismatchError, match=r"row 1: '\+A' is no change"):
            writer.write_changes(
                pa.table({"id": [1, 2], "name": ["a", "a"], "_change_type": ["-D", "+A"]})
            )
        with pytest.raises(FlussError, match="'_change_type' does not exist"):
            writer.write_changes(pa.table({"id": [1], "name": ["a"]}))
        assert writer.unflushed_rows == 0
        writer.upsert({"id": 7, "name": "good"})
        writer.write_changes(
            pa.table({"id": [7, 8], "name": [None, "b"], "_change_type": ["-D", "+I"]})
        )
    assert state(table) == {8: {"id": 8, "name": "b"}}
    with pytest.raises(FlussError, match="is closed"):
        writer.upsert({"id": 1, "name": "a"})
    with pytest.raises(FlussError, match="is closed"):
        writer.delete([1])
    with pytest.raises(FlussError, match="'name' is NOT NULL"):
        table.new_upsert(columns=["id"])


def test_a_row_larger_than_servers_accept(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    # servers would accept it: so it is this client that refuses
    monkeypatch.setattr(sender, "_LARGEST_REQUEST", 0)
    table = tables(pa.schema([("id", pa.int64()), ("blob", pa.binary())]), ["id"])
    writer = table.new_upsert().create_writer()
    writer.write_arrow(pa.table({"id": [1], "blob": [bytes(11 << 20)]}))
    writer.write_arrow(pa.table({"id": [2], "blob": [b"small"]}))
    wanted = rf"1 rows were not .*max-request-size.*table {table.get_table_path()}, bucket 0"
    with pytest.raises(FlussError, match=wanted) as raised:
        writer.close()
    assert raised.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert [row["blob"] for row in state(table).values()] == [b"small"]


def test_columns_that_cannot_be_updated(tables: Tables) -> None:
    table = make(tables)
    with pytest.raises(FlussError, match="add 'id'"):
        table.new_upsert(columns=["name"])
    with pytest.raises(FlussError, match="did you mean 'name'"):
        table.new_upsert(columns=["id", "nme"])
    with pytest.raises(FlussError, match="stands twice"):
        table.new_upsert().partial_update_by_name(["id", "id"])
    with pytest.raises(FlussError, match="no column 3"):
        table.new_upsert().partial_update_by_index([0, 3])
    log = tables(SCHEMA)
    for use in (log.new_upsert, log.new_lookup, log.new_scan().create_snapshot_scanner):
        with pytest.raises(FlussError, match="has no primary key"):
            use()


def test_digits_of_a_time_that_rows_do_not_hold(tables: Tables) -> None:
    table = tables(pa.schema([("id", pa.int64()), ("t", pa.time64("us"))]), ["id"])
    times = pa.array([1_500_000, 1_500_001], pa.int64()).cast(pa.time64("us"))
    with table.new_upsert() as writer:
        writer.write_arrow(pa.table({"id": [1], "t": times.slice(0, 1)}))
        with pytest.raises(SchemaMismatchError, match=r"'t' .*whole milliseconds"):
            writer.write_arrow(pa.table({"id": [2], "t": times.slice(1)}))
    rows = by_id(table.new_scan().create_snapshot_scanner().to_arrow())
    assert rows[1]["t"] == times[0].as_py()


def test_results_tell_where_the_changelog_ends(tables: Tables) -> None:
    table = make(tables)
    with table.new_upsert().create_writer() as writer:
        writer.upsert([1, "a", None])
        writer.flush()
        writer.upsert([1, "b", None])
        writer.flush()
        results = writer.offsets()
    assert [(r.base_offset, r.end_offset, r.rows) for r in results] == [(-1, 3, 2)]


def test_a_server_under_pressure_gets_its_rest(
    address: str, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bucket pauses by the square of the pressure; what it wrote still counts once."""
    table = make(tables)
    pressure = 1.0
    written = PutKv.written

    def pressed(self: PutKv, answer: Any, rows: int) -> Written:
        answer.pressure = pressure  # servers of 1.0 set it when RocksDB cannot keep up
        return written(self, answer, rows)

    monkeypatch.setattr(PutKv, "written", pressed)

    def write(writer: fluss.UpsertWriter) -> None:
        for i in range(4):
            writer.upsert([i, "", None]).wait()

    # without pressure there is no pause, however long one may be
    for pressure, most_ms in ((1.0, 300), (0.0, 60_000)):
        config = fluss.Config({"bootstrap.servers": address}).copy(
            writer_kv_backpressure_max_throttle_ms=most_ms
        )
        with fluss.connect(config) as connection:
            opened = connection.get_table(table.get_table_path())
            with opened.new_upsert().create_writer() as writer:
                began = time.monotonic()
                soon(functools.partial(write, writer))
                took = time.monotonic() - began
                assert pressure == 0.0 or took >= 0.9
    assert sorted(state(table)) == [0, 1, 2, 3]
