"""The Python processes that Spark starts: what they are for, and whether they can run this."""

from __future__ import annotations

import subprocess
import sys

_LONGEST_S = 60.0


def cannot_import(python: str) -> str | None:
    """Return why a Python cannot import the data source; None where it can."""
    try:
        done = subprocess.run(
            [python, "-c", "import fluss_df.spark"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LONGEST_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if not done.returncode:
        return None
    return (done.stderr.strip().splitlines() or ["it ended"])[-1]


def plans_a_write() -> bool:
    """Whether Spark started this process to make the writer that its tasks get."""
    return "pyspark.sql.worker.write_into_data_source" in _modules()


def is_worker() -> bool:
    """Whether Spark started this process for planning, reading or writing."""
    return any(name.startswith(("pyspark.worker", "pyspark.sql.worker")) for name in _modules())


def _modules() -> set[str]:
    """Return the modules that are imported, and the one that is run as a program."""
    run = getattr(sys.modules.get("__main__"), "__spec__", None)
    return {*sys.modules, *(() if run is None else (run.name,))}
