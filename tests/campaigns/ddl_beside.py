"""Random tables, changes of them and partitions, asked of a real Fluss server and of the engine.

``python -m tests.campaigns.ddl_beside [TABLES=500] [SEED=0] [-v]``

Both get the same requests. The code of each answer, and the table that it leaves, must be the same;
what differs on purpose stands in docs/embedded.md. Prints each request that is answered otherwise,
and ends with 1 where there was one. Messages that differ while the codes agree are counted, and
shown with ``-v``.
"""

from __future__ import annotations

import collections
import json
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.message import Message

from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.merge.merge_engines import MERGE_ENGINE
from fluss_df.engine.tables import options
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from tests.embedded.peers import STANDBY_REPLICA, Peer, path, spec, table_json

_NAMES: Final = ["a", "b", "c", "d", "e", "A", "ä", "a b", "a.b", "x" * 130, "__offset", "f0"]
_SIMPLE: Final = [
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BYTES",
    "DATE",
]  # fmt: skip
_PRECISE: Final = [
    "TIME_WITHOUT_TIME_ZONE", "TIMESTAMP_WITHOUT_TIME_ZONE", "TIMESTAMP_WITH_LOCAL_TIME_ZONE",
]  # fmt: skip
_VALUES: Final = [
    "true", "false", "TRUE", "maybe", "", " ", "0", "1", "2", "-1", "3", " 4 ", "007", "1.5",
    "2147483647",
    "2147483648", "9223372036854775807", "x", "7 d", "7d", "1 h", "10ms", "5 min", "1 ns", "-3 d",
    "1 year",
    "1mb", "10 kb", "ARROW", "arrow", "INDEXED", "COMPACTED", "compacted", "NONE", "none",
    "LZ4_FRAME", "ZSTD", "zstd",
    "FIRST_ROW", "first_row", "VERSIONED", "AGGREGATION", "IGNORE", "DISABLE", "ALLOW", "allow",
    "FULL", "WAL",
    "DAY", "day", "HOUR", "MONTH", "QUARTER", "YEAR", "UTC", "Europe/Berlin", "GMT+2", "Nowhere",
    "a", "b", "c", "a,b", "*",
    "paimon", "ICEBERG", "lance",
]  # fmt: skip
_FITTING: Final = {
    MERGE_ENGINE: ["FIRST_ROW", "first_row", "VERSIONED", "versioned", "AGGREGATION"],
    "table.merge-engine.versioned.ver-column": ["a", "b", "c", "d", "zz"],
    "table.delete.behavior": ["IGNORE", "DISABLE", "ALLOW", "ignore"],
    "table.log.format": ["ARROW", "INDEXED", "COMPACTED"],
    "table.kv.format": ["INDEXED", "COMPACTED"],
    "table.changelog.image": ["FULL", "WAL"],
    options.AUTO_PARTITION: ["true"],
    options.AUTO_PARTITION_KEY: ["a", "b", "c", "zz"],
}
_FUNCTIONS: Final = [
    "sum", "max", "min", "last_value", "last_value_ignore_nulls", "first_value", "product",
    "listagg",
    "first_value_ignore_nulls", "bool_and", "bool_or", "string_agg", "SUM", "rbm32", "zz",
]  # fmt: skip
_PARTITION_VALUES: Final = [
    "x", "y", "1", "01", "-5", "true", "TRUE", "2024-01-01", "2024-1-1", "20240101", "1.5", "NaN",
    "ff", "a b",
    "__x", "", "x" * 201, "12-30-00", "2024-01-01-00-00-00", "2024-01-01-00-00-00_123",
]  # fmt: skip
# what is refused here on purpose is left out
_SETTINGS: Final = [
    name
    for name in options.NAMES
    if name
    not in (
        options.AUTO_PARTITION_ZONE,
        options.SEQUENCE_CACHE,
        options.STATISTICS_COLUMNS,
        options.DATALAKE_ENABLED,
    )
]
# a server of a cluster takes note of a new table a moment later
_MOMENT_S: Final = 0.3


class Requests:
    """Makes up requests."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        # what may be wrong with the next request: one thing, so that it does not matter in which
        # order a server looks at them
        self.wrong = ""
        # how fields within columns are numbered
        self.numbered = "all"
        self.last_id = 100

    def field_id(self) -> int:
        self.last_id += 1
        return self.last_id if self.numbered == "all" else -1

    def begin(self) -> None:
        """Choose what may be wrong with the next request."""
        self.numbered = self.random.choice(["all", "all", "all", "none"])
        self.wrong = self.random.choice(
            ["", "type", "name", "key", "property", "number", "function"]
        )

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def may(self, what: str) -> int:
        return int(self.wrong == what)

    def data_type(self, depth: int = 0) -> dict[str, Any]:
        pick = self.random
        kind: dict[str, Any]
        sort = pick.random()
        if sort < 0.65 or depth > 2 or (sort >= 0.95 and self.numbered == "none"):
            kind = {"type": pick.choice(_SIMPLE)}
        elif sort < 0.75:
            kind = {
                "type": pick.choice(_PRECISE),
                "precision": pick.choice([0, 3, 6, 9, *[10] * self.may("type")]),
            }
        elif sort < 0.80:
            precision, scale = pick.choice(
                [(5, 2), (38, 0), (38, 38), *[(39, 1), (0, 0), (4, 5)] * self.may("type")]
            )
            kind = {"type": "DECIMAL", "precision": precision, "scale": scale}
        elif sort < 0.85:
            kind = {
                "type": pick.choice(["CHAR", "BINARY"]),
                "length": pick.choice([1, 5, *[0, -1] * self.may("type")]),
            }
        elif sort < 0.90:
            kind = {"type": "ARRAY", "element_type": self.data_type(depth + 1)}
        elif sort < 0.95:
            kind = {
                "type": "MAP",
                "key_type": self.data_type(depth + 1),
                "value_type": self.data_type(depth + 1),
            }
        else:
            kind = {
                "type": "ROW",
                "fields": [
                    {
                        "name": name,
                        "field_type": self.data_type(depth + 1),
                        "field_id": self.field_id(),
                    }
                    for name in pick.sample(_NAMES, pick.randint(0, 3))
                ],
            }
        if self.chance(0.2):
            kind["nullable"] = self.chance(0.3)
        return kind

    def column(self, name: str, number: int) -> dict[str, Any]:
        kind = self.data_type()
        column: dict[str, Any] = {"name": name, "data_type": kind, "id": number}
        if self.numbered == "none":
            column["id"] = -1
        if self.chance(0.1):
            column["comment"] = self.random.choice(["", "of it", "ä"])
        if self.wrong == "function" and self.chance(0.4):
            function: dict[str, Any] = {"type": self.random.choice(_FUNCTIONS)}
            if self.chance(0.3):
                function["parameters"] = {"delimiter": self.random.choice([",", "", "||"])}
            column["agg_function"] = function
        return column

    def properties(self) -> dict[str, str]:
        pick = self.random
        found: dict[str, str] = {}
        for _ in range(pick.choice([0, 0, 1, 1, 2, 3])):
            key = pick.choice([*_SETTINGS, *["table.bogus", "bogus"] * self.may("property")])
            if self.chance(0.5):
                key = pick.choice(list(_FITTING))
            fits = _FITTING.get(key)
            wild = self.wrong == "property" and not found
            found[key] = pick.choice(fits if fits and not wild else _VALUES)
            if fits is None and not wild:
                del found[key]
        return found

    def keys(self, names: list[str], share: float) -> list[str]:
        if not self.chance(share):
            return []
        known = [*names, *["zz"] * self.may("key")]
        return self.random.sample(known, min(len(known), self.random.choice([1, 1, 2, 3])))

    def description(self) -> dict[str, Any]:
        pick = self.random
        self.begin()
        usual = _NAMES if self.wrong == "name" else _NAMES[:5]
        names = pick.sample(usual, pick.choice([1, 2, 3, 4, 5]))
        columns = [self.column(name, number) for number, name in enumerate(names)]
        schema: dict[str, Any] = {
            "version": 1,
            "columns": columns,
            "highest_field_id": len(columns) - 1,
        }
        primary = self.keys(names, 0.5)
        if primary:
            schema["primary_key"] = primary
        if self.chance(0.08):
            schema["auto_increment_column"] = [pick.choice(names)]
        parted = self.keys(primary if primary and self.wrong != "key" else names, 0.35)
        rest = [name for name in primary or names if name not in parted]
        found: dict[str, Any] = {
            "schema": schema,
            "partition_key": parted,
            "bucket_key": self.keys(names if self.wrong == "key" else rest, 0.3),
            "properties": self.properties(),
            "custom_properties": {"my.own": "1"} if self.chance(0.1) else {},
        }
        if self.chance(0.9):
            # a partitioned table without buckets is refused here on purpose
            none = [0, -1] if not parted else []
            found["bucket_count"] = pick.choice([1, 3, *[16, *none] * self.may("number")])
        if self.chance(0.1):
            found["comment"] = pick.choice(["", "a table", "ä"])
        return found

    def alteration(self, name: str, names: list[str]) -> Message:
        pick = self.random
        self.begin()
        request = pb.AlterTableRequest(table_path=path(name), ignore_if_not_exists=False)
        sort = pick.random()
        for _ in range(pick.choice([1, 1, 1, 2])):
            sort = pick.random() if self.wrong == "" else sort
            if sort < 0.45:
                added = request.add_columns.add()
                added.column_name = pick.choice([*_NAMES, "g", "h", "i"])
                added.data_type_json = json.dumps(self.data_type()).encode()
                added.column_position_type = pick.choice([0, *[1, 3] * self.may("number")])
                if self.chance(0.2):
                    added.comment = "added"
            elif sort < 0.5:
                request.drop_columns.add().column_name = pick.choice(names)
            elif sort < 0.55:
                renamed = request.rename_columns.add()
                renamed.old_column_name, renamed.new_column_name = pick.choice(names), "z"
            elif sort < 0.6:
                modified = request.modify_columns.add()
                modified.column_name = pick.choice(names)
                modified.data_type_json = json.dumps(self.data_type()).encode()
            else:
                change = request.config_changes.add()
                change.config_key = pick.choice([*_SETTINGS, "my.own", "other", "table.bogus"])
                change.op_type = pick.choice([0, 0, 0, 1, 2, 3])
                if change.op_type == 0 or self.chance(0.3):
                    change.config_value = pick.choice(_VALUES)
        return request

    def partition(self, keys: list[str]) -> pb.PartitionSpec:
        named = {key: self.random.choice(_PARTITION_VALUES) for key in keys}
        if self.chance(0.1):
            named["zz"] = "1"
        if self.chance(0.1) and named:
            named.pop(self.random.choice(list(named)))
        return spec(**named)


class Comparison:
    """Asks both, and tells what is not the same."""

    def __init__(self, real: Peer, embedded: Peer, verbose: bool) -> None:
        self.real, self.embedded, self.verbose = real, embedded, verbose
        self.codes: collections.Counter[str] = collections.Counter()
        self.different = 0
        self.refusals = 0
        self.words: collections.Counter[str] = collections.Counter()

    def ask(self, kind: api.Api[Any, Any], request: Message) -> bool:
        """Return whether both did what was asked."""
        there = self.real.ask(kind, request)
        here = self.embedded.ask(kind, request)
        for _ in range(5):
            if there[0] == here[0]:
                break
            # it may know by then
            time.sleep(_MOMENT_S)
            if not there[0]:
                break
            there = self.real.ask(kind, request)
        self.codes[f"{kind.name}: {there[0]}"] += 1
        shown = text_format.MessageToString(request, as_one_line=True).replace('\\"', "'")
        words = [
            re.sub(r"^(java|org\.apache)[\w.$]*(Exception|Error): ", "", said[1])
            for said in (there, here)
        ]
        if there[0] and here[0] and there[0] != here[0]:
            self.refusals += 1
            print(
                f"other code: {kind.name} {shown}\n  real:     {there}\n  embedded: {here}",
                flush=True,
            )
        elif there[0] != here[0] or (not there[0] and _plain(there[2]) != _plain(here[2])):
            self.tell(f"{kind.name} {shown}\n  real:     {there}\n  embedded: {here}")
        elif words[0] != words[1]:
            pair = f"real:     {words[0]}\n  embedded: {words[1]}"
            self.words[pair] += 1
            if self.verbose and self.words[pair] == 1:
                print(f"words: {kind.name} {shown}\n  {pair}", flush=True)
        return there[0] == here[0] == 0

    def compare_table(self, name: str) -> dict[str, Any] | None:
        """Return the table as both have it; None where they have different ones."""
        there, here = self.real.table_json(name), self.embedded.table_json(name)
        here["properties"].pop(STANDBY_REPLICA, None)
        found = _first_difference(there, here, "")
        if found is not None:
            self.tell(f"table {name}: {found}")
        return here if found is None else None

    def tell(self, text: str) -> None:
        self.different += 1
        print(f"DIFFERENT {text}", flush=True)


def _first_difference(there: Any, here: Any, where: str) -> str | None:
    if isinstance(there, dict) and isinstance(here, dict):
        pairs = [(f"{where}.{key}", there.get(key), here.get(key)) for key in {**there, **here}]
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(there, here, strict=True))]
    else:
        return None if there == here else f"{where} is {there!r} there, and {here!r} here"
    differences = (_first_difference(a, b, place) for place, a, b in pairs)
    return next((found for found in differences if found is not None), None)


def _plain(answer: str) -> str:
    """Return the text of an answer without what each server numbers by itself."""
    return re.sub(
        r"(partition_id|table_id|created_time|modified_time): \d+|remote_data_dir: \S+", "", answer
    )


def life(requests: Requests, both: Comparison, number: int) -> None:
    """Create a table, change it, and drop it."""
    name = f"t{number}"
    described = requests.description()
    text = table_json(**described)
    if "bucket_count" not in described:
        value = json.loads(text)
        del value["bucket_count"]
        text = json.dumps(value).encode()
    request = pb.CreateTableRequest(table_path=path(name), table_json=text, ignore_if_exists=False)
    if not both.ask(api.CREATE_TABLE, request):
        return
    if both.compare_table(name) is None:
        return
    names = [column["name"] for column in described["schema"]["columns"]]
    keys: list[str] = described["partition_key"]
    automatic = described["properties"].get(options.AUTO_PARTITION, "").lower() == "true"
    for _ in range(requests.random.randint(1, 6)):
        if requests.chance(0.4 if keys else 0.05):
            named = requests.partition(keys or names[:1])
            if requests.chance(0.75):
                both.ask(
                    api.CREATE_PARTITION,
                    pb.CreatePartitionRequest(
                        table_path=path(name),
                        partition_spec=named,
                        ignore_if_exists=requests.chance(0.3),
                    ),
                )
            else:
                both.ask(
                    api.DROP_PARTITION,
                    pb.DropPartitionRequest(
                        table_path=path(name),
                        partition_spec=named,
                        ignore_if_not_exists=requests.chance(0.3),
                    ),
                )
            if keys and not automatic:
                # the order is that of a tree of names there
                asked = pb.ListPartitionInfosRequest(table_path=path(name))
                lists = [_partitions(peer, asked) for peer in (both.real, both.embedded)]
                if lists[0] != lists[1]:
                    both.tell(
                        f"partitions of {name}\n  real:     {lists[0]}\n  embedded: {lists[1]}"
                    )
            continue
        both.ask(api.ALTER_TABLE, requests.alteration(name, names))
        table = both.compare_table(name)
        if table is None:
            return
        names = [column["name"] for column in table["schema"]["columns"]]
    both.ask(api.DROP_TABLE, pb.DropTableRequest(table_path=path(name), ignore_if_not_exists=False))


def _partitions(peer: Peer, asked: pb.ListPartitionInfosRequest) -> list[str]:
    found = peer.client(api.LIST_PARTITION_INFOS).call(api.LIST_PARTITION_INFOS, asked)
    return sorted(
        "$".join(pair.value for pair in info.partition_spec.partition_key_values)
        for info in found.partitions_info
    )


def main() -> None:
    """Run it."""
    given = [word for word in sys.argv[1:] if word != "-v"]
    tables, seed = (int(given[0]) if given else 500), (int(given[1]) if len(given) > 1 else 0)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster() as cluster,
        EmbeddedFluss(Path(folder) / "data", port=0) as engine,
    ):
        real, embedded = (
            Peer(cluster.bootstrap_servers, cluster.server_version),
            Peer(engine.address),
        )
        both = Comparison(real, embedded, "-v" in sys.argv)
        for number in range(tables):
            life(Requests(seed * 1_000_003 + number), both, number)
        real.close()
        embedded.close()
    for code, count in sorted(both.codes.items()):
        print(f"{count:6} {code}")
    print(
        f"{tables} tables, {both.different} differences, {both.refusals} other codes,"
        f" {len(both.words)} other messages"
    )
    if both.different:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
