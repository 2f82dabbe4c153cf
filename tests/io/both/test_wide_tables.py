"""Tables of thousands of columns."""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import Callable
from decimal import Decimal

import polars as pl
import pytest

import fluss_df as fluss

WIDE_KINDS = [0.5, "text", b"bytes", dt.datetime(2024, 1, 1), Decimal("1.5"), [1]]


@pytest.mark.parametrize("keys", [None, ["id"]])
def test_a_wide_table_takes_linear_time(keys: list[str] | None) -> None:
    """Eight times the columns take eight times the time, and not 64 times."""
    taken: dict[str, list[float]] = {}
    with fluss.connect(":memory:") as connection:
        for width in (500, 4000):
            kinds = itertools.cycle(WIDE_KINDS)
            frame = pl.DataFrame({"id": [1], **{f"c{n:05d}": [next(kinds)] for n in range(width)}})
            name = f"t{width}"
            fluss.write_fluss(
                frame[:0], name, connection=connection, create_if_not_exists=True, primary_keys=keys
            )
            scan = fluss.scan_fluss(name, connection=connection)
            fluss.write_fluss(frame, name, connection=connection)
            works: dict[str, Callable[[], object]] = {"scan": scan.collect}
            if keys is not None:
                changes = fluss.scan_fluss(f"{name}$changelog", connection=connection)
                joined = fluss.lookup_join(
                    frame.select("id").lazy(), name, on="id", connection=connection
                )
                works |= {"changes": changes.collect, "join": joined.collect}
            for what, work in works.items():
                best = float("inf")
                for _ in range(2):
                    began = time.process_time()
                    work()
                    best = min(best, time.process_time() - began)
                taken.setdefault(what, []).append(best)
            assert scan.collect().equals(frame)
    few, many = (sum(times) for times in zip(*taken.values(), strict=True))
    # Halfway to the square: a busy machine makes twice the factor of a quiet one.
    assert many < 32 * few, taken
