"""Decimals of Ibis: no digit of a product, or of a literal, is rounded away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import ibis
import polars as pl
import pytest
from ibis import _

from fluss_df.backend import Backend
from fluss_df.errors import FlussError


@pytest.fixture(scope="module")
def con() -> Iterator[Backend]:
    backend = Backend()
    backend.do_connect(":memory:")
    yield backend
    backend.disconnect()


PRODUCTS = pl.DataFrame(
    {
        "k": [1, 2, 3],
        "d": pl.Series([Decimal("2.25"), Decimal("0.05"), None], dtype=pl.Decimal(10, 2)),
    }
)
EXACT: dict[str, tuple[Callable[[Any], Any], list[str | None]]] = {
    "square": (lambda t: t.d * t.d, ["5.0625", "0.0025", None]),
    "cube": (lambda t: t.d * t.d * t.d, ["11.390625", "0.000125", None]),
    "with a sum": (lambda t: (t.d * t.d + t.d) * t.d, ["16.453125", "0.002625", None]),
    "twice": (lambda t: t.d * 2, ["4.50", "0.10", None]),
    "cast": (lambda t: (t.d * t.d).cast("decimal(12, 2)"), ["5.06", "0.00", None]),
    "rounded": (lambda t: (t.d * t.d).round(3), ["5.063", "0.003", None]),
    "of the one before": (
        lambda t: (t.d * t.d).lag().over(order_by="k") * t.d,
        [None, "0.253125", None],
    ),
    "largest": (lambda t: (t.d * t.d).max().over(order_by="k", rows=(None, 0)), ["5.0625"] * 3),
    "total": (lambda t: (t.d * t.d).sum().over(group_by=ibis.literal(1)), ["5.0650"] * 3),
}


@pytest.fixture(scope="module")
def products(con: Backend) -> Any:
    return con.create_table("products", PRODUCTS)


def ways(found: Any) -> Iterator[list[Any]]:
    """Return a column in each way that a result is had."""
    con = found.get_backend()
    yield con.to_polars(found)["v"].to_list()
    yield con.to_pyarrow(found)["v"].to_pylist()
    yield con.to_pyarrow_batches(found).read_all()["v"].to_pylist()
    yield con.execute(found)["v"].tolist()
    yield [v for batch in con.to_pandas_batches(found) for v in batch["v"]]


@pytest.mark.parametrize("name", EXACT)
def test_ibis_rounds_no_product_of_decimals(products: Any, name: str) -> None:
    form, known = EXACT[name]
    expected = [None if v is None else Decimal(v) for v in known]
    for found in ways(products.mutate(v=form(products)).order_by("k")):
        assert found == expected


def test_ibis_rounds_no_product_of_another_table(products: Any) -> None:
    made = products.mutate(p=products.d * products.d)
    cube = [Decimal("0.000125"), Decimal("11.390625")]
    of = {
        "filtered": made.filter(made.p > 0),
        "united": made.filter(made.k == 1).union(made.filter(made.k == 2)),
        "grouped": made.drop_null().group_by("k", "d").agg(p=_.p.sum()),
        "joined": made.filter(made.k < 3).join(products.select("k"), "k"),
        "a view": made.filter(made.k < 3).view(),
    }
    for table in of.values():
        for found in ways(table.select(v=table.p * table.d).order_by("v")):
            assert found == cube
    square = products.d * products.d
    nested = products.filter(products.k == 2).select(
        v=ibis.struct({"a": square, "b": ibis.array([square])})
    )
    for found in ways(nested):
        assert found[0]["a"] == Decimal("0.0025")
        assert list(found[0]["b"]) == [Decimal("0.0025")]
    filled = made.fill_null({"p": Decimal("0.0001")})
    assert sorted(filled.p.to_pyarrow().to_pylist())[:2] == [Decimal("0.0001"), Decimal("0.0025")]
    total = (products.d * products.d).sum()
    for value in (total.execute(), total.to_polars(), total.to_pyarrow().as_py()):
        assert value == Decimal("5.0650")
    column = (products.d * products.d).name("v")
    for values in (column.to_polars(), column.to_pyarrow().to_pylist(), column.execute()):
        assert sorted(v for v in values if v is not None) == [Decimal("0.0025"), Decimal("5.0625")]
    assert made.filter(made.p == Decimal("5.0625")).k.to_pyarrow().to_pylist() == [1]


def test_ibis_unites_what_polars_computes_in_several_types(products: Any) -> None:
    con = products.get_backend()
    square, plain = products.select(v=products.d * products.d), products.select(v=products.d)
    mixed = pl.DataFrame({"i": [1, 2], "f": [0.5, 1.5]}, schema={"i": pl.Int32, "f": pl.Float32})
    numbers = con.create_table("mixed", mixed, overwrite=True)
    added, floats = numbers.select(v=numbers.i * numbers.f), numbers.select(v=numbers.f)
    one = con.create_table(
        "one", pl.DataFrame({"v": [Decimal("5.0625")]}, schema={"v": pl.Decimal(12, 4)})
    )
    lists = [table.select(v=ibis.array([table.v])) for table in (square, plain)]
    known: list[tuple[Any, list[Any]]] = [
        (added.union(floats), [0.5, 0.5, 1.5, 3.0]),
        (added.union(floats, distinct=True), [0.5, 1.5, 3.0]),
        (added.intersect(floats), [0.5]),
        (added.difference(floats), [3.0]),
        (square.intersect(one.select(v=one.v.cast("decimal(10, 2)"))), []),
        (square.difference(plain), [Decimal("0.0025"), Decimal("5.0625")]),
    ]
    for table, rows in known:
        assert sorted(v for v in table.v.to_pyarrow().to_pylist() if v is not None) == rows
    of_lists = [v for (v,) in lists[0].union(lists[1]).v.to_pyarrow().to_pylist() if v is not None]
    assert sorted(of_lists) == [
        Decimal("0.0025"),
        Decimal("0.05"),
        Decimal("2.25"),
        Decimal("5.0625"),
    ]


LONG = [Decimal("12345678901234567890123456.1234567891"), Decimal("0.0000000001"), None]
WHOLE = Decimal("1" * 38)


@pytest.fixture(scope="module")
def long(con: Backend) -> Any:
    rows = {"k": [1, 2, 3], "d": pl.Series(LONG, dtype=pl.Decimal(38, 10))}
    return con.create_table("long", pl.DataFrame(rows))


def test_ibis_finds_a_decimal_by_all_of_its_digits(long: Any) -> None:
    for condition, wanted in (
        (long.d == LONG[0], [1]),
        (long.d == Decimal("12345678901234567890123456.123456789"), []),
        (long.d == LONG[1], [2]),
        (LONG[1] == long.d, [2]),
        (long.d > Decimal("0.00000000009"), [1, 2]),
        (long.d < Decimal("0.00000000011"), [2]),
        (long.d.isin([LONG[0], LONG[1]]), [1, 2]),
        (long.d == Decimal("0.00000000010000"), [2]),
        (long.d == Decimal("0.00000000010001"), []),
        (long.d == WHOLE, []),
        (long.k == Decimal("2.00000000000001"), []),
        (long.k == Decimal("2.00000000000000"), [2]),
    ):
        assert sorted(long.filter(condition).k.to_pyarrow().to_pylist()) == wanted, condition


def test_ibis_computes_with_all_digits_of_a_literal(long: Any) -> None:
    for value, wanted in (
        (long.d + Decimal("0.0000000001"), [Decimal("2E-10")]),
        (long.d * Decimal("0.00000000001"), [Decimal("1E-21")]),
        (ibis.literal(WHOLE), [WHOLE]),
        (ibis.literal(LONG[0]), [LONG[0]]),
        (ibis.literal(Decimal("1.25")), [Decimal("1.25")]),
        (ibis.coalesce(long.d, Decimal("0.00000000002")), [Decimal("1E-10")]),
    ):
        for found in ways(long.filter(long.k == 2).select(v=value)):
            assert found == wanted


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1E+40", "1E-39", "1" * 39, "1.5E+38"])
def test_ibis_refuses_a_literal_that_no_decimal_holds(long: Any, text: str) -> None:
    with pytest.raises(FlussError, match="is no DECIMAL, which has up to 38 digits"):
        long.mutate(v=ibis.literal(Decimal(text))).to_pyarrow()
