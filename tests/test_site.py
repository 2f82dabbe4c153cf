"""The documentation site: it builds without a warning, and leads nowhere wrong."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import typer

from fluss_df.cli import app
from fluss_df.errors import _TABLE
from fluss_df.version import __version__
from tests.public_api import LIST, MODULES, public_names

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


class Page(HTMLParser):
    """The links, anchors and loaded addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if "id" in found:
            self.anchors.add(found["id"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") != "canonical":
            self.loaded.append(found.get("href", ""))
        elif "src" in found:
            self.loaded.append(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built where no other host can be reached."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = "http://127.0.0.1:9"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={
            **os.environ,
            "NO_MKDOCS_2_WARNING": "1",
            **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), nowhere),
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file.read_text()) for file in sorted(site.rglob("*.html"))}


def test_every_link_and_anchor_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    wrong = []
    for file, page in pages.items():
        if file.name == "404.html":
            continue  # its links begin at the root of whatever host serves it
        for link in page.links:
            address = urlsplit(link)
            if address.scheme:
                assert address.scheme in ("https", "mailto"), link
                continue
            target = (file.parent / unquote(address.path)).resolve() if address.path else file
            target = target / "index.html" if target.is_dir() else target
            there = pages.get(target)
            if not target.exists() or (there and unquote(address.fragment) not in there.anchors):
                wrong.append(f"{file.relative_to(site)}: {link}")
    assert wrong == []


def test_nothing_is_loaded_from_other_hosts(site: Path, pages: dict[Path, Page]) -> None:
    loaded = [(file.name, address) for file, page in pages.items() for address in page.loaded]
    assert loaded
    assert [pair for pair in loaded if urlsplit(pair[1]).netloc] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text()), sheet


def test_every_page_shows_something(pages: dict[Path, Page], site: Path) -> None:
    """A page that is included from the repository is not left as the line that includes it."""
    for file in pages:
        text = file.read_text()
        assert "include:" not in text, file
        if file.name != "404.html":
            article = text.split("<article", 1)[1].split("</article>")[0]
            assert len(re.sub("<[^>]*>", "", article).split()) > 40, file.relative_to(site)


def test_pictures_are_part_of_their_pages(site: Path) -> None:
    named = {
        name
        for page in DOCS.rglob("*.md")
        for name in re.findall(r"\(pictures/([\w-]+)\.svg\)", page.read_text())
    }
    assert named == {file.stem for file in (DOCS / "pictures").glob("*.svg")}
    text = (site / "concepts.html").read_text() + (site / "exactly-once.html").read_text()
    assert text.count('class="picture"') == len(named)


def test_the_reference_has_every_public_name(site: Path, pages: dict[Path, Page]) -> None:
    """Each has an anchor in the reference."""
    anchors = {
        a for file, page in pages.items() if file.parent.name == "reference" for a in page.anchors
    }
    missing = []
    for line in LIST.read_text().splitlines():
        path = re.split(r"[(:= ]", line)[0]
        module = max((m for m in MODULES if path.startswith(f"{m}.")), key=len)
        name = path.removeprefix(f"{module}.")
        if "." in name or name == "__version__" or module == "fluss_df.aio":
            continue
        # where it is defined may be deeper than where it is public
        if not any(a.startswith(f"{module}.") and a.endswith(f".{name}") for a in anchors):
            missing.append(path)
    assert missing == []
    text = (site / "reference" / "aio.html").read_text()
    for line in LIST.read_text().splitlines():
        member = re.match(r"fluss_df\.aio\.(\w+)\.(\w+)", line)
        if member and member.group(2) != "core":
            assert f">{member.group(1)}<" in text, line
            assert member.group(2) in text, line


def test_the_reference_has_every_command(pages: dict[Path, Page], site: Path) -> None:
    group: Any = typer.main.get_command(app)
    for name in group.list_commands(None):
        child = group.get_command(None, name)
        parts = child.list_commands(None) if hasattr(child, "list_commands") else [""]
        for part in parts:
            anchor = "-".join(filter(None, ("fluss-df", name, part)))
            assert anchor in pages[site / "reference" / "command-line.html"].anchors, anchor


def test_the_list_of_public_names_is_up_to_date() -> None:
    assert public_names() == LIST.read_text(), "a public name came, changed or went: make api"


def test_every_error_code_has_its_way_out() -> None:
    rows = re.findall(
        r"^\| (-?\d+) \| `(\w+)` \| (yes|no) \| (.+) \|$",
        (DOCS / "errors.md").read_text(),
        re.MULTILINE,
    )
    told = [(int(code), name, retried == "yes") for code, name, retried, _ in rows]
    assert told == sorted(_TABLE)
    assert [way for *_, way in rows if len(way.split()) < 4] == []


def test_every_difference_from_the_official_client_is_documented() -> None:
    differences: dict[str, str] = runpy.run_path(
        str(Path(__file__).parent / "aio" / "test_official.py")
    )["DIFFERENCES"]
    text = (DOCS / "migration.md").read_text()
    for name in differences:
        assert f"`{name.split('.')[-1]}`" in text, name


def test_workflows_call_targets_of_the_makefile_alone() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        runs = re.findall(r"run: *(.*)", file.read_text())
        assert runs
        for run in runs:
            program, target = run.split()
            assert program == "make"
            assert target in targets


def test_the_map_of_rooms_names_rooms_that_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:fluss_df|tests|docs)/[\w/.]+)`", text)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists() and "*" not in name] == []


def test_the_changelog_has_this_version() -> None:
    version = re.match(r"\d+\.\d+\.\d+", __version__)
    assert version
    assert f"## {version.group()}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_hooks_before_a_commit_need_no_other_host() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (.*)", text) == ["local"]
    for entry in re.findall(r"entry: (\S+)", text):
        assert (Path(sys.executable).parent / Path(entry).name).exists(), entry
