"""What fluss_df relies on in Polars' unstable scan interfaces, and the gaps it lives with."""

import contextlib
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl
import pytest
from polars.io.external_reader import (
    FileReader,
    FileReaderBuilder,
    ReaderCapabilities,
    scan_external_reader,
)
from polars.lazyframe.resolver import LazyFrameResolver, ResolvedLazyFrameProps

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.polars_adapter.scans import with_known_schema
from tests.waiting import wait_until

ROWS = 10
PARTS = [
    pl.DataFrame(
        {
            "a": range(i * ROWS, (i + 1) * ROWS),
            "b": [f"{i}-{j}" for j in range(ROWS)],
            "c": [float(j) for j in range(ROWS)],
        }
    )
    for i in range(4)
]
ALL = pl.concat(PARTS)
Engine = Literal["streaming", "in-memory"]
both_engines = pytest.mark.parametrize("engine", ["streaming", "in-memory"])


@dataclass
class Log:
    """What Polars asked for."""

    resolved: list[dict[str, Any]] = field(default_factory=list)
    built: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    read: dict[str, dict[str, Any]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)

    def wait_until_dropped(self) -> None:
        wait_until(lambda: len(self.dropped) >= len(self.built), 10)
        assert sorted(self.dropped) == sorted(self.built)


Batches = Callable[[str, pl.DataFrame], Iterator[pl.DataFrame]]


def in_two(source: str, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    yield rows.head(rows.height // 2)
    yield rows.tail(rows.height - rows.height // 2)


class Builder(FileReaderBuilder):
    def __init__(self, log: Log, batches: Batches, parts: Sequence[pl.DataFrame]) -> None:
        self.log, self.batches, self.parts = log, batches, parts

    def reader_capabilities(self) -> ReaderCapabilities:
        return ReaderCapabilities(pre_slice=True)

    def explain_properties(self) -> dict[str, str]:
        return {"name": "toy", "pushed": "this and that"}

    def build_file_reader(self, source: str | bytes, multi_scan_context: dict[Any, Any]) -> Any:
        assert isinstance(source, str)
        multi_scan_context.setdefault("readers", []).append(source)
        self.log.built.append(source)
        return Reader(self, source)


class Reader(FileReader):
    def __init__(self, builder: Builder, source: str) -> None:
        self.builder, self.source = builder, source
        self.rows = builder.parts[int(source.split("[")[0])]

    def schema(self) -> Any:
        return self.rows.schema

    def n_rows_in_file(self, limit: int | None = None) -> int:
        return self.rows.height

    def on_drop(self) -> None:
        self.builder.log.dropped.append(self.source)

    def collect_batches(
        self, *, columns: Sequence[str], pre_slice: tuple[int, int] | None, **_: Any
    ) -> Iterator[pl.DataFrame]:
        log = self.builder.log
        log.read[self.source] = {"columns": list(columns), "pre_slice": pre_slice}
        rows = self.rows if pre_slice is None else self.rows.slice(*pre_slice)
        rows = rows.select(columns) if columns else pl.DataFrame(height=rows.height)
        return self.generate(rows)

    def generate(self, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        log = self.builder.log
        try:
            yield from self.builder.batches(self.source, rows)
            log.ended.add(self.source)
        except GeneratorExit:
            log.closed.add(self.source)
            raise


class Resolver(LazyFrameResolver):
    def __init__(
        self, batches: Batches = in_two, parts: Sequence[pl.DataFrame] = PARTS, equal: bool = False
    ) -> None:
        self.log, self.batches, self.parts, self.equal = Log(), batches, parts, equal

    def schema(self) -> Any:
        return self.parts[0].schema

    def cse_eq(self, other: object) -> bool:
        return self.equal and isinstance(other, Resolver)

    def resolve_lazyframe(self, **asked: Any) -> tuple[pl.LazyFrame, ResolvedLazyFrameProps]:
        asked["filters"] = [str(f.expr) for f in asked["filters"]]
        self.log.resolved.append(asked)
        # brackets in a source's name are no pattern: sources are not expanded
        names = [f"{i}[0:{part.height}]" for i, part in enumerate(self.parts)]
        builder = Builder(self.log, self.batches, self.parts)
        frame = scan_external_reader(builder, sources=names, schema=self.parts[0].schema)
        return frame, ResolvedLazyFrameProps(version_key=str(len(self.log.resolved)))

    def __getstate__(self) -> dict[str, Any]:
        return {"equal": self.equal}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(equal=state["equal"])  # type: ignore[misc]


@both_engines
def test_rows_come_in_the_order_of_the_sources(engine: Engine) -> None:
    def late(source: str, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        time.sleep(0.02 if source.startswith("0") else 0)
        yield rows

    assert Resolver(late).lazy().collect(engine=engine).equals(ALL)


@both_engines
def test_sources_are_read_in_parallel(engine: Engine) -> None:
    # two readers meet, which they could not one after the other
    together = threading.Barrier(2, timeout=10)

    def meet(source: str, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        if source[0] in "01":
            together.wait()
        yield rows

    assert Resolver(meet).lazy().collect(engine=engine).equals(ALL)


@both_engines
def test_the_resolver_is_asked_at_every_collect(engine: Engine) -> None:
    resolver = Resolver()
    frame = resolver.lazy()
    for _ in range(3):
        frame.collect(engine=engine)
    assert len(resolver.log.resolved) == 3


def test_the_resolver_gets_columns_conjuncts_and_limit() -> None:
    resolver = Resolver()
    frame = resolver.lazy()
    frame.filter(pl.col("a") >= 10, pl.col("b") != "x").select("c").collect()
    frame.head(3).collect()
    frame.slice(5, 3).collect()
    frame.head(15).filter(pl.col("a") > 3).collect()
    asked = resolver.log.resolved
    assert sorted(asked[0]["filters"]) == ['[(col("a")) >= (10)]', '[(col("b")) != ("x")]']
    assert sorted(asked[0]["projection"]) == ["a", "b", "c"]
    assert sorted(asked[0]["filter_columns"]) == ["a", "b"]
    assert asked[0]["limit"] is None
    assert [call["limit"] for call in asked[1:]] == [3, 8, 15]
    # a filter behind a limit is not given, as it may not be applied before it
    assert asked[3]["filters"] == []


@both_engines
def test_filters_that_are_not_reported_as_applied_are_applied_by_polars(engine: Engine) -> None:
    frame = Resolver().lazy()
    found = frame.filter(pl.col("a") % 7 == 3, pl.col("b") != "0-3").collect(engine=engine)
    assert found.equals(ALL.filter(pl.col("a") % 7 == 3, pl.col("b") != "0-3"))


def test_only_needed_columns_are_read() -> None:
    resolver = Resolver()
    resolver.lazy().filter(pl.col("a") > 5).select("c").collect()
    assert {tuple(read["columns"]) for read in resolver.log.read.values()} == {("a", "c")}


@both_engines
def test_slices_are_given_to_readers_by_their_numbers_of_rows(engine: Engine) -> None:
    resolver = Resolver()
    frame = resolver.lazy()
    assert frame.slice(12, 3).collect(engine=engine).equals(ALL.slice(12, 3))
    assert resolver.log.read["1[0:10]"]["pre_slice"] == (2, 3)
    assert not {"2[0:10]", "3[0:10]"} & set(resolver.log.read)
    resolver.log.read.clear()
    assert frame.tail(3).collect(engine=engine).equals(ALL.tail(3))
    assert resolver.log.read == {"3[0:10]": {"columns": ["a", "b", "c"], "pre_slice": (7, 3)}}


def test_nothing_is_resolved_for_no_rows() -> None:
    resolver = Resolver()
    assert resolver.lazy().head(0).collect().schema == ALL.schema
    assert resolver.log.resolved == []


@both_engines
def test_a_scan_without_sources_is_empty(engine: Engine) -> None:
    frame = scan_external_reader(Builder(Log(), in_two, []), sources=[], schema=ALL.schema)
    assert frame.collect(engine=engine).equals(ALL.clear())


@both_engines
def test_equal_scans_in_a_query_are_read_once(engine: Engine) -> None:
    left, right = Resolver(equal=True), Resolver(equal=True)
    query = left.lazy().join(right.lazy(), on="a", maintain_order="left")
    assert query.collect(engine=engine).height == ALL.height
    assert len(left.log.resolved) + len(right.log.resolved) == 1
    assert len(left.log.built) + len(right.log.built) == 4


def test_scans_that_are_read_once_are_read_with_the_columns_of_both() -> None:
    resolver = Resolver(equal=True)
    frame = resolver.lazy()
    frame.select("a").join(frame.select("a", d="c"), on="a").collect()
    assert [sorted(call["projection"]) for call in resolver.log.resolved] == [["a", "c"]]
    # with filters of their own they are read twice rather than without them
    pl.concat([frame.filter(pl.col("a") < 3), frame.filter(pl.col("a") > 30)]).collect()
    assert len(resolver.log.resolved) == 3
    assert all(call["filters"] for call in resolver.log.resolved[1:])


@both_engines
def test_errors_of_readers_and_resolvers_arrive_as_they_are(engine: Engine) -> None:
    def fail(source: str, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        yield rows.head(1)
        raise FlussError("gone", ErrorCode.PARTITION_NOT_EXISTS)

    with pytest.raises(FlussError, match="gone") as caught:
        Resolver(fail).lazy().collect(engine=engine)
    assert caught.value.error_code == ErrorCode.PARTITION_NOT_EXISTS

    class Failing(Resolver):
        def resolve_lazyframe(self, **_: Any) -> Any:
            raise FlussError("no table", ErrorCode.TABLE_NOT_EXIST)

    for ask in (pl.LazyFrame.collect, pl.LazyFrame.explain):
        with pytest.raises(FlussError, match="no table") as caught:
            ask(Failing().lazy())
        assert caught.value.error_code == ErrorCode.TABLE_NOT_EXIST


@both_engines
def test_readers_are_dropped_whatever_becomes_of_the_query(engine: Engine) -> None:
    def fail(source: str, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        yield rows
        raise FlussError("gone")

    for resolver in (Resolver(), Resolver(fail)):
        frame = resolver.lazy()
        for query in (frame, frame.head(3), frame.filter(pl.col("a") >= 0).head(1)):
            with contextlib.suppress(FlussError):
                query.collect(engine=engine)
            resolver.log.wait_until_dropped()


def test_what_is_read_ahead_is_bounded() -> None:
    part = pl.DataFrame({"a": range(1000)})
    lock = threading.Lock()
    made, used, ahead = 0, 0, 0

    def count(source: str, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        nonlocal made, ahead
        for _ in range(40):
            with lock:
                made += 1
                ahead = max(ahead, made - used)
            yield rows

    def use(rows: pl.DataFrame) -> None:
        nonlocal used
        time.sleep(0.001)
        used += rows.height // 1000

    frame = Resolver(count, [part] * 12).lazy()
    frame.filter(pl.col("a") >= 0).sink_batches(use)
    assert made == 12 * 40
    readers = pl.thread_pool_size() + 1
    assert ahead <= 16 * readers


def test_explain_shows_the_properties_of_the_builder() -> None:
    plan = Resolver().lazy().explain()
    assert "RESOLVER[name: Resolver" in plan
    assert "SCAN [0[0:10], ... 3 other sources]" in plan
    assert "    name: toy\n    pushed: this and that\n" in plan


def test_a_frame_pickles_with_its_resolver_as_the_resolver_wants() -> None:
    frame = Resolver().lazy()
    frame.collect()
    assert pickle.loads(pickle.dumps(frame)).collect().equals(ALL)


def test_a_context_is_shared_by_the_readers_of_one_execution() -> None:
    contexts: list[list[str]] = []

    class Sharing(Builder):
        def build_file_reader(self, source: str | bytes, multi_scan_context: Any) -> Any:
            reader = super().build_file_reader(source, multi_scan_context)
            if multi_scan_context["readers"] not in contexts:
                contexts.append(multi_scan_context["readers"])
            return reader

    names = [str(i) for i in range(4)]
    builder = Sharing(Log(), in_two, PARTS)
    frame = scan_external_reader(builder, sources=names, schema=ALL.schema)
    for _ in range(2):
        frame.collect()
    assert [sorted(context) for context in contexts] == [names, names]


# ---- gaps: what Polars does not give to a scan; when one closes, use it --------------------------


def test_gap_a_count_asks_for_a_column() -> None:
    resolver = Resolver()
    assert resolver.lazy().select(pl.len()).collect().item() == 40
    assert resolver.log.read["0[0:10]"]["columns"] == ["a"]


def test_gap_a_limit_behind_a_filter_is_not_given() -> None:
    resolver = Resolver()
    resolver.lazy().filter(pl.col("a") >= 0).head(1).collect()
    assert resolver.log.resolved[0]["limit"] is None


def test_gap_different_limits_of_equal_scans_are_not_given() -> None:
    resolver = Resolver(equal=True)
    frame = resolver.lazy()
    assert pl.concat([frame.head(1), frame.head(2)]).collect().height == 3
    assert [call["limit"] for call in resolver.log.resolved] == [None]


def test_gap_what_is_never_true_behind_a_limit_loses_the_projection() -> None:
    # the frame is empty as it should be, but has the columns of the scan
    resolver = Resolver()
    found = resolver.lazy().head(1).filter(pl.lit(False)).select("a").collect()
    assert found.is_empty()
    assert found.columns == ["a", "b", "c"]
    assert resolver.log.resolved == []


def test_gap_some_columns_are_taken_for_the_whole_scan() -> None:
    """By what adds columns of its own; with_known_schema is what keeps it from that."""
    twice = (pl.col("a") * (1 - pl.col("c"))).alias("x")
    queries: list[tuple[Any, Callable[[pl.LazyFrame], pl.LazyFrame]]] = [
        # the expression that both have is such a column
        ("in-memory", lambda frame: frame.group_by("c").agg(twice.sum(), y=(twice + 1).sum())),
        ("streaming", lambda frame: frame.select("c", s=pl.col("a").sum().over("c"))),
    ]
    for engine, query in queries:
        expected = query(ALL.lazy()).collect(engine="in-memory").sort("c")
        with pytest.raises(pl.exceptions.PanicException):
            query(Resolver().lazy()).collect(engine=engine)
        others: list[Any] = ["in-memory", "streaming"]
        for other in others:
            found = query(with_known_schema(Resolver().lazy(), ALL.columns)).collect(engine=other)
            assert found.sort("c").equals(expected)


@pytest.mark.parametrize("query", ["sort", "top_k", "unique", "group_by"])
def test_gap_orders_and_groups_are_not_given(query: str) -> None:
    resolver = Resolver()
    frame = resolver.lazy()
    {
        "sort": lambda: frame.sort("a", descending=True).head(2),
        "top_k": lambda: frame.top_k(2, by="a"),
        "unique": lambda: frame.unique("c"),
        "group_by": lambda: frame.group_by("c").len(),
    }[query]().collect()
    assert resolver.log.resolved[0]["limit"] is None
    assert len(resolver.log.ended) == 4
