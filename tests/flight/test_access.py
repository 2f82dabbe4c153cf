"""Users, their rights, their results and TLS: as the engine has them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import adbc_driver_flightsql.dbapi as adbc
import polars as pl
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from adbc_driver_flightsql import DatabaseOptions
from adbc_driver_manager import OperationalError, ProgrammingError
from typer.testing import CliRunner

import fluss_df
from fluss_df.cli import app
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.embedded import EmbeddedFluss, Security
from fluss_df.errors import FlussError
from fluss_df.flight import ClusterAccess, FlightLimits, FlightSqlServer, FolderAccess
from fluss_df.flight import flight_messages_pb2 as pb
from fluss_df.flight.sessions import Session
from fluss_df.flight.wire import packed
from fluss_df.protocol.acl import AclBinding, AclBindingFilter, OperationType, Resource
from tests.certificates import Authority
from tests.flight.peers import REFUSED, Peer, basic, peer, signed_in
from tests.waiting import wait_until

# with "user:password" of each length modulo 3: drivers leave out the padding of Base64
USERS = {"admin": "a-secret", "bob": "b:secret", "eve": "e-secret1", "dan": "d-secret22"}
Statement = pb.CommandStatementQuery


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedFluss]:
    security = Security(authorizer_enabled=True, super_users="User:admin")
    with EmbeddedFluss(None, port=0, sasl=USERS, security=security) as made:
        yield made


@pytest.fixture(scope="module")
def guarded(engine: EmbeddedFluss) -> Iterator[FlightSqlServer]:
    """A server whose users may not do everything."""
    with FlightSqlServer(FolderAccess(engine)) as made:
        with signed_in(made, "admin", USERS["admin"]) as admin:
            admin.query("CREATE DATABASE shop")
            for name in ("open", "closed"):
                admin.query(f"CREATE TABLE shop.{name} (a INT, PRIMARY KEY (a))")
                admin.query(f"INSERT INTO shop.{name} VALUES (1), (2)")
        with engine.connection() as connection:
            allow(connection, "bob", "shop.open", "READ")
        yield made


def allow(connection: fluss_df.FlussConnection, user: str, table: str, operation: str) -> None:
    database, name = table.split(".")
    binding = AclBinding.allow(user, OperationType[operation], Resource.table(database, name))
    connection.get_admin().create_acls([binding])


def test_a_user_reads_what_the_rights_allow(guarded: FlightSqlServer) -> None:
    with signed_in(guarded, "bob", USERS["bob"]) as bob:
        assert bob.query("SELECT a FROM shop.open ORDER BY a") == [{"a": 1}, {"a": 2}]
        with pytest.raises(REFUSED, match=r"lacks the right DESCRIBE on table:shop\.closed"):
            bob.query("SELECT a FROM shop.closed")
        with pytest.raises(REFUSED, match="needs the right WRITE"):
            bob.query("INSERT INTO shop.open VALUES (3)")
        with pytest.raises(REFUSED, match="lacks the right CREATE"):
            bob.query("CREATE TABLE shop.other (a INT)")
        named = pb.CommandGetTables(db_schema_filter_pattern="shop", include_schema=True)
        tables = bob.ask(named)
        assert [row["table_name"] for row in tables] == ["open"]
        hidden = pb.CommandGetPrimaryKeys(db_schema="shop", table="closed")
        assert bob.ask(hidden) == []
    with signed_in(guarded, "eve", USERS["eve"]) as eve:
        assert eve.ask(pb.CommandGetTables()) == []
        # as if it were not there
        with pytest.raises(REFUSED, match=r"shop\.open does not exist"):
            eve.put(pb.CommandStatementIngest(table="open", schema="shop"), pa.table({"a": [9]}))


def test_no_message_says_where_the_engine_keeps_its_socket(guarded: FlightSqlServer) -> None:
    with signed_in(guarded, "bob", USERS["bob"]) as bob, pytest.raises(REFUSED) as caught:
        bob.query("SELECT a FROM shop.closed")
    assert "/tmp" not in str(caught.value)
    assert "/s/" not in str(caught.value)


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("authorization", "Bearer guessed"),),
        (("authorization", "Bearer "),),
        (basic("bob", "wrong"),),
        (("authorization", "Basic !!!"),),
        (("authorization", "Negotiate abc"),),
    ],
)
def test_who_is_not_signed_in_gets_nothing(
    guarded: FlightSqlServer, headers: tuple[tuple[str, str], ...]
) -> None:
    with peer(guarded, *headers) as stranger:
        with pytest.raises(fl.FlightUnauthenticatedError):
            stranger.query("SELECT 1 AS a")
        with pytest.raises(fl.FlightUnauthenticatedError):
            stranger.ask(pb.CommandGetCatalogs())
        with pytest.raises(fl.FlightUnauthenticatedError):
            stranger.act("CreatePreparedStatement", b"")
        with pytest.raises(fl.FlightUnauthenticatedError):
            stranger.get(packed(pb.CommandGetCatalogs()))
        with pytest.raises(fl.FlightUnauthenticatedError):
            list(stranger.client.list_actions(stranger.options))


def test_a_wrong_password_is_refused(guarded: FlightSqlServer) -> None:
    with pytest.raises(fl.FlightUnauthenticatedError, match="Invalid username or password"):
        Peer(guarded).client.authenticate_basic_token("bob", "wrong")


@pytest.mark.parametrize("user", ["bob", "eve", "dan"])
def test_the_driver_signs_in_whatever_the_length_of_a_password(
    guarded: FlightSqlServer, user: str
) -> None:
    options = {"username": user, "password": USERS[user]}
    with adbc.connect(guarded.url, db_kwargs=options, autocommit=True) as client:
        assert client.adbc_get_info()
        with client.cursor() as cursor:
            cursor.execute("SELECT 1")
            assert cursor.fetchall() == [(1,)]


def test_the_driver_signs_in(guarded: FlightSqlServer) -> None:
    options = {"username": "bob", "password": USERS["bob"]}
    with (
        adbc.connect(guarded.url, db_kwargs=options, autocommit=True) as client,
        client.cursor() as cursor,
    ):
        cursor.execute("SELECT a FROM shop.open ORDER BY a")
        assert cursor.fetchall() == [(1,), (2,)]
        with pytest.raises(ProgrammingError, match=r"FORBIDDEN|UNAUTHORIZED|lacks the right"):
            cursor.execute("SELECT a FROM shop.closed")


def test_a_password_may_come_with_each_call(guarded: FlightSqlServer) -> None:
    with peer(guarded, basic("bob", USERS["bob"])) as bob:
        assert bob.query("SELECT count(*) AS n FROM shop.open") == [{"n": 2}]


def test_calls_at_once_with_one_password_are_of_one_client(guarded: FlightSqlServer) -> None:
    sessions, opening = guarded._sessions, threading.Barrier(2)
    opened = sessions._opened
    found = []

    def at_once(user: str, password: str, address: str, *, shared: bool) -> Session:
        opening.wait(10)
        return opened(user, password, address, shared=shared)

    def come() -> None:
        found.append(sessions.of_password("eve", USERS["eve"], "127.0.0.1"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "_opened", at_once)
        threads = [threading.Thread(target=come) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    # else what one of them prepared, or planned, would be nobody's
    assert len(found) == 2
    assert found[0] is found[1]
    assert sessions.of_password("eve", USERS["eve"], "127.0.0.1") is found[0]


def test_clients_that_send_one_password_leave_each_other_alone(guarded: FlightSqlServer) -> None:
    password = basic("admin", USERS["admin"])
    with peer(guarded, password) as one, peer(guarded, password) as other:
        planned = one.info(Statement(query="SELECT a FROM shop.open")).endpoints[0].ticket
        (answer,) = other.act("CloseSession", b"")
        status = pb.CloseSessionResult.FromString(answer).status
        assert status == pb.CloseSessionResult.NOT_CLOSEABLE
        assert one.get(planned).num_rows == 2
        asked = pb.SetSessionOptionsRequest()
        asked.session_options["schema"].string_value = "shop"
        (answer,) = other.act("SetSessionOptions", asked.SerializeToString())
        assert list(pb.SetSessionOptionsResult.FromString(answer).errors) == ["schema"]
        with pytest.raises(REFUSED, match="USE needs a client of its own"):
            other.query("USE shop")
        with pytest.raises(REFUSED, match=r"fluss\.open does not exist"):
            one.query("SELECT a FROM open")


def test_results_and_statements_are_those_of_their_user(guarded: FlightSqlServer) -> None:
    with (
        signed_in(guarded, "bob", USERS["bob"]) as bob,
        signed_in(guarded, "eve", USERS["eve"]) as eve,
        signed_in(guarded, "bob", USERS["bob"]) as other,
    ):
        info = bob.info(Statement(query="SELECT a FROM shop.open"))
        ticket = info.endpoints[0].ticket
        for thief in (eve, other):
            with pytest.raises(REFUSED, match=r"no such result to fetch.*another's"):
                thief.get(ticket)
        request = pb.ActionCreatePreparedStatementRequest(query="SELECT a FROM shop.open")
        (answer,) = bob.act("CreatePreparedStatement", packed(request))
        made = pb.ActionCreatePreparedStatementResult.FromString(pb.Packed.FromString(answer).value)
        command = pb.CommandPreparedStatementQuery(
            prepared_statement_handle=made.prepared_statement_handle
        )
        with pytest.raises(REFUSED, match="no such prepared statement"):
            eve.ask(command)
        asked = pb.CancelFlightInfoRequest(info=pb.FlightInfo.FromString(info.serialize()))
        (status,) = eve.act("CancelFlightInfo", asked.SerializeToString())
        assert pb.CancelFlightInfoResult.FromString(status).status == 3
        assert bob.get(ticket).num_rows == 2
        # and once
        with pytest.raises(REFUSED, match="it was fetched"):
            bob.get(ticket)
        assert len(bob.ask(command)) == 2


def test_a_session_is_closed(guarded: FlightSqlServer) -> None:
    with signed_in(guarded, "bob", USERS["bob"]) as bob:
        (answer,) = bob.act("CloseSession", b"")
        assert pb.CloseSessionResult.FromString(answer).status == pb.CloseSessionResult.CLOSED
        with pytest.raises(fl.FlightUnauthenticatedError, match="sign in again"):
            bob.query("SELECT 1 AS a")


def test_options_of_a_session(guarded: FlightSqlServer) -> None:
    with signed_in(guarded, "admin", USERS["admin"]) as admin:
        asked = pb.SetSessionOptionsRequest()
        asked.session_options["schema"].string_value = "shop"
        asked.session_options["colour"].string_value = "red"
        (answer,) = admin.act("SetSessionOptions", asked.SerializeToString())
        errors = pb.SetSessionOptionsResult.FromString(answer).errors
        assert {name: error.value for name, error in errors.items()} == {"colour": 1}
        (answer,) = admin.act("GetSessionOptions", b"")
        options = pb.GetSessionOptionsResult.FromString(answer).session_options
        assert options["schema"].string_value == "shop"
        assert admin.query("SELECT count(*) AS n FROM closed") == [{"n": 2}]
        admin.query("USE fluss")
        with pytest.raises(REFUSED, match=r"fluss\.closed does not exist"):
            admin.query("SELECT count(*) AS n FROM closed")


def test_clients_that_are_signed_in_are_bounded(engine: EmbeddedFluss) -> None:
    limits = FlightLimits(sessions=2)
    with FlightSqlServer(FolderAccess(engine), limits=limits) as server:
        for _ in range(2):
            Peer(server).client.authenticate_basic_token("bob", USERS["bob"])
        with pytest.raises(REFUSED, match="2 clients are signed in: try again later"):
            Peer(server).client.authenticate_basic_token("bob", USERS["bob"])


def test_a_token_expires(engine: EmbeddedFluss) -> None:
    limits = FlightLimits(session_idle_s=0.2)
    with (
        FlightSqlServer(FolderAccess(engine), limits=limits) as server,
        signed_in(server, "bob", USERS["bob"]) as bob,
    ):
        (session,) = server._sessions.all()
        session._used -= 1
        server._sessions.sweep()
        with pytest.raises(fl.FlightUnauthenticatedError, match="sign in again"):
            bob.query("SELECT 1 AS a")


def test_a_client_whose_statement_takes_longer_is_not_idle(engine: EmbeddedFluss) -> None:
    limits = FlightLimits(session_idle_s=0.2)
    with (
        FlightSqlServer(FolderAccess(engine), limits=limits) as server,
        signed_in(server, "admin", USERS["admin"]) as admin,
    ):
        admin.query("CREATE TABLE shop.long (n BIGINT)")
        with engine.connection() as connection:
            rows = pl.DataFrame({"n": range(4_000_000)})
            fluss_df.write_fluss(rows, "shop.long", connection=connection)
        for wanted in ("n", "n + 0 AS n"):
            info = admin.info(Statement(query=f"SELECT {wanted} FROM shop.long"))
            reader = admin.client.do_get(info.endpoints[0].ticket, admin.options)
            read = len(reader.read_chunk().data)
            (session,) = server._sessions.all()
            session._used -= 1
            server._sessions.sweep()
            read += sum(len(chunk.data) for chunk in reader)
            assert read == 4_000_000
        assert list(server._sessions.all()) == [session]
        server._sessions.sweep()
        admin.query("DROP TABLE shop.long")
        wait_until(lambda: session.idle_s() > 0)
        session._used -= 1
        server._sessions.sweep()
        assert not list(server._sessions.all())


@pytest.mark.parametrize("by", ["password", "token"])
def test_a_password_that_was_changed_is_refused_a_minute_later(tmp_path: Path, by: str) -> None:
    with EmbeddedFluss(tmp_path, port=0, sasl={"bob": "old"}) as engine:
        address = engine.address
        server = FlightSqlServer(ClusterAccess(address, needs_password=True))
        if by == "password":
            old = Peer(server, (basic("bob", "old"),))
        else:
            _, token = Peer(server).client.authenticate_basic_token("bob", "old")
            old = Peer(server, (("authorization", token.decode()),))
        assert old.query("SELECT 1 AS a") == [{"a": 1}]
    (session,) = server._sessions.all()
    port = int(address.rpartition(":")[2])
    with server, EmbeddedFluss(tmp_path, port=port, sasl={"bob": "new"}):
        assert Peer(server, (basic("bob", "new"),)).query("SHOW TABLES") == []
        session.checked -= 61
        with pytest.raises(fl.FlightUnauthenticatedError):
            old.query("SELECT 1 AS a")
        assert session not in list(server._sessions.all())


def test_a_right_that_was_withdrawn_is_gone_with_the_next_statement(
    engine: EmbeddedFluss, guarded: FlightSqlServer
) -> None:
    right = AclBinding.allow("bob", OperationType.READ, Resource.table("shop", "closed"))
    with engine.connection() as connection, signed_in(guarded, "bob", USERS["bob"]) as bob:
        for wanted in ("a", "a + 0 AS a"):
            asked = f"SELECT {wanted} FROM shop.closed"
            allow(connection, "bob", "shop.closed", "READ")
            assert len(bob.query(asked)) == 2
            planned = bob.info(Statement(query=asked)).endpoints[0].ticket
            connection.get_admin().drop_acls([AclBindingFilter.of(right)])
            with pytest.raises(REFUSED, match="closed"):
                bob.get(planned)
            with pytest.raises(REFUSED, match="closed"):
                bob.query(asked)


# ---- TLS, and where it listens


def test_clients_come_by_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server")
    with (
        EmbeddedFluss(None, sasl=USERS) as engine,
        FlightSqlServer(
            FolderAccess(engine),
            tls_cert=issued.cert,
            tls_key=issued.key,
            tls_client_ca=authority.file,
        ) as server,
    ):
        assert server.url.startswith("grpc+tls://")
        mine = authority.issue("client")
        options = {
            "username": "bob",
            "password": USERS["bob"],
            DatabaseOptions.TLS_ROOT_CERTS.value: authority.file.read_text(),
            DatabaseOptions.MTLS_CERT_CHAIN.value: mine.cert.read_text(),
            DatabaseOptions.MTLS_PRIVATE_KEY.value: mine.key.read_text(),
        }
        with (
            adbc.connect(server.url, db_kwargs=options, autocommit=True) as client,
            client.cursor() as cursor,
        ):
            cursor.execute("SELECT 1 AS a")
            assert cursor.fetchall() == [(1,)]
        other = Authority(tmp_path, "other").issue("stranger")
        options[DatabaseOptions.MTLS_CERT_CHAIN.value] = other.cert.read_text()
        options[DatabaseOptions.MTLS_PRIVATE_KEY.value] = other.key.read_text()
        with (
            pytest.raises(OperationalError),
            adbc.connect(server.url, db_kwargs=options, autocommit=True),
        ):
            pass


@pytest.mark.parametrize("users", [None, USERS])
def test_others_come_in_with_passwords_and_tls_only(users: dict[str, str] | None) -> None:
    with EmbeddedFluss(None, sasl=users) as engine:
        access = FolderAccess(engine)
        missing = "TLS" if users else "users with passwords and TLS"
        with pytest.raises(FlussError, match=f"open to other machines without {missing}: add"):
            FlightSqlServer(access, host="0.0.0.0")
        with FlightSqlServer(access, host="0.0.0.0", allow_insecure=True) as server:
            assert server.port


def test_a_port_that_is_taken_is_refused(guarded: FlightSqlServer, engine: EmbeddedFluss) -> None:
    with pytest.raises(FlussError, match="the port is taken"):
        FlightSqlServer(FolderAccess(engine), guarded.port)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tls_cert": "a.pem"}, "belong together"),
        ({"tls_client_ca": "a.pem"}, "takes TLS"),
        ({"tls_cert": "no.pem", "tls_key": "no.pem"}, r"cannot read no\.pem"),
    ],
)
def test_tls_that_cannot_be_is_refused(
    engine: EmbeddedFluss, options: dict[str, str], message: str
) -> None:
    with pytest.raises(FlussError, match=message):
        FlightSqlServer(FolderAccess(engine), **options)  # type: ignore[arg-type]


# ---- a cluster, and the commands


@pytest.mark.real_cluster
def test_users_of_a_cluster_come_in_with_their_passwords(
    fluss_cluster_factory: ClusterFactory,
) -> None:
    cluster = fluss_cluster_factory(sasl={"admin": "a", "bob": "b"})
    access = ClusterAccess(cluster.bootstrap_servers, needs_password=True)
    with cluster, FlightSqlServer(access) as server:
        with signed_in(server, "bob", "b") as bob:
            assert bob.query("SELECT 1 AS a") == [{"a": 1}]
            assert bob.ask(pb.CommandGetCatalogs())
            bob.query("CREATE TABLE of_bob (a INT)")
            assert bob.query("SELECT count(*) AS n FROM of_bob") == [{"n": 0}]
        with pytest.raises(fl.FlightUnauthenticatedError):
            Peer(server).client.authenticate_basic_token("bob", "wrong")
        with peer(server) as stranger, pytest.raises(fl.FlightUnauthenticatedError):
            stranger.query("SELECT 1 AS a")


def test_commands_serve_sql(tmp_path: Path) -> None:
    """Over an engine that they serve, with its users; and over what is served elsewhere."""
    users = tmp_path / "users"
    users.write_text("bob:b-secret\n")
    users.chmod(0o600)
    engine = ["--dir", str(tmp_path / "one"), "--port", "0", "--sasl-file", str(users)]
    lines = [
        ["serve", *engine, "--flight-sql", "0"],
        ["flight-sql", "--connection", str(tmp_path / "two"), "--port", "0"],
    ]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.cli.main", *line], stdout=subprocess.PIPE, text=True
        )
        for line in lines
    ]
    password = {"username": "bob", "password": "b-secret"}
    try:
        for process, options in zip(processes, (password, {}), strict=True):
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            assert line.startswith("Flight SQL on grpc://127.0.0.1:")
            url = line.rpartition(" ")[2]
            with (
                adbc.connect(url, db_kwargs=options, autocommit=True) as client,
                client.cursor() as cursor,
            ):
                cursor.execute("SELECT 1 AS a")
                assert cursor.fetchall() == [(1,)]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate(timeout=30)
    assert [process.returncode for process in processes] == [0, 0]


def test_a_command_refuses_what_is_not_safe(tmp_path: Path) -> None:
    options = ["--connection", str(tmp_path / "data"), "--host", "0.0.0.0", "--port", "0"]
    result = CliRunner().invoke(app, ["flight-sql", *options])
    assert result.exit_code == 1
    text = " ".join(result.output.split())
    assert "would be open to other machines without users with passwords and TLS" in text


def test_a_program_that_leaves_its_server_open_ends() -> None:
    program = (
        "from fluss_df.embedded import EmbeddedFluss\n"
        "from fluss_df.flight import FlightSqlServer, FolderAccess\n"
        "import pyarrow.flight as fl\n"
        "server = FlightSqlServer(FolderAccess(EmbeddedFluss(None)))\n"
        "client = fl.connect(server.url)\n"
        "print(len(list(client.list_actions())))\n"
    )
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) > 3


def test_what_pyarrow_imports_is_there_before_the_first_client() -> None:
    program = (
        "import sys\n"
        "from fluss_df.embedded import EmbeddedFluss\n"
        "from fluss_df.flight import FlightSqlServer, FolderAccess\n"
        "engine = EmbeddedFluss(None)\n"
        "print('pandas' in sys.modules)\n"
        "server = FlightSqlServer(FolderAccess(engine))\n"
        "print('pandas' in sys.modules)\n"
    )
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_passwords_of_a_folder_that_is_shared_are_not_taken_as_they_come(tmp_path: Path) -> None:
    with EmbeddedFluss(tmp_path, port=0, sasl={"bob": "good"}):
        with pytest.raises(FlussError, match="passwords are not checked"):
            ClusterAccess(tmp_path, needs_password=True)
        with ClusterAccess(tmp_path, needs_password=False).open("bob", "wrong", "").connection as c:
            assert "sasl" not in c.config.to_dict().values()
