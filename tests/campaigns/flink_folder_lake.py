"""Flink beside a folder of the embedded engine with a lake: it tiers its tables, and reads them.

First our service tiers a part of each table, and Flink SQL reads lake and log as one. Then Flink's
tiering service goes on where ours stood, and ours where Flink's stood; each time all rows are held
against a plain model. Flink 1.20 and Fluss's connector, which refuses the union of primary-key
tables in Iceberg, come from Maven Central.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fluss_df.cluster.servers import lake
from fluss_df.cluster.servers.java import find_java
from fluss_df.embedded import EmbeddedFluss
from tests.campaigns.flink_sql import CONDITIONS, sql, statement, texts
from tests.lake.folders import BY_HAND, IN_A_SECOND, assert_elsewhere, assert_reads, at, table, tier
from tests.lake.tiering.support import KINDS, LakeTable
from tests.waiting import wait_until


@contextlib.contextmanager
def _flink_tiers(address: str, folder: Path) -> Iterator[None]:
    """Run Flink's tiering service for an embedded server meanwhile."""
    arguments = {
        "fluss.bootstrap.servers": address,
        "fluss.tiering.poll.table.interval": "1s",
        "datalake.format": "iceberg",
        "datalake.iceberg.type": "jdbc",
        "datalake.iceberg.uri": f"jdbc:sqlite:{folder / 'lake' / 'catalog.db'}",
        "datalake.iceberg.warehouse": f"file://{folder / 'lake' / 'warehouse'}",
    }
    jars = os.pathsep.join(map(str, [*lake._flink_jars(), *lake.lake_jars("iceberg")]))
    command = [str(find_java()), *lake._TIERING_JVM, "-cp", jars, str(lake._TIERING_MAIN)]
    words = (text for key, value in arguments.items() for text in (f"--{key}", value))
    with open(folder.parent / "flink.log", "wb") as log:
        service = subprocess.Popen([*command, *words], stdout=log, stderr=log)
        try:
            yield
        finally:
            service.terminate()
            service.wait(60)


def _change(tables: Sequence[LakeTable], version: int) -> None:
    """Write rows of a version over those of the one before, and delete some."""
    first = version * 500
    for one in tables:
        one.write(list(range(first, first + 1000)), version)
        if one.keyed:
            one.delete(list(range(first, first + 1000, 7)))


def _await_tiered(tables: Sequence[LakeTable]) -> None:
    wait_until(lambda: all(one.tiered() == one.ends() for one in tables), 300)


def _check(engine: EmbeddedFluss, tables: Sequence[LakeTable], folder: Path | None = None) -> None:
    """Hold the rows against the model, and with a folder those of other readers of its lake."""
    for one in tables:
        assert_reads(engine, one)
        if folder is not None:
            assert_elsewhere(folder, one)


def _flink_reads(address: str, tables: Sequence[LakeTable]) -> None:
    """Have Flink SQL read lake and log as one, and compare."""
    asked = [(one, where) for one in tables for where in CONDITIONS]
    answers = sql(address, [statement(one.name, where) for one, where in asked], "iceberg")
    for number, (one, where) in enumerate(asked):
        expected = texts(one.expected().filter(CONDITIONS[where]))
        answer = answers[number]
        assert answer == expected, (one.kind, where, len(expected), answer[:200])
    print(f"Flink reads lake and log as one: {len(asked)} queries are equal", flush=True)


def main() -> None:
    """Tier and read by turns."""
    with tempfile.TemporaryDirectory(prefix="flink-beside-a-folder-") as place:
        folder = Path(place) / "data"
        with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
            assert engine.address is not None
            tables = [table(engine, kind, IN_A_SECOND) for kind in KINDS]
            _change(tables, 0)
            logs = [one for one in tables if not one.keyed]
            for one in logs:
                # of a bucket without any rows, Flink waits for one: each batch goes to some bucket
                while len(one.ends()) < (6 if one.partitioned else 2):
                    one.write(list(range(1000)), 0)
            until = time.monotonic() + 60
            while any(one.tiered() != one.ends() for one in tables):
                assert time.monotonic() < until
                tier(engine)
            _check(engine, tables, folder)
            _change(tables, 1)
            _check(engine, tables)
            _flink_reads(engine.address, logs)

            with _flink_tiers(engine.address, folder):
                for version in range(2, 6):
                    _change(tables, version)
                    _check(engine, tables)
                    _await_tiered(tables)
                    _check(engine, tables)
                    # other readers of Python cannot read deletes by values, which Flink writes
                    _check(engine, logs, folder)
                    print(f"Flink tiered round {version - 1}: equal", flush=True)
        with EmbeddedFluss(folder, port=0) as engine:
            for one in tables:
                at(engine, one)
            _change(tables, 6)
            _check(engine, tables)
            _await_tiered(tables)
            _check(engine, tables)
            print("ours tiered after Flink: equal")


if __name__ == "__main__":
    main()
