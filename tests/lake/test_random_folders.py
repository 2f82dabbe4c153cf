"""Random histories of tables with a lake in a folder, against frames in memory.

A step changes tables or the folder: rows, columns, partitions, tables that are dropped and made
again, tiering, expiry; the folder is closed, moved, copied, backed up and restored. After each, two
queries are compared. ``FLUSS_TEST_CASES`` says how many steps.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.upkeep.backup import back_up
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.engine.upkeep.restore import restore
from fluss_df.errors import FlussError
from fluss_df.lake.rounds.tasks import InThreads
from fluss_df.lake.tiering.table_round import TableRound
from tests.lake.folders import catalog

CASES = int(os.environ.get("FLUSS_TEST_CASES", "60"))
SEED = int(os.environ.get("FLUSS_TEST_SEED", "1"))
OPTIONS = EngineOptions(lake_tiering=False, segment_bytes=2000)
KINDS: dict[str, dict[str, Any]] = {
    "log": {},
    "bucketed": {"bucket_keys": ["id"]},
    "parted": {"partition_keys": ["day"]},
    "keyed": {"keys": ["id"]},
    "keyed_parted": {"keys": ["day", "id"], "partition_keys": ["day"]},
}
DAYS = ["mon", "tue", "wed"]
COLUMNS = pa.schema(
    [("id", pa.int64()), ("text", pa.string()), ("n", pa.int32()), ("day", pa.string())]
)
col = pl.col


class Table:
    """A table, and the rows that it must have."""

    def __init__(self, folder: Folder, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self.path = fluss.TablePath("fluss", kind)
        self.keys: list[str] = KINDS[kind].get("keys", [])
        self.parted = "partition_keys" in KINDS[kind]
        self.create()

    def create(self) -> None:
        self.added: list[str] = []
        self.rows = pl.DataFrame(COLUMNS.empty_table())
        # of partitions that were dropped: the lake has them
        self.gone = self.rows
        choose = self.folder.choose
        self.admin().create_table(
            self.path,
            fluss.TableDescriptor(
                fluss.Schema(COLUMNS, self.keys or None),
                bucket_count=choose.choice([1, 2, 3]),
                partition_keys=KINDS[self.kind].get("partition_keys"),
                bucket_keys=KINDS[self.kind].get("bucket_keys"),
                properties={"table.datalake.enabled": "true", "table.log.ttl": "1ms"},
            ),
        )

    def admin(self) -> fluss.FlussAdmin:
        return self.folder.connection.get_admin()

    def some_rows(self) -> pl.DataFrame:
        choose = self.folder.choose
        count = choose.choice([0, 1, 1, 7, 60, 300])
        ids = [choose.randrange(200) for _ in range(count)]
        return pl.DataFrame(
            {
                "id": ids,
                "text": [choose.choice([None, "a", f"b{i}", "é"]) for i in ids],
                "n": [choose.choice([None, i % 10, -i]) for i in ids],
                "day": [choose.choice(DAYS) for _ in ids],
                **{name: [choose.choice([None, i]) for i in ids] for name in self.added},
            },
            schema=self.rows.schema,
        )

    def write(self) -> str:
        rows = self.some_rows()
        options: Any = {"create_partitions": True} if self.parted else {}
        fluss.write_fluss(rows, self.kind, connection=self.folder.connection, **options)
        self.rows = pl.concat([self.rows, rows])
        if self.keys:
            self.rows = self.rows.unique(self.keys, keep="last", maintain_order=True)
            self.gone = self.gone.join(rows, on=self.keys, how="anti")
        return f"write {rows.height}"

    def delete(self) -> str:
        if not self.keys or self.rows.is_empty():
            return self.write()
        where = col("id") % self.folder.choose.randrange(2, 9) == 1
        rows = self.rows.filter(where).select(self.keys)
        fluss.write_fluss(rows, self.kind, connection=self.folder.connection, mode="delete")
        self.rows = self.rows.filter(~where)
        return f"delete {rows.height}"

    def add_column(self) -> str:
        if len(self.added) > 4:
            return self.write()
        name = f"more_{len(self.added)}"
        self.admin().alter_table(self.path, add_columns=pa.schema([(name, pa.int64())]))
        self.added.append(name)
        self.rows = self.rows.with_columns(pl.lit(None, pl.Int64).alias(name))
        self.gone = self.gone.with_columns(pl.lit(None, pl.Int64).alias(name))
        return f"add {name}"

    def drop_partition(self) -> str:
        days = (
            [p.partition_name for p in self.admin().list_partition_infos(self.path)]
            if (self.parted)
            else []
        )
        if not days:
            return self.write()
        self.folder.tier()
        day = self.folder.choose.choice(days)
        self.admin().drop_partition(self.path, {"day": day})
        dropped = col("day") == day
        self.gone = pl.concat([self.gone, self.rows.filter(dropped)])
        self.rows = self.rows.filter(~dropped)
        return f"drop {day}"

    def make_again(self) -> str:
        self.admin().drop_table(self.path)
        self.create()
        return "made again"

    def expected(self) -> pl.DataFrame:
        return pl.concat([self.rows, self.gone])

    def condition(self) -> pl.Expr:
        choose = self.folder.choose
        number = choose.randrange(-10, 210)
        atoms = [
            col("id") > number,
            col("id").is_in([number, 3, 7]),
            col("text") == "a",
            col("text").is_null(),
            col("n") < number,
            col("day") == choose.choice([*DAYS, "sun"]),
            *(col(name).is_null() for name in self.added),
            *(col(name) > number for name in self.added),
        ]
        made = choose.choice(atoms)
        for _ in range(choose.randrange(3)):
            other = choose.choice(atoms)
            made = choose.choice([made & other, made | other, ~made])
        return made

    def check(self) -> None:
        choose = self.folder.choose
        query = fluss.scan_fluss(self.kind, connection=self.folder.connection)
        expected = self.expected().lazy()
        text = "all"
        if choose.random() < 0.6:
            where = self.condition()
            query, expected, text = query.filter(where), expected.filter(where), str(where)
        if choose.random() < 0.3:
            names = choose.sample(self.rows.columns, choose.randrange(1, 4))
            query, expected = query.select(names), expected.select(names)
        engine: Any = choose.choice(["in-memory", "streaming"])
        found, wanted = query.collect(engine=engine), expected.collect()
        wanted = wanted.sort(wanted.columns)
        if not found.sort(found.columns).equals(wanted):
            plan = fluss.explain(fluss.scan_fluss(self.kind, connection=self.folder.connection))
            pytest.fail(
                f"seed {SEED}, table {self.kind}, {self.folder.log}: {text} gives"
                f" {found.height} rows and not {wanted.height}, or others\n{plan}"
            )


class Folder:
    """A folder that is open, and is at another place now and then."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.choose = random.Random(SEED)
        self.places = 0
        self.path = root / "folder"
        self.log: list[str] = []
        self.open()
        self.tables = {kind: Table(self, kind) for kind in KINDS}

    def open(self) -> None:
        self.engine = EmbeddedFluss(self.path, options=OPTIONS)
        self.connection = self.engine.connection()

    def close(self) -> None:
        self.connection.close()
        self.engine.close()

    def tier(self) -> str:
        for table in self.tables.values():
            info = table.admin().get_table_info(table.path)
            sizes = {"max_rows": 10**6, "max_changes": 10**6}
            done = TableRound(self.connection, info, run_tasks=InThreads(1), **sizes)
            done.run(lambda: None)
        return "tier"

    def expire(self) -> str:
        return f"expire {self.engine.engine.expire()}"

    def check(self) -> str:
        self.close()
        report = check_folder(self.path)
        assert report.sound, (SEED, self.log, report.findings)
        self.open()
        return "check"

    def move(self) -> str:
        self.close()
        self.path = self.path.rename(self.another())
        self.open()
        return "move"

    def copy(self) -> str:
        self.close()
        old, self.path = self.path, self.another()
        shutil.copytree(old, self.path)
        self.open()
        # what names the old place fails from here on
        shutil.rmtree(old)
        return "copy"

    def restore(self) -> str:
        file = self.root / "backup.tar.lz4"
        back_up(self.engine.engine, file)
        self.close()
        shutil.rmtree(self.path)
        self.path = self.another()
        restore(file, self.path)
        assert check_folder(self.path).sound
        self.open()
        return "restore"

    def another(self) -> Path:
        self.places += 1
        return self.root / f"place-{self.places}"

    def step(self) -> None:
        table = self.tables[self.choose.choice(list(KINDS))]
        steps = {
            table.write: 42,
            table.delete: 12,
            self.tier: 18,
            self.expire: 8,
            table.add_column: 4,
            table.drop_partition: 4,
            table.make_again: 2,
            self.check: 3,
            self.move: 3,
            self.copy: 2,
            self.restore: 2,
        }
        [chosen] = self.choose.choices(list(steps), list(steps.values()))
        try:
            self.log.append(f"{table.kind}: {chosen()}")
            table.check()
            self.tables[self.choose.choice(list(KINDS))].check()
        except FlussError as error:
            raise AssertionError(f"seed {SEED}, {self.log[-30:]}, {chosen}: {error}") from error


def test_random_histories(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    try:
        for _ in range(CASES):
            folder.step()
        folder.tier()
        for table in folder.tables.values():
            table.check()
            lake = catalog(folder.path).load_table(("fluss", table.kind))
            assert lake.scan().count() == table.expected().height
    finally:
        folder.close()
