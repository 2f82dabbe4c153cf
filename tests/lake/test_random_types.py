"""Random tables with columns of every type, values at the ends of what these have, against lists.

A step writes, deletes, tiers all or a part, expires snapshots, adds a column or drops a partition;
then queries with filters, projections and limits are held against the rows in memory, read from
both halves, and from the lake alone where all is tiered. ``FLUSS_TEST_CASES`` says how many tables.
"""

from __future__ import annotations

import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.lake.iceberg.catalog import open_table
from fluss_df.lake.iceberg_upkeep.expiry import expire_snapshots
from fluss_df.lake.iceberg_upkeep.orphans import remove_orphans
from fluss_df.lake.iceberg_writing import compaction, files
from fluss_df.lake.rounds import lake_rows
from tests.lake.tables_by_hand import Folder

CASES = int(os.environ.get("FLUSS_TEST_CASES", "8"))
SEED = int(os.environ.get("FLUSS_TEST_SEED", "1"))
OPTIONS = EngineOptions(lake_tiering=False, segment_bytes=2000)
FAR = 2**63 - 10**9
NINES = Decimal("9" * 28 + "." + "9" * 10)
# values as whole numbers where Python has none of their type
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [0, 127, -128]),
    "i16": (pa.int16(), [0, 32767, -32768]),
    "i32": (pa.int32(), [0, 1, -1, 2**31 - 1, -(2**31)]),
    "i64": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63)]),
    "f32": (pa.float32(), [0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf")]),
    "f64": (pa.float64(), [0.0, -0.0, 5e-324, float("nan"), float("inf"), float("-inf")]),
    "bool": (pa.bool_(), [True, False]),
    "text": (
        pa.string(),
        ["b", "a" * 16, "a" * 5000, "\U0010ffff" * 1100, "\0", "é", "\ud7ff" * 17, "\ue000", "%_$"],
    ),
    "bytes": (pa.binary(), [b"b", b"\0", b"\xff" * 17, b"a" * 17, b"z" * 5000]),
    "fixed": (pa.binary(3), [b"\0\0\0", b"abc", b"\xff\xff\xff"]),
    "long": (pa.decimal128(38, 10), [Decimal(0), Decimal("-1.5"), NINES, NINES.copy_negate()]),
    "short": (pa.decimal128(5, 2), [Decimal(0), Decimal("1.25"), Decimal("-999.99")]),
    "date": (pa.date32(), [0, -1, 2932896, -(2**31), 2**31 - 1]),
    "time_s": (pa.time32("s"), [0, 1, 86399]),
    "time_ms": (pa.time32("ms"), [0, 1, 86399999]),
    "ts_s": (pa.timestamp("s"), [0, -1, -62135596800, 253402300799]),
    "ts_ms": (pa.timestamp("ms"), [0, -1, 253402300799999, 10**15]),
    "ts_us": (pa.timestamp("us"), [0, -1, FAR, -FAR]),
    "ts_ns": (pa.timestamp("ns"), [0, -1000, FAR // 1000 * 1000, -FAR // 1000 * 1000]),
    "tz_us": (pa.timestamp("us", "UTC"), [0, -1, FAR]),
    "list": (pa.list_(pa.int16()), [[], [None], [1, 2]]),
    "row": (pa.struct([("x", pa.int8()), ("y c", pa.string())]), [{"x": 1, "y c": None}]),
    "map": (pa.map_(pa.int8(), pa.int16()), [[], [(1, None), (-1, 2)]]),
}
KEYS = ["i32", "i64", "text", "bytes", "date", "long", "ts_ms", "ts_us"]
NESTED = ("list", "row", "map")
DAYS = ["mon", "tue", "1-a_"]


class Trial:
    """A table, the rows that it must have, and what was done."""

    def __init__(self, folder: Folder, choose: random.Random, name: str) -> None:
        self.folder, self.choose, self.name = folder, choose, name
        self.path = fluss.TablePath("fluss", name)
        prefix = choose.choice(["", "a.b ", "*"])
        self.of: dict[str, str] = {
            prefix + kind: kind for kind in choose.sample(list(TYPES), choose.randrange(1, 6))
        }
        self.keys: list[str] = []
        self.parts = ["day"] if choose.random() < 0.4 else []
        columns = {"id": pa.int64(), **dict.fromkeys(self.parts, pa.string())}
        if choose.random() < 0.6:
            self.of["key"] = choose.choice(KEYS)
            self.keys = [*self.parts, "key"]
        columns |= {name: TYPES[kind][0] for name, kind in self.of.items()}
        self.schema = pa.schema(columns)
        properties = {"table.log.ttl": "1ms"}
        buckets = choose.choice([1, 3])
        options: Any = {"parts": self.parts, "buckets": buckets, "properties": properties}
        folder.create(name, columns, self.keys, **options)
        self.rows: list[dict[str, Any]] = []
        self.written = 0
        self.may_delete = bool(self.keys)
        self.in_lake: list[dict[str, Any]] | None = None
        self.log: list[str] = []

    def arrow(self, rows: list[dict[str, Any]]) -> pa.Table:
        columns = [pa.array([row.get(f.name) for row in rows], f.type) for f in self.schema]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[key] for key in self.keys)

    def value(self, name: str) -> Any:
        if name != "key" and self.choose.random() < 0.2:
            return None
        return self.choose.choice(TYPES[self.of[name]][1])

    def write(self) -> None:
        new = []
        for _ in range(self.choose.choice([0, 1, 3, 40])):
            self.written += 1
            row = {"id": self.written, **{part: self.choose.choice(DAYS) for part in self.parts}}
            new.append(row | {name: self.value(name) for name in self.of})
        options: Any = {"create_partitions": True} if self.parts else {}
        self.folder.write(self.name, self.arrow(new), **options)
        self.rows += new
        if self.keys:
            self.rows = list({self.key(row): row for row in self.rows}.values())

    def delete(self) -> None:
        if not self.may_delete or not self.rows:
            return
        gone = self.choose.sample(self.rows, self.choose.randrange(1, len(self.rows) + 1))
        self.folder.write(self.name, self.arrow(gone).select(self.keys), mode="delete")
        keys = set(map(self.key, gone))
        self.rows = [row for row in self.rows if self.key(row) not in keys]

    def tier(self) -> None:
        while not self.folder.tier(self.name, self.choose.choice([10, 10**6])).complete:
            pass
        self.in_lake = list(self.rows) if self.written else None

    def tier_a_part(self) -> None:
        self.folder.tier(self.name, self.choose.choice([1, 5]))
        self.in_lake = None

    def expire(self) -> None:
        info = self.folder.connection.get_admin().get_table_info(self.path)
        if open_table(info).current_snapshot() is not None:
            expire_snapshots(open_table(info), 0.0)
            remove_orphans(open_table(info), -10.0)

    def add_column(self) -> None:
        name = f"more {len(self.of)}"
        kind = self.choose.choice(list(TYPES))
        added = pa.field(name, TYPES[kind][0])
        self.folder.connection.get_admin().alter_table(self.path, add_columns=pa.schema([added]))
        self.schema = self.schema.append(added)
        self.of[name] = kind
        self.in_lake = None

    def drop_partition(self) -> None:
        self.tier()
        admin = self.folder.connection.get_admin()
        there = admin.list_partition_infos(self.path) if self.parts else []
        if there:
            admin.drop_partition(self.path, {"day": self.choose.choice(there).partition_name})
            # a delete of a row that the lake alone has is none for Fluss
            self.may_delete = False

    def step(self) -> None:
        steps = {
            self.write: 45,
            self.delete: 15,
            self.tier: 20,
            self.tier_a_part: 8,
            self.expire: 6,
            self.add_column: 6,
            self.drop_partition: 4,
        }
        [chosen] = self.choose.choices(list(steps), list(steps.values()))
        self.log.append(chosen.__name__)
        chosen()
        self.check(self.name, self.rows)
        if self.in_lake is not None and chosen == self.tier:
            self.check(f"{self.name}$lake", self.in_lake)

    # ---- queries

    def atom(self) -> pl.Expr:
        choose = self.choose
        name = choose.choice([*self.of, "id", *self.parts])
        column = cs.by_name(name).as_expr()
        kind, values = TYPES.get(self.of.get(name, ""), (pa.int64(), [0, 1, self.written // 2]))
        if name == "day":
            kind, values = pa.string(), [*DAYS, "sun"]
        if choose.random() < 0.2 or self.of.get(name) in NESTED:
            return choose.choice([column.is_null(), column.is_not_null()])
        series = pl.Series(pl.from_arrow(pa.array(choose.choices([*values, None], k=3), kind)))
        if choose.random() < 0.25:
            return column.is_in(series.implode(), nulls_equal=choose.random() < 0.5)
        value = pl.Series(pl.from_arrow(pa.array([choose.choice(values)], kind)))
        plain = value.to_physical() if value.dtype in (pl.Date, pl.Datetime) else value
        literal = pl.lit(plain[0], dtype=plain.dtype).cast(value.dtype)
        if value.dtype == pl.String and choose.random() < 0.3:
            return column.str.starts_with(value[0][:17])
        of = ["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "eq_missing"]
        compared: pl.Expr = getattr(column, choose.choice(of))(literal)
        return compared

    def condition(self) -> pl.Expr:
        made = self.atom()
        for _ in range(self.choose.randrange(4)):
            other = self.atom()
            made = self.choose.choice([made & other, made | other, ~made])
        return made

    def check(self, name: str, rows: list[dict[str, Any]]) -> None:
        choose = self.choose
        whole = self.folder.scan(name)
        model = pl.DataFrame(self.arrow(rows)).cast(dict(whole.collect_schema()))  # type: ignore[arg-type]
        for _ in range(3):
            query, expected, texts = whole, model.lazy(), []
            for _ in range(choose.choice([0, 1, 1, 2])):
                where = self.condition()
                texts.append(where)
                query, expected = query.filter(where), expected.filter(where)
            names = choose.sample(model.columns, choose.randrange(1, len(model.columns) + 1))
            columns = [cs.by_name(column).as_expr() for column in names]
            wanted = plain(expected.select(columns).collect())
            first = choose.choice([0, 1, 5])
            limited = choose.random() < 0.3
            if limited:
                query = query.head(first)
            engine: Any = choose.choice(["in-memory", "streaming"])
            found = plain(query.select(columns).collect(engine=engine))
            if limited:
                sound = len(found) == min(first, len(wanted)) and not set(found) - set(wanted)
            else:
                sound = sorted(found) == sorted(wanted)
            if not sound:
                pytest.fail(
                    f"seed {SEED}, table {name}, {self.schema}, {self.log}: {len(found)} rows of"
                    f" {names}, and not {len(wanted)}, or others; filters:"
                    f" {[root for text in texts for root in text.meta.root_names()]}"
                )


def plain(frame: pl.DataFrame) -> list[str]:
    """Return rows as texts, with numbers in place of moments that Python does not have."""
    columns = [s.to_physical() if s.dtype.is_temporal() else s for s in frame.iter_columns()]
    return [repr(row) for row in zip(*(column.to_list() for column in columns), strict=True)]


def test_random_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(SEED)
    with (
        EmbeddedFluss(tmp_path / "folder", options=OPTIONS) as engine,
        engine.connection() as connection,
    ):
        for number in range(CASES):
            monkeypatch.setattr(lake_rows, "_GROUP_ROWS", choose.choice([3, 10, 1 << 17]))
            monkeypatch.setattr(files, "_TARGET_BYTES", choose.choice([1, 5000, 128 << 20]))
            monkeypatch.setattr(compaction, "_SMALL_FILES", choose.choice([2, 3, 8]))
            trial = Trial(Folder(connection), choose, f"t{number}")
            for _ in range(choose.randrange(4, 12)):
                trial.step()
