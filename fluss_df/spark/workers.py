"""Whether the Python of Spark's workers has this library."""

from __future__ import annotations

import subprocess

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
