"""Sinks with ``schema_mode="merge"``: columns that a frame has and its table has not are added."""

import threading
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.io import SinkResult, read_fluss, sink_fluss, write_fluss
from fluss_df.metadata import TablePath
from tests.io.conftest import Place

OLD = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("text", pa.string())])
MORE = pl.DataFrame({"n": [2], "when": [1.5], "^a$": [[1]], "*": ["x"]})


def merged(frame: pl.DataFrame, path: TablePath, place: Place, **options: Any) -> SinkResult:
    return write_fluss(frame, path, schema_mode="merge", connection=place.connection, **options)


def columns_of(path: TablePath, place: Place) -> dict[str, str]:
    columns = place.connection.get_table(path).get_table_info().schema.columns
    return {column.name: str(column.type) for column in columns}


def test_columns_are_added_behind_the_others(place: Place) -> None:
    path = place.make_table(OLD, pl.DataFrame({"n": [1], "text": ["a"]}))
    assert merged(MORE, path, place).rows == 1
    assert columns_of(path, place) == {
        "n": "bigint NOT NULL",
        "text": "string",
        "when": "double",
        "^a$": "array<bigint>",
        "*": "string",
    }
    made = pl.LazyFrame({"b": [True], "n": [3]})
    for _ in range(2):  # the second time there is nothing to add
        sink_fluss(made, path, schema_mode="merge", connection=place.connection)
    rows = read_fluss(path, connection=place.connection).sort("n")
    assert rows.rows() == [
        (1, "a", None, None, None, None),
        (2, None, 1.5, [1], "x", None),
        (3, None, None, None, None, True),
        (3, None, None, None, None, True),
    ]


def test_rows_of_a_primary_key(place: Place) -> None:
    path = place.make_table(OLD, primary_keys=["n"])
    merged(pl.DataFrame({"n": [1, 2], "a": [10, 20]}), path, place)
    merged(pl.DataFrame({"n": [1], "b": ["x"]}), path, place, mode="partial_update")
    changes = pl.DataFrame(
        {"_change_type": ["-D", "+I"], "n": [2, 3], "c": [None, 7], "_log_offset": [1, 2]}
    )
    merged(changes, path, place, change_type_column="_change_type")
    rows = read_fluss(path, connection=place.connection).sort("n")
    assert rows.columns == ["n", "text", "a", "b", "c"]
    assert rows.rows() == [(1, None, 10, "x", None), (3, None, None, None, 7)]


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (MORE.with_columns(text=1.5), {}, "column 'text'"),
        (MORE.with_columns(x=pl.lit(None)), {}, "column 'x' .*cannot be added"),
        (MORE.with_columns(_bucket=1), {}, "'_bucket' is none of a table"),
        (MORE.drop("n"), {}, "column 'n' .* is missing"),
        (MORE.with_columns(n=pl.lit(None, pl.Int64)), {}, "column 'n'.*null in row 0"),
        (MORE, {"mode": "delete"}, "leave schema_mode out"),
        (MORE, {"schema_mode": "overwrite"}, "schema_mode='overwrite'.*only adds columns"),
        (MORE, {"schema_mode": "evolve"}, "schema_mode='evolve': expected 'merge' or None"),
    ],
)
def test_what_does_not_fit_changes_nothing(
    place: Place, frame: pl.DataFrame, options: dict[str, Any], message: str
) -> None:
    path = place.make_table(OLD, primary_keys=["n"])
    given = {"schema_mode": "merge", "connection": place.connection, **options}
    with pytest.raises(FlussError, match=message):
        write_fluss(frame, path, **given)
    if "null in row" not in message:
        with pytest.raises(FlussError, match=message):
            sink_fluss(frame.lazy(), path, **given)
        assert list(columns_of(path, place)) == ["n", "text"]
    assert read_fluss(path, connection=place.connection).is_empty()


def test_without_it_a_column_more_is_refused(place: Place) -> None:
    path = place.make_table(OLD)
    with pytest.raises(SchemaMismatchError, match="column 'when' is none of"):
        write_fluss(MORE, path, connection=place.connection)


def test_a_lazy_sink_adds_when_it_runs(place: Place) -> None:
    path = place.make_table(OLD)
    lazily = sink_fluss(
        MORE.lazy(), path, schema_mode="merge", lazy=True, connection=place.connection
    )
    assert "when" not in columns_of(path, place)
    assert lazily.collect()["rows"].sum() == 1
    assert "when" in columns_of(path, place)


def writers(place: Place, frames: list[pl.DataFrame], path: TablePath) -> list[BaseException]:
    """Write frames at the same time, by connections of their own; return what went wrong."""
    failed: list[BaseException] = []
    ready = threading.Barrier(len(frames))

    def write(frame: pl.DataFrame) -> None:
        # the folder in memory is of its connection
        shared = place.connection
        remote = not str(shared.config.bootstrap_servers).startswith(":memory:")
        made = FlussConnection.create(shared.config.bootstrap_servers) if remote else shared
        try:
            ready.wait()
            write_fluss(frame, path, schema_mode="merge", connection=made)
        except FlussError as error:
            failed.append(error)
        finally:
            if remote:
                made.close()

    threads = [threading.Thread(target=write, args=(frame,)) for frame in frames]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def test_writers_that_add_the_same_columns_all_write(place: Place) -> None:
    path = place.make_table(OLD)
    frames = [
        pl.DataFrame({"n": [at], **{f"c{(at + i) % 4}": [at] for i in range(3)}}) for at in range(4)
    ]
    assert writers(place, frames, path) == []
    assert sorted(columns_of(path, place)) == ["c0", "c1", "c2", "c3", "n", "text"]
    rows = read_fluss(path, connection=place.connection)
    for frame in frames:
        assert rows.filter(n=frame["n"][0]).select(frame.columns).equals(frame)


def test_writers_that_differ_in_the_type(place: Place) -> None:
    path = place.make_table(OLD)
    frames = [pl.DataFrame({"n": [1], "c": [1]}), pl.DataFrame({"n": [2], "c": ["one"]})]
    failed = writers(place, frames, path)
    assert len(failed) == 1
    assert "column 'c'" in str(failed[0])
    assert read_fluss(path, connection=place.connection).height == 1


def test_a_table_that_is_created_has_all(place: Place) -> None:
    path = TablePath("io", place.make_table(OLD).table_name + "_new")
    merged(MORE, path, place, create_if_not_exists=True)
    merged(MORE.with_columns(last=1), path, place, create_if_not_exists=True)
    assert read_fluss(path, connection=place.connection).columns == [*MORE.columns, "last"]
