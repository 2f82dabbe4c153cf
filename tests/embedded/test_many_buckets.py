"""Tables of very many buckets: their folders are listed, and not asked for one by one."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from fluss_df import OffsetSpec, Schema, TableDescriptor, TablePath
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError
from fluss_df.io import write_fluss
from fluss_df.metadata import TableBucket

PATH = TablePath("fluss", "wide")
BUCKETS = 3000


def test_folders_of_buckets_are_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        admin = connection.get_admin()
        schema = Schema(pa.schema([("id", pa.int64())]))
        admin.create_table(PATH, TableDescriptor(schema, bucket_count=BUCKETS, bucket_keys=["id"]))
        write_fluss(pl.DataFrame({"id": range(20)}), PATH, connection=connection)
        used = {bucket.bucket_id for bucket in engine.engine.all_buckets()}
        assert 1 < len(used) <= 20
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        admin = connection.get_admin()
        table = engine.engine.catalog.table(PATH)
        data = str(folder / "data" / str(table.id))
        # one that nobody noted, as an engine that is killed leaves it
        spare = min(set(range(BUCKETS)) - used)
        (folder / "data" / str(table.id) / "table" / str(spare)).mkdir()
        asked: Counter[str] = Counter()
        listdir, stat = os.listdir, os.stat

        def counted_listdir(path: str | Path) -> list[str]:
            asked["lists"] += str(path).endswith("/table")
            return listdir(path)

        def counted_stat(path: object, *args: object, **options: object) -> os.stat_result:
            name = str(path)
            asked["looks"] += name.startswith(data) and Path(name).parent.name == "table"
            return stat(path, *args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "listdir", counted_listdir)
        monkeypatch.setattr(os, "stat", counted_stat)
        offsets = admin.list_offsets(PATH, range(BUCKETS), OffsetSpec.latest())
        assert sum(offsets.values()) == 20
        assert {bucket for bucket, offset in offsets.items() if offset} == used
        # the questions of a caller in this process, and of a request
        assert asked["lists"] <= 2
        assert asked["looks"] <= 4 * len(used) + 8
        assert admin.get_table_stats(PATH).row_count == 20
        found = {bucket.bucket_id for bucket in engine.engine.all_buckets()}
        assert found == used | {spare}
        few = [TableBucket(table.id, number) for number in (spare, min(used))]
        none = TableBucket(table.id, min(set(range(BUCKETS)) - found))
        assert engine.engine.having_folders([*few, none]) == set(few)
        assert not engine.engine.having_folders([])


def test_a_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        admin = connection.get_admin()
        schema = Schema(pa.schema([("id", pa.int64())]))
        admin.create_table(PATH, TableDescriptor(schema, bucket_count=20))
        table = engine.engine.catalog.table(PATH)
        (folder / "data" / str(table.id)).mkdir(exist_ok=True)
        place = folder / "data" / str(table.id) / "table"
        # in the way of what is not there yet
        place.write_text("no folder")
        assert admin.list_offsets(PATH, range(20), OffsetSpec.latest()) == dict.fromkeys(
            range(20), 0
        )
        assert engine.engine.all_buckets() == []

        def refuses(path: str | Path) -> list[str]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with monkeypatch.context() as patch:
            patch.setattr(os, "listdir", refuses)
            with pytest.raises(FlussError, match="raise the limit"):
                engine.engine.all_buckets()


@pytest.mark.parametrize("image", ["full", "wal"])
def test_statistics_make_no_rows_where_nobody_wrote(tmp_path: Path, image: str) -> None:
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        admin = connection.get_admin()
        schema = Schema(pa.schema([("id", pa.int64())]), ["id"])
        properties = {"table.changelog.image": image}
        admin.create_table(PATH, TableDescriptor(schema, bucket_count=3, properties=properties))
        if image == "full":
            assert admin.get_table_stats(PATH).row_count == 0
            assert not engine.engine.all_buckets()
            assert not engine.engine.open_buckets()
        else:
            with pytest.raises(FlussError, match="Row count is disabled"):
                admin.get_table_stats(PATH)
