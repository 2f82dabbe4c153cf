"""The official client's own tests, with ``fluss_df.aio`` in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.other_peoples import ROOT, official_source

_EXACT = "rows are filtered one by one here, and not by batches of the log"
_WORDS = "the same error in other words"

# what differs, and why; also in docs/migration.md
DIFFERENCES = {
    "test_batch_scanner.py::test_rejects_non_arrow_log_format": "every log format is read here",
    "test_examples.py::test_example_runs[auto_increment_table]": (
        "a row without the numbered column is written by an ordinary writer here"
    ),
    "test_kv_changelog.py::test_record_batch_scanner_rejects_primary_key": (
        "batches of a changelog are read here, with the type of each change"
    ),
    "test_kv_table.py::test_omit_nullable_vs_required_fields": _WORDS,
    "test_kv_table.py::test_prefix_lookup_validation_errors": _WORDS,
    "test_log_table.py::test_to_arrow_batch_reader_drop_and_guard": (
        "a scanner may be used beside its reader here"
    ),
    "test_log_table.py::test_append_rows_with_invalid_array": _WORDS,
    "test_log_table.py::test_arrow_schema_matches_write_arrow_batch": (
        "a timestamp of another unit is converted where that loses nothing"
    ),
    "test_log_table.py::test_filter_with_overlapping_statistics_returns_whole_batch": _EXACT,
    "test_log_table.py::test_filter_without_statistics_returns_all_rows": _EXACT,
    "test_log_table.py::test_filter_set_and_string_predicates": _EXACT,
    "test_log_table.py::test_filter_rejects_invalid_predicates": _WORDS,
    "test_log_table.py::test_filter_float_literals": _WORDS,
    "test_log_table.py::test_predicate_rejects_python_boolean_operators": (
        "bool() raises the same; repr() shows a predicate as it is written here"
    ),
}


# Three wait for rows that do not come, ten seconds each: they do so side by side.
_PROCESSES = 4


def test_they_pass_but_for_what_is_named(tmp_path: Path) -> None:
    tests = official_source() / "test"
    command = [sys.executable, "-m", "pytest", str(tests), "-p", "tests.aio.in_place", "-q"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(tests), "-c", os.devnull]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    told, output = [], ""
    with ExitStack() as stack:
        started = []
        for number in range(_PROCESSES):
            place = tmp_path / str(number)
            place.mkdir()
            own = {"IN_PLACE_PART": f"{number}/{_PROCESSES}"}
            own["IN_PLACE_RESULTS"] = str(place / "results")
            process = subprocess.Popen(
                command,
                cwd=place,
                env=environment | own,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            started.append(stack.enter_context(process))
            stack.callback(process.kill)
        for number, process in enumerate(started):
            output += process.communicate(timeout=240)[0][-6000:]
            results = tmp_path / str(number) / "results"
            assert results.exists(), output
            told += [line.split(" ", 1) for line in results.read_text().splitlines()]
    failed = {name for outcome, name in told if outcome != "passed"}
    passed = {name for outcome, name in told if outcome == "passed"} - failed
    assert failed == set(DIFFERENCES), output
    assert len(passed) + len(failed) >= 90
