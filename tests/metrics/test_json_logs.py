"""``FLUSS_DF_LOG=json``: each line of the log is an object."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from fluss_df.observe.json_logs import JsonFormatter
from tests.client.support import free_address


def logged(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FLUSS_DF_")}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, timeout=60, check=True, env=environment | variables,
    )  # fmt: skip


def test_lines_of_a_client() -> None:
    program = """
import logging, sys
logging.basicConfig(format="PLAIN %(message)s")
import fluss_df
try:
    fluss_df.connect({"bootstrap.servers": sys.argv[1], "client.retry-timeout": "1s"})
except Exception:
    pass
logging.getLogger("fluss_df.x").warning("two\\nlines of %s", "text", extra={"table": "a.b"})
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("fluss_df.x").exception("it failed")
logging.getLogger("others").warning("not ours")
"""
    done = logged(program, free_address(), FLUSS_DF_LOG="json", FLUSS_DF_LOG_LEVEL="debug")
    lines = done.stderr.splitlines()
    assert [line for line in lines if not line.startswith("{")] == ["PLAIN not ours"]
    found = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(found) >= 2
    said, failed = found[-2:]
    assert said["message"] == "two\nlines of text"
    assert said["table"] == "a.b"
    assert said["level"] == "WARNING"
    assert said["logger"] == "fluss_df.x"
    assert said["thread"] == "MainThread"
    when = datetime.fromisoformat(said["time"])
    assert abs((datetime.now(UTC) - when).total_seconds()) < 60
    assert "trace_id" not in said
    assert "ZeroDivisionError" in failed["exception"]


def test_without_the_variable_nothing_changes() -> None:
    program = """
import logging, fluss_df
logger = logging.getLogger("fluss_df")
print(logger.handlers, logger.level, logger.propagate)
"""
    assert logged(program).stdout.strip() == "[] 0 True"


def test_the_level_alone() -> None:
    program = "import logging, fluss_df; print(logging.getLogger('fluss_df').level)"
    assert logged(program, FLUSS_DF_LOG_LEVEL="info").stdout.strip() == str(logging.INFO)


@pytest.mark.parametrize(
    ("name", "value"), [("FLUSS_DF_LOG", "xml"), ("FLUSS_DF_LOG_LEVEL", "LOUD")]
)
def test_what_is_not_known_is_said(name: str, value: str) -> None:
    done = logged("import fluss_df; print('goes on')", **{name: value})
    assert done.stdout == "goes on\n"
    assert f"{name}={value.lower() if name.endswith('LOG') else value} is not known" in done.stderr


def test_ids_of_the_span_are_in_the_line() -> None:
    provider = TracerProvider()
    record = logging.LogRecord("fluss_df.x", logging.INFO, "", 0, "text", (), None)
    with provider.get_tracer("test").start_as_current_span("span") as span:
        line = json.loads(JsonFormatter().format(record))
        context = span.get_span_context()
    assert line["trace_id"] == f"{context.trace_id:032x}"
    assert line["span_id"] == f"{context.span_id:016x}"
    assert line["trace_flags"] == f"{int(context.trace_flags):02x}"
    assert "trace_id" not in json.loads(JsonFormatter().format(record))
    provider.shutdown()


def test_whatever_is_said_is_one_line_of_json() -> None:
    said = {"odd": object(), "text": "\udcff", "time": "mine"}
    record = logging.LogRecord("fluss_df", logging.INFO, "", 0, "%s", ("\udcff\n",), None)
    vars(record).update(said)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    line.encode()
    found = json.loads(line)
    assert found["message"] == "\udcff\n"
    assert found["odd"].startswith("<object")
    assert found["time"] != "mine"


def test_what_json_has_not_is_a_line_too() -> None:
    within: list[object] = []
    within.append(within)
    said = {"counts": {(1, 2): 3}, "number": float("nan"), "within": within, "good": [7, 0.5]}
    record = logging.LogRecord("fluss_df", logging.INFO, "", 0, "said", (), None)
    vars(record).update(said)
    found = json.loads(JsonFormatter().format(record))
    assert (found["message"], found["good"]) == ("said", [7, 0.5])
    assert found["counts"] == "{(1, 2): 3}"
    assert found["number"] == "nan"


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("cannot be shown")


def said(message: str = "said", **extra: object) -> dict[str, Any]:
    """Return what a logger with the formatter writes; nothing is raised and nothing else said."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("fluss_df.said")
    logger.addHandler(handler)
    logger.warning(message, extra=extra)
    (line,) = out.getvalue().splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_values_that_cannot_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    found = said(bad=Unprintable(), within={"a": [Unprintable()]}, deep=deep, good=1)
    assert found["message"] == "said"
    assert (found["bad"], found["within"], found["good"]) == ("<unprintable>",) * 2 + (1,)
    assert found["deep"] == "<unprintable>"
    assert capsys.readouterr().err == ""
    # it is taken apart level by level, or else its end would be as deep
    while deep:
        (deep,) = deep  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("message", "values"), [("%d rows", "many"), ("%s", Unprintable()), ("%s %s", 1)]
)
def test_a_message_whose_values_do_not_fit(message: str, values: object) -> None:
    record = logging.LogRecord("fluss_df", logging.INFO, "", 0, message, (values,), None)
    found = json.loads(JsonFormatter().format(record))
    assert found["message"].startswith(message)


def test_names_that_the_line_has_are_kept_beside_it() -> None:
    found = said(time="mine", level=3, logger="l", trace_id="t", exception="e")
    assert found["level"] == "WARNING"
    assert found["logger"] == "fluss_df.said"
    assert (found["extra.time"], found["extra.level"], found["extra.logger"]) == ("mine", 3, "l")
    # no clash where the line has none of its own
    assert (found["trace_id"], found["exception"]) == ("t", "e")
    both: dict[str, Any] = {"time": 1, "extra.time": 2}
    found = said(**both)
    assert {found["extra.time"], found["extra.extra.time"]} == {1, 2}
    record = logging.LogRecord("fluss_df", logging.INFO, "", 0, "said", (), None)
    record.exc_text = "a traceback"
    vars(record)["exception"] = "mine"
    found = json.loads(JsonFormatter().format(record))
    assert (found["exception"], found["extra.exception"]) == ("a traceback", "mine")


def test_the_stack_that_was_asked_for() -> None:
    record = logging.LogRecord("fluss_df", logging.INFO, "", 0, "said", (), None)
    record.stack_info = "Stack (most recent call last):\n  here"
    found = json.loads(JsonFormatter().format(record))
    assert found["stack"] == "Stack (most recent call last):\n  here"
    assert "stack" not in said()
    assert "stack_info" not in found
