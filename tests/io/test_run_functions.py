"""Functions that runs call: a batch is not committed before its function has done its work."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.io.runs.runner import run
from fluss_df.io.scan import scan_fluss
from fluss_df.lake.tiering import TieringService
from tests.io.conftest import table_maker


@pytest.fixture(scope="module")
def engine() -> Iterator[FlussConnection]:
    with FlussConnection.create(":memory:") as engine:
        engine.get_admin().create_database("io")
        yield engine


@pytest.fixture
def query(engine: FlussConnection) -> Iterator[pl.LazyFrame]:
    with table_maker(engine) as make:
        path = make(pa.schema({"x": pa.int64()}), pl.DataFrame({"x": [1, 2, 3]}))
        yield scan_fluss(path, connection=engine)


async def coroutine(*_: Any) -> None:
    raise AssertionError("is not run")


async def async_generator(*_: Any) -> AsyncIterator[int]:
    yield 1


def generator(*_: Any) -> Iterator[int]:
    yield 1


class Stores:
    async def __call__(self, frame: pl.DataFrame, number: int) -> None:
        raise AssertionError("is not run")

    async def store(self, frame: pl.DataFrame, number: int) -> None:
        raise AssertionError("is not run")


REFUSED = {
    "coroutine": coroutine,
    "async generator": async_generator,
    "generator": generator,
    "partial": functools.partial(coroutine, 1),
    "object": Stores(),
    "method": Stores().store,
    "partial of an object": functools.partial(Stores()),
}
RETURNED: dict[str, Callable[..., object]] = {
    "coroutine": lambda *_: coroutine(),
    "async generator": lambda *_: async_generator(),
    "generator": lambda frame, _: (row for row in frame.iter_rows()),
    "future": lambda *_: Future[None](),
}


def assert_all_come(query: pl.LazyFrame, checkpoint: Path) -> None:
    """Run with a function that does what it should; it is given every row."""
    seen: list[pl.DataFrame] = []
    result = run(query, to=lambda frame, _: seen.append(frame), checkpoint=checkpoint)
    assert result.rows_written == 3
    assert sorted(seen[0]["x"]) == [1, 2, 3]


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_a_function_that_would_not_run_is_refused(
    query: pl.LazyFrame, tmp_path: Path, function: Any
) -> None:
    with pytest.raises(FlussError, match=r"^to: .* is a (coroutine|generator) function: expected"):
        run(query, to=function, checkpoint=tmp_path / "c")
    assert not (tmp_path / "c").exists()
    with pytest.raises(FlussError, match=r"^on_batch: .* function: expected a plain function"):
        run(query, to=lambda *_: None, checkpoint=tmp_path / "c", on_batch=function)
    assert_all_come(query, tmp_path / "c")


@pytest.mark.parametrize("function", RETURNED.values(), ids=RETURNED)
def test_a_batch_whose_work_is_not_done_is_not_committed(
    query: pl.LazyFrame, tmp_path: Path, function: Any
) -> None:
    # a coroutine that is left alone is a warning, and warnings are errors here
    with pytest.raises(FlussError, match=r"^to: the function returned a .*, whose work is not"):
        run(query, to=function, checkpoint=tmp_path / "c")
    assert_all_come(query, tmp_path / "c")


def test_what_on_batch_returns_is_looked_at(query: pl.LazyFrame, tmp_path: Path) -> None:
    with pytest.raises(FlussError, match=r"^on_batch: the function returned a coroutine"):
        run(
            query,
            to=tmp_path / "out",
            checkpoint=tmp_path / "c",
            on_batch=lambda *_: coroutine(),  # type: ignore[arg-type]
        )


def test_coroutines_are_run_by_the_function(query: pl.LazyFrame, tmp_path: Path) -> None:
    seen: list[int] = []

    async def store(frame: pl.DataFrame) -> None:
        await asyncio.sleep(0)
        seen.extend(frame["x"])

    run(query, to=lambda frame, _: asyncio.run(store(frame)), checkpoint=tmp_path / "c")
    assert sorted(seen) == [1, 2, 3]


def test_tiering_refuses_them_too(engine: FlussConnection) -> None:
    with (
        TieringService(engine) as service,
        pytest.raises(FlussError, match=r"^on_round: coroutine is a coroutine function"),
    ):
        service.run(coroutine)
