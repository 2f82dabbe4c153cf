"""Functions of users that are called, and whose result nobody takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from fluss_df.errors import FlussError

_WAY_OUT: Final = (
    "a plain function that has done its work when it returns; for coroutines say"
    " asyncio.run(...) in it"
)


def refuse_lazy(what: str, function: Callable[..., object]) -> None:
    """Refuse a coroutine or generator function: to call it runs none of it.

    ``what`` is the argument that the function was given as.
    """
    while isinstance(function, functools.partial):
        function = function.func
    for called in (function, type(function).__call__):
        if (
            inspect.iscoroutinefunction(called)
            or inspect.isasyncgenfunction(called)
            or inspect.isgeneratorfunction(called)
        ):
            kind = "generator" if inspect.isgeneratorfunction(called) else "coroutine"
            name = getattr(function, "__qualname__", type(function).__qualname__)
            raise FlussError(f"{what}: {name} is a {kind} function: expected {_WAY_OUT}")


def call_whole(what: str, function: Callable[..., object], *args: Any) -> None:
    """Call a function whose result does not matter.

    Raises FlussError where the result is work that is not done: a coroutine, a generator or a
    future, whose errors nobody would see.
    """
    result = function(*args)
    if (
        inspect.isawaitable(result)
        or inspect.isgenerator(result)
        or inspect.isasyncgen(result)
        or isinstance(result, Future)
    ):
        if inspect.iscoroutine(result):
            # otherwise Python warns that it was never awaited
            result.close()
        raise FlussError(
            f"{what}: the function returned a {type(result).__name__}, whose work is not done:"
            f" expected {_WAY_OUT}"
        )
