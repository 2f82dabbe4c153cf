"""No password in what is shown, logged, explained or pickled."""

import logging
import pickle
from collections.abc import Iterator

import polars as pl
import pytest

from fluss_df.client.connection import FlussConnection, set_default_connection
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io import explain, last_scan, scan_fluss, write_fluss
from fluss_df.io.polars_reader import planned_scans

PASSWORD = "looking-glass"
ROWS = pl.DataFrame({"x": range(10)})


@pytest.fixture(scope="module")
def guarded(fluss_cluster_factory: ClusterFactory) -> Iterator[str]:
    """The URL of a table's database on a server that demands a password."""
    with fluss_cluster_factory(sasl={"alice": PASSWORD}) as cluster:
        url = f"fluss://alice:{PASSWORD}@{cluster.bootstrap_servers}/db"
        with FlussConnection.create(url) as connection:
            connection.get_admin().create_database("db", ignore_if_exists=True)
            write_fluss(ROWS, "t", connection=connection, create_if_not_exists=True)
        yield url


def test_nothing_shows_the_password(guarded: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with FlussConnection.create(guarded) as connection:
        frame = scan_fluss("t", connection=connection).filter(pl.col("x") > 3)
        assert frame.collect().height == 6
        plan = planned_scans(frame)[0]
        result = write_fluss(ROWS, "db.t", connection=connection)
        with pytest.raises(FlussError) as caught:
            scan_fluss("missing", connection=connection)
        shown = [
            frame.explain(), explain(frame), repr(last_scan()), str(last_scan()), repr(plan.plan),
            repr(plan), repr(plan.source), repr(result), str(caught.value), repr(caught.value),
        ]  # fmt: skip
        for text in shown:
            assert PASSWORD not in text
        for data in (pickle.dumps(frame), pickle.dumps(plan.plan), frame.serialize()):
            assert PASSWORD.encode() not in data
    assert PASSWORD not in caplog.text


def test_an_unpickled_frame_takes_the_password_of_the_default_connection(guarded: str) -> None:
    with FlussConnection.create(guarded) as connection:
        data = pickle.dumps(scan_fluss("t", connection=connection).select(pl.col("x").max()))
    with pytest.raises(FlussError) as caught:
        pickle.loads(data).collect()
    assert caught.value.error_code == ErrorCode.AUTHENTICATE_EXCEPTION
    set_default_connection(guarded)
    try:
        assert pickle.loads(data).collect().item() == 9
    finally:
        set_default_connection(None)
