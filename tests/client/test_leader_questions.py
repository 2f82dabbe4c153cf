"""Questions to the leaders of buckets whose answers, or connections, are not as they should be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.cluster import metadata
from fluss_df.client.cluster.leader_requests import ask_leaders
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import NetworkError, ProtocolError
from fluss_df.metadata import TableBucket

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.fixture(scope="module")
def table() -> Iterator[fluss.FlussTable]:
    """A primary-key table of two buckets and four rows, by TCP."""
    path = fluss.TablePath("fluss", "questions")
    with EmbeddedFluss(port=0) as engine, fluss.connect(engine.address) as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA, ["id"]), bucket_count=2)
        connection.get_admin().create_table(path, descriptor)
        table = connection.get_table(path)
        with table.new_upsert().create_writer() as writer:
            writer.write_arrow(pa.table({"id": range(4)}, schema=SCHEMA))
        yield table


def ask(
    table: fluss.FlussTable, answers: list[list[int]], retry_timeout_ms: int = 60_000
) -> dict[TableBucket, str]:
    """Ask for both buckets of a server that answers for the given buckets, call after call."""
    info, cluster = table.get_table_info(), table._connection.cluster
    config = cluster.config
    buckets = [TableBucket(info.table_id, number) for number in range(2)]

    async def played(group: Sequence[TableBucket]) -> Iterable[tuple[int, int, str, str]]:
        await asyncio.sleep(0)
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [(number, 0, "", f"value of {number}") for number in found]

    cluster.config = config.copy(retry_timeout_ms=retry_timeout_ms)
    try:
        return cluster.io.run(ask_leaders(cluster, info, buckets, "height", played))
    finally:
        cluster.config = config


def test_a_bucket_that_is_not_answered_for_is_asked_for_again(table: fluss.FlussTable) -> None:
    found = ask(table, [[1], [0]])
    assert sorted(found.values()) == ["value of 0", "value of 1"]
    with pytest.raises(NetworkError, match="did not answer for the height of bucket 1"):
        ask(table, [[0], []], retry_timeout_ms=50)


@pytest.mark.parametrize("answer", [[0, 1, 2], [0, 1, 1], [-1]])
def test_an_answer_for_what_was_not_asked_is_an_error(
    table: fluss.FlussTable, answer: list[int]
) -> None:
    with pytest.raises(ProtocolError, match="not asked for, or twice"):
        ask(table, [answer])


def test_a_server_that_was_away_is_asked_for_some_rows(table: fluss.FlussTable) -> None:
    info, cluster = table.get_table_info(), table._connection.cluster
    bucket = TableBucket(info.table_id, 0)

    def limited() -> pa.Table:
        return table.new_scan().limit(1).create_bucket_batch_scanner(bucket).to_arrow()

    assert limited().num_rows == 1
    # the connection is a new one, long after its server was named the leader
    known = cluster._leaders[bucket]
    cluster._leaders[bucket] = metadata._Leader(known.server_id, known.learned_at - 3600)
    config = cluster.config
    cluster.config = config.copy(retry_timeout_ms=500)
    try:
        assert limited().num_rows == 1
    finally:
        cluster.config = config
