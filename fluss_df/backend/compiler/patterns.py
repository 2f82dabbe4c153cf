"""Patterns of LIKE: texts, ``%`` for any text and ``_`` for one character."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

#: A text as it is, None for any text, 1 for one character.
Part: TypeAlias = str | int | None


def like_parts(pattern: str, escape: str | None) -> list[Part] | None:
    """Split a pattern into its parts; None where it ends in its escape character."""
    parts: list[Part] = []
    escaped = False
    for char in pattern:
        if not escaped and escape is not None and char == escape:
            escaped = True
        elif not escaped and char in "%_":
            parts.append(None if char == "%" else 1)
        else:
            if parts and isinstance(parts[-1], str):
                parts[-1] += char
            else:
                parts.append(char)
            escaped = False
    return None if escaped else parts


def regex_of(parts: Sequence[Part]) -> str:
    """Return the regular expression, without anchors, that matches what the parts do."""
    made = {None: ".*", 1: "."}
    return "".join(re.escape(p) if isinstance(p, str) else made[p] for p in parts)
