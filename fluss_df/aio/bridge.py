"""From coroutines to the core: how the asynchronous façade is made of the synchronous one.

A façade object holds its core object, and each of its methods is made of the core's by one of
three functions, which keep the name, signature, types and docstring:

* :func:`on_io` awaits the coroutine of a method that is
  :func:`~fluss_df.client.runtime.awaitable.blocking` on the client's I/O thread; cancelling cancels
  it there,
* :func:`on_thread` runs a method that blocks on a thread,
* :func:`plain` calls a method that does not block.

So there is no second copy of anything, and the caller's loop never waits for a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from fluss_df.aio.threads import Threads
from fluss_df.client.runtime.io_thread import io_thread

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F")

# how many calls can wait at the same time, such as flushes; each takes a thread only while it waits
_THREADS = 64


class Facade(Generic[C_co]):
    """The asynchronous counterpart of an object of the core."""

    def __init__(self, core: C_co) -> None:
        self._core = core

    @property
    def core(self) -> C_co:
        """The object of ``fluss_df`` behind this one, whose methods block."""
        return self._core

    def __repr__(self) -> str:
        return repr(self._core)


_threads = Threads(_THREADS, "fluss-df-aio")


async def io_coroutine(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine that runs on the I/O thread."""
    return await asyncio.wrap_future(io_thread().submit(work))


def watched(future: Future[T]) -> asyncio.Future[T]:
    """Return what ends as a future of another thread does; to cancel it leaves that one alone.

    ``shield(wrap_future(...))`` does the same in a turn of the loop more.
    """
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[T] = loop.create_future()

    def settle() -> None:
        if seen.done():
            return
        if future.cancelled():
            seen.cancel()
            return
        error = future.exception()
        if error is None:
            seen.set_result(future.result())
        else:
            seen.set_exception(error)

    def done(_: object) -> None:
        # nobody waits in a loop that was closed
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle)

    future.add_done_callback(done)
    return seen


def submit(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Start a call that blocks, on a thread."""
    return _threads.submit(function, *args, **kwargs)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Await a call that blocks, on a thread."""
    return await asyncio.wrap_future(submit(function, *args, **kwargs))


def on_io(
    method: Callable[Concatenate[C, P], T],
) -> Callable[Concatenate[Facade[C], P], Coroutine[Any, Any, T]]:
    """Make a coroutine method of a blocking method of the core, without a thread."""
    coroutine = method.coroutine  # type: ignore[attr-defined]

    @like(method)
    async def call(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await io_coroutine(coroutine(self._core, *args, **kwargs))
        return result

    return call


def on_thread(
    method: Callable[Concatenate[C, P], T],
) -> Callable[Concatenate[Facade[C], P], Coroutine[Any, Any, T]]:
    """Make a coroutine method of a method of the core that blocks."""

    @like(method)
    async def call(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await in_thread(method, self._core, *args, **kwargs)

    return call


def plain(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[Facade[C], P], T]:
    """Make a method of one of the core that does not block."""

    @like(method)
    def call(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self._core, *args, **kwargs)

    return call


def giving(
    facade: Callable[[T], F], method: Callable[Concatenate[C, P], T]
) -> Callable[Concatenate[Facade[C], P], F]:
    """Like :func:`plain`, for a method that returns what has a façade of its own."""

    @like(method)
    def call(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> F:
        return facade(method(self._core, *args, **kwargs))

    return call


def like(method: Callable[..., Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Give a function the name, docstring and signature of a method."""

    def decorate(call: Callable[P, T]) -> Callable[P, T]:
        functools.update_wrapper(call, method)
        call.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
        for name in ("coroutine", "__wrapped__"):
            call.__dict__.pop(name, None)
        return call

    return decorate
