"""A folder with every kind of table, written by a fixed program, and its backup.

``python -m tests.embedded.golden`` writes the backup of the current format: once for each format.
"""

from __future__ import annotations

import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import fluss_df as fluss
from fluss_df.engine.files.files import FORMAT

_FOLDER: Final = Path(__file__).parent / "golden"
#: a backup of each format that there was
GOLDEN: Final = {version: _FOLDER / f"format-{version}.tar.zst" for version in range(1, FORMAT + 1)}
_LOG = fluss.TablePath("fluss", "log")
_ROWS = fluss.TablePath("fluss", "rows")
_PARTED = fluss.TablePath("fluss", "parted")


def fill(connection: fluss.FlussConnection) -> None:
    """Create tables, write, update, delete, add a column, and write again."""
    admin = connection.get_admin()
    log = pa.schema([("n", pa.int64()), ("text", pa.string()), ("d", pa.decimal128(20, 3))])
    rows = pa.schema([("id", pa.int64()), ("text", pa.string())])
    parted = pa.schema([("id", pa.int32()), ("day", pa.string()), ("number", pa.float64())])
    admin.create_table(_LOG, fluss.TableDescriptor(fluss.Schema(log), bucket_count=2))
    admin.create_table(_ROWS, fluss.TableDescriptor(fluss.Schema(rows, ["id"]), bucket_count=2))
    admin.create_table(
        _PARTED,
        fluss.TableDescriptor(
            fluss.Schema(parted, ["id", "day"]),
            partition_keys=["day"],
            bucket_count=1,
            kv_format="indexed",
            properties={"table.log.arrow.compression.type": "LZ4_FRAME"},
        ),
    )
    with connection.get_table(_LOG).new_append().create_writer() as writer:
        for i in range(0, 300, 50):
            numbers = range(i, i + 50)
            frame = pa.table(
                [numbers, [f"text {n}" for n in numbers], [Decimal(n) for n in numbers]], schema=log
            )
            writer.write_arrow(frame)
            writer.flush()
    with connection.get_table(_ROWS).new_upsert().create_writer() as writer:
        for round_number in range(4):
            for i in range(60):
                writer.upsert({"id": i, "text": f"{round_number}.{i}"})
            writer.flush()
        for i in range(0, 60, 7):
            writer.delete([i])
    admin.alter_table(_ROWS, add_columns=pa.schema([("number", pa.int64())]))
    with connection.get_table(_ROWS).new_upsert().create_writer() as writer:
        for i in range(50, 70):
            writer.upsert({"id": i, "text": None, "number": i * i})
    opened = connection.get_table(_PARTED).new_upsert().create_writer(create_partitions=True)
    with opened as writer:
        for i in range(40):
            writer.upsert({"id": i, "day": f"day{i % 3}", "number": i / 7})


def contents(connection: fluss.FlussConnection) -> dict[str, Any]:
    """Return the rows of all tables, and how many changes there were."""
    found: dict[str, Any] = {}
    for path in (_LOG, _ROWS, _PARTED):
        frame = fluss.scan_fluss(path, connection=connection).collect()
        found[path.table_name] = sorted(frame.rows(), key=lambda row: tuple(map(str, row)))
    table = connection.get_table(_ROWS)
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_buckets({0: 0, 1: 0})
    kinds = scanner.to_arrow()["_change_type"].to_pylist()
    found["changes"] = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    return found


def main() -> None:
    """Write the backup."""
    from fluss_df.embedded import EmbeddedFluss
    from fluss_df.engine.upkeep.backup import back_up

    file = GOLDEN[FORMAT]
    if file.exists():
        sys.exit(f"{file} is there: folders of this format were made by versions before")
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedFluss(Path(folder) / "d") as engine,
        engine.connection() as connection,
    ):
        fill(connection)
        size = back_up(engine.engine, file)
    sys.stdout.write(f"{file}: {size} bytes\n")


if __name__ == "__main__":
    main()
