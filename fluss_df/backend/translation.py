"""The translation of Ibis expressions to Polars, in a copy that is extended here.

It is Ibis's own, loaded a second time: rules of Fluss (:mod:`fluss_df.backend.compiler.rules`,
:mod:`fluss_df.backend.compiler.windows`) are added to this copy, so that Ibis's Polars backend
stays what it is, in the same process too.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import polars as pl
from ibis.expr.datatypes import DataType
from ibis.formats.polars import PolarsType as _PolarsType

#: Units of times, the coarsest first.
UNITS = ("ms", "us", "ns")
#: A time of the day with as many digits of a second as it has: none, three, six or nine.
TIME_AS_TEXT = "%H:%M:%S%.f"
NANOSECONDS_OF_A_DAY = 86_400 * 10**9

_ORIGINAL = "ibis.backends.polars.compiler"
_COPY = "fluss_df.backend._polars_compiler"

Rule = TypeVar("Rule", bound=Callable[..., Any])


def _load() -> ModuleType:
    found = importlib.util.find_spec(_ORIGINAL)
    if found is None or found.origin is None:
        raise ImportError(f"{_ORIGINAL} is not there: pip install 'fluss-df[ibis]'")
    spec = importlib.util.spec_from_file_location(_COPY, found.origin)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_COPY] = module
    spec.loader.exec_module(module)
    return module


_module = _load()


class PolarsType(_PolarsType):  # type: ignore[misc]
    """Types of Polars, with microseconds for a timestamp without digits, as Arrow has them.

    Ibis makes nanoseconds of it, which hold no year before 1678 and none after 2261.
    """

    @classmethod
    def from_ibis(cls, dtype: DataType) -> pl.DataType:
        """Return the type of Polars for one of Ibis."""
        if dtype.is_timestamp() and not dtype.scale:
            return pl.Datetime("us" if dtype.scale is None else "ms", dtype.timezone)
        made: pl.DataType = super().from_ibis(dtype)
        return made


vars(_module)["PolarsType"] = PolarsType

#: Translates an operation; its keyword arguments travel with it.
translate = _module.translate


def nanoseconds(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Return a time or a day as a number of nanoseconds since 1970.

    In 128 bits: those of a year that a TIMESTAMP(9) cannot hold are compared with one, too, and no
    digit is lost. ``kind`` is the type of the value.
    """
    factor = NANOSECONDS_OF_A_DAY
    if isinstance(kind, pl.Datetime):
        factor = 1000 ** (2 - UNITS.index(kind.time_unit))
    return value.cast(pl.Int128) * factor


def rule(*operations: type) -> Callable[[Rule], Rule]:
    """Make a function the translation of operations."""

    def register(function: Rule) -> Rule:
        for operation in operations:
            translate.register(operation, function)
        return function

    return register


def in_type_of_ibis(operation: type) -> None:
    """Have an operation return the type that Ibis says of it, not that of Polars."""
    found = translate.dispatch(operation)

    @rule(operation)
    def typed(op: Any, **kw: Any) -> pl.Expr:
        made: pl.Expr = found(op, **kw)
        return made.cast(PolarsType.from_ibis(op.dtype))
