"""Pages of the console over a thousand tables with ten thousand buckets: each within 200 ms.

``python -m tests.campaigns.console_pages [ROUNDS]``. The best of the rounds counts: the machine may
have other things to do.
"""

from __future__ import annotations

import sys
import tempfile
import time

import polars as pl

import fluss_df
from fluss_df.backend import Backend
from fluss_df.embedded import EmbeddedFluss
from fluss_df.ui.server import ConsoleServer
from fluss_df.ui.settings import Settings
from tests.ui.visiting import Visitor

TABLES, BUCKETS, WIDE = 999, 9, 1_009
MOST_S = 0.2
PAGES = (
    "/", "/table/fluss/wide", "/table/fluss/wide/rows", "/table/fluss/wide/rows?which=key&key.id=7",
    "/table/fluss/wide/changes", "/table/fluss/wide/live", "/table/fluss/wide/change",
    "/table/fluss/wide/growth.svg", "/table/fluss/t_500", "/table/fluss/t_500/rows",
    "/table/fluss/t_500/rows?which=last", "/sql", "/sql/names", "/runs", "/create",
)  # fmt: skip


def fill(connection: fluss_df.FlussConnection) -> None:
    """Make a thousand tables, of which one has a thousand buckets."""
    con = Backend().connect(connection)
    for number in range(TABLES):
        with_ = f"WITH ('bucket.num' = '{BUCKETS}')"
        con.raw_sql(f"CREATE TABLE t_{number} (id BIGINT, s STRING) {with_}")
    keyed = "(id BIGINT, s STRING, PRIMARY KEY (id))"
    con.raw_sql(f"CREATE TABLE wide {keyed} WITH ('bucket.num' = '{WIDE}')")
    rows = pl.DataFrame({"id": range(10_000)}).with_columns(s=pl.format("text {}", "id"))
    fluss_df.write_fluss(rows, "wide", connection=connection)
    fluss_df.write_fluss(rows, "t_500", connection=connection)


def run(rounds: int) -> int:
    """Return 0 where every page came in time."""
    slow = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedFluss(folder) as engine,
        engine.connection() as connection,
    ):
        fill(connection)
        with ConsoleServer(connection, Settings(), folder) as server:
            visitor = Visitor(server)
            visitor.sign_in()
            for page in PAGES:
                seconds = []
                size = 0
                for _ in range(rounds):
                    began = time.perf_counter()
                    size = len(visitor.page(page).body)
                    seconds.append(time.perf_counter() - began)
                first, best = seconds[0], min(seconds)
                slow += best > MOST_S
                print(
                    f"{page}: first {first * 1000:.0f} ms, best {best * 1000:.0f} ms,"
                    f" {size / 1024:.0f} KB",
                    flush=True,
                )
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]) if sys.argv[1:] else 10))
