"""Peers of an embedded engine: official clients, strangers, other processes."""

from __future__ import annotations

import errno
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, Limits
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from tests.client.support import Tables
from tests.embedded.raw import RawClient
from tests.waiting import wait_until

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def rows(count: int) -> pa.Table:
    return pa.table({"n": range(count), "text": [str(i) for i in range(count)]}, schema=SCHEMA)


def alive(engine: EmbeddedFluss) -> bool:
    with RawClient(engine.address) as client:
        return "fluss" in client.call(api.LIST_DATABASES, pb.ListDatabasesRequest()).database_name


def test_the_unix_socket_is_a_connection(engine: EmbeddedFluss) -> None:
    with engine.connection() as connection, fluss.connect(engine.address) as by_tcp:
        tables = Tables(connection, "fluss")
        table = tables(SCHEMA, bucket_count=3)
        tables.write(table, rows(1000))
        frame = fluss.scan_fluss(table.get_table_info().table_path, connection=by_tcp).collect()
        assert sorted(frame["n"].to_list()) == list(range(1000))


def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    path = fluss.TablePath("fluss", "t")
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        admin = connection.get_admin()
        admin.create_table(path, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=2))
        with connection.get_table(path).new_append().create_writer() as writer:
            writer.write_arrow(rows(5000))
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        frame = fluss.scan_fluss(path, connection=connection).collect()
        assert sorted(frame["n"].to_list()) == list(range(5000))


def test_a_folder_is_a_connection(tmp_path: Path) -> None:
    with fluss.connect(tmp_path / "d") as first, fluss.connect(f"file:{tmp_path}/d") as second:
        first.get_admin().create_database("shared")
        assert "shared" in second.get_admin().list_databases()
    with fluss.connect(":memory:") as connection:
        assert connection.get_admin().list_databases() == ["fluss"]


def test_another_process_comes_in_by_the_socket(engine: EmbeddedFluss, tmp_path: Path) -> None:
    script = (
        "import fluss_df as fluss\n"
        f"with fluss.connect({str(tmp_path / 'data')!r}) as connection:\n"
        "    connection.get_admin().create_database('made_elsewhere')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    with engine.connection() as connection:
        assert "made_elsewhere" in connection.get_admin().list_databases()


def test_dropped_tables_leave_nothing(engine: EmbeddedFluss) -> None:
    with engine.connection() as connection:
        tables = Tables(connection, "fluss")
        table = tables(SCHEMA, bucket_count=1)
        tables.write(table, rows(10))
        path = table.get_table_info().table_path
        folder = engine.folder / "data" / str(table.get_table_info().table_id)
        assert folder.exists()
        connection.get_admin().drop_table(path)
        assert not folder.exists()


def test_answers_are_sent_at_once(engine: EmbeddedFluss) -> None:
    """Not when what was sent before is acknowledged, which takes 40 ms at times."""
    with RawClient(engine.address) as client:
        client.hello()
        (served,) = engine._connections.open
        assert served._transport is not None
        peer = served._transport.get_extra_info("socket")
        assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# what servers ask each other, in 1.0; tiering services ask the others of the lake
PRIVATE = {1013, 1018, 1019, 1020, 1022, 1027, 1028, 1029, 1031, 1043}


def test_every_public_request_is_there(engine: EmbeddedFluss) -> None:
    with RawClient(engine.address) as client:
        known = {version.api_key for version in client.hello().api_versions}
    assert known == set(range(1000, 1065)) - PRIVATE


def test_requests_that_there_are_not_are_answered(engine: EmbeddedFluss) -> None:
    with RawClient(engine.address) as client:
        # 1013 and 1043: what servers of a cluster ask each other
        for key in (0, 1013, 1043, 9999, 30_001, -1):
            client.send(key, 0, b"\x00\xff\x00")
            code, message = client.receive().error
            assert code == ErrorCode.UNSUPPORTED_VERSION
            assert str(key) in message
        for key in (1001, 1005, 1012, 1014, 1015, 1021):
            client.send(key, 0, b"\x00\xff")
            assert client.receive().error[0] == ErrorCode.CORRUPT_MESSAGE
        for key in (1001, 1005, 1014, 1015, 1021):
            client.send(key, 0, b"")
            assert client.receive().error[0] == ErrorCode.CORRUPT_MESSAGE
    assert alive(engine)


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 7, 2**31 - 1, 200 << 20])
def test_frames_that_cannot_be_end_the_connection(engine: EmbeddedFluss, length: int) -> None:
    with RawClient(engine.address) as client:
        client.socket.sendall(struct.pack(">ihhi", length, 1003, 0, 1))
        with pytest.raises((EOFError, ConnectionResetError)):
            client.receive()
    assert alive(engine)


def test_random_bytes_do_no_harm(engine: EmbeddedFluss) -> None:
    choose = random.Random(7)
    keys = [1001, 1005, 1009, 1012, 1014, 1015, 1021, 1033, 1036, 1044]
    for _ in range(200):
        body = choose.randbytes(choose.randrange(200))
        with RawClient(engine.address) as client:
            client.send(choose.choice(keys), 0, body)
            answer = client.receive()
            assert answer.type in (0, 1)
    assert alive(engine)


def test_strangers_have_little_time_and_room(tmp_path: Path) -> None:
    # as long as a slow machine may take to let somebody in
    limits = Limits(unauthenticated_s=3)
    with (
        EmbeddedFluss(tmp_path / "d", port=0, sasl={"alice": "secret"}, limits=limits) as engine,
        RawClient(engine.address) as known,
    ):
        assert known.authenticate("alice", "secret").type == 0
        with RawClient(engine.address) as client, RawClient(engine.address) as silent:
            client.hello()
            refused = client.ask(api.LIST_DATABASES, pb.ListDatabasesRequest())
            assert refused.error[0] == ErrorCode.AUTHENTICATE_EXCEPTION
            for stranger in (client, silent):
                with pytest.raises((EOFError, ConnectionResetError)):
                    stranger.receive()
        with RawClient(engine.address) as client:
            client.socket.sendall(struct.pack(">ihhi", 1 << 20, 1014, 0, 1))
            with pytest.raises((EOFError, ConnectionResetError)):
                client.receive()
        # who came in before all of them, and is known, stays
        known.call(api.LIST_DATABASES, pb.ListDatabasesRequest())


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("bob", "secret"), ("", "")])
def test_wrong_passwords(tmp_path: Path, user: str, password: str) -> None:
    with EmbeddedFluss(tmp_path / "d", port=0, sasl={"alice": "secret"}) as engine:
        with RawClient(engine.address) as client:
            client.hello()
            answer = client.authenticate(user, password)
            assert answer.error[0] == ErrorCode.AUTHENTICATE_EXCEPTION
        with pytest.raises(FlussError) as caught:
            fluss.connect(engine.address)
        assert caught.value.error_code == ErrorCode.AUTHENTICATE_EXCEPTION
        with fluss.connect(f"fluss://alice:secret@{engine.address}") as connection:
            assert connection.get_admin().list_databases() == ["fluss"]


def test_connections_too_many_are_closed(tmp_path: Path) -> None:
    with EmbeddedFluss(tmp_path / "d", port=0, limits=Limits(connections=2)) as engine:
        clients = [RawClient(engine.address) for _ in range(2)]
        for client in clients:
            client.hello()
        with RawClient(engine.address) as third, pytest.raises((EOFError, ConnectionError)):
            third.hello()
        for client in clients:
            client.close()
        wait_until(lambda: not engine._connections.open, 20)
        assert alive(engine)


def test_a_fetch_waits_for_what_is_new(engine: EmbeddedFluss) -> None:
    with engine.connection() as connection:
        tables = Tables(connection, "fluss")
        table = tables(SCHEMA, bucket_count=1)
        request = pb.FetchLogRequest(
            follower_server_id=-1,
            max_bytes=1 << 20,
            min_bytes=1,
            max_wait_ms=400,
            tables_req=[
                pb.FetchLogRequestForTable(
                    table_id=table.get_table_info().table_id,
                    projection_pushdown_enabled=False,
                    buckets_req=[
                        pb.FetchLogRequestForBucket(
                            bucket_id=0, fetch_offset=0, max_fetch_bytes=1 << 20
                        )
                    ],
                )
            ],
        )
        with RawClient(engine.address) as client:
            began = time.monotonic()
            empty = client.call(api.FETCH_LOG, request)
            assert 0.3 < time.monotonic() - began < 10
            assert not empty.tables_resp[0].buckets_resp[0].records
            request.max_wait_ms = 20_000
            client.send(1015, 0, request.SerializeToString())
            time.sleep(0.2)
            tables.write(table, rows(10))
            began = time.monotonic()
            answer = api.FETCH_LOG.response.FromString(client.receive().body)
            assert time.monotonic() - began < 15
            assert answer.tables_resp[0].buckets_resp[0].records


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", "from fluss_df.cli.main import app; app()", "serve"]
    arguments = ["--dir", str(tmp_path / "d"), "--port", "0"]
    process = subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"FLUSS_SASL_USERS": "alice:secret\nbob:other\n"},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:")
        address = line.split()[-1]
        with fluss.connect(f"fluss://alice:secret@{address}") as connection:
            connection.get_admin().create_database("made")
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (0, "", "")
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        assert "made" in connection.get_admin().list_databases()


def served(tmp_path: Path, *arguments: str) -> tuple[str, str]:
    """Serve a folder for a moment; return what it says when alice has come in by her password."""
    command = [sys.executable, "-c", "from fluss_df.cli.main import app; app()", "serve"]
    folder = ["--dir", str(tmp_path / "d"), "--port", "0"]
    process = subprocess.Popen(
        [*command, *folder, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "FLUSS_SASL_USERS"},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if line:
            fluss.connect(f"fluss://alice:secret@{line.split()[-1]}").close()
            process.send_signal(signal.SIGTERM)
        err = process.communicate(timeout=20)[1]
    finally:
        process.kill()
        process.wait()
    return line, err


def test_passwords_of_serve(tmp_path: Path) -> None:
    """They come from a file; on the command line everybody sees them, and it says so."""
    file = tmp_path / "users"
    file.write_text("alice:secret\n\nbob:with:colon\n")
    file.chmod(0o600)
    line, err = served(tmp_path, "--sasl-file", str(file))
    assert line.startswith("listening")
    assert err == ""
    file.chmod(0o644)
    line, err = served(tmp_path, "--sasl-file", str(file))
    assert line.startswith("listening")
    assert f"chmod 600 {file}" in err
    line, err = served(tmp_path, "--sasl", "alice:secret")
    assert line.startswith("listening")
    assert "--sasl-file" in err
    for text in ("", "alice:"):
        file.write_text(text)
        line, err = served(tmp_path, "--sasl-file", str(file))
        assert not line
        assert "--sasl-file" in err
    assert "missing" in served(tmp_path, "--sasl-file", str(tmp_path / "missing"))[1]


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FlussError, match="cannot listen"):
            EmbeddedFluss(tmp_path / "d", port=port)
    # and the folder is free again
    EmbeddedFluss(tmp_path / "d").close()


def test_a_socket_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the port, with which nothing is wrong."""

    def refuse(path: str, mode: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("fluss_df.engine.serve.server.os.chmod", refuse)
        with pytest.raises(FlussError, match=r"cannot listen on /\S+: .*Input/output") as caught:
            EmbeddedFluss(tmp_path / "d", port=0)
    assert "127.0.0.1" not in str(caught.value)
    EmbeddedFluss(tmp_path / "d").close()


def test_names_never_become_paths(engine: EmbeddedFluss) -> None:
    with engine.connection() as connection:
        tables = Tables(connection, "fluss")
        tables.write(tables(SCHEMA, bucket_count=1), rows(10))
    files = {str(p.relative_to(engine.folder)) for p in engine.folder.rglob("*") if p.is_file()}
    assert not [name for name in files if "fluss" in name]
    assert os.path.exists(engine.socket_path)


def test_a_program_that_forgets_to_close_gets_its_rows_written(tmp_path: Path) -> None:
    """However long the disk takes: a cluster is given three seconds then, this engine is not."""
    script = (
        "import time\n"
        "import pyarrow as pa\n"
        "import fluss_df as fluss\n"
        "from fluss_df.engine.log import tablet\n"
        f"connection = fluss.connect({str(tmp_path / 'd')!r})\n"
        "schema = pa.schema([('n', pa.int64())])\n"
        "descriptor = fluss.TableDescriptor(fluss.Schema(schema), bucket_count=1)\n"
        "connection.get_admin().create_table('fluss.t', descriptor)\n"
        "writer = connection.get_table('fluss.t').new_append().create_writer()\n"
        "sync = tablet.sync_data\n"
        "waits = iter([3.5])\n"
        "tablet.sync_data = lambda fd: (time.sleep(next(waits, 0)), sync(fd))\n"
        "writer.write_arrow(pa.table({'n': range(1000)}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    with fluss.connect(tmp_path / "d") as connection:
        assert fluss.scan_fluss("fluss.t", connection=connection).collect().height == 1000


def test_fluss_home_is_the_default_where_it_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLUSS_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setenv("FLUSS_HOME", str(tmp_path / "home"))
    with fluss.connect() as connection:
        assert connection.get_admin().list_databases() == ["fluss"]
    assert (tmp_path / "home" / "FORMAT").exists()
