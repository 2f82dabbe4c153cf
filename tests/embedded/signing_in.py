"""How a client of the tests signs in."""

from __future__ import annotations


def signing_in(address: str | None, user: str, password: str) -> dict[str, str]:
    """Return what to connect with."""
    assert address is not None
    return {
        "bootstrap.servers": address,
        "security.protocol": "sasl",
        "security.sasl.username": user,
        "security.sasl.password": password,
    }
