"""What ``make release`` refuses, and what it makes of the changelog."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import release
from tests.release import ReleaseError, parse, require, require_compatible, sections, with_release

ROOT = Path(__file__).parent.parent
DAY = dt.date(2026, 1, 2)
CHANGES = "# Changelog\n\n## Unreleased\n\n### Added\n\n- A thing.\n\n## 0.1.0\n\n- First.\n"


def test_what_was_not_released_becomes_the_version() -> None:
    made = with_release(CHANGES, "0.2.0", DAY)
    found = sections(made)
    assert list(found) == ["Unreleased", "0.2.0", "0.1.0"]
    assert found["Unreleased"].strip() == ""
    assert "- A thing." in found["0.2.0"]
    assert "## 0.2.0 (2026-01-02)" in made
    # a second try finds it done
    assert with_release(made, "0.2.0", DAY) == made


def test_a_changelog_that_says_nothing() -> None:
    with pytest.raises(ReleaseError, match="no entries under Unreleased"):
        with_release(CHANGES.replace("- A thing.\n", ""), "0.2.0", DAY)
    with pytest.raises(ReleaseError, match="move them"):
        with_release(CHANGES, "0.1.0", DAY)


def test_the_changelog_has_the_form() -> None:
    assert "Unreleased" in sections((ROOT / "CHANGELOG.md").read_text())


@pytest.mark.parametrize("version", ["", "1", "1.2", "v1.2.3", "1.2.3rc1", "1.2.3 ", "1.2.3\n"])
def test_what_is_no_version(version: str) -> None:
    with pytest.raises(ReleaseError, match="expected three numbers"):
        parse(version)


def test_public_names() -> None:
    before, changed = "f(a)\ng()\n", "f(a, b)\ng()\n"
    said = "\n### Removed\n\n- f(a).\n"
    assert require_compatible(before, before + "h()\n", "0.1.0", "0.1.1", "") == []
    for last, version in (("0.1.0", "0.1.1"), ("1.0.0", "1.1.0"), ("1.0.0", "1.0.1")):
        with pytest.raises(ReleaseError, match=r"may not change what .* has: f\(a\)"):
            require_compatible(before, changed, last, version, said)
    for last, version in (("0.1.9", "0.2.0"), ("0.9.0", "1.0.0"), ("1.4.0", "2.0.0")):
        assert require_compatible(before, changed, last, version, said) == ["f(a)"]
        with pytest.raises(ReleaseError, match="Changed or Removed"):
            require_compatible(before, changed, last, version, "\n### Added\n")


def test_archives_that_lack_files() -> None:
    whole = set(release._NEEDED["wheel"])
    require("wheel", whole)
    with pytest.raises(ReleaseError, match=r"lacks fluss_df/py\.typed"):
        require("wheel", whole - {"fluss_df/py.typed"})
    with pytest.raises(ReleaseError, match=r"has tests/x\.py"):
        require("wheel", whole | {"tests/x.py"})


def test_what_the_source_archive_needs_is_there() -> None:
    for name in release._NEEDED["source archive"]:
        assert (ROOT / name).exists(), name


# ---- in a repository


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of the files that a release changes; building it fails, as there is no more."""
    (tmp_path / "fluss_df").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    (tmp_path / "docs" / "public_api.txt").write_text("f(a)\n")
    shutil.copy(ROOT / "fluss_df" / "version.py", tmp_path / "fluss_df")
    for line in (
        ["init", "--quiet"],
        ["config", "user.email", "a@example.org"],
        ["config", "user.name", "A"],
        ["add", "."],
        ["commit", "--quiet", "--message", "first"],
    ):
        subprocess.run(["git", *line], cwd=tmp_path, check=True)
    for name, path in (
        ("ROOT", tmp_path),
        ("DIST", tmp_path / "dist"),
        ("CHANGELOG", tmp_path / "CHANGELOG.md"),
        ("VERSION_FILE", tmp_path / "fluss_df" / "version.py"),
    ):
        monkeypatch.setattr(release, name, path)
    return tmp_path


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def _refused(version: str) -> str:
    with pytest.raises(ReleaseError) as raised:
        release.release(Path(sys.executable), version, DAY)
    return str(raised.value)


def test_a_tree_with_changes(repository: Path) -> None:
    (repository / "new.txt").write_text("")
    assert "not committed" in _refused("0.2.0")


def test_versions_that_are_there_or_older(repository: Path) -> None:
    assert "older than" in _refused("0.0.9")
    _git(repository, "tag", "v0.2.0")
    assert "there is a tag v0.2.0" in _refused("0.2.0")


def test_a_name_that_changed_since_the_last_tag(repository: Path) -> None:
    _git(repository, "tag", "v0.1.0")
    (repository / "docs" / "public_api.txt").write_text("f(b)\n")
    _git(repository, "commit", "--quiet", "--all", "--message", "second")
    assert re.search(r"0\.1\.1 may not change what 0\.1\.0 has: f\(a\)", _refused("0.1.1"))
    assert _git(repository, "status", "--porcelain") == ""


def test_a_release_that_fails_leaves_everything_as_it_was(repository: Path) -> None:
    head = _git(repository, "rev-parse", "HEAD")
    assert "build" in _refused("0.2.0")
    assert _git(repository, "status", "--porcelain") == ""
    assert _git(repository, "rev-parse", "HEAD") == head
    assert _git(repository, "tag") == ""
