"""Random programs of a client: orders about tables, and what they know of them."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Type = dict[str, Any]
Order = dict[str, Any]

# ---- types and values, as JavaClient reads them


def scalar(rng: random.Random) -> Type:
    """A random type without parts."""
    kind = rng.choice(
        [
            *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"),
            *("CHAR", "STRING", "BINARY", "BYTES", "DATE", "TIME_WITHOUT_TIME_ZONE"),
            *("TIMESTAMP_WITHOUT_TIME_ZONE", "TIMESTAMP_WITH_LOCAL_TIME_ZONE"),
        ]
    )
    made: Type = {"type": kind}
    if kind in ("CHAR", "BINARY"):
        made["length"] = rng.choice([1, 3, 20])
    elif kind == "DECIMAL":
        made["precision"] = rng.choice([1, 9, 18, 19, 38])
        made["scale"] = rng.choice([0, made["precision"] // 2, made["precision"]])
    elif kind == "TIME_WITHOUT_TIME_ZONE":
        made["precision"] = rng.choice([0, 3])
    elif kind.startswith("TIMESTAMP"):
        made["precision"] = rng.choice([0, 3, 6, 9])
    return made


def data_type(rng: random.Random, depth: int = 0) -> Type:
    """A random type."""
    if depth == 2 or rng.random() < 0.8:
        return scalar(rng)
    kind = rng.choice(["ARRAY", "MAP", "ROW"])
    if kind == "ARRAY":
        return {"type": kind, "element_type": data_type(rng, depth + 1)}
    if kind == "MAP":
        # the client hashes keys that are bytes by where they are in memory: their order is chance
        key = {"type": "BYTES"}
        while key["type"] in ("BYTES", "BINARY"):
            key = scalar(rng) | {"nullable": False}
        return {"type": kind, "key_type": key, "value_type": data_type(rng, depth + 1)}
    fields = [
        {"name": f"f{i}", "field_type": data_type(rng, depth + 1), "field_id": -1}
        for i in range(rng.randint(1, 3))
    ]
    return {"type": kind, "fields": fields}


def text(rng: random.Random, most: int) -> str:
    """A random text of at most ``most`` characters."""
    letters = rng.choice([string.ascii_lowercase, "aA %_\\'\"", "äßé漢😀\x00\n"])
    return "".join(rng.choice(letters) for _ in range(rng.randint(0, most)))


def value(rng: random.Random, t: Type, *, key: bool = False) -> Any:
    """A random value of a type."""
    if t.get("nullable", True) and not key and rng.random() < 0.15:
        return None
    kind = t["type"]
    bits = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}.get(kind)
    if bits is not None:
        edge = 1 << (bits - 1)
        return rng.choice([0, 1, -1, edge - 1, -edge, rng.randrange(-edge, edge)])
    match kind:
        case "BOOLEAN":
            return rng.random() < 0.5
        case "FLOAT" | "DOUBLE":
            few = ["0.0", "1.5", "-2.25", "1.0E30", "NaN", "Infinity", "-Infinity"]
            return rng.choice(few if key else [*few, "-0.0", "1.4E-45"])
        case "CHAR":
            # rows of the format INDEXED fill the bytes of shorter ones with zeros
            return "".join(rng.choice("abc") for _ in range(t["length"]))
        case "STRING":
            return text(rng, rng.choice([0, 3, 7, 8, 40]))
        case "BINARY":
            return base64.b64encode(rng.randbytes(t["length"])).decode()
        case "BYTES":
            return base64.b64encode(rng.randbytes(rng.choice([0, 1, 7, 8, 40]))).decode()
        case "DECIMAL":
            unscaled = rng.choice([0, 1, -1, 10 ** t["precision"] - 1, 1 - 10 ** t["precision"]])
            return f"{unscaled}E-{t['scale']}" if t["scale"] else str(unscaled)
        case "DATE":
            return rng.choice([0, -1, 19_000, 2_932_896, -719_162])
        case "TIME_WITHOUT_TIME_ZONE":
            moment = rng.choice([0, 1, 86_399_999, rng.randrange(86_400_000)])
            return moment // 1000 * 1000 if t["precision"] == 0 else moment
        case "TIMESTAMP_WITHOUT_TIME_ZONE" | "TIMESTAMP_WITH_LOCAL_TIME_ZONE":
            step = 1000 if t["precision"] == 0 else 1
            # of those with nanoseconds, Arrow has the years from 1678 to 2262 alone
            first = -9_223_372_036_000 if t["precision"] == 9 else -62_135_596_800_000
            millis = rng.choice([0, 1, -1, 1_700_000_000_123, first])
            # the client fails to read parts of milliseconds before 1970 in Arrow
            parts = {6: [0, 1000, 999_000], 9: [0, 1, 999_999]} if millis >= 0 else {}
            nanos = parts.get(t["precision"], [0])
            return [millis // step * step, rng.choice(nanos)]
        case "ARRAY":
            return [value(rng, t["element_type"]) for _ in range(rng.choice([0, 1, 3]))]
        case "MAP":
            keys = [value(rng, t["key_type"], key=True) for _ in range(rng.choice([0, 1, 2]))]
            unique = {json.dumps(one): one for one in keys}.values()
            return [[one, value(rng, t["value_type"])] for one in unique]
        case _:
            return [value(rng, one["field_type"]) for one in t["fields"]]


# ---- programs


@dataclass
class Table:
    """A table as a program knows it."""

    name: str
    types: dict[str, Type]
    keys: list[str]
    partition_keys: list[str]
    bucket_keys: list[str]
    buckets: int
    properties: dict[str, str]
    partitions: list[str] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)

    def json(self, comment: str | None) -> str:
        """The descriptor as clients send it."""
        columns = [
            {"name": name, "data_type": t, "id": i}
            for i, (name, t) in enumerate(self.types.items())
        ]
        schema: dict[str, Any] = {"version": 1, "columns": columns}
        schema["highest_field_id"] = _number(columns)
        if self.keys:
            schema["primary_key"] = self.keys
        made: dict[str, Any] = {"version": 1, "schema": schema}
        if comment is not None:
            made["comment"] = comment
        made |= {"partition_key": self.partition_keys, "bucket_key": self.bucket_keys}
        made |= {"bucket_count": self.buckets, "properties": self.properties}
        return json.dumps(made | {"custom_properties": {"owner": "né"}})


def _number(columns: list[dict[str, Any]]) -> int:
    """Give fields of rows their ids, behind those of columns; return the highest."""
    highest = len(columns) - 1

    def walk(t: Type) -> None:
        nonlocal highest
        for one in t.get("fields", ()):
            highest += 1
            one["field_id"] = highest
            walk(one["field_type"])
        for part in ("element_type", "key_type", "value_type"):
            if part in t:
                walk(t[part])

    for column in columns:
        walk(column["data_type"])
    return highest


_PROPERTIES = (
    *("owner", "x.y", "client.x", "table.log.ttl", "table.log.format", "table.datalake.enabled"),
    *("table.auto-partition.num-retention", "table.log.tiered.local-segments"),
)
_PARTITIONED_BY: dict[str, list[Any]] = {
    "STRING": ["p1", "p2"],
    "INTEGER": [1, -2],
    "BIGINT": [1, 1 << 40],
    "SMALLINT": [0, 300],
    "BOOLEAN": [True, False],
    "DATE": [0, 19_000],
    "BYTES": ["AQ==", "/w=="],
}


def table(rng: random.Random, name: str) -> Table:
    """A random table, which is allowed for the most part."""
    types = {f"c{i}": data_type(rng) for i in range(rng.randint(1, 7))}
    keys: list[str] = []
    partition_keys: list[str] = []
    if rng.random() < 0.4:
        t: Type = (
            {"type": rng.choice(list(_PARTITIONED_BY))}
            if rng.random() < 0.3
            else {"type": "STRING"}
        )
        types["part"] = t | {"nullable": False}
        partition_keys = ["part"]
    if rng.random() < 0.6:
        for i in range(rng.randint(1, 3)):
            types[f"k{i}"] = scalar(rng) | {"nullable": False}
            keys.append(f"k{i}")
        keys += partition_keys
    names = list(types)
    rng.shuffle(names)
    types = {one: types[one] for one in names}
    bucket_keys: list[str] = []
    if keys and rng.random() < 0.4:
        bucket_keys = [k for k in keys if k not in partition_keys][: rng.randint(1, 2)]
    elif not keys and rng.random() < 0.4:
        bucket_keys = [rng.choice(names)]
        types[bucket_keys[0]]["nullable"] = False
    properties: dict[str, str] = {}
    if rng.random() < 0.3:
        formats = ["ARROW", "arrow", "INDEXED", "COMPACTED"]
        properties["table.log.format"] = rng.choice(formats)
    if rng.random() < 0.3:
        codecs = ["NONE", "LZ4_FRAME", "ZSTD", "zstd", "SNAPPY"]
        properties["table.log.arrow.compression.type"] = rng.choice(codecs)
    if keys and properties.get("table.log.format") == "INDEXED":
        # 0.9.1 creates tables of other rows, too, and then refuses each of them
        properties["table.kv.format"] = "INDEXED"
    elif keys and rng.random() < 0.3:
        properties["table.kv.format"] = rng.choice(["INDEXED", "COMPACTED"])
    if keys and rng.random() < 0.4:
        properties["table.merge-engine"] = rng.choice(["first_row", "versioned", "aggregation"])
        if properties["table.merge-engine"] == "versioned":
            properties["table.merge-engine.versioned.ver-column"] = rng.choice(names)
    if keys and rng.random() < 0.2:
        properties["table.delete.behavior"] = rng.choice(["ignore", "disable", "allow"])
    if keys and rng.random() < 0.2:
        properties["table.changelog.image"] = rng.choice(["full", "wal"])
    if rng.random() < 0.05:
        properties[rng.choice(["table.unknown", "unknown", "table.log.ttl"])] = "x"
    # without a key for buckets, rows are dealt to buckets as batches come
    buckets = rng.choice([1, 2, 3]) if keys or bucket_keys else 1
    return Table(name, types, keys, partition_keys, bucket_keys, buckets, properties)


class Program:
    """Orders of a program, made as it goes."""

    def __init__(self, rng: random.Random, database: str) -> None:
        self.rng = rng
        self.database = database
        self.tables: list[Table] = []
        self.names = 0

    def orders(self, length: int) -> Iterator[Order]:
        """Yield orders; each is obeyed before the next is made."""
        yield {"do": "create database", "comment": "c", "custom": {"a": "b"}}
        for _ in range(length):
            if not self.tables or self.rng.random() < 0.08:
                yield self.create()
            else:
                yield self.one(self.rng.choice(self.tables))
        for table in self.tables:
            yield {"do": "table", "table": table.name}
            yield {"do": "scan", "table": table.name}
        yield {"do": "tables"}
        yield {"do": "database"}
        yield {"do": "drop database", "quiet": False, "cascade": True}
        yield {"do": "database exists"}

    def create(self) -> Order:
        """Create a table, or one of a name that there is."""
        self.names += 1
        made = table(self.rng, f"t{self.names}")
        if self.tables and self.rng.random() < 0.1:
            name = self.rng.choice(self.tables).name
            return {
                "do": "create table",
                "table": name,
                "descriptor": made.json(None),
                "again": True,
                "quiet": self.rng.random() < 0.5,
            }
        self.tables.append(made)
        comment = self.rng.choice([None, "", "a cómment"])
        return {"do": "create table", "table": made.name, "descriptor": made.json(comment)}

    def row(self, t: Table) -> list[Any]:
        """A row: at times of a key that was written before."""
        rng = self.rng
        made = {n: value(rng, kind, key=n in t.keys) for n, kind in t.types.items()}
        if t.rows and rng.random() < 0.4:
            known = dict(zip(t.types, rng.choice(t.rows), strict=False))
            made |= {n: known[n] for n in (*t.keys, *t.partition_keys) if n in known}
        elif t.partition_keys:
            # where one cannot be created, the client may send no other batch either, or may
            made["part"] = rng.choice(_PARTITIONED_BY[t.types["part"]["type"]])
        return list(made.values())

    def rows(self, t: Table, *, keyed: bool) -> list[list[Any]]:
        """Some rows, for a table with keys or without."""
        made = [self.row(t) for _ in range(self.rng.choice([0, 1, 5, 40]))]
        if keyed == bool(t.keys):
            t.rows = (t.rows + made)[-200:]
        return made

    def one(self, t: Table) -> Order:
        """A random order about a table."""
        rng = self.rng
        names = list(t.types)
        kinds = [
            *("append", "upsert", "upsert", "upsert", "delete", "lookup", "insert", "prefix"),
            *("scan", "scan", "limit", "table", "schema", "alter", "partition", "partition"),
            *("partitions", "offsets", "offsets", "drop", "count", "snapshots", "exists"),
        ]
        if not t.keys:
            kinds += ["append"] * 5
        kind = rng.choice(kinds)
        at: Order = {"table": t.name}
        some = rng.sample(names, rng.randint(1, len(names)))
        if t.partitions and rng.random() < 0.9:
            named = {"partition": rng.choice(t.partitions)}
        else:
            named = {"partition": "none"} if rng.random() < 0.1 else {}
        match kind:
            case "append":
                return at | {"do": "append", "rows": self.rows(t, keyed=False)}
            case "upsert":
                if rng.random() < 0.3:
                    columns = list(dict.fromkeys([*t.keys, *some]))
                    rows = self.rows(t, keyed=True)
                    place = {n: i for i, n in enumerate(names)}
                    for one in rows:
                        for n in names:
                            if n not in columns:
                                one[place[n]] = None
                    return at | {"do": "upsert", "columns": columns, "rows": rows}
                return at | {"do": "upsert", "rows": self.rows(t, keyed=True)}
            case "delete":
                rows = rng.sample(t.rows, min(len(t.rows), rng.randint(0, 5)))
                order = at | {"do": "delete", "rows": rows}
                if rng.random() < 0.2:
                    order["columns"] = list(dict.fromkeys([*t.keys, *some]))
                return order
            case "lookup" | "insert":
                if not t.keys:
                    return at | {"do": "lookup", "keys": []}
                rows = [*rng.sample(t.rows, min(len(t.rows), 4)), self.row(t)]
                keys = [
                    [row[names.index(k)] for k in t.keys] for row in rows if len(row) >= len(names)
                ]
                order = at | {"do": "lookup", "keys": keys}
                return order | {"insert": True} if kind == "insert" else order
            case "prefix":
                by = [*t.partition_keys, *t.bucket_keys] if rng.random() < 0.8 else some
                rows = [*rng.sample(t.rows, min(len(t.rows), 3)), self.row(t)]
                keys = [[row[names.index(k)] for k in by] for row in rows if len(row) >= len(names)]
                return at | {"do": "lookup", "by": by, "keys": keys}
            case "scan":
                return at | {"do": "scan"} | ({"columns": some} if rng.random() < 0.5 else {})
            case "limit":
                order = at | {"do": "limit", "limit": rng.choice([0, 1, 3, 1000])} | named
                return order | ({"columns": some} if rng.random() < 0.3 else {})
            case "table":
                return at | {"do": "table"}
            case "schema":
                return at | {"do": "schema", "id": rng.choice([0, 0, 1, 2, 9])}
            case "alter":
                return self.alter(t)
            case "partition":
                name = rng.choice(["p1", "p2", "p3", "a b", "ä", "", "x" * 200])
                key = rng.choice(["part", "part", "part", "c0"])
                do = "create partition" if rng.random() < 0.7 else "drop partition"
                if do == "create partition" and t.partition_keys and name not in t.partitions:
                    t.partitions.append(name)
                return at | {"do": do, "spec": {key: name}, "quiet": rng.random() < 0.5}
            case "partitions":
                order = at | {"do": "partitions"}
                return order | ({"spec": {"part": "p1"}} if rng.random() < 0.3 else {})
            case "offsets":
                buckets = rng.choice([[0], [0, 1], list(range(t.buckets)), [9]])
                spec: Order = rng.choice([{}, {"earliest": True}, {"timestamp": 1}])
                return at | {"do": "offsets", "buckets": buckets} | spec | named
            case "drop":
                if rng.random() < 0.7:
                    return at | {"do": "drop table", "table": "none", "quiet": rng.random() < 0.3}
                if rng.random() < 0.8:
                    self.tables.remove(t)
                return at | {"do": "drop table", "quiet": rng.random() < 0.3}
            case "count":
                return at | {"do": "row count"}
            case "snapshots":
                return at | {"do": "snapshots"} | named
            case _:
                return at | {"do": "table exists"}

    def alter(self, t: Table) -> Order:
        """A change of a table."""
        rng = self.rng
        changes: list[dict[str, Any]] = []
        for _ in range(rng.choice([1, 1, 2])):
            kind = rng.random()
            if kind < 0.4:
                made = data_type(rng)
                name = f"n{rng.randint(0, 99)}" if rng.random() < 0.9 else rng.choice(list(t.types))
                columns = [{"name": name, "data_type": made, "id": 0}]
                highest = _number(columns)
                schema = {"version": 1, "columns": columns, "highest_field_id": highest}
                changes.append({"add": name, "schema": json.dumps(schema)})
            elif kind < 0.75:
                name = rng.choice(_PROPERTIES)
                changes.append({"set": name, "to": rng.choice(["1", "7 d", "true", "x", ""])})
            elif kind < 0.9:
                changes.append(
                    {"reset": rng.choice(["owner", "table.log.ttl", "x.y", "bucket.num"])}
                )
            else:
                changes.append(rng.choice([{"drop": "c0"}, {"rename": "c0", "to": "z"}]))
        return {
            "do": "alter table",
            "table": t.name,
            "changes": changes,
            "quiet": rng.random() < 0.3,
        }


def taken(program: Program, order: Order, answer: dict[str, Any]) -> None:
    """Have a program know what its order brought about."""
    if "ok" not in answer:
        if order["do"] == "create table" and "again" not in order:
            program.tables = [t for t in program.tables if t.name != order["table"]]
        return
    if order["do"] == "alter table":
        (t,) = (t for t in program.tables if t.name == order["table"])
        for change in order["changes"]:
            if "add" in change:
                t.types[change["add"]] = json.loads(change["schema"])["columns"][0]["data_type"]
        t.rows = [[*row, *[None] * (len(t.types) - len(row))] for row in t.rows]
    if order["do"] == "drop partition":
        for t in program.tables:
            gone = next(iter(order["spec"].values()))
            if t.name == order["table"] and gone in t.partitions:
                t.partitions.remove(gone)
