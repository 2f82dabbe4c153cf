"""TLS: what is encrypted works as without; what must not be is refused, each with its message."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError
from fluss_df.client.transport.blocking import Lane
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.client.transport.tls import tls_of
from fluss_df.cluster import LocalCluster
from fluss_df.config import Config
from fluss_df.embedded import EmbeddedFluss, Limits, Security
from fluss_df.io.scan import scan_fluss
from tests.certificates import Authority, Issued
from tests.peer import official

SCHEMA = fluss.Schema(pa.schema([("a", pa.int64()), ("b", pa.string())]), primary_keys=["a"])
LOG = fluss.Schema(pa.schema([("a", pa.int64()), ("b", pa.string())]))


@dataclass(frozen=True)
class Papers:
    """Certificates of tests."""

    authority: Authority
    other: Authority
    server: Issued
    client: Issued


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    folder = tmp_path_factory.mktemp("papers")
    authority = Authority(folder)
    other = Authority(folder, "other")
    return Papers(authority, other, authority.issue("server"), authority.issue("client"))


def served(folder: Path, issued: Issued, **options: object) -> EmbeddedFluss:
    security = Security(tls_cert=issued.cert, tls_key=issued.key, **options)  # type: ignore[arg-type]
    return EmbeddedFluss(folder, port=0, security=security)


def settings(address: str | None, authority: Authority | None, **more: object) -> dict[str, object]:
    assert address is not None
    given: dict[str, object] = {
        "bootstrap.servers": address,
        "client.security.ssl.enabled": "true",
        "connect-timeout": "5000",
    }
    if authority is not None:
        given["client.security.ssl.truststore.path"] = str(authority.file)
    return given | {f"client.security.ssl.{key.replace('_', '.')}": v for key, v in more.items()}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, papers: Papers) -> Iterator[EmbeddedFluss]:
    with served(tmp_path_factory.mktemp("tls") / "d", papers.server) as engine:
        yield engine


# ---- what works


def test_writes_scans_and_lookups(engine: EmbeddedFluss, papers: Papers) -> None:
    frame = pl.DataFrame({"a": range(50_000), "b": [f"text {i}" * 20 for i in range(50_000)]})
    with fluss.connect(settings(engine.address, papers.authority)) as connection:
        admin = connection.get_admin()
        for name, schema in (("log", LOG), ("keyed", SCHEMA)):
            path = fluss.TablePath("fluss", name)
            admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=3))
            fluss.write_fluss(frame, name, connection=connection)
            found = fluss.read_fluss(name, connection=connection).sort("a")
            assert found.equals(frame)
        few = scan_fluss("log", connection=connection).filter(pl.col("a") < 10).collect()
        assert few["a"].sort().to_list() == list(range(10))
        lookuper = (
            connection.get_table(fluss.TablePath("fluss", "keyed")).new_lookup().create_lookuper()
        )
        assert lookuper.lookup({"a": 7}) == {"a": 7, "b": "text 7" * 20}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_hosts_of_the_certificate(engine: EmbeddedFluss, papers: Papers, host: str) -> None:
    assert engine.address is not None
    address = engine.address.replace("127.0.0.1", host)
    fluss.connect(settings(address, papers.authority)).close()


def test_users_and_rights(tmp_path: Path, papers: Papers) -> None:
    security = Security(
        authorizer_enabled=True, tls_cert=papers.server.cert, tls_key=papers.server.key
    )
    with EmbeddedFluss(tmp_path, port=0, sasl={"alice": "wonder"}, security=security) as engine:
        given = settings(engine.address, papers.authority) | {
            "security.protocol": "sasl",
            "security.sasl.username": "alice",
            "security.sasl.password": "wonder",
        }
        with fluss.connect(given) as connection:
            assert list(connection.get_admin().list_databases()) == []
        with pytest.raises(FlussError, match="Invalid username or password"):
            fluss.connect(given | {"security.sasl.password": "x"})


@pytest.mark.parametrize("password", ["", "of the key"])
def test_mutual(tmp_path: Path, papers: Papers, password: str) -> None:
    client = papers.authority.issue(f"client{bool(password)}", password=password)
    with served(tmp_path, papers.server, tls_client_ca=papers.authority.file) as engine:
        given = settings(engine.address, papers.authority, keystore_path=client.both)
        with fluss.connect(given | {"security.ssl.key.password": password}) as connection:
            assert connection.get_admin().list_databases() == ["fluss"]
            lane = lane_to(connection.config, engine.address)
            lane.close()


def test_by_url(engine: EmbeddedFluss, papers: Papers) -> None:
    options = f"security.ssl.enabled=true&security.ssl.truststore.path={papers.authority.file}"
    with fluss.connect(f"fluss://{engine.address}?{options}") as connection:
        assert "fluss" in connection.get_admin().list_databases()


def test_a_folder_is_not_encrypted(tmp_path: Path, papers: Papers) -> None:
    """Its socket is the user's own, whatever the settings say."""
    given = settings("x:1", papers.authority) | {"bootstrap.servers": str(tmp_path / "d")}
    with fluss.connect(given) as connection:
        assert connection.get_admin().list_databases() == ["fluss"]


# ---- what is refused, by either way that the client connects


def lane_to(config: Config, address: str | None) -> Lane:
    assert address is not None
    host, _, port = address.rpartition(":")
    return Lane(Endpoint(host, int(port), None, tls_of(config)), 5000, 5000)


def refusals(given: dict[str, object]) -> Iterator[FlussError]:
    """Yield what the client says, connecting by the event loop, and by a thread."""
    with pytest.raises(FlussError) as raised:
        fluss.connect(given)
    yield raised.value
    with pytest.raises(FlussError) as raised:
        lane_to(Config(given), str(given["bootstrap.servers"]))
    yield raised.value


def refused(
    given: dict[str, object], message: str, code: int = ErrorCode.AUTHENTICATE_EXCEPTION
) -> None:
    began = time.monotonic()
    for error in refusals(given):
        assert message in error.message, error.message
        assert error.error_code == code
        assert error.is_retriable is (code == ErrorCode.NETWORK_EXCEPTION)
    # at once: nothing is tried again
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("hosts", "days", "message"),
    [
        (("other.example",), (-1, 1), "is for another host"),
        (("127.0.0.2", "localhost"), (-1, 1), "is for another host"),
        (("127.0.0.1",), (-2, -0.01), "has expired"),
        (("127.0.0.1",), (0.5, 1), "is not valid yet"),
    ],
)
def test_certificates_that_are_not_valid(
    tmp_path: Path, papers: Papers, hosts: tuple[str, ...], days: tuple[float, float], message: str
) -> None:
    issued = papers.authority.issue("broken", hosts, days)
    with served(tmp_path, issued) as engine:
        refused(settings(engine.address, papers.authority), message)
        if "another host" in message:
            unchecked = settings(engine.address, papers.authority)
            unchecked["client.security.ssl.endpoint.identification.algorithm"] = ""
            fluss.connect(unchecked).close()


def test_an_unknown_authority(engine: EmbeddedFluss, papers: Papers) -> None:
    message = "is of an authority that this client does not know"
    refused(settings(engine.address, papers.other), message)
    # those of the operating system
    refused(settings(engine.address, None), "client.security.ssl.truststore.path")


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_no_certificate_of_the_client(tmp_path: Path, papers: Papers, version: str) -> None:
    with served(tmp_path, papers.server, tls_client_ca=papers.authority.file) as engine:
        given = settings(engine.address, papers.authority, enabled_protocols=version)
        refused(given, "asks for a certificate of the client")
        with contextlib.closing(socket.create_connection(_place(engine.address))) as plain:
            plain.sendall(bytes(12))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("why", ["unknown", "expired"])
def test_certificates_of_clients_that_are_not_valid(
    tmp_path: Path, papers: Papers, why: str, version: str
) -> None:
    issued = (
        papers.other.issue("stranger")
        if why == "unknown"
        else papers.authority.issue("late", days=(-2, -0.01))
    )
    with served(tmp_path, papers.server, tls_client_ca=papers.authority.file) as engine:
        given = settings(engine.address, papers.authority, enabled_protocols=version)
        given["security.ssl.keystore.path"] = str(issued.both)
        refused(given, "refuses the certificate of this client")


def test_plain_text_at_a_port_of_tls(engine: EmbeddedFluss) -> None:
    assert engine.address is not None
    refused({"bootstrap.servers": engine.address}, "this port speaks TLS")


def test_the_official_client_without_tls(engine: EmbeddedFluss) -> None:
    async def connect() -> None:
        config = official.Config({"bootstrap.servers": engine.address})
        async with asyncio.timeout(10):
            await official.FlussConnection.create(config)

    with pytest.raises(official.FlussError, match="this port speaks TLS"):
        asyncio.run(connect())


def test_tls_at_a_plain_port(tmp_path: Path, papers: Papers) -> None:
    with EmbeddedFluss(tmp_path, port=0) as engine:
        given = settings(engine.address, papers.authority)
        refused(given, "does not speak TLS on this port", ErrorCode.NETWORK_EXCEPTION)


def test_plain_text_instead_of_a_handshake(papers: Papers) -> None:
    """What is no TLS for certain is not tried again."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for _ in range(2):
                with listening.accept()[0] as peer:
                    peer.recv(1 << 16)
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        port = listening.getsockname()[1]
        refused(settings(f"127.0.0.1:{port}", papers.authority), "does not speak TLS")
        thread.join()


def test_tls_at_a_real_server(fluss_cluster: LocalCluster, papers: Papers) -> None:
    given = settings(fluss_cluster.bootstrap_servers, papers.authority)
    given["connect-timeout"] = "1500"
    for error in refusals(given):
        assert "TLS" in error.message


def old_versions(context: ssl.SSLContext, low: ssl.TLSVersion, high: ssl.TLSVersion) -> None:
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        # what else would be tried
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = low, high


@contextlib.contextmanager
def answering(papers: Papers, version: ssl.TLSVersion) -> Iterator[str]:
    """Yield the address of a server of one version of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(papers.server.cert, papers.server.key)
    old_versions(context, version, version)
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer = listening.accept()[0]
                with contextlib.suppress(OSError), peer:
                    peer.settimeout(5)
                    with context.wrap_socket(peer, server_side=True) as encrypted:
                        encrypted.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


@pytest.mark.parametrize(
    ("version", "spoken"),
    [
        (ssl.TLSVersion.TLSv1_1, "TLSv1.2,TLSv1.3"),
        (ssl.TLSVersion.TLSv1_2, "TLSv1.3"),
        (ssl.TLSVersion.TLSv1_3, "TLSv1.2"),
    ],
)
def test_servers_of_another_version(papers: Papers, version: ssl.TLSVersion, spoken: str) -> None:
    with answering(papers, version) as address:
        given = settings(address, papers.authority, enabled_protocols=spoken)
        refused(given, "speak no common version of TLS")


def test_clients_of_an_old_version(engine: EmbeddedFluss, papers: Papers) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(papers.authority.file)
    old_versions(context, ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1)
    with (
        socket.create_connection(_place(engine.address)) as peer,
        pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"),
    ):
        context.wrap_socket(peer, server_hostname="127.0.0.1")


def test_suites_that_are_not_common(tmp_path: Path, engine: EmbeddedFluss, papers: Papers) -> None:
    given = settings(engine.address, papers.authority, enabled_protocols="TLSv1.2")
    with fluss.connect(given | {"security.ssl.cipher.suites": "ECDHE-ECDSA-AES256-GCM-SHA384"}):
        pass
    # of certificates with RSA, which this server has not
    refused(given | {"security.ssl.cipher.suites": "ECDHE-RSA-AES256-GCM-SHA384"}, "cipher suite")
    for error in refusals(given | {"security.ssl.cipher.suites": "NONE-OF-THESE"}):
        assert "OpenSSL knows none of them" in error.message
        assert error.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION


def test_files_that_cannot_be(engine: EmbeddedFluss, papers: Papers, tmp_path: Path) -> None:
    no_pem = tmp_path / "no.pem"
    no_pem.write_text("nothing")
    locked = papers.authority.issue("locked", password="x")
    cases = [
        ("truststore_path", tmp_path / "missing", "No such file"),
        ("truststore_path", no_pem, "no PEM file"),
        ("keystore_path", tmp_path / "missing", "No such file"),
        ("keystore_path", no_pem, "no PEM file"),
        ("keystore_path", papers.client.cert, "no PEM file"),
        ("keystore_path", locked.both, "or the password is wrong"),
    ]
    for key, path, message in cases:
        for error in refusals(settings(engine.address, papers.authority, **{key: path})):
            assert message in error.message
            assert str(path) in error.message
            assert f"client.security.ssl.{key.replace('_', '.')}" in error.message
            assert error.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION


def test_a_truststore_that_is_replaced_is_read_again(
    engine: EmbeddedFluss, papers: Papers, tmp_path: Path
) -> None:
    file = tmp_path / "trusted.pem"
    file.write_bytes(papers.other.file.read_bytes())
    given = settings(engine.address, None, truststore_path=file)
    refused(given, "authority")
    new = tmp_path / "new.pem"
    new.write_bytes(papers.authority.file.read_bytes())
    os.replace(new, file)
    fluss.connect(given).close()


# ---- servers


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tls_key": None}, "belong together"),
        ({"tls_cert": None}, "belong together"),
        ({"tls_cert": "missing"}, "tls_cert missing: No such file"),
        ({"tls_key": "missing"}, "tls_key missing: No such file"),
        ({"tls_client_ca": "missing"}, "tls_client_ca missing: No such file"),
        ({"tls_cert": None, "tls_key": None, "tls_client_ca": "x"}, "give tls_cert"),
        ({"tls_key": "other"}, "KEY_VALUES_MISMATCH"),
        ({"tls_key": "locked"}, "has no password"),
        ({"tls_client_ca": "key"}, "tls_client_ca"),
    ],
)
def test_settings_of_servers_that_cannot_be(
    tmp_path: Path, papers: Papers, change: dict[str, object], message: str
) -> None:
    files = {
        "other": papers.client.key,
        "locked": papers.authority.issue("locked", password="x").key,
        "key": papers.server.key,
    }
    given: dict[str, object] = {"tls_cert": papers.server.cert, "tls_key": papers.server.key}
    given |= {name: files.get(str(value), value) for name, value in change.items()}
    with pytest.raises(FlussError, match=message) as raised:
        EmbeddedFluss(tmp_path / "d", port=0, security=Security(**given))  # type: ignore[arg-type]
    assert raised.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION
    assert not (tmp_path / "d").exists()


def test_a_certificate_is_renewed_while_it_is_served(
    tmp_path: Path, papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    old = papers.authority.issue("old", days=(-2, -0.01))
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(new_cert: Path, new_key: Path) -> None:
        for source, target in ((new_key, key), (new_cert, cert)):
            new = target.with_suffix(".new")
            new.write_bytes(source.read_bytes())
            os.replace(new, target)

    def eventually(given: dict[str, object], text: str) -> None:
        until = time.monotonic() + 30
        while True:
            try:
                fluss.connect(given).close()
                said = "welcome"
            except FlussError as error:
                said = error.message
            if text in said:
                return
            assert time.monotonic() < until, said

    put(old.cert, old.key)
    with EmbeddedFluss(
        tmp_path / "d", port=0, security=Security(tls_cert=cert, tls_key=key)
    ) as engine:
        given = settings(engine.address, papers.authority)
        eventually(given, "has expired")
        put(papers.server.cert, papers.server.key)
        eventually(given, "welcome")
        # what cannot be used changes nothing
        put(papers.server.cert, old.key)
        until = time.monotonic() + 30
        while "the certificate stays the old one" not in caplog.text:
            fluss.connect(given).close()
            assert time.monotonic() < until
        fluss.connect(given).close()


def _place(address: str | None) -> tuple[str, int]:
    assert address is not None
    host, _, port = address.rpartition(":")
    return host, int(port)


def hello() -> bytes:
    """Return what a client of TLS says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    "said",
    [b"", b"\x16", hello()[:50], hello(), b"\x16\x03\x01\xff\xff" * 9],
    ids=["nothing", "a byte", "half", "all", "no handshake"],
)
def test_half_a_handshake_is_not_held_open(tmp_path: Path, papers: Papers, said: bytes) -> None:
    limits = Limits(unauthenticated_s=0.5)
    security = Security(tls_cert=papers.server.cert, tls_key=papers.server.key)
    with EmbeddedFluss(tmp_path, port=0, security=security, limits=limits) as engine:
        with socket.create_connection(_place(engine.address), 10) as peer:
            began = time.monotonic()
            if said:
                peer.sendall(said)
            # whatever it answers, it ends soon
            with contextlib.suppress(ConnectionError):
                while peer.recv(1 << 16):
                    pass
            assert time.monotonic() - began < 10
        fluss.connect(settings(engine.address, papers.authority)).close()


def test_many_who_never_shake_hands_keep_nobody_out(tmp_path: Path, papers: Papers) -> None:
    limits = Limits(connections=20, unauthenticated_s=60)
    security = Security(tls_cert=papers.server.cert, tls_key=papers.server.key)
    with EmbeddedFluss(tmp_path, port=0, security=security, limits=limits) as engine:
        silent = [socket.create_connection(_place(engine.address), 10) for _ in range(60)]
        try:
            with fluss.connect(settings(engine.address, papers.authority)) as connection:
                assert connection.get_admin().list_databases() == ["fluss"]
                assert len(engine._connections.shaking) <= 20
        finally:
            began = time.monotonic()
            engine.close()
            assert time.monotonic() - began < 10
            for peer in silent:
                peer.close()


def test_one_byte_at_a_time(engine: EmbeddedFluss, papers: Papers) -> None:
    """A proxy that hands on single bytes changes nothing, in either direction."""
    listening = socket.create_server(("127.0.0.1", 0))

    def hand_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                for at in range(len(data)):
                    target.sendall(data[at : at + 1])
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near = listening.accept()[0]
                far = socket.create_connection(_place(engine.address))
                for peer in (near, far):
                    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = threading.Thread(target=hand_on, args=(far, near))
                back.start()
                hand_on(near, far)
                back.join()
                near.close()
                far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with contextlib.closing(
            lane_to(Config(settings(address, papers.authority)), address)
        ) as lane:
            assert lane.apis.versions
            assert not lane.readable(0)
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def test_a_server_that_falls_silent(papers: Papers) -> None:
    """Its time is kept, where what is received is records and not bytes."""
    with answering(papers, ssl.TLSVersion.TLSv1_3) as address:
        host, port = _place(address)
        config = Config(settings(address, papers.authority))
        # it takes a byte of the first request, and ends
        with pytest.raises(FlussError, match=r"lost|disconnected"):
            Lane(Endpoint(host, port, None, tls_of(config)), 5000, 5000)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        for connect in (
            lambda: Lane(Endpoint("127.0.0.1", port, None, tls_of(config)), 500, 500),
            lambda: fluss.connect(
                settings(f"127.0.0.1:{port}", papers.authority) | {"connect-timeout": "500"}
            ),
        ):
            with pytest.raises(FlussError, match="500 ms"):
                connect()
        assert time.monotonic() - began < 10
