"""Programs that are forked end, fail and print as those that Python starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import command
from tests.waiting import wait_until

PROGRAMS = {
    "ends": "print(__name__)",
    "arguments": "import sys; print(sys.argv, sys.flags.dev_mode, sys.warnoptions)",
    "streams": "import sys; print(sys.stdin.read(), end=''); print('b', file=sys.stderr)",
    "surroundings": "import os; print(os.getcwd(), os.environ['ONE'], sorted(os.environ))",
    "streams that are set": (
        "import sys\n"
        "for stream in (sys.stdin, sys.stdout, sys.stderr):\n"
        "    stream.reconfigure(errors='backslashreplace')\n"
        "print(sys.stdout.encoding, sys.stdout.line_buffering, sys.stderr.line_buffering)"
    ),
    "status": "raise SystemExit(7)",
    "a text": "raise SystemExit('so it is')",
    "error": "1 / 0",
    "interrupted": "raise KeyboardInterrupt",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "warning": "import warnings; warnings.warn('of this')",
    "at its end": "import atexit; atexit.register(print, 'bye')",
    "thread": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('later'))).start()"
    ),
    "open": "import fluss_df; print(fluss_df.connect(':memory:').get_admin().list_databases())",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_as_python_starts_it(name: str, tmp_path: Path) -> None:
    found = []
    for begin in (command("-W", "error"), [sys.executable, "-W", "error"]):
        done = subprocess.run(
            [*begin, "-c", PROGRAMS[name], "x", "y"],
            cwd=tmp_path,
            env={
                "ONE": "1",
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(Path(__file__).parents[1]),
            },
            input="a\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        # the frames above the program are others
        found.append((done.returncode, done.stdout, done.stderr.splitlines()[-1:]))
    assert found[0] == found[1]


def test_a_module_runs_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "of_here.py").write_text("import sys; print(__name__, sys.argv[1:])")
    done = subprocess.run(
        [*command(), "-m", "of_here", "x"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "__main__ ['x']\n"


def test_who_is_killed_has_the_program_killed() -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with subprocess.Popen([*command(), "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        program = int(process.stdout.readline())
        process.kill()
        wait_until(lambda: not Path(f"/proc/{program}").exists(), 20)
