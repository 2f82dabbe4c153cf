"""Writers that are killed, each a fork of one process that has imported everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import IO, Self


class ForkingProcess:
    """Runs ``serve_forks`` of a module, which reads lines of its input and prints answers.

    Parameters
    ----------
    module
        Its name.
    """

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {module} import serve_forks; serve_forks()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=str(Path(__file__).parents[2]),
        )

    def _tell(self, line: str) -> IO[str]:
        """Send a line; return what it prints."""
        asked, said = self._process.stdin, self._process.stdout
        assert asked is not None
        assert said is not None
        asked.write(line + "\n")
        asked.flush()
        return said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()
