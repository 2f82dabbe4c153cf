"""Batch writes that are there as a whole or not at all, as Spark calls them, on an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TablePath
from fluss_df.spark.plan.options import WriteOptions
from fluss_df.spark.plan.types import spark_schema
from fluss_df.spark.write.all_or_nothing import AllOrNothingWriter
from fluss_df.spark.write.publish import Publisher
from tests.spark.sinks import SCHEMA, Sink, engine

# fixtures of that module
__all__ = ["engine"]


def staged_at_once(sink: Sink) -> tuple[AllOrNothingWriter, list[Any]]:
    """Return an all-or-nothing write of 40 rows, and what its tasks have staged."""
    given = {
        "path": str(sink.table),
        "bootstrap.servers": sink.connection.config.bootstrap_servers,
        "all.or.nothing": "true",
        "ledger.database": sink.ledger,
    }
    writer = AllOrNothingWriter(WriteOptions.parse(given), spark_schema(SCHEMA), False)
    return writer, [
        writer.write(iter(task.to_arrow().cast(SCHEMA).to_batches())) for task in sink.tasks(0, 40)
    ]


@pytest.mark.parametrize("failures", [1, 2])
def test_all_or_nothing_whose_publishing_fails(
    engine: FlussConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """Once, it goes on where it was; twice, the error tells that a part is there."""
    sink = Sink(engine, tmp_path / "checkpoint", False)
    writer, messages = staged_at_once(sink)
    send = Publisher._send_one
    sent = failed = 0

    async def broken(self: Publisher, *args: Any) -> None:
        nonlocal sent, failed
        if sent and failed < failures:
            failed += 1
            raise FlussError("the cluster is away", ErrorCode.NETWORK_EXCEPTION)
        sent += 1
        await send(self, *args)

    monkeypatch.setattr(Publisher, "_send_one", broken)
    # one bucket after the other
    monkeypatch.setattr(Publisher, "_send", _one_by_one)
    if failures == 1:
        writer.commit(messages)
        assert sink.found() == list(range(40))
    else:
        told = r"away; a part of the write may be in table .*: 1 of the \d+ log batches .* 40 rows"
        with pytest.raises(FlussError, match=told):
            writer.commit(messages)
        assert 0 < len(sink.found()) < 40
    assert not engine.get_admin().list_partition_infos(TablePath(sink.ledger, "staged"))


def test_all_or_nothing_that_is_refused_is_told_as_it_is(
    engine: FlussConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink(engine, tmp_path / "checkpoint", False)
    writer, messages = staged_at_once(sink)
    asked = []

    async def refused(self: Publisher, *args: Any) -> None:
        asked.append(args)
        raise FlussError("no right to WRITE", ErrorCode.AUTHORIZATION_EXCEPTION)

    monkeypatch.setattr(Publisher, "_send", refused)
    with pytest.raises(FlussError) as found:
        writer.commit(messages)
    assert found.value.message == "no right to WRITE"
    assert len(asked) == 1
    assert sink.found() == []


async def _one_by_one(self: Publisher, by_bucket: Any) -> None:
    for bucket, pieces in by_bucket.items():
        await self._send_all(bucket, pieces)
