"""Releases: ``make dist-check`` tries the archives, ``make release VERSION=x.y.z`` also tags.

The archives go to ``dist``; the bill of materials and the licenses to ``build/release``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
REPORTS = ROOT / "build" / "release"
CHANGELOG = ROOT / "CHANGELOG.md"
VERSION_FILE = ROOT / "fluss_df" / "version.py"
PUBLIC_API = "docs/public_api.txt"

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_NEEDED = {
    "source archive": (
        *("docs/index.md", "docs/public_api.txt", "mkdocs.yml", "Makefile", "constraints.txt"),
        *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", ".importlinter"),
        *("tests/release.py", "benchmarks/__main__.py", "notebooks/quickstart.ipynb"),
        *("fluss_df/py.typed", "fluss_df/protocol/messages.proto", "pyspark_fluss/__init__.py"),
        *("fluss_df/ui/static/app.js", "fluss_df/ui/templates/base.html"),
    ),
    "wheel": (
        *("fluss_df/py.typed", "fluss_df/version.py", "pyspark_fluss/__init__.py"),
        *("fluss_df/ui/static/app.js", "fluss_df/ui/templates/base.html"),
    ),
}
# a user's first query, which mypy --strict reads, too
_PROGRAM = """\
from pathlib import Path

import polars as pl

import fluss_df

rows = pl.DataFrame({"id": [1, 2, 3], "name": ["Ann", "Bob", "Cy"]})
where = Path("data")
result: fluss_df.SinkResult = fluss_df.write_fluss(
    rows, "people", connection=where, create_if_not_exists=True
)
query: pl.LazyFrame = fluss_df.scan_fluss("people", connection=where).filter(pl.col("id") > 1)
found = query.collect()
assert result.rows == 3 and found.get_column("name").to_list() == ["Bob", "Cy"], found
with fluss_df.connect(where) as connection:
    names: list[str] = connection.get_admin().list_tables("fluss")
print(fluss_df.__version__, names)
"""


class ReleaseError(Exception):
    """What keeps a release from being made."""


# ---- what is checked before anything is built


def parse(version: str) -> tuple[int, int, int]:
    """Return the numbers of a version."""
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"VERSION={version!r}: expected three numbers, as in 1.2.3")
    major, minor, patch = map(int, version.split("."))
    return major, minor, patch


def sections(changelog: str) -> dict[str, str]:
    """Return the text of each version of a changelog, by its title."""
    parts = re.split(r"^## (.+)$", changelog, flags=re.MULTILINE)
    return {title.split()[0]: text for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def with_release(changelog: str, version: str, day: dt.date) -> str:
    """Return the changelog in which what was not released is what a version has."""
    found = sections(changelog)
    entries = [line for line in found.get("Unreleased", "").splitlines() if line.startswith("- ")]
    if version in found:
        if entries:
            raise ReleaseError(
                f"CHANGELOG.md has both {version} and entries under Unreleased: move them"
            )
        return changelog
    if not entries:
        raise ReleaseError(
            f"CHANGELOG.md has no entries under Unreleased, and no section for {version}"
        )
    return changelog.replace("## Unreleased\n", f"## Unreleased\n\n## {version} ({day})\n", 1)


def require_compatible(before: str, now: str, last: str, version: str, text: str) -> list[str]:
    """Return public names that changed or went since the last release.

    Parameters
    ----------
    before, now
        The lists of public names.
    last, version
        The versions.
    text
        What the changelog says of the new one.

    Raises
    ------
    ReleaseError
        Where the version may not have that, or the changelog does not say it.
    """
    gone = sorted(set(before.splitlines()) - set(now.splitlines()))
    if not gone:
        return []
    shown = "; ".join(gone[:5]) + (f" and {len(gone) - 5} more" if len(gone) > 5 else "")
    (major, minor, _), (new_major, new_minor, _) = parse(last), parse(version)
    same = major == new_major if major else (major, minor) == (new_major, new_minor)
    if same:
        raise ReleaseError(f"{version} may not change what {last} has: {shown}")
    if not re.search(r"^### (Changed|Removed)$", text, re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md says nothing under Changed or Removed, but: {shown}")
    return gone


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def last_release() -> str | None:
    """Return the newest version that has a tag."""
    tags = [tag.removeprefix("v") for tag in git("tag", "--list", "v*").split()]
    known = [tag for tag in tags if _VERSION.fullmatch(tag)]
    return max(known, key=parse, default=None)


def current_version() -> str:
    found = re.search(r'__version__ = "(.+)"', VERSION_FILE.read_text())
    assert found is not None
    return found[1]


def compare_api(version: str, text: str) -> None:
    last = last_release()
    if last is None:
        print("public names: no release has a tag to compare with")
        return
    before = git("show", f"v{last}:{PUBLIC_API}")
    gone = require_compatible(before, (ROOT / PUBLIC_API).read_text(), last, version, text)
    print(f"public names: {len(gone)} changed or removed since {last}")


# ---- archives


def run(*command: str | Path, cwd: Path | None = None) -> str:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FLUSS_", "PYTHON", "VIRTUAL_ENV", "MAKE", "MFLAGS"))
    }
    constraints = str(ROOT / "constraints.txt")
    environment |= {"PIP_CONSTRAINT": constraints, "PIP_BUILD_CONSTRAINT": constraints}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    line = [str(part) for part in command]
    done = subprocess.run(line, cwd=cwd or ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"{' '.join(line)[:200]}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def built(tools: Path, version: str) -> tuple[Path, Path]:
    """Build the source archive, and the wheel from it; return both."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(tools, "-m", "build", "--outdir", DIST, ROOT)
    source = DIST / f"fluss_df-{version}.tar.gz"
    wheel = DIST / f"fluss_df-{version}-py3-none-any.whl"
    if sorted(DIST.iterdir()) != sorted([source, wheel]):
        raise ReleaseError(f"dist has {[path.name for path in DIST.iterdir()]}")
    run(tools, "-m", "twine", "check", "--strict", source, wheel)
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    require("source archive", names)
    with zipfile.ZipFile(wheel) as packed:
        require("wheel", set(packed.namelist()))
    return source, wheel


def require(what: str, names: set[str]) -> None:
    """Raise where an archive lacks files, or has what is no part of it."""
    missing = [name for name in _NEEDED[what] if name not in names]
    if missing:
        raise ReleaseError(f"the {what} lacks {', '.join(missing)}")
    odd = [name for name in names if "__pycache__" in name or name.startswith((".venv", "dist/"))]
    if what == "wheel":
        odd += [n for n in names if not n.startswith(("fluss_df/", "pyspark_fluss/", "fluss_df-"))]
    if odd:
        raise ReleaseError(f"the {what} has {', '.join(sorted(odd)[:5])}")


def tried(tools: Path, archive: Path, version: str, folder: Path, *, report: bool) -> None:
    """Install an archive in a clean environment, and run a user's first program."""
    home = folder / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    work = folder / "work"
    work.mkdir()
    (work / "program.py").write_text(_PROGRAM)
    run(python, "-m", "pip", "install", "--quiet", archive)
    said = run(python, "program.py", cwd=work)
    if said.split()[0] != version:
        raise ReleaseError(f"{archive.name} says that it is {said.split()[0]}")
    run(home / "bin" / "fluss-df", "doctor", work / "data", cwd=work)
    print(f"{archive.name}: installed, first query ran, doctor is content")
    if not report:
        return
    REPORTS.mkdir(parents=True, exist_ok=True)
    bill, licenses = REPORTS / "sbom.cdx.json", REPORTS / "licenses.md"
    run(tools, "-m", "cyclonedx_py", "environment", "--output-file", bill, python)
    # where the wheel was installed from is nobody's business
    bill.write_text(bill.read_text().replace(f"{DIST.as_uri()}/", ""))
    run(
        *(tools, "-m", "piplicenses", "--python", python, "--format=markdown", "--with-urls"),
        *("--output-file", licenses),
    )
    print(f"{bill.relative_to(ROOT)}, {licenses.relative_to(ROOT)}: written")
    # only now: what checks types is no part of what a user installs
    run(python, "-m", "pip", "install", "--quiet", "mypy")
    run(python, "-m", "mypy", "--strict", "program.py", cwd=work)
    print("mypy --strict: a user's program has types")


def dist_check(tools: Path, version: str, text: str) -> None:
    compare_api(version, text)
    source, wheel = built(tools, version)
    for archive in (wheel, source):
        with tempfile.TemporaryDirectory() as folder:
            tried(tools, archive, version, Path(folder), report=archive is wheel)


# ---- releases


def release(tools: Path, version: str, day: dt.date) -> None:
    parse(version)
    if git("status", "--porcelain").strip():
        raise ReleaseError("there are changes that are not committed: git status shows them")
    if git("tag", "--list", f"v{version}").strip():
        raise ReleaseError(f"there is a tag v{version}")
    if parse(version) < parse(current_version()):
        raise ReleaseError(f"{version} is older than {current_version()}")
    before = {path: path.read_text() for path in (CHANGELOG, VERSION_FILE)}
    changed = with_release(before[CHANGELOG], version, day)
    try:
        CHANGELOG.write_text(changed)
        line = f'__version__ = "{version}"'
        VERSION_FILE.write_text(re.sub('__version__ = ".+"', line, before[VERSION_FILE]))
        dist_check(tools, version, sections(changed)[version])
        if git("status", "--porcelain").strip():
            git("commit", "--quiet", "--message", f"Release {version}", *map(str, before))
        git("tag", "--annotate", f"v{version}", "--message", f"fluss_df {version}")
    except BaseException:
        if not git("tag", "--list", f"v{version}").strip():
            for path, old in before.items():
                path.write_text(old)
        raise
    print(f"v{version} is tagged here; nothing was pushed: git push --follow-tags")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", type=Path, required=True, help="a Python with the tools")
    parser.add_argument("--version", help="release this version, with a tag")
    arguments = parser.parse_args(given)
    try:
        if arguments.version is not None:
            release(arguments.tools, arguments.version, dt.datetime.now(dt.UTC).date())
        else:
            text = sections(CHANGELOG.read_text()).get("Unreleased", "")
            dist_check(arguments.tools, current_version(), text)
    except ReleaseError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
