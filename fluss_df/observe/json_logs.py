"""Logs as JSON, one object a line: what ``FLUSS_DF_LOG=json`` asks for."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import sys
from typing import Any, Final

VARIABLE: Final = "FLUSS_DF_LOG"
LEVEL_VARIABLE: Final = "FLUSS_DF_LOG_LEVEL"
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LOGGER: Final = "fluss_df"
# the attributes that every log record has; all others were given as ``extra``
_RECORD_ATTRIBUTES: Final = frozenset(
    vars(logging.LogRecord("", 0, "", 0, "", (), None)) | {"message": "", "asctime": ""}
)


class JsonFormatter(logging.Formatter):
    """One JSON object a line.

    Its keys are ``time`` (ISO 8601, UTC), ``level``, ``logger``, ``message``, ``process``,
    ``thread``, what was given as ``extra``, ``exception`` with a traceback and ``stack`` where
    there is one, and within a span of OpenTelemetry ``trace_id``, ``span_id`` and ``trace_flags``.
    What was given as ``extra`` by one of these names is ``extra.NAME``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as one line of JSON, also where JSON has no form for a value."""
        when = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line: dict[str, Any] = {
            "time": when.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            "process": record.process,
            "thread": record.threadName,
        }
        ends: dict[str, Any] = dict(_trace())
        if record.exc_info:
            ends["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            ends["exception"] = record.exc_text
        if record.stack_info:
            ends["stack"] = self.formatStack(record.stack_info)
        for name, value in vars(record).items():
            if name not in _RECORD_ATTRIBUTES:
                shown = name
                while shown in line or shown in ends:
                    shown = f"extra.{shown}"
                line[shown] = value
        line.update(ends)
        # File names that are not UTF-8 have lone surrogates in Python, for which ASCII has escapes.
        try:
            return json.dumps(line, default=repr, ensure_ascii=True, allow_nan=False)
        except Exception:
            # Keys that are no strings, circular or very deep values, NaN, or objects whose repr
            # raises: what a program logs must never stop it.
            return json.dumps({_text(name): _shown(value) for name, value in line.items()})


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        # values that its text has no places for, or that cannot be shown: both are in the line
        return f"{_text(record.msg)} {_text(record.args)}"


def _shown(value: Any) -> Any:
    """Return a value that JSON can hold: the value itself, or else its repr."""
    try:
        return json.loads(json.dumps(value, default=repr, allow_nan=False))
    except Exception:
        return _text(value)


def _text(value: object) -> str:
    if type(value) is str:
        return value
    try:
        # A subclass of str may override __str__: take the characters themselves.
        return str.__str__(repr(value))
    except Exception:
        return "<unprintable>"


def _trace() -> dict[str, str]:
    """Return the ids of the current span; nothing where there is none."""
    trace = sys.modules.get("opentelemetry.trace")
    current = getattr(trace, "get_current_span", None)
    if current is None:
        # not imported, or another thread is importing it
        return {}
    found = current().get_span_context()
    if not found.is_valid:
        return {}
    return {
        "trace_id": f"{found.trace_id:032x}",
        "span_id": f"{found.span_id:016x}",
        "trace_flags": f"{int(found.trace_flags):02x}",
    }


def set_up() -> None:
    """Set up logging as the environment says; called once, when the package is imported.

    Unknown values cause a warning, not an error: logging must not stop a program.
    """
    logger = logging.getLogger(_LOGGER)
    asked = os.environ.get(VARIABLE, "").strip().lower()
    level = os.environ.get(LEVEL_VARIABLE, "").strip().upper()
    if asked == "json":
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
        logger.addHandler(handler)
        # otherwise a handler of the program would write each line again, in its own form
        logger.propagate = False
    elif asked:
        logger.warning("%s=%s is not known: json is", VARIABLE, asked)
    if level in _LEVELS:
        logger.setLevel(level)
    elif level:
        logger.warning("%s=%s is not known: %s are", LEVEL_VARIABLE, level, ", ".join(_LEVELS))
