"""Which tests one worker runs, and which begin first, where workers run side by side.

A worker has servers of its own, and keeps them to its end. So tests that need the same costly
server are one piece of work. The longest pieces come first: what begins last should be short.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# folders whose files one worker runs: they share a lake with Flink beside it, or a Spark
_TOGETHER: Final = ("tests/spark", "tests/lake")
# folders by the time that their pieces take, the longest first; others are short
_LONGEST: Final = (*_TOGETHER, "tests/faults", "tests/cluster", "tests/io", "tests/embedded")


class _Pieces(LoadFileScheduling):  # type: ignore[misc]
    """Hands out files, or folders that belong together, in the order of the tests."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return next((folder for folder in _TOGETHER if _is_in(file, folder)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """Deal the tests out by pieces."""
    config.option.loadscopereorder = False
    return _Pieces(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the folders that take longest."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank(item.nodeid))


def _rank(nodeid: str) -> int:
    return next((n for n, folder in enumerate(_LONGEST) if _is_in(nodeid, folder)), len(_LONGEST))


def _is_in(file: str, folder: str) -> bool:
    return PurePosixPath(file).is_relative_to(folder)
