# ruff: noqa: E501 - conditions and expressions are read best on one line
"""Random tables written into files by ``fluss-df dump`` and read back by ``fluss-df load``.

``python -m tests.campaigns.files_fuzz [TABLES=100] [SEED=0]``

Tables have every type, edges of their values, and names that are patterns or need quotes. What is
loaded must be what was dumped, value by value, or a command must refuse. ``head``, ``tail``, ``count`` and
``sql`` are asked of each table, too, with its names. Ends with 1 where a value is another one, or a
command ends with a traceback.
"""

from __future__ import annotations

import collections
import json
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from fluss_df.cli import app
from fluss_df.client.connection import FlussConnection
from fluss_df.embedded import EmbeddedFluss
from fluss_df.metadata import TablePath
from fluss_df.schema import TableDescriptor
from tests.campaigns.spark_fuzz import exact
from tests.campaigns.spark_tables import SparkTable
from tests.campaigns.spark_writes import raw_rows
from tests.cli.files.commands import ENDINGS


class Files:
    """A table, its copies by way of files, and what came of the commands."""

    def __init__(self, rng: random.Random, connection: FlussConnection, number: str, folder: Path,
                 address: str) -> None:  # fmt: skip
        self.rng, self.connection, self.folder, self.address = rng, connection, folder, address
        self.table = SparkTable(rng, connection, f"t{number}", folder)
        self.counts: collections.Counter[str] = collections.Counter()
        self.reasons: dict[str, str] = {}

    def run(self, *arguments: str) -> Result:
        given = [*arguments, "--connection", self.address]
        found = CliRunner().invoke(app, given)
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            self.wrong("raised", given, found.exception)
        return found

    def wrong(self, what: str, arguments: Any, why: Any) -> None:
        self.counts["wrong"] += 1
        print(f"WRONG {what} {arguments}\n  {self.table}\n  {str(why)[:1500]}", flush=True)

    def refused(self, command: str, found: Result) -> None:
        text = " ".join(found.stderr.split())
        reason = re.sub(r"'[^']*'|\S*t\d+_\d+\S*|\d+", "...", text)[:90]
        self.counts["refused"] += 1
        self.reasons.setdefault(reason, f"{command}: {text}"[:300])

    def there_and_back(self, ending: str) -> None:
        """Dump, load into a table of the same columns, and compare."""
        name = f"{self.table.path.table_name}_{re.sub(r'[^a-z]', '', ending)}"
        copy = TablePath("sparks", name)
        info = self.connection.get_table(self.table.path).get_table_info()
        partitions = self.table.partitions if self.rng.random() < 0.5 or self.table.keys else None
        self.connection.get_admin().create_table(
            copy, TableDescriptor(info.schema, partition_keys=partitions, bucket_count=2)
        )
        file = str(self.folder / f"{name}{ending}")
        dumped = self.run("dump", str(self.table.path), file)
        if dumped.exit_code:
            self.refused(f"dump {ending}", dumped)
            return
        loaded = self.run("load", file, "--into", str(copy), "--create-partitions")
        if loaded.exit_code:
            self.refused(f"load {ending}", loaded)
            return
        self.compare(ending, raw_rows(self.connection, copy, self.address))
        if self.rng.random() < 0.5:
            # once more into a table that the command makes, without being told the types
            created = self.run("load", file, "--into", f"{copy}_new", "--create", "--buckets", "1")
            if created.exit_code:
                self.refused(f"load --create {ending}", created)
            elif ending in (".parquet", ".arrow"):
                found = raw_rows(self.connection, TablePath("sparks", f"{name}_new"), self.address)
                self.compare(f"{ending} --create", found)
            else:
                self.counts["created"] += 1

    def compare(self, what: str, found: list[dict[str, Any]]) -> None:
        names = self.table.schema.names
        want, got = (
            collections.Counter(repr([exact(row[n]) for n in names]) for row in rows)
            for rows in (raw_rows(self.connection, self.table.path, self.address), found)
        )
        self.counts["compared"] += 1
        if want != got:
            self.wrong(what, "", f"missing {list(want - got)[:2]}\n  more {list(got - want)[:2]}")

    def shown(self) -> None:
        """Ask ``head``, ``tail``, ``count`` and ``sql`` for some columns."""
        rng, table = self.rng, self.table
        names = rng.sample(table.schema.names, rng.randint(1, min(4, len(table.schema.names))))
        size = str(table.rows.num_rows)
        count = self.run("count", str(table.path))
        if count.exit_code or count.stdout.strip() != size:
            self.wrong("count", "", count.output)
        for command in ("head", "tail"):
            given = [command, str(table.path), "--json", "-n", "1000"]
            if not any("," in n for n in names):
                given += ["--columns", ",".join(names)]
            found = self.run(*given)
            if found.exit_code:
                self.refused(command, found)
                continue
            rows = [json.loads(line) for line in found.stdout.splitlines()]
            if len(rows) != table.rows.num_rows or any(not set(names) <= set(row) for row in rows):
                self.wrong(command, names, found.stdout[:500])
            self.counts[command] += 1
            plain = self.run(*[a for a in given if a != "--json"])
            if plain.exit_code:
                self.wrong(f"{command} as text", names, plain.output)
        columns = ", ".join("`" + n.replace("`", "``") + "`" for n in names)
        found = self.run("sql", f"SELECT {columns} FROM {table.path}", "--json")
        if found.exit_code:
            self.refused("sql", found)
            return
        rows = [json.loads(line) for line in found.stdout.splitlines()]
        self.counts["sql"] += 1
        if len(rows) != table.rows.num_rows or any(list(row) != names for row in rows):
            self.wrong("sql", columns, found.stdout[:500])


def main() -> None:
    """Run the campaign."""
    numbers = [int(a) for a in sys.argv[1:] if a.isdigit()]
    tables, seed = (*numbers, *(100, 0)[len(numbers) :])
    counts: collections.Counter[str] = collections.Counter()
    reasons: dict[str, str] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        EmbeddedFluss(Path(name) / "data", port=0) as engine,
    ):
        connection = engine.connection()
        connection.get_admin().create_database("sparks")
        for number in range(tables):
            rng = random.Random(f"{seed}-{number}")
            files = Files(rng, connection, f"{seed}_{number}", Path(name), str(engine.address))
            for ending in rng.sample(ENDINGS, 3):
                files.there_and_back(ending)
            files.shown()
            counts += files.counts
            for reason, example in files.reasons.items():
                reasons.setdefault(reason, example)
    for example in reasons.values():
        print("refused:", example)
    print(", ".join(f"{n} {what}" for what, n in counts.items()) + f", seed {seed}")
    sys.exit(bool(counts["wrong"]))


if __name__ == "__main__":
    main()
