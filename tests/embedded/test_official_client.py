"""The official client against ``fluss-df serve``, with a password."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.peer import official

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    program = "from fluss_df.cli.main import app; app()"
    arguments = ["serve", "--dir", str(tmp_path / "d"), "--port", "0", "--sasl", "alice:secret"]
    server = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert server.stdout is not None
    try:
        yield server.stdout.readline().removeprefix("listening on ").strip()
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
        server.stdout.close()


def config(address: str, password: str) -> official.Config:
    return official.Config(
        {
            "bootstrap.servers": address,
            "security.protocol": "sasl",
            "security.sasl.mechanism": "PLAIN",
            "security.sasl.username": "alice",
            "security.sasl.password": password,
        }
    )


async def test_rows_and_logs(address: str) -> None:
    async def work() -> None:
        connection = await official.FlussConnection.create(config(address, "secret"))
        admin = connection.get_admin()
        log, rows = official.TablePath("fluss", "log"), official.TablePath("fluss", "rows")
        for path, keys in ((log, None), (rows, ["id"])):
            schema = official.Schema(SCHEMA, primary_keys=keys)
            await admin.create_table(path, official.TableDescriptor(schema, bucket_count=1))
        table = await connection.get_table(log)
        writer = table.new_append().create_writer()
        writer.write_arrow_batch(pa.record_batch([[1, 2], ["a", "b"]], schema=SCHEMA))
        await writer.flush()
        table = await connection.get_table(rows)
        upserts = table.new_upsert().create_writer()
        for i in range(5):
            upserts.upsert({"id": i, "text": f"{i}"})
        upserts.delete({"id": 3})
        await upserts.flush()
        lookuper = table.new_lookup().create_lookuper()
        assert await lookuper.lookup({"id": 2}) == {"id": 2, "text": "2"}
        assert await lookuper.lookup({"id": 3}) is None
        await connection.close()

    async with asyncio.timeout(30):
        await work()


def test_a_wrong_password(address: str) -> None:
    async def work() -> None:
        async with asyncio.timeout(30):
            connection = await official.FlussConnection.create(config(address, "wrong"))
            await connection.get_admin().list_databases()

    with pytest.raises(official.FlussError, match="Invalid username or password"):
        asyncio.run(work())
