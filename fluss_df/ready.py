"""Things that can be awaited although they are there already.

The documented examples of the Fluss client await some calls and not others, and differ in which:
so what a blocking call returns can be awaited as well.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any


class Ready:
    """Mixin: ``await thing`` is the thing itself."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Any]:
        return self
        yield  # what makes this a generator function
