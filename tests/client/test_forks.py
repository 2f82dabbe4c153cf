"""Programs that fork, and what their children do with what the parent opened."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import fluss_df as fluss
from tests.client.support import Tables
from tests.client.table_programs import ROOT, SCHEMA, filled_table, numbers, run


@pytest.fixture
def filled(tables: Tables) -> fluss.FlussTable:
    return filled_table(tables)


def test_fork(address: str, tables: Tables, filled: fluss.FlussTable) -> None:
    """What the parent made is used by the child, on sockets of its own, and still by the parent."""
    code = """
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    s = scanner()
    writer = table.new_append().create_writer()
    writer.append((10, 'parent')).wait()
    assert s.poll_arrow(2000).num_rows == 11
    writer.append((11, 'pending in the parent'))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert connection.get_admin().table_exists(table.get_table_path())
            writer.append((100, 'child')).wait()
            more = s.to_arrow().column("n").to_pylist()
            assert 100 in more, more
            assert scanner().to_arrow().num_rows >= 12
            writer.close()
            code = 0
        finally:
            os._exit(code)
    writer.append((12, 'parent')).wait()
    assert connection.get_admin().table_exists(table.get_table_path())
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    s.to_arrow()
    writer.append((13, 'parent')).wait()
    writer.close()
    assert scanner().to_arrow().num_rows == 15
    connection.close()
    """
    run(code, address, filled)
    found = numbers(tables, filled)
    assert sorted(found) == [*range(14), 100]
    assert [n for n in found if n < 100] == list(range(14))


_READS = {
    "snapshot": """
        from fluss_df.client.scan import snapshot_scanner
        snapshot_scanner._BATCH_BYTES = 20_000
        read = table.new_scan().create_snapshot_scanner().batches()
        """,
    "parallel": """
        from fluss_df.client.fetch.parallel import ParallelRead
        from fluss_df.client.runtime.metrics import Metrics
        config = {"bootstrap.servers": address, "scanner.log.fetch.max-bytes-for-bucket": 20_000}
        connection = fluss.connect(config)
        table = connection.get_table(table_name)
        s = scanner()
        def rows():
            with ParallelRead(
                connection, table.get_table_info(), ["n", "text"], (), s._bounded(), Metrics(),
                lambda piece: piece, ahead_bytes=1,
            ) as read:
                yield from filter(None, read)
        read = rows()
        """,
    "reader": """
        config = {"bootstrap.servers": address, "scanner.log.fetch.max-bytes-for-bucket": 20_000}
        connection = fluss.connect(config)
        table = connection.get_table(table_name)
        s = scanner()
        read = s.to_arrow_batch_reader()
        """,
}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.parametrize("read", _READS)
@pytest.mark.parametrize("end", ["sys.exit(0)", "next(iter(read), None)"])
def test_a_forked_child_leaves_a_read_of_its_parent_alone(
    address: str, tables: Tables, read: str, end: str
) -> None:
    """Neither its end nor a step of its own takes the parent's answers, or ends its connections."""
    keys = ["n"] if read == "snapshot" else None
    table = tables(SCHEMA, keys)
    begun = textwrap.dedent(_READS[read])
    code = f"""
import warnings
warnings.simplefilter("ignore")
writer = table.{"new_upsert" if keys else "new_append"}().create_writer()
for start in range(0, 60_000, 5_000):
    writer.write_arrow(frame(5_000, start))
    writer.flush()
writer.close()
{begun}
rows = next(iter(read)).num_rows
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    try:
        {end}
    except fluss.FlussError as error:
        assert "parent" in str(error), error
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
rows += sum(batch.num_rows for batch in read)
assert rows == 60_000, rows
connection.close()
"""
    run(code, address, table, timeout=60)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.parametrize(
    ("lock", "use"),
    [
        ("folders._lock", "fluss.connect(':memory:').close()"),
        ("client_connection._cache_lock", "client_connection.resolve_connection(connection)"),
        ("report._lock", "fluss.last_scan()"),
    ],
)
def test_a_lock_that_a_thread_of_the_parent_holds_does_not_stop_a_forked_child(
    lock: str, use: str
) -> None:
    code = f"""
import os, signal, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import fluss_df as fluss
from fluss_df.client import connection as client_connection
from fluss_df.client.transport import folders
from fluss_df.io.scans import report
connection = "127.0.0.1:1"
held, done = threading.Event(), threading.Event()
def hold():
    with {lock}:
        held.set()
        done.wait()
threading.Thread(target=hold).start()
held.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    try:
        {use}
    except fluss.FlussError as error:
        assert error.error_code == fluss.ErrorCode.NETWORK_EXCEPTION, error
    os._exit(0)
_, status = os.waitpid(pid, 0)
done.set()
assert status == 0, status
"""
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=60,
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(
    address: str, tables: Tables, filled: fluss.FlussTable, tmp_path: Path, method: str
) -> None:
    code = f"""
import multiprocessing, sys, warnings
import fluss_df as fluss

def work(connection, name, number):
    table = connection.get_table(name)
    with table.new_append().create_writer() as writer:
        writer.append((number, 'child')).wait()
    made = table.new_scan().create_record_batch_log_scanner()
    made.subscribe(0, fluss.EARLIEST_OFFSET)
    return made.to_arrow().num_rows

if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    address, name = sys.argv[1:]
    with fluss.connect(address) as connection:
        context = multiprocessing.get_context("{method}")
        with context.Pool(2) as pool:
            jobs = [(connection, name, 100 + i) for i in range(4)]
            counts = pool.starmap(work, jobs)
        assert all(10 < count <= 14 for count in counts), counts
        assert connection.get_admin().database_exists("fluss")
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    subprocess.run(
        [sys.executable, str(script), address, str(filled.get_table_path())],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=60,
    )
    assert sorted(numbers(tables, filled)) == [*range(10), 100, 101, 102, 103]
