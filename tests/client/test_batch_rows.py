"""Batches of very many narrow rows, and of wide ones: they never exceed the pages of a server."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.errors import FlussError
from fluss_df.protocol.produce import PutKv
from tests.client.support import Tables

# the campaign: more rows, more buckets, wider rows
LARGE = os.environ.get("FLUSS_TEST_SIZES") == "1"
ROWS = (
    [1, 2, 1_000, 32_768, 32_769, 65_511, 65_536, 131_072, 300_000, 1_000_000]
    if LARGE
    else [1, 65_536, 140_000]
)
SHAPES = [("narrow", 1)]
if LARGE:
    SHAPES += [("narrow", b) for b in (3, 16, 64, 256)] + [("wide", b) for b in (1, 16, 256)]
# pages of 8 KiB, on which the kinds of 8144 changes fit
SMALL_PAGES = {
    "server.buffer.page-size": "8kb",
    "server.buffer.per-request-memory-size": "64kb",
    "server.buffer.memory-size": "2mb",
}
_WIDTH = 100


def frame(ids: npt.NDArray[np.int64], shape: str, turn: int) -> pa.Table:
    """Return rows with these ids, which differ from turn to turn."""
    columns: dict[str, pa.Array] = {"id": pa.array(ids)}
    if shape == "wide":
        for i in range(_WIDTH):
            columns[f"c{i}"] = pa.array(ids * (i + 1) + turn)
    else:
        columns["turn"] = pa.array(np.arange(len(ids)) + turn)
    return pa.table(columns)


def last_of_each(data: pa.Table) -> pa.Table:
    """Return the last row of each id, by id."""
    ids = data.column("id").to_numpy()
    _, last = np.unique(ids[::-1], return_index=True)
    return data.take(pa.array(len(ids) - 1 - last)).combine_chunks()


def rows_of(table: fluss.FlussTable) -> pa.Table:
    found = table.new_scan().create_snapshot_scanner().to_arrow()
    return found.sort_by("id").combine_chunks()


@pytest.mark.parametrize(("shape", "buckets"), SHAPES)
@pytest.mark.parametrize("rows", ROWS)
def test_new_existing_and_repeated_keys(
    tables: Tables, rows: int, shape: str, buckets: int
) -> None:
    """Frames of any number of rows are written, whatever of them is there already."""
    if shape == "wide" and rows > 140_000:
        rows = 140_000
    ids = np.random.default_rng(rows).permutation(rows).astype(np.int64)
    table = tables(frame(ids[:1], shape, 0).schema, ["id"], bucket_count=buckets)
    with table.new_upsert().create_writer() as writer:
        for turn in range(2):  # new, existing
            data = frame(ids, shape, turn)
            writer.write_arrow(data)
            writer.flush()
            assert rows_of(table).equals(last_of_each(data))
        repeated = frame(ids % 7, shape, 2)
        writer.write_arrow(repeated)
        writer.delete_arrow(pa.table({"id": ids[ids >= 7]}))
    assert rows_of(table).equals(last_of_each(repeated))
    tables.connection.get_admin().drop_table(table.get_table_path())


@pytest.fixture(scope="module")
def small_pages(fluss_cluster_factory: ClusterFactory) -> Iterator[str]:
    """The address of a server whose pages are small."""
    with fluss_cluster_factory(tablet_servers=1, server_options=SMALL_PAGES) as cluster:
        yield cluster.bootstrap_servers


@pytest.fixture
def on_small_pages(small_pages: str) -> Iterator[Tables]:
    with fluss.connect(small_pages) as connection:
        connection.get_admin().create_database("pages", ignore_if_exists=True)
        yield Tables(connection, "pages")
        for name in connection.get_admin().list_tables("pages"):
            connection.get_admin().drop_table(fluss.TablePath("pages", name))


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_server_that_refuses_so_many_rows_gets_fewer(
    on_small_pages: Tables, idempotent: bool
) -> None:
    """Every row is written once and in order, though the server refuses batch after batch."""
    config = on_small_pages.connection.config.copy(writer_enable_idempotence=idempotent)
    if not idempotent:  # without sequences, batches that are on their way together have no order
        config = config.copy(writer_max_inflight_requests_per_bucket=1)
    ids = np.arange(100_000, dtype=np.int64)
    schema = frame(ids[:1], "narrow", 0).schema
    path = on_small_pages(schema, ["id"], bucket_count=2).get_table_path()
    with fluss.connect(config) as connection:
        table = connection.get_table(path)
        with table.new_upsert().create_writer() as writer:
            for turn in range(4):
                writer.write_arrow(frame(ids, "narrow", turn))
            writer.delete_arrow(pa.table({"id": ids[::3]}))
            writer.write_arrow(frame(ids[::6], "narrow", 5))
        assert writer.failed_rows == 0
        wanted = {int(i): int(i) + 3 for i in ids if i % 3}
        wanted |= {int(i): n + 5 for n, i in enumerate(ids[::6])}
        found = rows_of(table).to_pydict()
        assert dict(zip(found["id"], found["turn"], strict=True)) == wanted
        # each change counts once: -U and +U of the three turns behind the first, and so on
        changes = on_small_pages.read(connection.get_table(path), ["id"])
        deletes, inserts = len(ids[::3]), len(ids) + len(ids[::6])
        assert changes.num_rows == inserts + 2 * 3 * len(ids) + deletes


def test_settled_batches_are_not_cut(on_small_pages: Tables) -> None:
    """What is to be written under known sequences is refused as it is, with the way out."""
    table = on_small_pages(frame(np.arange(1), "narrow", 0).schema, ["id"])
    ids = np.arange(20_000, dtype=np.int64)
    writer = table.new_upsert().create_writer()
    batches = writer.route(frame(ids, "narrow", 0))
    with pytest.raises(FlussError, match=r"lower writer.batch-rows here.*IndexOutOfBounds"):
        writer.send_as(writer.ask_writer_id(), {}, batches)
    writer.close()
    config = on_small_pages.connection.config.copy(writer_batch_rows=4_000)
    with fluss.connect(config) as connection:
        opened = connection.get_table(table.get_table_path()).new_upsert().create_writer()
        opened.send_as(opened.ask_writer_id(), {}, opened.route(frame(ids, "narrow", 0)))
        opened.close()
    assert rows_of(table).num_rows == len(ids)


def test_what_servers_say_when_a_page_is_full() -> None:
    """Only that is taken for too many rows; another fault would cut batches down to single rows."""
    full = "java.lang.IndexOutOfBoundsException: capacity: 131072, index: 131072, put length: 1"
    other = "java.lang.IndexOutOfBoundsException: index: 0, length: 4 (expected: range(0, 0))"
    refuses = PutKv.refuses_rows
    api = object.__new__(PutKv)
    assert refuses(api, FlussError(full, -1))
    assert refuses(api, FlussError("IllegalStateException: The change type vector is full.", -1))
    assert not refuses(api, FlussError(other, -1))
    assert not refuses(api, FlussError(full, 14))
