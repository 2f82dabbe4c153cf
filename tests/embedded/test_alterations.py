"""Tables and databases that two clients alter at the same time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.lake_requests import LakeRequests
from fluss_df.engine.requests import catalog_requests, dispatch
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from tests.embedded.raw import RawClient

# how long the second alteration has to come in between
_BETWEEN_S = 0.5


def _at_once(
    monkeypatch: pytest.MonkeyPatch, name: str, first: Callable[[], Any], second: Callable[[], Any]
) -> None:
    """Do a second alteration between the two steps of the first, if the engine lets it."""
    compute = getattr(catalog_requests, name)
    other: list[threading.Thread] = []

    def computed(*args: Any) -> Any:
        changed = compute(*args)
        if not other:
            other.append(threading.Thread(target=second))
            other[0].start()
            other[0].join(_BETWEEN_S)
        return changed

    monkeypatch.setattr(catalog_requests, name, computed)
    first()
    other[0].join()


def test_no_column_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    path = fluss.TablePath("fluss", "t")
    with (
        EmbeddedFluss(port=0) as engine,
        engine.connection() as one,
        fluss.connect(engine.address) as two,
    ):
        schema = fluss.Schema(pa.schema([("x", pa.int64())]))
        one.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        _at_once(
            monkeypatch,
            "altered",
            lambda: one.get_admin().alter_table(path, add_columns=pa.schema([("a", pa.int64())])),
            lambda: two.get_admin().alter_table(path, add_columns=pa.schema([("b", pa.int64())])),
        )
        assert one.get_table(path).get_table_info().get_column_names() == ["x", "a", "b"]


def test_no_property_of_a_database_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        EmbeddedFluss(port=0) as engine,
        engine.connection() as one,
        fluss.connect(engine.address) as two,
    ):
        one.get_admin().create_database("db")
        _at_once(
            monkeypatch,
            "altered_database",
            lambda: one.get_admin().alter_database("db", set_properties={"a": "1"}),
            lambda: two.get_admin().alter_database("db", set_properties={"b": "2"}),
        )
        found = one.get_admin().get_database_info("db").database_descriptor
        assert found.get_custom_properties() == {"a": "1", "b": "2"}


@pytest.mark.parametrize("asked", ["metadata", "table info"])
def test_an_id_is_that_of_the_columns_beside_it(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """Also where a column is added while the answer is made: rows would be read as another's."""
    path = fluss.TablePath("fluss", "t")
    name = pb.PathOfTable(database_name="fluss", table_name="t")
    with (
        EmbeddedFluss(port=0) as engine,
        engine.connection() as one,
        RawClient(engine.address) as client,
    ):
        schema = fluss.Schema(pa.schema([("x", pa.int64())]))
        one.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        module = dispatch if asked == "metadata" else catalog_requests
        plain = module.shown
        added: list[str] = []

        def shown(*arguments: Any) -> Any:
            def add() -> None:
                column = pb.AddColumn(
                    column_name=f"c{len(added)}",
                    data_type_json=b'{"type": "BIGINT"}',
                    column_position_type=0,
                )
                request = pb.AlterTableRequest(
                    table_path=name, ignore_if_not_exists=False, add_columns=[column]
                )
                handlers = engine._connections.dispatcher._handlers
                handlers[api.ALTER_TABLE.key][1](request)
                added.append(column.column_name)

            add()
            found = plain(*arguments)
            add()
            return found

        monkeypatch.setattr(module, "shown", shown)
        if asked == "metadata":
            request = pb.MetadataRequest(table_path=[name])
            (answer,) = client.call(api.GET_METADATA, request).table_metadata
        else:
            answer = client.call(api.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=name))
        assert len(added) == 2
        columns = json.loads(answer.table_json)["schema"]["columns"]
        assert answer.schema_id == len(columns)


def test_first_heartbeats_at_once_have_one_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two, the tables of one of the services would be refused when they are tiered."""
    with EmbeddedFluss(tmp_path / "d") as opened:
        requests = LakeRequests(opened.engine)
        answer = dict(requests.handlers())[api.LAKE_TIERING_HEARTBEAT]
        epochs: list[int] = []

        def beat() -> None:
            epochs.append(answer(pb.LakeTieringHeartbeatRequest()).coordinator_epoch)

        number, second = opened.engine.catalog.writer_id, threading.Thread(target=beat)

        def numbered() -> int:
            if second.ident is None:
                second.start()
                second.join(_BETWEEN_S)
            return number()

        monkeypatch.setattr(opened.engine.catalog, "writer_id", numbered)
        beat()
        second.join()
    assert len(epochs) == 2
    assert len(set(epochs)) == 1
