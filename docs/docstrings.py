"""Docstrings for mkdocstrings: roles such as ``:class:`X``` become code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":\w+:`~?([^`]+)`")


def without_roles(text: str) -> str:
    """Return a docstring whose roles are plain code."""
    return _ROLE.sub(r"`\1`", text)


class Roles(griffe.Extension):
    """Rewrites the docstring of every object that is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = without_roles(obj.docstring.value)
