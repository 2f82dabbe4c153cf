"""Frames over a table that gets columns."""

from collections.abc import Callable

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import SchemaMismatchError
from fluss_df.io import scan_fluss, write_fluss
from tests.client.support import Tables
from tests.client.test_schema_evolution import add_columns
from tests.io.conftest import MakeTable

OLD = pl.DataFrame({"n": [1, 2, 3], "text": ["a", "b", None]})
NEW = pl.DataFrame(
    {"n": [4, 5], "text": ["d", "e"], "extra": pl.Series([40, None], dtype=pl.Int32)}
)


def test_a_frame_keeps_its_columns_and_a_new_one_has_all(
    make_table: MakeTable, connection: FlussConnection
) -> None:
    path = make_table(pa.schema({"n": pa.int64(), "text": pa.string()}), OLD)
    before = scan_fluss(path, connection=connection, include_metadata=["_log_offset"])
    add_columns(
        Tables(connection, path.database_name),
        connection.get_table(path),
        pa.schema({"extra": pa.int32()}),
    )
    write_fluss(NEW, path, connection=connection)
    with pytest.raises(SchemaMismatchError, match=r"column 'extra' .* is missing"):
        write_fluss(OLD, path, connection=connection)

    rows = pl.concat([OLD.with_columns(extra=pl.lit(None, pl.Int32)), NEW])
    assert before.drop("_log_offset").collect().equals(rows.drop("extra"))
    assert before.filter(pl.col("_log_offset") >= 2).collect()["n"].to_list() == [3, 4, 5]
    after = scan_fluss(path, connection=connection)
    queries: list[Callable[[pl.LazyFrame], pl.LazyFrame]] = [
        lambda frame: frame,
        lambda frame: frame.select("extra"),
        lambda frame: frame.filter(pl.col("extra").is_null()),
        lambda frame: frame.filter(pl.col("extra") > 0).select("text"),
        lambda frame: frame.slice(1, 3),
        lambda frame: frame.select("text").tail(3),
    ]
    for query in queries:
        assert query(after).collect().equals(query(rows.lazy()).collect())
