"""Hooks for the end of the process and for forked children, which run in one order.

The end of a ``with`` block is here, too (:class:`Closing`).

Python runs them by the order in which they were registered, and so by the order of imports, which a
change elsewhere can turn round. Here the steps below say it.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - its hooks are there before ours
import contextlib
import enum
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self


class EndStep(enum.IntEnum):
    """The steps when the main thread is over, before threads of pools are waited for."""

    #: Servers that the program left open are closed: their threads would never end.
    SERVERS = enum.auto()
    #: Reads of asynchronous scanners that nobody awaits any more are ended.
    SCANNERS = enum.auto()
    #: Other calls of coroutines are interrupted: nobody awaits them any more.
    CALLS = enum.auto()
    #: Iterators of batches that the program left are ended.
    QUERIES = enum.auto()
    #: Tiering into the lakes of folders ends: it needs pools, which take no more work after this.
    TIERING = enum.auto()


class ExitStep(enum.IntEnum):
    """The steps at the end of the process, first to last; they run after those of the end."""

    #: Threads of Polars leave the interpreter.
    QUERIES = enum.auto()
    #: Reads that nobody ended are ended, so that they take no time from the writers.
    READS = enum.auto()
    #: Rows that were not sent are sent, over connections that are still open.
    WRITERS = enum.auto()
    #: Connections and engines are closed.
    CLUSTERS = enum.auto()
    #: Servers that this process started, and to which the rows went, are stopped.
    SERVERS = enum.auto()


class ForkStep(enum.IntEnum):
    """The steps in a forked child, first to last: each forgets something of the parent."""

    COUNTERS = enum.auto()
    IO_THREAD = enum.auto()
    CONNECTIONS = enum.auto()
    FOLDERS = enum.auto()
    CACHED_CONNECTIONS = enum.auto()
    INTERRUPTS = enum.auto()
    STACKS = enum.auto()
    SIGNALS = enum.auto()
    ENCODERS = enum.auto()
    REMOTE_FILES = enum.auto()
    REMOTE_SEGMENTS = enum.auto()
    READS = enum.auto()
    REPORTS = enum.auto()
    QUERIES = enum.auto()
    FOLDER_LOCKS = enum.auto()
    TIERING = enum.auto()
    ENGINES = enum.auto()
    LAUNCHERS = enum.auto()


_at_end: Final[dict[EndStep, Callable[[], object]]] = {}
_at_exit: Final[dict[ExitStep, Callable[[], object]]] = {}
_after_fork: Final[dict[ForkStep, Callable[[], object]]] = {}


def at_end(step: EndStep, hook: Callable[[], object]) -> None:
    """Have a hook called when the main thread is over, and threads of pools are not yet."""
    _at_end[step] = hook


def at_exit(step: ExitStep, hook: Callable[[], object]) -> None:
    """Have a hook called when the process ends."""
    _at_exit[step] = hook


def _call(hooks: Mapping[Any, Callable[[], object]]) -> None:
    # all of them run, whatever one of them raises
    with contextlib.ExitStack() as stack:
        for _, hook in sorted(hooks.items(), reverse=True):
            stack.callback(hook)


atexit.register(_call, _at_exit)
# There is no public way to be called before threads are joined. The hook that joins the threads of
# pools is of the same kind; it was registered before, so it runs after this one.
_before_threads = getattr(threading, "_register_atexit", None)
if _before_threads is not None:
    _before_threads(_call, _at_end)


_folder_lake: list[Callable[[Path, str, bool, float | None], Any]] = []
_check_lake: list[Callable[..., Any]] = []


def set_folder_lake(
    function: Callable[[Path, str, bool, float | None], Any], check: Callable[..., Any]
) -> None:
    """Say how the lake of an engine's folder is opened, and verified: it is above the engine.

    The first is given what :func:`open_folder_lake` is; the second what :func:`check_folder_lake`
    is.
    """
    _folder_lake[:] = [function]
    _check_lake[:] = [check]


def open_folder_lake(folder: Path, address: str, tiers: bool, keep_s: float | None) -> Any:
    """Return the lake of a folder; None where nothing said how one is opened."""
    return _folder_lake[0](folder, address, tiers, keep_s) if _folder_lake else None


def check_folder_lake(
    folder: Path, tables: Any, found: Callable[[Any, Path, str], None], watch: Callable[[int], Any]
) -> Any:
    """Verify the lake of a folder; see :func:`fluss_df.embedded.lake_check.check_lake`."""
    return _check_lake[0](folder, tables, found, watch)


def after_fork(step: ForkStep, hook: Callable[[], object]) -> None:
    """Have a hook called in every forked child, on systems that fork."""
    _after_fork[step] = hook


def _run(step: ForkStep) -> None:
    hook = _after_fork.get(step)
    if hook is not None:
        hook()


def _register(step: ForkStep) -> None:
    os.register_at_fork(after_in_child=lambda: _run(step))


if hasattr(os, "register_at_fork"):
    # one for each step, so that a hook that fails does not keep the next from running
    for _step in ForkStep:
        _register(_step)


@contextlib.contextmanager
def undoing(undo: Callable[[], object]) -> Iterator[None]:
    """Undo what a block began, where it does not come to its end."""
    try:
        yield
    except BaseException:
        undo()
        raise


class Closing:
    """An object that its ``with`` block closes, whether it ends with an error or not."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> object:
        """Give back what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
