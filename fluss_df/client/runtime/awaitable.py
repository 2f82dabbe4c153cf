"""One core, two façades: coroutines as blocking calls whose results can be awaited.

Methods are written once, as coroutines that run on the I/O thread. :func:`blocking` makes of each
the method of the synchronous façade; its coroutine stays at hand for the asynchronous one. What a
blocking call returns can also be awaited, because the documented examples of the Fluss client
await some calls and not others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from fluss_df.client.runtime.io_thread import IOThread
from fluss_df.ready import Ready as Ready

P = ParamSpec("P")
T = TypeVar("T")


class OnIOThread(Protocol):
    """Something whose coroutines run on the I/O thread."""

    @property
    def io(self) -> IOThread:
        """The I/O thread of this process."""


S = TypeVar("S", bound=OnIOThread)


class ReadyList(list[T], Ready):
    """A list that can also be awaited."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, list[T]]:
        return list(self)
        yield


class ReadyDict(dict[Any, T], Ready):
    """A dict that can also be awaited."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, dict[Any, T]]:
        return dict(self)
        yield


class ReadyBool(int):
    """True or False that can also be awaited, which gives a real bool."""

    def __await__(self) -> Generator[Any, None, bool]:
        return bool(self)
        yield

    def __repr__(self) -> str:
        return repr(bool(self))

    __str__ = __repr__


class _ReadyNone:
    """Nothing, that can also be awaited; false, equal to None, and shown as None."""

    def __await__(self) -> Generator[Any, None, None]:
        return None
        yield

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, _ReadyNone)

    def __hash__(self) -> int:
        return hash(None)

    def __repr__(self) -> str:
        return "None"


READY = _ReadyNone()


def ready(value: T) -> T:
    """Return a value that equals ``value`` and can also be awaited, which gives ``value``."""
    result: object = value
    if value is None:
        result = READY
    elif isinstance(value, bool):
        result = ReadyBool(value)
    elif type(value) is list:
        result = ReadyList[Any](cast("list[Any]", value))
    elif type(value) is dict:
        result = ReadyDict[Any](cast("dict[Any, Any]", value))
    return cast(T, result)


def blocking(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], T]:
    """Make of a coroutine method one that blocks; its coroutine is at ``.coroutine``."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return ready(self.io.run(method(self, *args, **kwargs)))

    call.coroutine = method  # type: ignore[attr-defined]
    return call


def blocking_only(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], T]:
    """Make a method as :func:`blocking` does, but its result is not wrapped: it cannot be awaited.

    For results that may be None, since a wrapper would not be ``is None``, and for texts and
    enumerations.
    """

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.io.run(method(self, *args, **kwargs))

    call.coroutine = method  # type: ignore[attr-defined]
    return call


def answered_at_once(
    at_once: Callable[Concatenate[S, P], T | None],
) -> Callable[
    [Callable[Concatenate[S, P], Coroutine[Any, Any, T]]], Callable[Concatenate[S, P], T]
]:
    """Make a method as :func:`blocking` does, which first sees whether the answer is at hand.

    ``at_once`` returns the answer without the I/O thread, or None where it has none.
    """

    def decorate(
        method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
    ) -> Callable[Concatenate[S, P], T]:
        ask = blocking(method)

        @functools.wraps(ask)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            answer = at_once(self, *args, **kwargs)
            return ask(self, *args, **kwargs) if answer is None else ready(answer)

        return call

    return decorate
