"""Durations as people write them."""

from __future__ import annotations

import datetime as dt
import re

from fluss_df.errors import FlussError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


def parse_duration(name: str, value: str | float | dt.timedelta) -> float:
    """Return seconds of a timedelta, a number of seconds, or a text such as ``"500ms"``.

    Examples
    --------
    >>> parse_duration("trigger", "500ms")
    0.5
    """
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
        return float(value)
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise FlussError(
            f"{name}={value!r}: expected a duration, as in '1s', '500ms', '5m' or a timedelta"
        )
    return float(found[1]) * _UNITS[found[2]]
