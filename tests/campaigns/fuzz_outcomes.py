"""What random queries of ``scan_fuzz`` give over a scan, held against a frame in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import polars as pl
from polars.testing import assert_frame_equal

import fluss_df as fluss
from fluss_df.io import count

Step = Callable[[pl.LazyFrame], pl.LazyFrame]
Outcome = tuple[str, pl.DataFrame | str]


def outcome(frame: Callable[[], Any]) -> Outcome:
    try:
        return "rows", frame()
    except pl.exceptions.PanicException as error:
        return "panic", str(error)
    except pl.exceptions.PolarsError as error:
        return "error", f"{type(error).__name__}: {error}"
    except fluss.FlussError as error:
        return "fluss", str(error)


def difference(expected: Outcome, found: Outcome) -> str | None:
    """Return what is wrong; None where nothing is."""
    if expected[0] != "rows":
        # what fails on one row may pass where the row is left out
        return "a panic" if found[0] == "fluss" else None
    if found[0] == "error" and "casting from" in str(found[1]):
        # Polars refuses such casts where there are rows
        return None
    if found[0] != "rows":
        return f"{found[0]}: {found[1]}"
    want, got = expected[1], found[1]
    assert isinstance(want, pl.DataFrame)
    assert isinstance(got, pl.DataFrame)
    try:
        assert_frame_equal(
            want,
            got,
            check_row_order=False,
            check_exact=True,
            check_column_order=not want.is_empty(),
        )
    except AssertionError as error:
        return f"{error}\nexpected {want}\nfound {got}"
    except pl.exceptions.PolarsError:
        # rows that cannot be sorted
        texts = [sorted(map(repr, f.rows())) for f in (want, got)]
        return None if texts[0] == texts[1] else f"expected {want}\nfound {got}"
    return None


def judge(
    query: Step, scan: pl.LazyFrame, rows: pl.DataFrame, *, literal_first: bool = False
) -> tuple[list[tuple[str, str]], bool]:
    """Return where a query over a scan is wrong and how, and whether Polars refuses it."""
    expected = outcome(lambda: query(rows.lazy()).collect(engine="in-memory"))
    wrongs: list[tuple[str, str]] = []
    engines: tuple[Literal["streaming", "in-memory"], ...] = (
        ("streaming",) if literal_first else ("streaming", "in-memory")
    )
    for engine in engines:
        wrong = difference(expected, outcome(partial(query(scan).collect, engine=engine)))
        if wrong:
            # the same where nothing can be pushed: a matter of Polars alone
            plain = outcome(partial(query(rows.lazy()).collect, engine=engine))
            if plain[0] == "rows" and difference(expected, plain) is None:
                wrongs.append((engine, wrong))
    if expected[0] != "rows":
        return wrongs, True
    wanted = outcome(lambda: query(rows.lazy()).select(pl.len()).collect())
    counted = outcome(lambda: pl.DataFrame({"len": [count(query(scan))]}, {"len": pl.UInt32}))
    wrong = difference(wanted, counted)
    if wrong:
        wrongs.append(("count", wrong))
    return wrongs, False
