"""What the tests of primary-key tables share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import fluss_df as fluss
from tests.client.support import Official, Tables
from tests.peer import official

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])
Rows = dict[Any, dict[str, Any]]
_METADATA = ["_change_type", "_log_offset", "_commit_timestamp"]


def state(table: fluss.FlussTable) -> Rows:
    """Return the current rows by their id."""
    return by_id(table.new_scan().create_snapshot_scanner().to_arrow())


def by_id(rows: pa.Table) -> Rows:
    """Return rows by their id, which must be unique."""
    found = {row["id"]: row for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


def changelog(
    tables: Tables, table: fluss.FlussTable, columns: Sequence[str] | None = None
) -> pa.Table:
    """Return the changelog as it is now."""
    return tables.read(table, columns)


def fold(table: fluss.FlussTable, stops: dict[fluss.TableBucket, int]) -> Rows:
    """Return what the changelog up to some offsets leaves, one change after the other."""
    rows: Rows = {}
    for bucket, stop in stops.items():
        scanner = table.new_scan().create_record_batch_log_scanner()
        if bucket.partition_id is None:
            scanner.subscribe(bucket.bucket_id, 0)
        else:
            scanner.subscribe_partition(bucket.partition_id, bucket.bucket_id, 0)
        for change in scanner.to_arrow().to_pylist():
            kind, offset, _ = (change.pop(name) for name in _METADATA)
            if offset >= stop:
                break
            if kind == "-D":
                del rows[change["id"]]
            elif kind == "+I" or kind == "+U":
                rows[change["id"]] = change
            else:
                assert kind == "-U"
                assert rows[change["id"]] == change
    return rows


def random_changes(
    writer: fluss.UpsertWriter, model: Rows, rng: random.Random, ids: int, calls: int = 30
) -> None:
    """Change a table in every way there is, and its model alike."""
    for _ in range(calls):
        way = rng.randrange(6)
        many = [rng.randrange(ids) for _ in range(rng.choice([1, 3, 40]))]
        frame = pa.table(
            [many, [f"n{rng.random()}" for _ in many], np.random.default_rng(1).random(len(many))],
            schema=SCHEMA,
        )
        rows = frame.to_pylist()
        if way == 0:
            writer.upsert(rows[0])
            model[many[0]] = rows[0]
        elif way == 1:
            writer.delete([many[0]])
            model.pop(many[0], None)
        elif way == 2:
            writer.write_arrow(frame)
            model.update({row["id"]: row for row in rows})
        elif way == 3:
            writer.delete_arrow(frame.select(["id"]))
            for key in many:
                model.pop(key, None)
        elif way == 4:
            kinds = [rng.choice(["+I", "-U", "+U", "-D"]) for _ in many]
            writer.write_changes(frame.append_column("_change_type", pa.array(kinds)))
            for kind, row in zip(kinds, rows, strict=True):
                if kind == "-D":
                    model.pop(row["id"], None)
                elif kind != "-U":
                    model[row["id"]] = row
        elif rng.random() < 0.5:
            writer.flush()


class OfficialKv:
    """What the official client does with primary-key tables."""

    def __init__(self, client: Official) -> None:
        self._client = client

    def write(self, table: fluss.FlussTable, rows: Sequence[Any], deletes: Sequence[Any]) -> None:
        """Upsert rows, then delete keys."""

        async def work() -> None:
            opened = await self._client.connection.get_table(self._client.path(table))
            writer = opened.new_upsert().create_writer()
            for row in rows:
                writer.upsert(row)
            for key in deletes:
                writer.delete(key)
            await writer.flush()

        self._client.run(work)

    def lookup(self, table: fluss.FlussTable, keys: Sequence[Any]) -> list[Any]:
        """Look keys up, all at once."""

        async def work() -> list[Any]:
            opened = await self._client.connection.get_table(self._client.path(table))
            lookuper = opened.new_lookup().create_lookuper()
            return list(await asyncio.gather(*(lookuper.lookup(key) for key in keys)))

        return self._client.run(work)

    def changes(self, table: fluss.FlussTable, count: int) -> list[tuple[str, int, Any]]:
        """Return (change type, offset, row) of bucket 0."""

        async def work() -> list[tuple[str, int, Any]]:
            opened = await self._client.connection.get_table(self._client.path(table))
            scanner = await opened.new_scan().create_log_scanner()
            scanner.subscribe(0, official.EARLIEST_OFFSET)
            found: list[tuple[str, int, Any]] = []
            while len(found) < count:
                records = await scanner.poll(500)
                found += [(r.change_type.short_string(), r.offset, r.row) for r in records]
            return found

        return self._client.run(work)
