"""Runs the blocks of a page of the documentation: ``python -m tests.run_page PAGE``.

What a block is, its fence says:

* ``python``: run, in one process with the other blocks of the page, in their order
* ``python title="NAME"``: written to the file NAME
* ``sh``: run by bash, which ends at the first command that fails
* ``text``, or nothing: shown, and not run

A comment behind a ``print`` on its line, or alone on the next one, is what the block prints;
``...`` in it stands for anything.

The working folder is that of the caller. ``127.0.0.1:9123`` stands for an embedded engine.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"^ *print\(.*\)(?:  |\n)# (.*)$", re.MULTILINE)
ADDRESS = "127.0.0.1:9123"
#: names what runs ``fluss-df`` in blocks of ``sh``, where that is not the installed command
PYTHON_VARIABLE = "RUN_PAGE_PYTHON"


class Block(NamedTuple):
    """A block of code: its language, the file that it is, its text, its first line in the page."""

    language: str
    title: str | None
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page."""
    found = []
    text = page.read_text()
    for match in _FENCE.finditer(text):
        language, _, rest = match.group(2).strip().partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        code = re.sub(rf"^{match.group(1)}", "", match.group(3), flags=re.MULTILINE)
        line = text[: match.start(3)].count("\n") + 1
        found.append(Block(language, title and title.group(1), code, line))
    return found


def run(page: Path, address: str) -> None:
    """Run the blocks of a page in the working folder."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(page):
        source = block.text.replace(ADDRESS, address)
        if block.title is not None:
            Path(block.title).write_text(source)
        elif block.language == "python":
            # lines of a traceback are those of the page
            source = "\n" * (block.line - 1) + source
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(source, page.name, "exec"), names)
            print(printed.getvalue(), end="")
            for promised in _PRINTED.findall(source):
                pattern = ".*".join(re.escape(part.strip()) for part in promised.split("..."))
                if re.search(pattern, printed.getvalue(), re.DOTALL) is None:
                    raise AssertionError(f"{page.name}: not printed: {promised}")
        elif block.language == "sh":
            subprocess.run(["bash", "-euc", source], check=True)


if __name__ == "__main__":
    from fluss_df.embedded import EmbeddedFluss

    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with EmbeddedFluss(None, port=0) as engine, tempfile.TemporaryDirectory() as folder:
        if python := os.environ.get(PYTHON_VARIABLE):
            tool = Path(folder) / "fluss-df"
            tool.write_text(f'#!/bin/sh\nexec {python} -m fluss_df "$@"\n')
            tool.chmod(0o700)
            os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
        run(Path(sys.argv[1]), engine.address)
