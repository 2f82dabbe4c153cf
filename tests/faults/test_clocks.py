"""Servers whose clocks differ: what one says of a moment holds for its own buckets alone."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.errors import ErrorCode
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import LIST_OFFSETS
from tests.faults.beside import Beside
from tests.faults.fault_cases import HEAD, framed

ROWS = pa.table({"id": list(range(20))})


@pytest.fixture
def table(server: Beside) -> fluss.FlussTable:
    return server.tables(ROWS.schema, bucket_count=2, bucket_keys=["id"])


@pytest.fixture
def moment(server: Beside, table: fluss.FlussTable) -> Iterator[dt.datetime]:
    """A moment between two batches, which has not come yet for the server of bucket 0."""

    def append() -> None:
        with table.new_append().create_writer() as writer:
            writer.write_arrow(ROWS)

    append()
    admin = server.direct.get_admin()
    ends = admin.list_offsets(table.get_table_path(), [0], fluss.OffsetSpec.latest())
    known = (0, 2 * ends[0])
    time.sleep(0.05)
    now = dt.datetime.now(dt.UTC)
    time.sleep(0.05)
    append()
    plain = server.proxy.rewrite
    assert plain is not None

    def rewrite(api_key: int, frame: bytes) -> bytes:
        frame = plain(api_key, frame)
        if api_key != LIST_OFFSETS.key:
            return frame
        answer = pb.ListOffsetsResponse.FromString(frame[HEAD:])
        for bucket in answer.buckets_resp:
            if bucket.bucket_id == 0 and bucket.offset not in known:
                bucket.error_code = int(ErrorCode.INVALID_TIMESTAMP_EXCEPTION)
                bucket.ClearField("offset")
        return framed(frame, answer.SerializeToString())

    server.proxy.rewrite = rewrite
    yield now
    server.proxy.rewrite = plain


def test_rows_of_other_servers_since_a_moment(
    server: Beside, table: fluss.FlussTable, moment: dt.datetime
) -> None:
    path = table.get_table_path()
    metadata = ["_bucket", "_commit_timestamp"]
    with fluss.connect(server.address) as connection:
        everything = fluss.scan_fluss(path, connection=connection, include_metadata=metadata)
        rows = everything.collect()
        assert rows["_bucket"].n_unique() == 2
        since = rows.filter(pl.col("_commit_timestamp") >= moment)
        found = fluss.scan_fluss(
            path, connection=connection, include_metadata=metadata, start=moment
        ).collect()
        assert found.sort("id").equals(since.filter(pl.col("_bucket") == 1).sort("id"))
        # what a condition leaves is exact, whatever a server says of the moment
        found = everything.filter(pl.col("_commit_timestamp") >= moment).collect()
        assert found.sort("id").equals(since.sort("id"))
