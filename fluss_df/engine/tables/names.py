"""What may be the name of a database, of a table, or a value of a partition."""

from __future__ import annotations

import re
from typing import Final

from fluss_df.errors import FlussError

_MAX_NAME: Final = 200
_NAME: Final = re.compile(r"[A-Za-z0-9_-]*")


def name_problem(name: str, reserved: bool = True) -> str | None:
    """Return what is wrong with a name; None for a good one."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > _MAX_NAME:
        return f"the length of '{name}' is longer than the max allowed length {_MAX_NAME}"
    if not _NAME.fullmatch(name):
        return (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, '_' and '-'"
        )
    if reserved and name.startswith("__"):
        return (
            "'__' is not allowed as prefix, since it is reserved for internal databases/internal"
            " tables/internal partitions in Fluss server"
        )
    return None


def as_name(value: str) -> str:
    """Return a name that was read from a file; it is checked, as the lake's folders have it.

    Raises FlussError for whatever nothing may be called.
    """
    problem = name_problem(value, reserved=False)
    if problem is not None:
        raise FlussError(f"{value!r} is no name: {problem}")
    return value
