"""The transport of encrypted bytes: order, pauses, ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fluss_df.engine.access.security import Security
from fluss_df.engine.serve.tls import ServerTls, shake_hands
from fluss_df.engine.serve.tls_transport import TlsTransport
from tests.certificates import Authority
from tests.client.support import soon


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server and a client."""
    authority = Authority(tmp_path_factory.mktemp("papers"))
    issued = authority.issue("server")
    server = ServerTls(Security(tls_cert=issued.cert, tls_key=issued.key)).context()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(authority.file)
    return server, client


class Recorder(asyncio.BufferedProtocol):
    """Keeps what comes."""

    def __init__(self, size: int = 1 << 16) -> None:
        self.received = bytearray()
        self.more = asyncio.Event()
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.pauses: list[bool] = []
        self.transport: TlsTransport | None = None
        self._buffer = bytearray(size)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]
        self.more.set()

    def pause_writing(self) -> None:
        self.pauses.append(True)

    def resume_writing(self) -> None:
        self.pauses.append(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(exc)


@asynccontextmanager
async def joined(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
    client: Callable[[ssl.SSLSocket], None],
    size: int = 1 << 16,
) -> AsyncIterator[tuple[TlsTransport, Recorder]]:
    """Yield the server's end, of a client on a thread."""
    near, far = socket.socketpair()

    def run() -> None:
        with contexts[1].wrap_socket(far, server_hostname="localhost") as encrypted:
            client(encrypted)

    thread = threading.Thread(target=run)
    thread.start()
    near.setblocking(False)
    encrypted = await shake_hands(near, contexts[0])
    assert encrypted is not None
    recorder = Recorder(size)
    transport = TlsTransport(asyncio.get_running_loop(), encrypted, recorder)
    try:
        async with asyncio.timeout(60):
            yield transport, recorder
    finally:
        transport.abort()
        await recorder.ended
        await asyncio.to_thread(thread.join)


def read_all(encrypted: ssl.SSLSocket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = encrypted.recv(1 << 16)
        assert part
        data += part
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_said_is_heard_in_order(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], seed: int
) -> None:
    rng = random.Random(seed)
    there = rng.randbytes(3_000_000)
    back = rng.randbytes(3_000_000)
    heard: list[bytes] = []

    def client(encrypted: ssl.SSLSocket) -> None:
        sender = threading.Thread(target=encrypted.sendall, args=(there,))
        sender.start()
        heard.append(read_all(encrypted, len(back)))
        sender.join()

    async with joined(contexts, client, rng.choice([7, 1000, 1 << 16])) as (transport, kept):
        at = 0
        while at < len(back):
            part = back[at : at + rng.choice([1, 100, 16 << 10, 300_000])]
            # what was given may be changed
            given = bytearray(part)
            transport.write(given)
            given[:] = bytes(len(given))
            at += len(part)
            if rng.random() < 0.1:
                transport.pause_reading()
                await asyncio.sleep(0)
                transport.resume_reading()
            if transport.get_write_buffer_size() > 1 << 20:
                await asyncio.sleep(0.001)
        while len(kept.received) < len(there):
            kept.more.clear()
            await kept.more.wait()
        while transport.get_write_buffer_size():
            await asyncio.sleep(0.001)
        assert bytes(kept.received) == there
    assert heard == [back]


async def test_a_peer_that_does_not_read_is_waited_for(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    go = threading.Event()
    heard: list[int] = []
    written: list[int] = []

    def client(encrypted: ssl.SSLSocket) -> None:
        assert go.wait(30)
        total = 0
        while part := encrypted.recv(1 << 16):
            total += len(part)
        heard.append(total)

    async with joined(contexts, client) as (transport, kept):

        def write(count: int) -> None:
            transport.write(bytes(count))
            written.append(count)

        while not kept.pauses:
            write(256 << 10)
        assert kept.pauses == [True]
        waiting = transport.get_write_buffer_size()
        assert waiting > 64 << 10
        # nothing more is sent meanwhile, and nothing is lost
        write(4 << 20)
        assert transport.get_write_buffer_size() == waiting + (4 << 20)
        go.set()
        while kept.pauses == [True]:
            await asyncio.sleep(0.001)
        assert kept.pauses == [True, False]
        transport.close()
        await kept.ended
    assert heard == [sum(written)]


async def test_nothing_is_received_while_it_is_paused(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    sent = threading.Event()

    def client(encrypted: ssl.SSLSocket) -> None:
        # many of its bytes are decrypted together
        encrypted.sendall(b"x" * 16_000)
        sent.set()
        encrypted.recv(1)

    async with joined(contexts, client, size=10) as (transport, kept):
        while not kept.received:
            kept.more.clear()
            await kept.more.wait()
        transport.pause_reading()
        assert not transport.is_reading()
        count = len(kept.received)
        await asyncio.to_thread(sent.wait, 30)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(kept.received) == count
        # it is decrypted already, and makes no socket readable
        transport.resume_reading()
        while len(kept.received) < 16_000:
            kept.more.clear()
            await kept.more.wait()


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_how_it_ends(contexts: tuple[ssl.SSLContext, ssl.SSLContext], how: str) -> None:
    heard: list[int] = []

    def client(encrypted: ssl.SSLSocket) -> None:
        total = 0
        try:
            while part := encrypted.recv(1 << 16):
                total += len(part)
        except OSError:
            pass
        heard.append(total)

    async with joined(contexts, client) as (transport, kept):
        transport.write(bytes(3 << 20))
        getattr(transport, how)()
        assert transport.is_closing()
        # after it nothing more is said
        transport.write(b"more")
        transport.close()
        assert await kept.ended is None
    assert (heard[0] == 3 << 20) is (how == "close")


@pytest.mark.parametrize("politely", [True, False])
async def test_a_peer_that_ends(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], politely: bool
) -> None:
    def client(encrypted: ssl.SSLSocket) -> None:
        encrypted.sendall(b"last words")
        if politely:
            # it waits for an answer to its goodbye, which this server does not give
            with contextlib.suppress(OSError):
                encrypted.unwrap()
        else:
            encrypted.close()

    async with joined(contexts, client) as (_, kept):
        await kept.ended
        assert bytes(kept.received) == b"last words"


async def test_bytes_that_are_not_of_tls_end_it(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    def client(encrypted: ssl.SSLSocket) -> None:
        with socket.socket(fileno=encrypted.detach()) as raw:
            raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
            raw.settimeout(10)
            while raw.recv(1000):
                pass

    async with joined(contexts, client) as (_, kept):
        assert isinstance(await kept.ended, ssl.SSLError)


def test_nobody_is_waited_for_longer_than_is_said(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server")
    context = ServerTls(Security(tls_cert=issued.cert, tls_key=issued.key)).context()

    async def main() -> None:
        near, far = socket.socketpair()
        near.setblocking(False)
        with far, pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await shake_hands(near, context)
        assert near.fileno() == -1
        # nor is one that has gone
        near, far = socket.socketpair()
        near.setblocking(False)
        far.close()
        assert await shake_hands(near, context) is None
        assert near.fileno() == -1

    soon(lambda: asyncio.run(main()))
