"""Tables of which the coordinator took no note: no bucket ever has a leader.

The first partition of such a table keeps the coordinator of 0.9.1 from serving any new table.
"""

from __future__ import annotations

import logging
from typing import Self

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.cluster import table_creation as table_life
from fluss_df.errors import ErrorCode
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import CREATE_TABLE, GET_METADATA, RELEASE_KV_SNAPSHOT_LEASE
from fluss_df.protocol.frames import TYPE_ERROR
from tests.faults.beside import Beside
from tests.faults.fault_cases import HEAD, framed
from tests.faults.fault_proxy import FaultProxy

SCHEMA = pa.schema([("id", pa.int64())])
BY_DAY = pa.schema([("id", pa.int64()), ("day", pa.string())])


class Rewriting:
    """Changes what a server says, as long as it is entered."""

    def __init__(self, proxy: FaultProxy, tables: int) -> None:
        self._proxy = proxy
        self._plain = proxy.rewrite
        self._left = tables

    def __enter__(self) -> Self:
        self._proxy.rewrite = self._rewrite
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.rewrite = self._plain

    def _rewrite(self, api_key: int, frame: bytes) -> bytes:
        raise NotImplementedError


class NoLeaders(Rewriting):
    """Has the leaders of some tables left out of what servers say."""

    def __init__(self, server: Beside, tables: int) -> None:
        super().__init__(server.proxy, tables)
        self.missed: list[int] = []

    def _rewrite(self, api_key: int, frame: bytes) -> bytes:
        assert self._plain is not None
        frame = self._plain(api_key, frame)
        if api_key != GET_METADATA.key:
            return frame
        answer = pb.MetadataResponse.FromString(frame[HEAD:])
        for table in answer.table_metadata:
            self._change(table)
        return framed(frame, answer.SerializeToString())

    def _change(self, table: pb.TableMetadata) -> None:
        if table.table_id not in self.missed and len(self.missed) < self._left:
            self.missed.append(table.table_id)
        if table.table_id in self.missed:
            for bucket in table.bucket_metadata:
                bucket.ClearField("leader_id")


class NotNoted(Rewriting):
    """Has the coordinator say that it does not know the next tables that are created."""

    def __init__(self, server: Beside, tables: int) -> None:
        super().__init__(server.coordinator, tables)
        self.created = 0

    def _rewrite(self, api_key: int, frame: bytes) -> bytes:
        assert self._plain is not None
        self.created += api_key == CREATE_TABLE.key
        if api_key != RELEASE_KV_SNAPSHOT_LEASE.key or self.created > self._left:
            return self._plain(api_key, frame)
        code = int(ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION)
        body = pb.ErrorResponse(error_code=code, error_message="changed on its way")
        refused = frame[:4] + bytes([TYPE_ERROR]) + frame[5:]
        return framed(refused, body.SerializeToString())


class NoFirstLeader(Rewriting):
    """Has tablet servers leave out the leader of bucket 0, for good, as they were seen to do."""

    def __init__(self, server: Beside) -> None:
        super().__init__(server.proxy, 0)
        self.left_out = 0

    def _rewrite(self, api_key: int, frame: bytes) -> bytes:
        assert self._plain is not None
        frame = self._plain(api_key, frame)
        if api_key != GET_METADATA.key or frame[4] == TYPE_ERROR:
            return frame
        answer = pb.MetadataResponse.FromString(frame[HEAD:])
        buckets = [bucket for table in answer.table_metadata for bucket in table.bucket_metadata]
        for partition in answer.partition_metadata:
            buckets += partition.bucket_metadata
        for bucket in buckets:
            if bucket.bucket_id == 0:
                bucket.ClearField("leader_id")
                self.left_out += 1
        return framed(frame, answer.SerializeToString())


class HalfMade(Rewriting):
    """Has a tablet server answer as one does that is asked while a table is made."""

    def _rewrite(self, api_key: int, frame: bytes) -> bytes:
        assert self._plain is not None
        if api_key != GET_METADATA.key or frame[4] == TYPE_ERROR or not self._left:
            return self._plain(api_key, frame)
        if not pb.MetadataResponse.FromString(frame[HEAD:]).table_metadata:
            return self._plain(api_key, frame)
        self._left -= 1
        body = pb.ErrorResponse(error_code=-1, error_message="Failed to get tables '[a.b]'.")
        return framed(frame[:4] + bytes([TYPE_ERROR]) + frame[5:], body.SerializeToString())


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_life, "_LEADER_WAIT_S", 1.0)


def test_such_a_table_is_created_again(server: Beside, caplog: pytest.LogCaptureFixture) -> None:
    path = server.tables.path()
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=2)
    with (
        fluss.connect(server.address) as connection,
        NoLeaders(server, 1) as seen,
        NotNoted(server, 1),
    ):
        with caplog.at_level(logging.WARNING, "fluss_df.client.cluster.table_creation"):
            connection.get_admin().create_table(path, descriptor)
        table = connection.get_table(path)
        assert table.get_table_info().table_id > seen.missed[0]
        with table.new_append().create_writer() as writer:
            writer.append({"id": 1})
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]


def test_such_a_table_is_found_where_a_server_has_just_its_name(
    server: Beside, caplog: pytest.LogCaptureFixture
) -> None:
    path = server.tables.path()
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
    with (
        fluss.connect(server.address) as connection,
        NoLeaders(server, 1),
        HalfMade(server.proxy, 3) as half,
        NotNoted(server, 1) as seen,
    ):
        with caplog.at_level(logging.WARNING, "fluss_df.client.cluster.table_creation"):
            connection.get_admin().create_table(path, descriptor)
        assert half._left == 0
        assert seen.created >= 2
        with connection.get_table(path).new_append().create_writer() as writer:
            writer.append({"id": 1})
    named = [str(path) in record.getMessage() for record in caplog.records]
    assert named == [True] * (seen.created - 1)


def test_it_ends_where_that_does_not_help(server: Beside) -> None:
    path = server.tables.path()
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
    with (
        fluss.connect(server.address) as connection,
        NoLeaders(server, 9) as seen,
        NotNoted(server, 9),
    ):
        connection.get_admin().create_table(path, descriptor)
        assert len(seen.missed) == 2
    assert server.direct.get_admin().table_exists(path)


def test_a_table_whose_leaders_take_long_is_not_dropped(server: Beside) -> None:
    path = server.tables.path()
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=2)
    with fluss.connect(server.address) as connection, NoLeaders(server, 1) as seen:
        connection.get_admin().create_table(path, descriptor)
    assert server.direct.get_table(path).get_table_info().table_id == seen.missed[0]


@pytest.mark.parametrize("schema", [SCHEMA, BY_DAY], ids=["table", "partition"])
def test_the_coordinator_names_leaders_that_a_tablet_server_lacks(
    server: Beside, schema: pa.Schema
) -> None:
    days = ["day"] if "day" in schema.names else None
    rows = pa.table({"id": range(100), "day": ["mon"] * 100}).select(schema.names)
    with fluss.connect(server.address) as connection, NoFirstLeader(server) as seen:
        path = server.tables.path()
        descriptor = fluss.TableDescriptor(
            fluss.Schema(schema), partition_keys=days, bucket_count=2, bucket_keys=["id"]
        )
        admin = connection.get_admin()
        admin.create_table(path, descriptor)
        if days:
            admin.create_partition(path, {"day": "mon"})
        with connection.get_table(path).new_append().create_writer() as writer:
            writer.write_arrow(rows)
        # 0.9.1 takes a few milliseconds to name the leaders of a new table at all
        assert seen.left_out
        read = fluss.scan_fluss(str(path), connection=connection).collect()
    assert sorted(read["id"]) == list(range(100))


def test_a_table_that_is_being_made_is_asked_for_again(server: Beside) -> None:
    path = server.tables(SCHEMA).get_table_path()
    with fluss.connect(server.address) as connection, HalfMade(server.proxy, 3) as seen:
        with connection.get_table(path).new_append().create_writer() as writer:
            writer.write_arrow(pa.table({"id": range(10)}))
        assert seen._left == 0
        assert fluss.read_fluss(str(path), connection=connection).height == 10


def test_a_table_that_was_there_is_never_dropped(server: Beside) -> None:
    table = server.tables(SCHEMA)
    path, info = table.get_table_path(), table.get_table_info()
    with fluss.connect(server.address) as connection, NoLeaders(server, 1):
        admin = connection.get_admin()
        admin.create_table(path, info.descriptor, ignore_if_exists=True)
        with pytest.raises(fluss.FlussError, match="already exist"):
            admin.create_table(path, info.descriptor)
    assert server.direct.get_table(path).get_table_info().table_id == info.table_id


class StaleLeaders(NoLeaders):
    """Has servers go on to speak of the last table of a name, instead of the new one."""

    def __init__(self, server: Beside, old: int) -> None:
        super().__init__(server, 0)
        self._old = old

    def _change(self, table: pb.TableMetadata) -> None:
        if table.table_id == self._old + 1:
            self.missed.append(table.table_id)
            table.table_id = self._old


def test_leaders_of_a_dropped_table_are_not_those_of_a_new_one(server: Beside) -> None:
    path = server.tables.path()
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
    with fluss.connect(server.address) as connection:
        admin = connection.get_admin()
        admin.create_table(path, descriptor)
        old = connection.get_table(path).get_table_info().table_id
        admin.drop_table(path)
        with StaleLeaders(server, old) as seen, NotNoted(server, 1):
            admin.create_table(path, descriptor)
        # it was taken for one that the coordinator missed, and made again
        assert set(seen.missed) == {old + 1}
        table = connection.get_table(path)
        assert table.get_table_info().table_id > old + 1
        with table.new_append().create_writer() as writer:
            writer.append({"id": 1})


@pytest.mark.parametrize("primary_keys", [None, ["id", "day"]])
def test_partitioned_tables_are_created_again(
    server: Beside, primary_keys: list[str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = server.tables.path()
    schema = fluss.Schema(BY_DAY, primary_keys)
    descriptor = fluss.TableDescriptor(schema, partition_keys=["day"], bucket_count=1)
    with fluss.connect(server.address) as connection, NotNoted(server, 1) as seen:
        with caplog.at_level(logging.WARNING, "fluss_df.client.cluster.table_creation"):
            connection.get_admin().create_table(path, descriptor)
        # or more often, where the coordinator is slow besides
        assert seen.created >= 2
        connection.get_admin().create_partition(path, {"day": "mon"})
        table = connection.get_table(path)
        kind = table.new_append if primary_keys is None else table.new_upsert
        with kind().create_writer() as writer:
            writer.write_arrow(pa.table({"id": [1], "day": ["mon"]}))
    named = [str(path) in record.getMessage() for record in caplog.records]
    assert named == [True] * (seen.created - 1)


def test_no_partition_is_created_that_would_do_harm(server: Beside) -> None:
    table = server.tables(BY_DAY, partition_keys=["day"])
    path = table.get_table_path()
    with fluss.connect(server.address) as connection:
        admin = connection.get_admin()
        with NotNoted(server, 1), pytest.raises(fluss.FlussError, match="took no note") as caught:
            admin.create_partition(path, {"day": "mon"})
        assert str(path) in caught.value.message
        assert admin.list_partition_infos(path) == []
        admin.create_partition(path, {"day": "mon"})


def test_what_the_coordinator_says_of_tables_it_does_not_know(server: Beside) -> None:
    bucket = pb.TableBucketId(table_id=2**40, bucket_id=0)
    request = pb.ReleaseKvSnapshotLeaseRequest(lease_id="none", buckets_to_release=[bucket])
    cluster = server.direct.cluster
    asked = cluster.request_coordinator(RELEASE_KV_SNAPSHOT_LEASE, request, retry_timeout_ms=0)
    with pytest.raises(fluss.FlussError, match="does not know this table") as caught:
        cluster.io.run(asked)
    assert caught.value.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
