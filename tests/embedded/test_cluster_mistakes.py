"""Requests about the cluster that are wrong, and an engine as one of its users has it; alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from tests.embedded.raw import RawClient

PERMANENT, TEMPORARY = 0, 1


def refused(client: RawClient, kind: api.Api[Any, Any], request: Any) -> tuple[int, str]:
    code, message = client.ask(kind, request).error
    assert code
    return code, message


def test_a_tag_is_removed_by_its_name_alone(client: RawClient) -> None:
    add = pb.AddServerTagRequest(server_ids=[0], server_tag=TEMPORARY)
    client.call(api.ADD_SERVER_TAG, add)
    wrong = pb.RemoveServerTagRequest(server_ids=[0], server_tag=PERMANENT)
    code, message = refused(client, api.REMOVE_SERVER_TAG, wrong)
    assert code == ErrorCode.SERVER_TAG_NOT_EXIST_EXCEPTION
    assert "the current server tag of this server is TEMPORARY_OFFLINE" in message
    other = pb.AddServerTagRequest(server_ids=[0], server_tag=PERMANENT)
    assert refused(client, api.ADD_SERVER_TAG, other)[0] == (
        ErrorCode.SERVER_TAG_ALREADY_EXIST_EXCEPTION
    )
    # buckets are not moved away from the only server
    move = pb.RebalanceRequest(goals=[0])
    assert refused(client, api.REBALANCE, move)[0] == ErrorCode.REBALANCE_FAILURE_EXCEPTION
    right = pb.RemoveServerTagRequest(server_ids=[0], server_tag=TEMPORARY)
    for _ in range(2):
        client.call(api.REMOVE_SERVER_TAG, right)
    client.call(api.ADD_SERVER_TAG, other)


def test_a_rebalance_is_known_by_its_id(client: RawClient) -> None:
    first = client.call(api.REBALANCE, pb.RebalanceRequest(goals=[0])).rebalance_id
    second = client.call(api.REBALANCE, pb.RebalanceRequest(goals=[0])).rebalance_id
    progress = pb.ListRebalanceProgressRequest(rebalance_id=second)
    assert client.call(api.LIST_REBALANCE_PROGRESS, progress).rebalance_id == second
    old = pb.ListRebalanceProgressRequest(rebalance_id=first)
    code, message = refused(client, api.LIST_REBALANCE_PROGRESS, old)
    assert code == ErrorCode.NO_REBALANCE_IN_PROGRESS_EXCEPTION
    assert f"{first} to list is not the current rebalance task id {second}" in message
    code, message = refused(
        client, api.CANCEL_REBALANCE, pb.CancelRebalanceRequest(rebalance_id="x")
    )
    assert f"x to cancel is not the current rebalance task id {second}" in message


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([{"bucket_id": 0}], "lacks offsets"),
        ([{"bucket_id": 0, "log_end_offset": 3}, {"bucket_id": 1}], "lacks offsets"),
        (
            [
                {"bucket_id": 0, "log_end_offset": 3},
                {"bucket_id": 1, "log_end_offset": 3, "partition_id": 1},
            ],
            "has buckets with a partition and without one",
        ),
    ],
)
def test_offsets_of_a_producer_that_are_none(
    client: RawClient, parts: list[dict[str, int]], problem: str
) -> None:
    table = pb.ProducerTableOffsets(table_id=1)
    for part in parts:
        table.bucket_offsets.add(**part)
    request = pb.RegisterProducerOffsetsRequest(producer_id="p", table_offsets=[table])
    _, message = refused(client, api.REGISTER_PRODUCER_OFFSETS, request)
    assert f"producer p: table 1 {problem}" in message
    asked = pb.GetProducerOffsetsRequest(producer_id="p")
    assert not client.call(api.GET_PRODUCER_OFFSETS, asked).table_offsets


def test_partitions_of_other_tables_have_no_snapshots(client: RawClient) -> None:
    gone = pb.ListKvSnapshotsRequest(table_id=10**6)
    assert refused(client, api.LIST_KV_SNAPSHOTS, gone)[0] == ErrorCode.TABLE_NOT_EXIST
    gone = pb.ListKvSnapshotsRequest(table_id=10**6, partition_id=5)
    code, message = refused(client, api.LIST_KV_SNAPSHOTS, gone)
    assert code == ErrorCode.PARTITION_NOT_EXISTS
    assert "Partition 5 does not exist" in message


# ---- an engine as a user has it


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[EmbeddedFluss]:
    with EmbeddedFluss(tmp_path / "d", port=0, sasl={"alice": "secret"}) as made:
        yield made


def test_a_password_is_that_of_a_peer(shared: EmbeddedFluss) -> None:
    assert shared.has_users
    shared.sign_in("alice", "secret", "192.0.2.1")
    for user, password in (("alice", "wrong"), ("bob", "secret"), ("", "")):
        with pytest.raises(FlussError) as caught:
            shared.sign_in(user, password, "192.0.2.2")
        assert caught.value.error_code == ErrorCode.AUTHENTICATE_EXCEPTION
        assert "secret" not in caught.value.message
    shared.close()
    with pytest.raises(FlussError, match="the engine is closed"):
        shared.sign_in("alice", "secret", "192.0.2.1")


def test_a_view_ends_and_the_engine_stays(shared: EmbeddedFluss) -> None:
    view = shared.view_of("alice", "192.0.2.1")
    assert view.api_versions() == shared.api_versions()
    assert not view.closed
    with shared.connection_of(view) as connection:
        assert connection.get_admin().list_databases() == ["fluss"]
    # what is open by it ends with it
    ended = threading.Event()
    view.open_channel(lambda number, reply: None, ended.set)
    assert not ended.wait(0.05)
    view.close()
    assert ended.wait(10)
    assert view.closed
    with pytest.raises(RuntimeError, match="the engine is closed"):
        view.api_versions()
    with shared.connection() as connection:
        assert connection.get_admin().list_databases() == ["fluss"]
    other = shared.view_of(None, "")
    shared.close()
    assert other.closed
    assert repr(shared).endswith(", closed)")
