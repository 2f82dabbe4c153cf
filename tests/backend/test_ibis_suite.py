"""A selection of Ibis's own tests on an embedded engine; ``make test-ibis`` runs them all."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = ["window", "set_ops", "struct", "asof_join", "dot_sql", "client"]


def test_selection() -> None:
    names = [f"ibis.backends.tests.test_{name}" for name in FILES]
    command = [sys.executable, "-m", "pytest", "-c", str(HERE / "ibis_suite" / "pytest.ini")]
    command += ["--pyargs", *names, "-m", "fluss", "-q", "--no-header", "-W", "ignore"]
    variables = {k: v for k, v in os.environ.items() if k != "FLUSS_IBIS_TARGET"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**variables, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(done.stdout.rpartition(" passed")[0].split()[-1]) > 250
