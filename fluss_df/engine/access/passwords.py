"""Passwords as salted hashes (scrypt): nobody can sign in with a hash that was read."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from fluss_df.errors import ErrorCode, FlussError

_PREFIX: Final = "$scrypt$"
_FORM: Final = re.compile(
    r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]{1,88})\$([A-Za-z0-9+/]{1,88})"
)
# 16 MB and about 50 ms for each try
_LOG_COST: Final = 14
_BLOCK: Final = 8
_PARALLEL: Final = 1
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
# the most bytes of memory that a hash made elsewhere may take to compute
_MOST_MEMORY: Final = 256 << 20
# tries at once: each takes a core and its memory
_AT_ONCE: Final = 2


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """A salted hash of a password, in the form ``$scrypt$ln=14,r=8,p=1$SALT$HASH``."""

    log_cost: int
    block: int
    parallel: int
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, password: str) -> Self:
        """Return a hash of a password, with a salt of its own."""
        salt = secrets.token_bytes(_SALT_BYTES)
        made = cls(_LOG_COST, _BLOCK, _PARALLEL, salt, b"\0" * _HASH_BYTES)
        digest = made.digest_of(password.encode())
        return cls(_LOG_COST, _BLOCK, _PARALLEL, salt, digest)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``str`` returns.

        Raises ``INVALID_CONFIG_EXCEPTION`` for any other text, or a hash that would take too much
        memory to compute.
        """
        found = _FORM.fullmatch(text)
        if found is not None:
            log_cost, block, parallel = map(int, found.group(1, 2, 3))
            memory = 128 * block << log_cost
            if log_cost > 0 and block > 0 and 0 < parallel <= 16 and memory <= _MOST_MEMORY:
                try:
                    return cls(log_cost, block, parallel, *map(_decoded, found.group(4, 5)))
                except binascii.Error:
                    pass
        raise FlussError(
            f"a password that begins with {_PREFIX} is not of the form"
            " $scrypt$ln=14,r=8,p=1$SALT$HASH: write it again with 'fluss-df passwd'",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )

    def digest_of(self, password: bytes) -> bytes:
        """Return the hash of a password with these parameters and this salt."""
        return hashlib.scrypt(
            password,
            salt=self.salt,
            n=1 << self.log_cost,
            r=self.block,
            p=self.parallel,
            maxmem=2 * _MOST_MEMORY,
            dklen=len(self.digest),
        )

    def __str__(self) -> str:
        parameters = f"ln={self.log_cost},r={self.block},p={self.parallel}"
        return f"{_PREFIX}{parameters}${_encoded(self.salt)}${_encoded(self.digest)}"


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def is_hash(password: str) -> bool:
    """Whether what is kept of a password is its hash, and not the password."""
    return password.startswith(_PREFIX)


def hash_password(password: str) -> str:
    """Return a salted hash of a password, to be kept in its place.

    Takes about 50 ms. Each call returns another one.

    Examples
    --------
    >>> hash_password("s3cret")[:22]
    '$scrypt$ln=14,r=8,p=1$'
    """
    return str(PasswordHash.of(password))


def checked_users(users: Mapping[str, str]) -> dict[str, str]:
    """Return users with what is kept of their passwords.

    Raises FlussError as :meth:`PasswordHash.parse`, with the user's name, and
    ``INVALID_CONFIG_EXCEPTION`` where there are none.
    """
    if not users:
        raise FlussError(
            "sasl: there is no user in it: name who may come in, as {'USER': 'PASSWORD'}, or leave"
            " it out to let everyone in",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    for user, kept in users.items():
        if is_hash(kept):
            try:
                PasswordHash.parse(kept)
            except FlussError as error:
                raise FlussError(f"user {user}: {error.message}", error.error_code) from None
    return dict(users)


class Passwords:
    """Compares passwords with what is kept of them; for the event loop alone.

    A hash takes 50 ms of a core, and clients open many connections: a password that was right is
    known by a keyed hash from then on, whose key nobody has but this process.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        # what is kept -> the keyed hash of its password
        self._right: dict[str, bytes] = {}
        self._unknown = PasswordHash(
            _LOG_COST, _BLOCK, _PARALLEL, secrets.token_bytes(_SALT_BYTES), b"\0" * _HASH_BYTES
        )
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def matches(self, given: bytes, kept: str | None, *, hashed: bool) -> bool:
        """Whether a given password is the one that is kept.

        ``kept`` is the password or its hash. It is None for a user that does not exist, for whom
        the check takes as long. ``hashed`` says whether the password of any user is kept as a hash.
        """
        if kept is not None and not is_hash(kept):
            return hmac.compare_digest(given, kept.encode())
        if kept is None and not hashed:
            hmac.compare_digest(given, b"")
            return False
        keyed = hmac.digest(self._key, given, "sha256")
        known = None if kept is None else self._right.get(kept)
        if known is not None and hmac.compare_digest(known, keyed):
            return True
        form = self._unknown if kept is None else PasswordHash.parse(kept)
        await self._turns.acquire()
        computing = asyncio.get_running_loop().run_in_executor(None, form.digest_of, given)
        computing.add_done_callback(lambda _: self._turns.release())
        # a peer that goes away does not end the thread, whose turn it is until it is done
        digest = await asyncio.shield(computing)
        equal = hmac.compare_digest(digest, form.digest)
        if kept is None or not equal:
            return False
        self._right[kept] = keyed
        return True
