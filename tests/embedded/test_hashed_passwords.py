"""Passwords that are kept as hashes: who is let in, and how much work each try is."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError
from fluss_df.embedded import EmbeddedFluss, hash_password
from fluss_df.engine.access import login_attempts
from fluss_df.engine.access.passwords import PasswordHash, Passwords
from tests.embedded.raw import RawClient
from tests.embedded.signing_in import signing_in
from tests.waiting import wait_until

ALICE = {"alice": hash_password("wonder")}


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The passwords of which a digest was computed so far."""
    found: list[bytes] = []
    digest_of = PasswordHash.digest_of

    def counted(self: PasswordHash, password: bytes) -> bytes:
        found.append(password)
        return digest_of(self, password)

    monkeypatch.setattr(PasswordHash, "digest_of", counted)
    return found


def test_passwords_as_hashes(tmp_path: Path) -> None:
    kept = {"alice": hash_password("wonder"), "bob": "plain"}
    assert "wonder" not in kept["alice"]
    assert hash_password("wonder") != kept["alice"]
    with EmbeddedFluss(tmp_path, port=0, sasl=kept) as engine:
        for _ in range(2):
            with fluss.connect(signing_in(engine.address, "alice", "wonder")) as connection:
                assert connection.get_admin().list_databases() == ["fluss"]
        with fluss.connect(signing_in(engine.address, "bob", "plain")):
            pass
        # the hash itself is no password
        wrong = {"alice": ("Wonder", "", kept["alice"]), "bob": ("x",), "root": ("wonder", "")}
        for user, passwords in wrong.items():
            for password in passwords:
                assert engine.address is not None
                with closing(RawClient(engine.address)) as client:
                    code, message = client.authenticate(user, password).error
                assert code == ErrorCode.AUTHENTICATE_EXCEPTION
                assert message == "Authentication failed: Invalid username or password"


def test_who_was_right_once_is_let_in_without_the_work(tmp_path: Path, work: list[bytes]) -> None:
    with EmbeddedFluss(tmp_path, port=0, sasl=ALICE) as engine:
        assert engine.address is not None
        for password, total in [("wonder", 1), ("wonder", 1), ("no", 2), ("wonder", 2)]:
            with closing(RawClient(engine.address)) as client:
                assert (client.authenticate("alice", password).type == 0) is (password == "wonder")
            assert len(work) == total
        # as long for a user that there is not
        with closing(RawClient(engine.address)) as client:
            assert client.authenticate("nobody", "wonder").type != 0
        assert len(work) == 3


async def test_peers_that_go_away_start_no_more_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try takes a core and 16 MB, and goes on when nobody waits for it any more."""
    running: list[int] = []
    go_on = threading.Event()

    def slow(self: PasswordHash, password: bytes) -> bytes:
        running.append(1)
        assert go_on.wait(30)
        running.append(-1)
        return b""

    monkeypatch.setattr(PasswordHash, "digest_of", slow)
    passwords = Passwords()
    for _ in range(8):
        trying = asyncio.ensure_future(passwords.matches(b"x", None, hashed=True))
        await asyncio.sleep(0.05)
        trying.cancel()
        await asyncio.wait([trying])
    assert sum(running) == 2
    go_on.set()
    # and who comes later has a turn
    assert not await asyncio.wait_for(passwords.matches(b"x", None, hashed=True), 10)
    # the one before it may still be about to end
    await asyncio.to_thread(wait_until, lambda: len(running) == 6, 10)
    assert sum(running) == 0


@pytest.mark.parametrize("right", [True, False])
def test_many_try_the_password_of_a_user_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: list[bytes], right: bool
) -> None:
    """Guesses are as few as one after another; who knows it is not held up."""
    if not right:
        monkeypatch.setattr(login_attempts, "_TURN_S", 0.05)

    def sign_in(number: int) -> int:
        try:
            engine.sign_in("alice", "wonder" if right else f"guess{number}", "10.0.0.9")
        except FlussError as error:
            return error.error_code
        return 0

    with EmbeddedFluss(tmp_path, port=0, sasl=ALICE) as engine, ThreadPoolExecutor(40) as pool:
        codes = Counter(pool.map(sign_in, range(40)))
    if right:
        assert codes == {0: 40}
    else:
        assert codes[ErrorCode.AUTHENTICATE_EXCEPTION] == len(work)
        assert codes[ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION] == 40 - len(work) > 20


@pytest.mark.parametrize(
    "text",
    [
        "$scrypt$",
        "$scrypt$ln=14,r=8,p=1$AAAA",
        "$scrypt$ln=40,r=8,p=1$AAAA$AAAA",
        "$scrypt$ln=14,r=99,p=99$AAAA$AAAA",
        "$scrypt$ln=0,r=8,p=1$AAAA$AAAA",
        "$scrypt$ln=14,r=8,p=1$AAAAA$AAAA",
        "$scrypt$ln=14,r=8,p=1$AA!A$AAAA",
    ],
)
def test_hashes_that_cannot_be(tmp_path: Path, text: str) -> None:
    with pytest.raises(FlussError, match=r"user alice: .*fluss-df passwd"):
        EmbeddedFluss(tmp_path, port=0, sasl={"alice": text})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("port", [0, None])
def test_no_users_let_in_nobody_by_mistake(tmp_path: Path, port: int | None) -> None:
    with pytest.raises(FlussError, match="there is no user in it") as raised:
        EmbeddedFluss(tmp_path, port=port, sasl={})
    assert raised.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION
    assert not list(tmp_path.iterdir())
    with EmbeddedFluss(tmp_path, port=0, sasl=None) as engine:
        assert not engine.has_users
