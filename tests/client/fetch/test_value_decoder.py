"""Values of a schema that two threads meet first at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.fetch import value_decoder
from fluss_df.client.fetch.value_decoder import ValueReader
from fluss_df.client.lookup.lookuper import Lookuper
from fluss_df.embedded import EmbeddedFluss
from fluss_df.record.kv.values import ValueDecoder, encode_value_batch


@pytest.fixture
def met() -> Iterator[tuple[ValueReader, bytes]]:
    """A reader from before a column was added, and a value from after that."""
    with EmbeddedFluss() as engine, engine.connection() as connection:
        path, admin = fluss.TablePath("fluss", "t"), connection.get_admin()
        schema = fluss.Schema(pa.schema([("id", pa.int64())]), primary_keys=["id"])
        admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1), False)
        before = connection.get_table(path).get_table_info()
        admin.alter_table(path, add_columns=pa.schema([("more", pa.int64())]))
        table = connection.get_table(path)
        with table.new_upsert().create_writer() as writer:
            writer.write_arrow(pa.table({"id": [7], "more": [8]}))
        value = Lookuper(connection, table.get_table_info())._asker.ask_one((7,))
        assert isinstance(value, bytes)
        yield ValueReader(connection, before), value


def test_a_schema_that_another_thread_learns_just_now(
    met: tuple[ValueReader, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, value = met
    found: list[Any] = []

    def decode() -> None:
        try:
            found.append(reader.decode([value]).to_pylist())
        except fluss.FlussError as error:
            found.append(error)

    other = threading.Thread(target=decode)

    def made(*arguments: Any) -> ValueDecoder:
        if other.ident is None:
            other.start()
            # until it has ended, or waits for this thread
            other.join(0.5)
        return ValueDecoder(*arguments)

    monkeypatch.setattr(value_decoder, "ValueDecoder", made)
    decode()
    other.join()
    assert found == [[{"id": 7}], [{"id": 7}]]


def test_a_batch_whose_schema_another_thread_learnt_meanwhile(
    met: tuple[ValueReader, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, value = met
    learn = reader._learn_newest

    def learnt_by_another() -> bool:
        assert learn()
        return learn()

    monkeypatch.setattr(reader, "_learn_newest", learnt_by_another)
    assert reader.decode_batch(encode_value_batch([value])).to_pylist() == [{"id": 7}]
