"""Errors in the form that Spark shows: without the traceback of this library."""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from fluss_df.errors import FlussError

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")

# arguments of Python in texts of errors, and how Spark's options call them
_WORDS = (
    ("create_partitions=True", "option 'create.partitions' with 'true'"),
    ("(mode='partial_update', new_upsert([columns]))", "(write.mode='partial-update')"),
    ("mode='partial_update'", "write.mode='partial-update'"),
    ("mode='", "write.mode='"),
    ("change_type_column=", "operation.column="),
    ("start: offset", "starting.offsets: offset"),
    ("start: table", "starting.offsets: table"),
    ("stop: table", "ending.offsets: table"),
    ("lake=False", "option 'lake' with 'false'"),
    ("start='", "starting.offsets='"),
    ("partitions=(", "option 'partitions' with ("),
    ("buckets: table", "option 'buckets': table"),
)


def called_by_spark(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have a method that Spark calls raise errors of this library without their traceback.

    Spark makes one text of traceback and message, in this order, and shows it from its beginning.
    The traceback goes to the log, at level DEBUG.
    """
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def generate(*args: Any, **kwargs: Any) -> Any:
            try:
                yield from method(*args, **kwargs)
            except FlussError as error:
                raise _shown(error) from None

        return cast("Callable[_P, _R]", generate)

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except FlussError as error:
            raise _shown(error) from None

    return call


def _shown(error: FlussError) -> FlussError:
    logger.debug("an error for Spark", exc_info=error)
    for ours, sparks in _WORDS:
        # where the word itself begins: write.mode is one already
        error.message = re.sub(rf"(?<![\w.]){re.escape(ours)}", sparks, error.message)
    error.args = (error.message, error.error_code)
    return error.with_traceback(None)
