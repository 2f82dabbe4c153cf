"""Options of the configuration: names, defaults, and checks of their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, overload

from fluss_df.addresses import embedded_folder, parse_address
from fluss_df.errors import ErrorCode, FlussError

T = TypeVar("T")

MIB = 1 << 20
FOREVER_MS = 2**64 - 1
# 24 days: requests carry times as int32, and sockets take no more than the system's own time does
LONGEST_WAIT_MS = 2**31 - 1
SECRETS = frozenset(
    {
        "security.sasl.password",
        "security.ssl.truststore.password",
        "security.ssl.keystore.password",
        "security.ssl.key.password",
    }
)


def invalid(key: str, value: object, expected: str) -> FlussError:
    """Return the error for a value that does not fit; a secret is not shown."""
    shown = "***" if key in SECRETS else repr(value)
    return FlussError(
        f"invalid value {shown} for '{key}': expected {expected}",
        ErrorCode.INVALID_CONFIG_EXCEPTION,
    )


def integer(minimum: int, maximum: int = 2**63 - 1) -> Callable[[str, object], int]:
    """Return the check of a whole number."""
    expected = f"a whole number from {minimum}" + (f" to {maximum}" if maximum < 2**31 else "")

    def parse(key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise invalid(key, value, expected)
        try:
            number = int(value)
        except ValueError:
            raise invalid(key, value, expected) from None
        if not minimum <= number <= max(maximum, FOREVER_MS if maximum >= 2**63 - 1 else 0):
            raise invalid(key, value, expected)
        return number

    return parse


def boolean(key: str, value: object) -> bool:
    """Return True or False."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise invalid(key, value, "'true' or 'false'")
    return text == "true"


def one_of(*choices: str) -> Callable[[str, object], str]:
    """Return the check of a text that is one of some, in capitals or not."""

    def parse(key: str, value: object) -> str:
        for choice in choices:
            if str(value).lower() == choice.lower():
                return choice
        raise invalid(key, value, " or ".join(repr(choice) for choice in choices))

    return parse


def acks(key: str, value: object) -> str:
    """Return who has to have a batch."""
    text = str(value).strip().lower()
    if text not in ("all", "-1", "0", "1"):
        raise invalid(key, value, "'all', '1' or '0'")
    return "all" if text == "-1" else text


def text_of(key: str, value: object) -> str:
    """Return a text as it is."""
    if not isinstance(value, str):
        raise invalid(key, value, "a string")
    return value


def path(key: str, value: object) -> str:
    """Return the path of a file."""
    return str(value) if isinstance(value, Path) else text_of(key, value)


def pem(key: str, value: object) -> str:
    """Return PEM; say how files of other forms are converted."""
    if str(value).upper() == "PEM":
        return "PEM"
    raise invalid(
        key,
        value,
        "'PEM'; a file of another form is converted by"
        " 'openssl pkcs12 -in FILE -out FILE.pem -nodes' (JKS: 'keytool -importkeystore"
        " -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12' first)",
    )


def protocols(key: str, value: object) -> str:
    """Return versions of TLS."""
    parts = value if isinstance(value, (list, tuple)) else text_of(key, value).split(",")
    names = sorted({str(part).strip() for part in parts})
    if not names or not set(names) <= {"TLSv1.2", "TLSv1.3"}:
        raise invalid(key, value, "'TLSv1.2', 'TLSv1.3' or both, with ',' between")
    return ",".join(names)


def servers(key: str, value: object) -> str:
    """Return addresses, or a folder."""
    if isinstance(value, Path):
        # two slashes, which POSIX allows, would begin a URL
        return f"file:{re.sub('^//+', '/', str(value))}"
    if embedded_folder(value) is not None:
        return str(value)
    if isinstance(value, (list, tuple)):
        value = ",".join(str(item) for item in value)
    text = text_of(key, value)
    addresses = [part.strip() for part in text.split(",") if part.strip()]
    if not addresses:
        raise invalid(key, value, "'host:port[,host:port]', or a folder such as './data'")
    for address in addresses:
        parse_address(address)
    return ",".join(addresses)


class HasValues(Protocol):
    """An object with options: the values that were set, by their keys."""

    _values: dict[str, Any]


class Option(Generic[T]):
    """One option: a property of :class:`Config`, and a key of its dictionary.

    Parameters
    ----------
    key
        The key without the prefix ``client.``.
    default
        Its value where nothing is set.
    parse
        Checks and converts a value; raises a FlussError.
    doc
        What it does, in one sentence.
    aliases
        Other keys for the same option.
    """

    def __init__(
        self,
        key: str,
        default: T,
        parse: Callable[[str, object], T],
        doc: str,
        aliases: tuple[str, ...] = (),
    ) -> None:
        self.key = key
        self.default = default
        self.parse = parse
        self.aliases = aliases
        self.__doc__ = doc

    @overload
    def __get__(self, instance: None, owner: type) -> Option[T]: ...
    @overload
    def __get__(self, instance: HasValues, owner: type) -> T: ...
    def __get__(self, instance: HasValues | None, owner: type) -> T | Option[T]:
        """Return the value, or the option itself where the class is asked."""
        if instance is None:
            return self
        value: T = instance._values.get(self.key, self.default)
        return value

    def __set__(self, instance: HasValues, value: T) -> None:
        """Check and set the value."""
        instance._values[self.key] = self.parse(self.key, value)
