"""Where a lake table is: what messages show of its options, databases of catalogs, files gone."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.iceberg.catalog import _sql_uri, open_lake_table
from fluss_df.lake.iceberg.files import snapshot_files
from fluss_df.lake.iceberg.snapshot import IcebergSnapshot
from fluss_df.lake.options import LakeOptions
from fluss_df.metadata import TablePath

SECRET = "hunter2/="
QUOTED = "hunter2%2F%3D"
NOWHERE = "127.0.0.1:1"


def options(**properties: str) -> LakeOptions:
    return LakeOptions(TablePath("db", "t"), "iceberg", properties)


@pytest.mark.parametrize(
    "properties",
    [
        {"uri": f"jdbc:postgresql://{NOWHERE}/c?user=bob&password={QUOTED}&sslmode=require"},
        {"uri": f"jdbc:mysql://bob:{QUOTED}@{NOWHERE}/c"},
        {"uri": f"jdbc:oracle://bob:{QUOTED}@{NOWHERE}/c"},
        {"uri": f"jdbc:mysql://{NOWHERE}/c", "jdbc.user": "bob", "jdbc.password": SECRET},
        {"type": "rest", "uri": f"http://bob:{QUOTED}@{NOWHERE}/"},
        {"type": "rest", "uri": f"http://{NOWHERE}/", "credential": f"bob:{SECRET}"},
        {"type": "rest", "uri": f"http://{NOWHERE}/", "header.Authorization": SECRET},
        {"type": "hadoop", "adls.account-key": SECRET, "s3.sse.key": SECRET},
        {"type": "hadoop", "adls.auth.shared-key.account.key": SECRET},
        {"type": "hadoop", "adls.connection-string": f"AccountKey={SECRET}", "x.pwd": SECRET},
        {"uri": f"jdbc:postgresql://bob:{SECRET}@{NOWHERE}/c"},
    ],
    ids=str,
)
def test_no_message_shows_credentials(properties: dict[str, str]) -> None:
    given = options(**{"type": "jdbc", **properties})
    with pytest.raises(FlussError, match=r"table db\.t") as refused:
        open_lake_table(given)
    for text in (repr(given), str(refused.value)):
        assert SECRET not in text
        assert "hunter2" not in text
    assert "***" in repr(given)


def test_what_is_not_secret_is_shown() -> None:
    uri = "jdbc:postgresql://h:5432/c?user=bob&password=x&sslmode=require"
    shown = repr(options(type="jdbc", uri=uri, warehouse="s3://bucket/path"))
    assert "jdbc:postgresql://h:5432/c?user=bob&password=***&sslmode=require" in shown
    assert "s3://bucket/path" in shown
    assert "http://***@h/x" in repr(options(uri="http://bob:pw@h/x"))


@pytest.mark.parametrize(
    ("uri", "more", "made"),
    [
        ("postgresql://h:5/c?user=u&password=a%2Fb", {}, "postgresql+psycopg2://u:a%2Fb@h:5/c"),
        ("postgresql://u:a%2Fb@h/c", {}, "postgresql+psycopg2://u:a%2Fb@h/c"),
        (
            "postgresql://h/c?sslmode=require",
            {"user": "v", "password": "p"},
            "postgresql+psycopg2://v:p@h/c?sslmode=require",
        ),
        ("mysql://h/c?user=u", {"password": "p"}, "mysql+pymysql://u:p@h/c"),
        ("sqlite:/a/c.db", {}, "sqlite:////a/c.db?timeout=60"),
    ],
)
def test_addresses_of_databases(uri: str, more: dict[str, str], made: str) -> None:
    found = _sql_uri(options(), f"jdbc:{uri}", more.get("user"), more.get("password"))
    assert found == made


def test_a_driver_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(FlussError, match="pip install psycopg2-binary") as refused:
        open_lake_table(options(type="jdbc", uri=f"jdbc:postgresql://{NOWHERE}/c"))
    assert "table db.t" in str(refused.value)


def test_a_snapshot_whose_files_were_deleted(tmp_path: Path) -> None:
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("db")
    rows = pa.table({"a": [1, 2]})
    table: Any = catalog.create_table("db.t", rows.schema)
    table.append(rows)
    number = table.current_snapshot().snapshot_id
    for manifest in (tmp_path / "w").rglob("*.avro"):
        manifest.unlink()
    with pytest.raises(FlussError, match=rf"db\.t.*snapshot {number}.*\.avro") as refused:
        snapshot_files(table, number)
    assert refused.value.error_code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    assert "lake=False" in str(refused.value)


def test_a_data_file_that_was_deleted_after_it_was_planned_with(tmp_path: Path) -> None:
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("db")
    rows = pa.table({"a": [1, 2]})
    table: Any = catalog.create_table("db.t", rows.schema)
    table.append(rows)
    number = table.current_snapshot().snapshot_id
    snapshot = IcebergSnapshot(TablePath("db", "t"), table, number)
    assert snapshot.frame(snapshot.wanted([])).collect()["a"].to_list() == [1, 2]
    (file,) = (tmp_path / "w").rglob("*.parquet")
    file.unlink()
    with pytest.raises(FlussError, match=rf"db\.t: the file {re.escape(str(file))}") as refused:
        snapshot.frame(snapshot.wanted([]))
    assert refused.value.error_code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    assert "lake=False" in str(refused.value)
