"""A live tail of a thousand rows a second, for minutes: neither the console nor the browser grows.

``python -m tests.campaigns.console_live [SECONDS]``; needs Chromium.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

import fluss_df
from fluss_df.ui.server import ConsoleServer
from fluss_df.ui.settings import Settings
from tests.ui.chromium import Browser

_RATE = 1_000
_WRITER = """
import sys, time
import polars as pl
import fluss_df
end = time.monotonic() + float(sys.argv[2])
with fluss_df.connect(sys.argv[1]) as connection:
    number, due = 0, time.monotonic()
    while time.monotonic() < end:
        rows = range(number, number + 100)
        frame = pl.DataFrame({"id": rows, "city": [f"city {n % 97}" for n in rows]})
        frame.with_columns(km=pl.col("id") / 7).write_fluss("trips", connection=connection)
        number, due = number + 100, due + 0.1
        time.sleep(max(0.0, due - time.monotonic()))
print(number)
"""


def _memory() -> tuple[float, float]:
    """Return what this process holds, and what of it is no file, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: line.split() for line in lines}
    return int(found["VmRSS"][1]) / 1024, int(found["RssAnon"][1]) / 1024


def run(seconds: float) -> int:
    """Return 0 where nothing grew."""
    measured: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory() as folder, fluss_df.connect(folder) as connection:
        empty = pl.DataFrame(schema={"id": pl.Int64, "city": pl.String, "km": pl.Float64})
        fluss_df.write_fluss(empty, "trips", connection=connection, create_if_not_exists=True)
        with ConsoleServer(connection, Settings(), folder) as server, Browser() as browser:
            browser.open(server.link)
            browser.wait("location.pathname === '/'")
            browser.open(f"{server.url}table/fluss/trips/live")
            writer = subprocess.Popen(
                [sys.executable, "-c", _WRITER, folder, str(seconds)],
                stdout=subprocess.PIPE,
                text=True,
            )
            began = time.monotonic()
            while writer.poll() is None:
                time.sleep(min(15.0, seconds / 8))
                rss, own = _memory()
                heap = browser.heap() / 2**20
                shown = browser.script("document.querySelector('#tail tbody').rows.length")
                state = browser.script("document.getElementById('state').textContent")
                measured.append((rss, own, heap))
                print(
                    f"{time.monotonic() - began:5.0f} s: console {rss:.0f} MB ({own:.0f} its own),"
                    f" browser {heap:.2f} MB, {shown} rows in the page; {state}",
                    flush=True,
                )
            written = int((writer.stdout or sys.stdout).read())
            browser.wait(f"document.getElementById('state').textContent.startsWith('{written:,}')")
            problems = list(browser.console)
    # what was loaded for the first rows counts as the beginning
    warm = measured[len(measured) // 5 :]
    grown = [max(m[i] for m in warm[-3:]) - max(m[i] for m in warm[:3]) for i in range(3)]
    rate = written / seconds
    print(f"{written:,} rows, {rate:,.0f} a second; all were seen. Growth: {grown} MB; {problems}")
    good = rate > 0.9 * _RATE and grown[1] < 24 and grown[2] < 2 and not problems
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=600)
    sys.exit(run(parser.parse_args().seconds))
