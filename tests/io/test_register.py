import inspect

import polars as pl
import pyarrow as pa

from fluss_df.client.connection import FlussConnection
from fluss_df.io import read_fluss, scan_fluss, sink_fluss, write_fluss
from fluss_df.register import register
from tests.io.conftest import MakeTable

ROWS = pl.DataFrame({"x": [1, 2, 3]})


def test_polars_gets_the_functions_and_the_namespace(
    make_table: MakeTable, connection: FlussConnection
) -> None:
    register()
    register()
    for owner, name, function in (
        (pl, "scan_fluss", scan_fluss),
        (pl, "read_fluss", read_fluss),
        (pl.LazyFrame, "sink_fluss", sink_fluss),
        (pl.DataFrame, "write_fluss", write_fluss),
    ):
        assert getattr(owner, name).__wrapped__ is function
    path = make_table(pa.schema({"x": pa.int64()}))
    assert ROWS.write_fluss(path, connection=connection).rows == 3  # type: ignore[attr-defined]
    query = pl.scan_fluss(path, connection=connection)  # type: ignore[attr-defined]
    assert query.sink_fluss(path, connection=connection).rows == 3
    assert query.collect().height == 6
    assert query.fluss.explain().startswith(f"FLUSS SCAN {path}")
    assert [report.rows for report in query.fluss.fetched()] == [6]


def test_read_and_scan_take_the_same() -> None:
    scan, read = inspect.signature(scan_fluss), inspect.signature(read_fluss)
    assert scan.parameters == read.parameters
    sink, write = inspect.signature(sink_fluss), inspect.signature(write_fluss)
    extra = set(sink.parameters) - set(write.parameters)
    assert extra == {"engine", "lazy"}
