"""Which settings are secret, and how texts are shown without the secrets in them."""

from __future__ import annotations

import re
from typing import Final

# options with these words in their names are secret
_SECRET: Final = re.compile(
    r"password|passwd|passphrase|pwd|secret|token|credential|sas|authorization|bearer|cookie|hmac"
    r"|(^|[._-])pass($|[._-])|(ssl|signing|client).key(?!.?(path|file|location|store))"
    r"|connection.string|(access|account|sse|shared|private|encryption|api|service).?key"
    r"|jaas|auth.params|basic.auth|http.headers",
    re.IGNORECASE,
)
# Matches user and password of an address, and parameters, some of which are secret. Lengths are
# bounded, so that a long text takes little time, and what follows an address stays.
_LOGIN: Final = re.compile(
    r"(?<=//)[^?\s]{0,500}(?=@)|(?<=//)[^/\s?@]{0,200}:[^/\s=&]{1,200}(?=@)"
    r"|(?<=:thin:)[^\s@/]{1,200}/[^\s@]{1,200}(?=@)"
)
_PARAMETER: Final = re.compile(r"(?:(?<=[?&;#\s])|^)([^=&;#?\s]+)=([^&;\s]*)")


def is_secret(key: str) -> bool:
    """Whether the value of an option of this name is secret."""
    return _SECRET.search(key) is not None


def shown_option(key: str, value: str) -> str:
    """Return the value of an option as it may be shown: not that of a secret."""
    return "***" if is_secret(key) else without_secrets(value)


def without_secrets(text: str) -> str:
    """Return an address, or a text with some, without logins and secret parameters."""

    def shown(parameter: re.Match[str]) -> str:
        return f"{parameter[1]}=***" if is_secret(parameter[1]) else parameter[0]

    return _PARAMETER.sub(shown, _LOGIN.sub("***", text))
