"""The console in a real browser: every page and form, both themes, two widths, by keyboard.

``make test-ui`` runs them. They need Chromium (Debian: ``apt-get install chromium``), and fail
where there is none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import fluss_df
from fluss_df.client.connection import FlussConnection
from fluss_df.metadata import TablePath
from fluss_df.ui.server import ConsoleServer
from fluss_df.ui.settings import Settings
from tests.ui.chromium import NAMES, Browser, chromium
from tests.ui.conftest import VISITS
from tests.ui.hostile import hostile_tables


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    if chromium() is None:
        pytest.fail(f"there is no Chromium ({', '.join(NAMES)}): apt-get install chromium", False)
    with Browser() as found:
        yield found


@pytest.fixture
def browser(chrome: Browser, server: ConsoleServer) -> Iterator[Browser]:
    """A browser that is logged in by the link; nothing may go wrong in it."""
    yield from logged_in(chrome, server)


def logged_in(chrome: Browser, server: ConsoleServer) -> Iterator[Browser]:
    chrome.look(1600, 1000, dark=False)
    # what a page of an earlier test still asked for is over then
    chrome.open("about:blank")
    chrome.console.clear()
    chrome.asked.clear()
    chrome.open(server.link)
    chrome.wait("location.pathname === '/'")
    assert chrome.script("location.hash") == ""
    yield chrome
    assert chrome.console == []
    elsewhere = [url for url in chrome.asked if not url.startswith(server.url)]
    assert elsewhere == []
    # the token was never part of an address that was asked for
    assert not any(server.state.settings.token in url.partition("#")[0] for url in chrome.asked)


def pages(database: str) -> list[str]:
    one = f"table/{database}"
    return [
        "", f"?database={database}&like=vis", f"{one}/visits", f"{one}/people",
        f"{one}/visits/rows",
        f"{one}/visits/rows?which=last", f"{one}/people/rows?which=key&key.id=2",
        f"{one}/visits/live", f"{one}/people/changes", f"{one}/visits/change", "create",
        f"sql?table={database}.visits", "runs",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [400, 1600])
def test_every_page_in_both_themes(
    browser: Browser, server: ConsoleServer, database: str, width: int
) -> None:
    backs = set()
    for dark in (False, True):
        browser.look(width, 900, dark)
        for target in pages(database):
            browser.open(server.url + target)
            seen = browser.script(
                "({h: document.querySelector('h1').innerText,"
                " wide: document.documentElement.scrollWidth - innerWidth,"
                " named: [...document.querySelectorAll('input:not([type=hidden]),select,textarea')]"
                ".filter(f => !f.labels.length && !f.ariaLabel).map(f => f.name),"
                " back: getComputedStyle(document.documentElement).backgroundColor})"
            )
            assert seen["h"], target
            assert seen["wide"] <= 0, target
            assert seen["named"] == [], target
            backs.add((dark, seen["back"]))
    assert len(backs) == 2


def test_the_theme_is_switched_and_remembered(browser: Browser, server: ConsoleServer) -> None:
    back = "getComputedStyle(document.documentElement).backgroundColor"
    light = browser.script(back)
    browser.click("#theme", leads_on=False)
    dark = browser.script(back)
    assert dark != light
    browser.open(f"{server.url}sql")
    assert browser.script(back) == dark
    browser.click("#theme", leads_on=False)
    assert browser.script(back) == light


def test_forms_create_alter_and_drop(
    browser: Browser, server: ConsoleServer, database: str, connection: FlussConnection
) -> None:
    admin = connection.get_admin()

    def run_it(shown: str) -> None:
        assert shown in browser.script("document.querySelector('pre').innerText")
        browser.click("form[action='/statement'] button")
        browser.wait("document.body.innerText.includes('The statement ran')")

    def form(what: str) -> str:
        place = f"form:has(input[name=what][value='{what}'])"
        assert browser.script(f'!!document.querySelector("{place}")')
        return place

    browser.open(f"{server.url}create")
    browser.submit(form("create-database"), name=f"{database}_b", comment="of a browser")
    run_it("CREATE DATABASE")
    browser.open(f"{server.url}create?database={database}_b")
    browser.script("document.querySelector('[name=\"primary.0\"]').checked = true")
    browser.script("document.querySelector('[name=\"partition.1\"]').checked = true")
    browser.script("document.querySelector('[name=\"primary.1\"]').checked = true")
    browser.submit(
        form("create-table"),
        table="trips",
        **{"column.0": "id", "type.0": "INT", "column.1": "day"},
    )
    run_it("CREATE TABLE")
    change = f"{server.url}table/{database}_b/trips/change"
    for what, fields, shown in (
        ("add-column", {"column": "km", "type": "DOUBLE"}, "ADD COLUMN"),
        ("set-property", {"key": "owner", "value": "ann"}, "SET ('owner' = 'ann')"),
        ("reset-property", {"key": "owner"}, "RESET"),
        ("add-partition", {"partition.day": "mon"}, "ADD PARTITION"),
        ("drop-partition", {"partition": "mon", "confirm": "mon"}, "DROP PARTITION"),
        ("drop-table", {"confirm": "trips"}, "DROP TABLE"),
    ):
        browser.open(change)
        browser.submit(form(what), **fields)
        run_it(shown)
        if what == "reset-property":
            info = admin.get_table_info(TablePath(f"{database}_b", "trips"))
            assert info.get_column_names() == ["id", "day", "km"]
    browser.open(f"{server.url}create")
    browser.submit(form("drop-database"), name=f"{database}_b", confirm=f"{database}_b")
    run_it("DROP DATABASE")
    assert not admin.database_exists(f"{database}_b")


def test_sql_by_keyboard_with_completion(
    browser: Browser, server: ConsoleServer, database: str
) -> None:
    browser.open(f"{server.url}sql")
    browser.script(f"document.getElementById('database').value = '{database}'")
    for _ in range(20):
        if browser.script("document.activeElement.id") == "statement":
            break
        browser.key("Tab")
    assert browser.script("document.activeElement.id") == "statement"
    browser.write("SELECT day, avg(seconds) AS s FROM vis")
    browser.wait("document.querySelector('#names li')?.innerText.startsWith('visits')")
    browser.key("Enter")
    browser.write(" GROUP BY day ORDER BY da")
    browser.key(" ", ctrl=True)
    browser.wait("document.querySelector('#names li')?.innerText.startsWith('day')")
    browser.key("ArrowDown")
    browser.key("Escape")
    assert browser.script("document.getElementById('names').hidden")
    browser.write("y")
    text = "SELECT day, avg(seconds) AS s FROM visits GROUP BY day ORDER BY day"
    assert browser.script("document.getElementById('statement').value") == text
    browser.key("Enter", ctrl=True)
    browser.wait("document.querySelector('#result h2')?.innerText === 'Result'")
    words = browser.text()
    assert "3 rows in" in words
    assert "What was fetched" in words
    assert browser.script("document.querySelectorAll('svg.plot .bar').length") == 3
    assert browser.script("document.querySelectorAll('a[download]').length") == 2


def test_a_statement_is_cancelled(browser: Browser, server: ConsoleServer, database: str) -> None:
    browser.open(f"{server.url}sql")
    endless = "SELECT count(*) AS n FROM visits a, visits b, visits c, visits d, visits e"
    browser.submit("#sql", statement=endless, database=database)
    if browser.script("!!document.querySelector('[data-run]')"):
        browser.wait("document.getElementById('told').innerText.includes('fetched')")
        browser.click("button.stop")
    browser.wait("['Cancelled', 'Result', 'This did not work'].includes("
                 "document.querySelector('#result h2').innerText)")  # fmt: skip


def test_live_rows_and_growth(
    browser: Browser, server: ConsoleServer, database: str, connection: FlussConnection
) -> None:
    path = TablePath(database, "visits")
    browser.open(f"{server.url}table/{database}/visits/live")
    browser.wait("document.getElementById('state').innerText === 'Waiting for rows…'")
    deadline = time.monotonic() + 30
    while not browser.script("document.querySelector('#tail tbody').rows.length"):
        # the stream may have begun behind the first ones
        fluss_df.write_fluss(VISITS, path, connection=connection)
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert browser.script("document.querySelector('#tail tbody').rows.length") <= 200
    assert "<b onclick=" in browser.text()
    browser.click("#pause", leads_on=False)
    assert browser.script("document.getElementById('pause').innerText") == "Go on"
    browser.open(f"{server.url}table/{database}/visits")
    browser.wait("document.querySelectorAll('.live-plot polyline').length", 20)
    before = browser.script("document.querySelector('.live-plot svg').outerHTML")
    fluss_df.write_fluss(pl.concat([VISITS] * 5), path, connection=connection)
    browser.wait(f"document.querySelector('.live-plot svg').outerHTML !== {before!r}", 20)


def test_hostile_tables_run_nothing(chrome: Browser, folder: FlussConnection) -> None:
    hostile_tables(folder)
    with ConsoleServer(folder, Settings(), "folder") as server:
        for browser in logged_in(chrome, server):
            for part in ("", "/rows", "/live", "/changes", "/change"):
                browser.open(f"{server.url}table/fluss/hostile{part}")
                browser.open(f"{server.url}table/fluss/hostile_keys{part}")
            browser.open(f"{server.url}sql")
            browser.submit("#sql", statement="SELECT * FROM hostile")
            assert browser.script("document.scripts.length") == 3


def test_a_page_elsewhere_can_neither_frame_nor_ask(
    chrome: Browser, alone: object, folder: FlussConnection, tmp_path: Path
) -> None:
    with ConsoleServer(folder, Settings(), "folder") as server:
        chrome.look(1600, 1000, dark=False)
        chrome.open(server.link)
        chrome.wait("location.pathname === '/'")
        evil = tmp_path / "evil.html"
        evil.write_text(
            f"""<iframe src="{server.url}"></iframe>
            <form method=post action="{server.url}statement"><input name=statement
            value="DROP TABLE people"></form>"""
        )
        chrome.open(evil.as_uri())
        framed = chrome.script(
            "(() => { try { return document.querySelector('iframe').contentDocument !== null }"
            " catch { return false } })()"
        )
        assert not framed
        asked = f"fetch('{server.url}sql/names?prefix=p', {{credentials: 'include'}})"
        assert chrome.script(f"{asked}.then(() => 'read', () => 'refused')") == "refused"
        chrome.submit("form")
        assert "people" in folder.get_admin().list_tables("fluss")
        refused = chrome.text()
        assert "not logged in" in refused or "Another site" in refused
    chrome.console.clear()
