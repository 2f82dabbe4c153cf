"""What the server keeps of clients, values, rows, statements: how much, and for how long."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import grpc
import pyarrow as pa
import pytest

from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import ErrorCode, FlussError, NetworkError
from fluss_df.flight import FlightLimits, FlightSqlServer, FolderAccess
from fluss_df.flight import flight_messages_pb2 as pb
from fluss_df.flight.refusals import partly
from fluss_df.flight.sessions import Prepared, Sessions
from fluss_df.flight.values import together
from fluss_df.flight.wire import packed, parse, unpacked
from tests.flight.peers import REFUSED, Peer, peer, signed_in

_Options = pb.CommandStatementIngest.TableDefinitionOptions


@pytest.fixture(scope="module")
def server() -> Iterator[FlightSqlServer]:
    with EmbeddedFluss(None) as engine, FlightSqlServer(FolderAccess(engine)) as made:
        yield made


def prepared(server: FlightSqlServer, one: Peer, statement: str) -> tuple[bytes, Prepared]:
    """Return the handle of a statement, and what the server has of it."""
    request = packed(pb.ActionCreatePreparedStatementRequest(query=statement))
    (answer,) = one.act("CreatePreparedStatement", request)
    made = unpacked(answer)
    assert isinstance(made, pb.ActionCreatePreparedStatementResult)
    handle = made.prepared_statement_handle
    for session in server._sessions.all():
        with contextlib.suppress(FlussError):
            return handle, session.prepared(handle)
    raise AssertionError("nobody has the statement")


def written(result: bytes) -> int:
    count: int = parse(pb.DoPutUpdateResult, result).record_count
    return count


def test_values_of_an_update_are_given_up_with_its_call(server: FlightSqlServer) -> None:
    values = pa.table({"a": pa.array([1, 2, 3], pa.int32())})
    with peer(server) as one:
        one.query("CREATE TABLE used (a INT)")
        handle, there = prepared(server, one, "INSERT INTO used VALUES (?)")
        update = pb.CommandPreparedStatementUpdate(prepared_statement_handle=handle)
        assert written(one.put(update, values)) == 3
        assert there.bound is None
        # those that were bound before are used by the next
        asked = pb.CommandPreparedStatementQuery(prepared_statement_handle=handle)
        one.put(asked, values.slice(0, 1))
        assert there.bound is not None
        assert one.ask(asked)[0]["rows"] == 1
        assert there.bound is None
        with pytest.raises(REFUSED, match="has 1 parameters, and 0 values came"):
            one.ask(asked)
        assert one.query("SELECT count(*) AS n FROM used") == [{"n": 4}]


def test_a_query_runs_again_with_the_values_that_it_has(server: FlightSqlServer) -> None:
    with peer(server) as one:
        handle, _ = prepared(server, one, "SELECT ? AS a")
        asked = pb.CommandPreparedStatementQuery(prepared_statement_handle=handle)
        one.put(asked, pa.table({"a": ["x"]}))
        assert one.ask(asked) == one.ask(asked) == [{"a": "x"}]
        with pytest.raises(REFUSED, match="2 rows of values are bound, and a query takes one"):
            one.put(asked, pa.table({"a": ["x", "y"]}))


@pytest.mark.parametrize(("width", "sizes"), [(1, [1000, 1000, 500]), (50, [400] * 6 + [100])])
def test_statements_of_many_values_are_bounded(width: int, sizes: list[int]) -> None:
    values = pa.record_batch({f"c{n}": range(2500) for n in range(width)})
    mark = f"({', '.join('?' * width)})"
    made = list(together(f"INSERT INTO t VALUES {mark}", [values]))
    assert [text.count("(") for text, _ in made] == sizes
    assert [row for _, row in made][-1][-1].as_py() == 2499
    overwriting = f"INSERT OVERWRITE t VALUES {mark}"
    if width == 1:
        ((text, _),) = together(overwriting, [values])
        assert text.count("(") == 2500
    else:
        with pytest.raises(FlussError, match="it takes at most 800 of 50 columns"):
            list(together(overwriting, [values]))


def test_values_are_bounded(server: FlightSqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss_df.flight.values._MOST_BYTES", 1 << 20)
    monkeypatch.setattr("fluss_df.flight.values._MOST_ROWS", 100)
    text = "x" * 10_000
    once = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), pa.array([text]))
    twice = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), pa.array([text * 2]))
    with peer(server) as one:
        one.query("CREATE TABLE bounded (s STRING)")
        handle, _ = prepared(server, one, "INSERT INTO bounded VALUES (?)")
        update = pb.CommandPreparedStatementUpdate(prepared_statement_handle=handle)
        for column in (pa.array([text] * 99 + [text * 10]), twice, pa.nulls(101)):
            with pytest.raises(REFUSED, match="at most 100 rows of values, of 1 MB, are bound"):
                one.put(update, pa.table({"s": column}))
        assert written(one.put(update, pa.table({"s": once}))) == 100
        assert one.query("SELECT count(*) AS n FROM bounded") == [{"n": 100}]


def test_nulls_that_are_ingested_are_written_some_at_a_time(
    server: FlightSqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []

    def noted(table: pa.Table, *args: object, **options: object) -> None:
        parts.append(table.num_rows)

    monkeypatch.setattr("fluss_df.flight.ingest._WRITTEN_ROWS", 1000)
    monkeypatch.setattr("fluss_df.flight.ingest.write_fluss", noted)
    command = pb.CommandStatementIngest(table="nulls")
    command.table_definition_options.if_not_exist = _Options.NOT_EXIST_CREATE
    rows = pa.concat_tables([pa.table({"a": pa.nulls(400), "b": pa.nulls(400)})] * 7)
    with peer(server) as one:
        one.query("CREATE TABLE nulls (a INT, b INT)")
        command.table_definition_options.if_exists = _Options.EXISTS_APPEND
        assert written(one.put(command, rows)) == 2800
    assert parts == [1200, 1200, 400]


def test_prepared_statements_are_bounded() -> None:
    limits = FlightLimits(prepared=3)
    with EmbeddedFluss(None) as engine, FlightSqlServer(FolderAccess(engine), limits=limits) as few:
        with signed_in(few, "a", "b") as one:
            for _ in range(limits.prepared):
                prepared(few, one, "SELECT 1")
            with pytest.raises(REFUSED, match="3 prepared statements are open: close some"):
                prepared(few, one, "SELECT 1")
            (session,) = few._sessions.all()
            for there in session._prepared.values():
                there.used -= 2 * limits.session_idle_s
            session.sweep()
            assert len(session._prepared) == 3
        # those of nobody's make room for others
        with peer(few) as nobody:
            made = [prepared(few, nobody, f"SELECT {n} AS a")[0] for n in range(3)]
            asked = [pb.CommandPreparedStatementQuery(prepared_statement_handle=h) for h in made]
            assert nobody.ask(asked[0]) == [{"a": 0}]
            prepared(few, nobody, "SELECT 3 AS a")
            with pytest.raises(REFUSED, match=r"no such prepared statement.*or was given up"):
                nobody.ask(asked[1])
            assert [nobody.ask(asked[n]) for n in (0, 2)] == [[{"a": 0}], [{"a": 2}]]
            shared = few._sessions.anonymous("127.0.0.1")
            shared._prepared[made[0]].used -= 2 * limits.session_idle_s
            few._sessions.sweep()
            assert made[0] not in shared._prepared
            assert made[2] in shared._prepared


def test_a_result_that_nobody_fetches_in_time_is_given_up() -> None:
    statement = pb.CommandStatementQuery(query="SELECT 1 AS a")
    with EmbeddedFluss(None) as engine:
        limits = FlightLimits(ticket_s=1e-6)
        with FlightSqlServer(FolderAccess(engine), limits=limits) as short, peer(short) as late:
            first = late.info(statement).endpoints[0].ticket
            with pytest.raises(REFUSED, match="waited for too long"):
                late.get(first)
            (session,) = short._sessions.all()
            (dropped,) = session._results.values()
            late.info(statement)
            # the next result has its place, and it runs no more
            assert dropped not in session._results.values()
            assert len(session._results) == 1
            assert not dropped.run.is_running
        with FlightSqlServer(FolderAccess(engine)) as long, peer(long) as early:
            first = early.info(statement).endpoints[0].ticket
            early.info(statement)
            assert early.get(first).to_pylist() == [{"a": 1}]


def test_callers_without_a_name_are_not_put_out_while_they_ask() -> None:
    with EmbeddedFluss(None) as engine:
        limits = FlightLimits(sessions=2)
        sessions = Sessions(FolderAccess(engine), limits)
        first, second = sessions.anonymous("127.0.0.1"), sessions.anonymous("127.0.0.2")
        with pytest.raises(FlussError, match="calls from 2 addresses"):
            sessions.anonymous("127.0.0.3")
        first.leave()
        assert sessions.anonymous("127.0.0.3") is not first
        assert sessions.anonymous("127.0.0.2") is second
        sessions.close()


def test_who_wrote_a_part_is_not_told_to_send_all_again() -> None:
    gone = partly(NetworkError("the server is gone"), 2000, " to table t")
    assert gone.status == grpc.StatusCode.ABORTED
    assert str(gone).endswith("; 2,000 rows before are written to table t")
    refused = partly(FlussError("no", ErrorCode.AUTHORIZATION_EXCEPTION), 1)
    assert refused.status == grpc.StatusCode.PERMISSION_DENIED
    assert len(str(partly(FlussError("x" * 5000), 7))) < 2000


_FORKING = """
import multiprocessing, os, sys
from fluss_df.embedded import EmbeddedFluss
from fluss_df.flight import FlightSqlServer, FolderAccess
import adbc_driver_flightsql.dbapi as adbc
with EmbeddedFluss(None) as engine, FlightSqlServer(FolderAccess(engine)) as server:
    for closes in (False, True):
        pid = os.fork()
        if pid == 0:
            if closes:
                server.close()
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join()
    assert child.exitcode == 0
    with adbc.connect(server.url, autocommit=True) as client, client.cursor() as cursor:
        cursor.execute("SELECT 1")
        print(cursor.fetchall())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_forked_child_ends_and_leaves_the_server_to_its_parent() -> None:
    command = [sys.executable, "-c", _FORKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (0, "[(1,)]\n"), done.stderr
