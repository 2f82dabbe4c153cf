"""A plugin of pytest: the official client's own tests run with ``fluss_df.aio`` in its place.

Their server is an embedded engine in the same process. What each test came to is written, a line
for each, to the file that ``IN_PLACE_RESULTS`` names. ``IN_PLACE_PART`` is for several processes.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fluss_df.aio
from fluss_df.embedded import EmbeddedFluss

_RESULTS = Path(os.environ["IN_PLACE_RESULTS"])
# "0/3": of three processes, the first one's part
_PART, _PARTS = map(int, os.environ.get("IN_PLACE_PART", "0/1").split("/"))
# These wait for rows that do not come, ten seconds each: no process has two of them.
_LONG = (
    "test_filter_without_statistics_returns_all_rows",
    "test_filter_with_overlapping_statistics_returns_whole_batch",
    "test_filter_set_and_string_predicates",
    "test_example_runs[log_table]",
)
_loop = asyncio.new_event_loop()


def _fixture(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Stand for ``pytest_asyncio.fixture``: one event loop for all."""
    if function is None:
        return functools.partial(_fixture, **options)
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        def yielding(*args: Any, **named: Any) -> Iterator[Any]:
            values = function(*args, **named)
            yield _loop.run_until_complete(anext(values))
            _loop.run_until_complete(anext(values, None))

        return pytest.fixture(**options)(yielding)

    @functools.wraps(function)
    def returning(*args: Any, **named: Any) -> Any:
        return _loop.run_until_complete(function(*args, **named))

    return pytest.fixture(**options)(returning)


def _module(name: str, **members: Any) -> None:
    made = types.ModuleType(name)
    vars(made).update(members)
    sys.modules[name] = made


_module("pytest_asyncio", fixture=_fixture)
# only who starts a server of their own locks a file
_module("filelock", FileLock=None)
sys.modules["fluss"] = fluss_df.aio

_folder = tempfile.TemporaryDirectory(prefix="fluss-df-in-place-")
_engine = EmbeddedFluss(Path(_folder.name) / "data", port=0)
os.environ["FLUSS_BOOTSTRAP_SERVERS"] = _engine.address
# the users that the tests know
_users = {"admin": "admin-secret", "alice": "alice-secret"}
_second = EmbeddedFluss(Path(_folder.name) / "users", port=0, sasl=_users)
os.environ["FLUSS_SASL_BOOTSTRAP_SERVERS"] = _second.address


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to other processes what is theirs."""
    items.sort(key=lambda item: item.name not in _LONG)
    others = [item for number, item in enumerate(items) if number % _PARTS != _PART]
    config.hook.pytest_deselected(items=others)
    items[:] = items[_PART::_PARTS]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    given = {name: pyfuncitem.funcargs[name] for name in names}
    _loop.run_until_complete(asyncio.wait_for(pyfuncitem.obj(**given), 60))
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down what a test came to."""
    if report.when == "call" or report.outcome != "passed":
        name = report.nodeid.rpartition("/")[2]
        with _RESULTS.open("a") as file:
            file.write(f"{report.outcome} {name}\n")


def pytest_unconfigure() -> None:
    """End the engine."""
    _engine.close()
    _second.close()
    _folder.cleanup()
