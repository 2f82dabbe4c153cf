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
_OF_RECORDS: Final = frozenset(
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
        """Return the line of a record; whatever it was given, it is one line."""
        when = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line: dict[str, Any] = {
            "time": when.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
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
            if name not in _OF_RECORDS:
                shown = name
                while shown in line or shown in ends:
                    shown = f"extra.{shown}"
                line[shown] = value
        line.update(ends)
        # names that are no text have lone surrogates, which cannot be written as UTF-8
        try:
            return json.dumps(line, default=repr, ensure_ascii=True, allow_nan=False)
        except Exception:
            # for keys that are no text, values within themselves or very deep, numbers that JSON
            # lacks, and objects that cannot be shown: the program goes on whatever it logs
            return json.dumps({_text(name): _shown(value) for name, value in line.items()})


def _shown(value: Any) -> Any:
    """Return a value as JSON has it; its text where JSON has it not."""
    try:
        return json.loads(json.dumps(value, default=repr, allow_nan=False))
    except Exception:
        return _text(value)


def _text(value: object) -> str:
    if type(value) is str:
        return value
    try:
        # a text of a class of its own may be shown as anything
        return str.__str__(repr(value))
    except Exception:
        return "<unprintable>"


def _trace() -> dict[str, str]:
    """Return the ids of the current span; nothing where there is none."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        # there is no span
        return {}
    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return {}
    return {
        "trace_id": f"{found.trace_id:032x}",
        "span_id": f"{found.span_id:016x}",
        "trace_flags": f"{int(found.trace_flags):02x}",
    }


def set_up() -> None:
    """Do what the environment asks for; called once, when the package is imported.

    What cannot be understood is said in a warning: a program should not fail by how it logs.
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
