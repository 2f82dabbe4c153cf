"""An embedded engine, served by TCP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss_df.embedded import EmbeddedFluss


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EmbeddedFluss]:
    with EmbeddedFluss(tmp_path / "data", port=0) as engine:
        yield engine


def table_json(**changes: object) -> bytes:
    """Return the description of a table of an INT and a STRING, as clients send it."""
    columns = [
        {"name": "a", "data_type": {"type": "INTEGER"}, "id": 0},
        {"name": "b", "data_type": {"type": "STRING"}, "id": 1},
    ]
    value: dict[str, object] = {
        "version": 1,
        "schema": {"version": 1, "columns": columns, "highest_field_id": 1},
        "partition_key": [],
        "bucket_key": [],
        "bucket_count": 1,
        "properties": {},
        "custom_properties": {},
    }
    return json.dumps(value | changes).encode()
