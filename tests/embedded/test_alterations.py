"""Tables and databases that two clients alter at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.requests import catalog_requests

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
