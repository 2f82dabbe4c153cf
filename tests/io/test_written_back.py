"""What was read is written back, and the same sink runs twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import FlussError, Schema, TableDescriptor, TablePath
from fluss_df.io import read_fluss, scan_fluss, sink_fluss, write_fluss

ROWS = pl.DataFrame({"id": [1, 2], "s": ["a", "b"]})


@pytest.fixture
def connection() -> Iterator[fluss.FlussConnection]:
    with fluss.connect(":memory:") as made:
        yield made


def test_a_changelog_is_written_to_a_new_table(connection: fluss.FlussConnection) -> None:
    write_fluss(ROWS, "keys", connection=connection, create_if_not_exists=True, primary_keys="id")
    with connection.get_table("keys").new_upsert().create_writer() as writer:
        writer.upsert([1, "c"])
        writer.delete([2])
    changes = scan_fluss("keys$changelog", connection=connection)
    for _ in range(2):
        made = sink_fluss(
            changes,
            "copy",
            connection=connection,
            create_if_not_exists=True,
            primary_keys="id",
            change_type_column="_change_type",
        )
        # an update has its old row, which is passed over
        assert made.rows == 4
    assert read_fluss("copy", connection=connection).to_dicts() == [{"id": 1, "s": "c"}]


def test_merged_schemas_leave_numbers_to_the_server(connection: fluss.FlussConnection) -> None:
    schema = Schema(
        pa.schema([("id", pa.string()), ("n", pa.int64()), ("v", pa.int64())]), ["id"], "n"
    )
    connection.get_admin().create_table(TablePath("fluss", "numbered"), TableDescriptor(schema))
    rows = pl.DataFrame({"id": ["a", "b"], "v": [1, 2]})
    write_fluss(rows, "numbered", connection=connection, schema_mode="merge")
    more = pl.DataFrame({"id": ["c"], "v": [3], "w": ["new"]})
    write_fluss(more, "numbered", connection=connection, schema_mode="merge")
    found = read_fluss("numbered", connection=connection).sort("id")
    assert found["n"].to_list() == [1, 2, 3]
    assert found["w"].to_list() == [None, None, "new"]


@pytest.mark.parametrize(
    "properties",
    [
        {"bucket.num": "3"},
        {"table.auto-partition.enabled": False},
        {"table.log.tiered.local-segments": 3},
    ],
)
def test_a_table_is_as_its_properties_say(
    connection: fluss.FlussConnection, properties: dict[str, Any]
) -> None:
    for _ in range(2):
        write_fluss(
            ROWS, "log", connection=connection, create_if_not_exists=True, properties=properties
        )
    other: dict[str, Any] = {
        "bucket.num": "4",
        "table.auto-partition.enabled": True,
        "table.log.tiered.local-segments": 4,
    }
    (name,) = properties
    with pytest.raises(FlussError, match="exists with"):
        write_fluss(ROWS, "log", connection=connection, properties={name: other[name]})


def test_who_is_told_and_fails_knows_what_was_written(connection: fluss.FlussConnection) -> None:
    def fails(rows: int) -> None:
        raise ValueError("no such window")

    with pytest.raises(ValueError, match="no such window") as failed:
        write_fluss(ROWS, "log", connection=connection, create_if_not_exists=True, progress=fails)
    assert any("2 rows were written to fluss.log" in note for note in failed.value.__notes__)
    assert read_fluss("log", connection=connection).height == 2


@pytest.mark.parametrize("given", [5, [1]])
def test_keys_are_names(connection: fluss.FlussConnection, given: Any) -> None:
    with pytest.raises(FlussError, match=r"primary_keys=.*: expected a name, or a list of names"):
        write_fluss(
            ROWS, "log", connection=connection, create_if_not_exists=True, primary_keys=given
        )
