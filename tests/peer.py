"""The official Python client, which tests talk to; it has no wheel for Python 3.13 and newer."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import fluss as official
elif sys.version_info < (3, 13):
    official = importlib.import_module("fluss")
else:

    class _Missing:
        """Skips the test that asks it for something."""

        def __getattr__(self, name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            pytest.skip("the official client has no wheel for this Python")

    official = _Missing()

__all__ = ["official"]
