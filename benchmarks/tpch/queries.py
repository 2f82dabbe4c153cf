"""The 22 queries of TPC-H over lazy frames, which may be of Fluss tables or of files.

They are written as one would write them: in the order of the query's text, with filters where they
belong; moving these to the scans is left to Polars. ``QUERIES[n](tables)`` is query ``n``, with the
columns and the order that TPC-H asks for.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final, TypeAlias

import polars as pl
from polars import col, lit

Tables: TypeAlias = Mapping[str, pl.LazyFrame]

_ONE: Final = Decimal(1)
# a product of decimals has the scale of the wider one: so that no digit is lost, here
_PRICE: Final = col("l_extendedprice").cast(pl.Decimal(38, 4))
_REVENUE: Final = _PRICE * (_ONE - col("l_discount"))


def _day(text: str) -> pl.Expr:
    return lit(dt.date.fromisoformat(text))


def _within(column: str, start: str, stop: str) -> pl.Expr:
    """From a day up to, not including, another."""
    return (col(column) >= _day(start)) & (col(column) < _day(stop))


def pricing_summary(t: Tables) -> pl.LazyFrame:
    """1."""
    return (
        t["lineitem"]
        .filter(col("l_shipdate") <= _day("1998-09-02"))
        .group_by("l_returnflag", "l_linestatus")
        .agg(
            sum_qty=col("l_quantity").sum(),
            sum_base_price=col("l_extendedprice").sum(),
            sum_disc_price=_REVENUE.sum(),
            sum_charge=(_REVENUE.cast(pl.Decimal(38, 6)) * (_ONE + col("l_tax"))).sum(),
            avg_qty=col("l_quantity").mean(),
            avg_price=col("l_extendedprice").mean(),
            avg_disc=col("l_discount").mean(),
            count_order=pl.len(),
        )
        .sort("l_returnflag", "l_linestatus")
    )


def minimum_cost_supplier(t: Tables) -> pl.LazyFrame:
    """2."""
    offers = (
        t["partsupp"]
        .join(t["supplier"], left_on="ps_suppkey", right_on="s_suppkey")
        .join(t["nation"], left_on="s_nationkey", right_on="n_nationkey")
        .join(t["region"], left_on="n_regionkey", right_on="r_regionkey")
        .filter(col("r_name") == "EUROPE")
    )
    parts = t["part"].filter(col("p_size") == 15, col("p_type").str.ends_with("BRASS"))
    wanted = parts.join(offers, left_on="p_partkey", right_on="ps_partkey")
    least = wanted.group_by("p_partkey").agg(least=col("ps_supplycost").min())
    return (
        wanted.join(least, on="p_partkey")
        .filter(col("ps_supplycost") == col("least"))
        .select(
            "s_acctbal",
            "s_name",
            "n_name",
            "p_partkey",
            "p_mfgr",
            "s_address",
            "s_phone",
            "s_comment",
        )
        .sort("s_acctbal", "n_name", "s_name", "p_partkey", descending=[True, False, False, False])
        .head(100)
    )


def shipping_priority(t: Tables) -> pl.LazyFrame:
    """3."""
    day = _day("1995-03-15")
    return (
        t["customer"]
        .filter(col("c_mktsegment") == "BUILDING")
        .join(t["orders"], left_on="c_custkey", right_on="o_custkey")
        .join(t["lineitem"], left_on="o_orderkey", right_on="l_orderkey")
        .filter(col("o_orderdate") < day, col("l_shipdate") > day)
        .group_by(col("o_orderkey").alias("l_orderkey"), "o_orderdate", "o_shippriority")
        .agg(revenue=_REVENUE.sum())
        .select("l_orderkey", "revenue", "o_orderdate", "o_shippriority")
        .sort("revenue", "o_orderdate", "l_orderkey", descending=[True, False, False])
        .head(10)
    )


def order_priority(t: Tables) -> pl.LazyFrame:
    """4."""
    late = t["lineitem"].filter(col("l_commitdate") < col("l_receiptdate"))
    return (
        t["orders"]
        .filter(_within("o_orderdate", "1993-07-01", "1993-10-01"))
        .join(late, left_on="o_orderkey", right_on="l_orderkey", how="semi")
        .group_by("o_orderpriority")
        .agg(order_count=pl.len())
        .sort("o_orderpriority")
    )


def local_supplier_volume(t: Tables) -> pl.LazyFrame:
    """5."""
    return (
        t["region"]
        .filter(col("r_name") == "ASIA")
        .join(t["nation"], left_on="r_regionkey", right_on="n_regionkey")
        .join(t["customer"], left_on="n_nationkey", right_on="c_nationkey")
        .join(t["orders"], left_on="c_custkey", right_on="o_custkey")
        .filter(_within("o_orderdate", "1994-01-01", "1995-01-01"))
        .join(t["lineitem"], left_on="o_orderkey", right_on="l_orderkey")
        .join(
            t["supplier"],
            left_on=["l_suppkey", "n_nationkey"],
            right_on=["s_suppkey", "s_nationkey"],
        )
        .group_by("n_name")
        .agg(revenue=_REVENUE.sum())
        .sort("revenue", descending=True)
    )


def forecast_revenue_change(t: Tables) -> pl.LazyFrame:
    """6."""
    return (
        t["lineitem"]
        .filter(
            _within("l_shipdate", "1994-01-01", "1995-01-01"),
            col("l_discount").is_between(Decimal("0.05"), Decimal("0.07")),
            col("l_quantity") < 24,
        )
        .select(revenue=(_PRICE * col("l_discount")).sum())
    )


def volume_shipping(t: Tables) -> pl.LazyFrame:
    """7."""
    pair = ["FRANCE", "GERMANY"]
    named = t["nation"].filter(col("n_name").is_in(pair))
    suppliers = t["supplier"].join(
        named.select("n_nationkey", supp_nation="n_name"),
        left_on="s_nationkey",
        right_on="n_nationkey",
    )
    customers = t["customer"].join(
        named.select("n_nationkey", cust_nation="n_name"),
        left_on="c_nationkey",
        right_on="n_nationkey",
    )
    return (
        t["lineitem"]
        .filter(_within("l_shipdate", "1995-01-01", "1997-01-01"))
        .join(suppliers, left_on="l_suppkey", right_on="s_suppkey")
        .join(t["orders"], left_on="l_orderkey", right_on="o_orderkey")
        .join(customers, left_on="o_custkey", right_on="c_custkey")
        .filter(col("supp_nation") != col("cust_nation"))
        .group_by("supp_nation", "cust_nation", l_year=col("l_shipdate").dt.year())
        .agg(revenue=_REVENUE.sum())
        .sort("supp_nation", "cust_nation", "l_year")
    )


def national_market_share(t: Tables) -> pl.LazyFrame:
    """8."""
    american = (
        t["region"]
        .filter(col("r_name") == "AMERICA")
        .join(t["nation"], left_on="r_regionkey", right_on="n_regionkey")
        .join(t["customer"], left_on="n_nationkey", right_on="c_nationkey")
        .select("c_custkey")
    )
    suppliers = t["supplier"].join(t["nation"], left_on="s_nationkey", right_on="n_nationkey")
    of_brazil = pl.when(col("n_name") == "BRAZIL").then("volume").otherwise(0)
    return (
        t["part"]
        .filter(col("p_type") == "ECONOMY ANODIZED STEEL")
        .join(t["lineitem"], left_on="p_partkey", right_on="l_partkey")
        .join(t["orders"], left_on="l_orderkey", right_on="o_orderkey")
        .filter(_within("o_orderdate", "1995-01-01", "1997-01-01"))
        .join(american, left_on="o_custkey", right_on="c_custkey", how="semi")
        .join(suppliers, left_on="l_suppkey", right_on="s_suppkey")
        .select("n_name", o_year=col("o_orderdate").dt.year(), volume=_REVENUE.cast(pl.Float64))
        .group_by("o_year")
        .agg(mkt_share=of_brazil.sum() / col("volume").sum())
        .sort("o_year")
    )


def product_type_profit(t: Tables) -> pl.LazyFrame:
    """9."""
    cost = col("ps_supplycost").cast(pl.Decimal(38, 4))
    return (
        t["part"]
        .filter(col("p_name").str.contains("green", literal=True))
        .join(t["lineitem"], left_on="p_partkey", right_on="l_partkey")
        .join(
            t["partsupp"], left_on=["p_partkey", "l_suppkey"], right_on=["ps_partkey", "ps_suppkey"]
        )
        .join(t["supplier"], left_on="l_suppkey", right_on="s_suppkey")
        .join(t["nation"], left_on="s_nationkey", right_on="n_nationkey")
        .join(t["orders"], left_on="l_orderkey", right_on="o_orderkey")
        .group_by(nation=col("n_name"), o_year=col("o_orderdate").dt.year())
        .agg(sum_profit=(_REVENUE - cost * col("l_quantity")).sum())
        .sort("nation", "o_year", descending=[False, True])
    )


def returned_items(t: Tables) -> pl.LazyFrame:
    """10."""
    returned = t["lineitem"].filter(col("l_returnflag") == "R")
    about = ["c_custkey", "c_name", "c_acctbal", "n_name", "c_address", "c_phone", "c_comment"]
    return (
        t["customer"]
        .join(t["orders"], left_on="c_custkey", right_on="o_custkey")
        .filter(_within("o_orderdate", "1993-10-01", "1994-01-01"))
        .join(returned, left_on="o_orderkey", right_on="l_orderkey")
        .join(t["nation"], left_on="c_nationkey", right_on="n_nationkey")
        .group_by(about)
        .agg(revenue=_REVENUE.sum())
        .select(*about[:2], "revenue", *about[2:])
        .sort("revenue", "c_custkey", descending=[True, False])
        .head(20)
    )


def important_stock(t: Tables) -> pl.LazyFrame:
    """11."""
    stock = (
        t["nation"]
        .filter(col("n_name") == "GERMANY")
        .join(t["supplier"], left_on="n_nationkey", right_on="s_nationkey")
        .join(t["partsupp"], left_on="s_suppkey", right_on="ps_suppkey")
        .select("ps_partkey", value=col("ps_supplycost") * col("ps_availqty"))
    )
    return (
        stock.group_by("ps_partkey")
        .agg(col("value").sum())
        .filter(col("value") > col("value").sum() * Decimal("0.0001"))
        .sort("value", "ps_partkey", descending=[True, False])
    )


def shipping_modes(t: Tables) -> pl.LazyFrame:
    """12."""
    urgent = col("o_orderpriority").is_in(["1-URGENT", "2-HIGH"])
    return (
        t["orders"]
        .join(t["lineitem"], left_on="o_orderkey", right_on="l_orderkey")
        .filter(
            col("l_shipmode").is_in(["MAIL", "SHIP"]),
            col("l_commitdate") < col("l_receiptdate"),
            col("l_shipdate") < col("l_commitdate"),
            _within("l_receiptdate", "1994-01-01", "1995-01-01"),
        )
        .group_by("l_shipmode")
        .agg(high_line_count=urgent.sum(), low_line_count=(~urgent).sum())
        .sort("l_shipmode")
    )


def customer_distribution(t: Tables) -> pl.LazyFrame:
    """13."""
    ordinary = t["orders"].filter(~col("o_comment").str.contains("special.*requests"))
    return (
        t["customer"]
        .join(ordinary, left_on="c_custkey", right_on="o_custkey", how="left")
        .group_by("c_custkey")
        .agg(c_count=col("o_orderkey").count())
        .group_by("c_count")
        .agg(custdist=pl.len())
        .sort("custdist", "c_count", descending=True)
    )


def promotion_effect(t: Tables) -> pl.LazyFrame:
    """14."""
    of_promotions = pl.when(col("p_type").str.starts_with("PROMO")).then("revenue").otherwise(0)
    return (
        t["lineitem"]
        .filter(_within("l_shipdate", "1995-09-01", "1995-10-01"))
        .join(t["part"], left_on="l_partkey", right_on="p_partkey")
        .select("p_type", revenue=_REVENUE.cast(pl.Float64))
        .select(promo_revenue=100 * of_promotions.sum() / col("revenue").sum())
    )


def top_supplier(t: Tables) -> pl.LazyFrame:
    """15."""
    revenue = (
        t["lineitem"]
        .filter(_within("l_shipdate", "1996-01-01", "1996-04-01"))
        .group_by("l_suppkey")
        .agg(total_revenue=_REVENUE.sum())
    )
    return (
        t["supplier"]
        .join(revenue, left_on="s_suppkey", right_on="l_suppkey")
        .filter(col("total_revenue") == col("total_revenue").max())
        .select("s_suppkey", "s_name", "s_address", "s_phone", "total_revenue")
        .sort("s_suppkey")
    )


def part_suppliers(t: Tables) -> pl.LazyFrame:
    """16."""
    complained = t["supplier"].filter(col("s_comment").str.contains("Customer.*Complaints"))
    return (
        t["part"]
        .filter(
            col("p_brand") != "Brand#45",
            ~col("p_type").str.starts_with("MEDIUM POLISHED"),
            col("p_size").is_in([49, 14, 23, 45, 19, 3, 36, 9]),
        )
        .join(t["partsupp"], left_on="p_partkey", right_on="ps_partkey")
        .join(complained, left_on="ps_suppkey", right_on="s_suppkey", how="anti")
        .group_by("p_brand", "p_type", "p_size")
        .agg(supplier_cnt=col("ps_suppkey").n_unique())
        .sort("supplier_cnt", "p_brand", "p_type", "p_size", descending=[True, False, False, False])
    )


def small_quantity_orders(t: Tables) -> pl.LazyFrame:
    """17."""
    wanted = t["part"].filter(col("p_brand") == "Brand#23", col("p_container") == "MED BOX")
    lines = t["lineitem"].join(wanted, left_on="l_partkey", right_on="p_partkey", how="semi")
    few = lines.group_by("l_partkey").agg(few=col("l_quantity").cast(pl.Float64).mean() * 0.2)
    return (
        lines.join(few, on="l_partkey")
        .filter(col("l_quantity").cast(pl.Float64) < col("few"))
        .select(avg_yearly=col("l_extendedprice").cast(pl.Float64).sum() / 7)
    )


def large_orders(t: Tables) -> pl.LazyFrame:
    """18."""
    large = (
        t["lineitem"]
        .group_by("l_orderkey")
        .agg(sum_qty=col("l_quantity").sum())
        .filter(col("sum_qty") > 300)
    )
    return (
        t["orders"]
        .join(large, left_on="o_orderkey", right_on="l_orderkey")
        .join(t["customer"], left_on="o_custkey", right_on="c_custkey")
        .select(
            "c_name",
            col("o_custkey").alias("c_custkey"),
            "o_orderkey",
            "o_orderdate",
            "o_totalprice",
            "sum_qty",
        )
        .sort("o_totalprice", "o_orderdate", "o_orderkey", descending=[True, False, False])
        .head(100)
    )


def discounted_revenue(t: Tables) -> pl.LazyFrame:
    """19."""

    def kind(brand: str, size: str, boxes: list[str], quantity: int, up_to: int) -> pl.Expr:
        return (
            (col("p_brand") == brand)
            & col("p_container").is_in([f"{size} {box}" for box in boxes])
            & col("l_quantity").is_between(quantity, quantity + 10)
            & col("p_size").is_between(1, up_to)
        )

    return (
        t["lineitem"]
        .filter(
            col("l_shipmode").is_in(["AIR", "AIR REG"]),
            col("l_shipinstruct") == "DELIVER IN PERSON",
        )
        .join(t["part"], left_on="l_partkey", right_on="p_partkey")
        .filter(
            kind("Brand#12", "SM", ["CASE", "BOX", "PACK", "PKG"], 1, 5)
            | kind("Brand#23", "MED", ["BAG", "BOX", "PKG", "PACK"], 10, 10)
            | kind("Brand#34", "LG", ["CASE", "BOX", "PACK", "PKG"], 20, 15)
        )
        .select(revenue=_REVENUE.sum())
    )


def potential_promotion(t: Tables) -> pl.LazyFrame:
    """20."""
    sold = (
        t["lineitem"]
        .filter(_within("l_shipdate", "1994-01-01", "1995-01-01"))
        .group_by("l_partkey", "l_suppkey")
        .agg(half=col("l_quantity").cast(pl.Float64).sum() * 0.5)
    )
    forest = t["part"].filter(col("p_name").str.starts_with("forest"))
    plenty = (
        t["partsupp"]
        .join(forest, left_on="ps_partkey", right_on="p_partkey", how="semi")
        .join(sold, left_on=["ps_partkey", "ps_suppkey"], right_on=["l_partkey", "l_suppkey"])
        .filter(col("ps_availqty") > col("half"))
    )
    return (
        t["supplier"]
        .join(t["nation"], left_on="s_nationkey", right_on="n_nationkey")
        .filter(col("n_name") == "CANADA")
        .join(plenty, left_on="s_suppkey", right_on="ps_suppkey", how="semi")
        .select("s_name", "s_address")
        .sort("s_name")
    )


def waiting_suppliers(t: Tables) -> pl.LazyFrame:
    """21."""
    late = t["lineitem"].filter(col("l_receiptdate") > col("l_commitdate"))
    several = t["lineitem"].group_by("l_orderkey").agg(suppliers=col("l_suppkey").n_unique())
    one_late = late.group_by("l_orderkey").agg(late_suppliers=col("l_suppkey").n_unique())
    return (
        t["supplier"]
        .join(t["nation"], left_on="s_nationkey", right_on="n_nationkey")
        .filter(col("n_name") == "SAUDI ARABIA")
        .join(late, left_on="s_suppkey", right_on="l_suppkey")
        .join(t["orders"], left_on="l_orderkey", right_on="o_orderkey")
        .filter(col("o_orderstatus") == "F")
        .join(several.filter(col("suppliers") > 1), on="l_orderkey", how="semi")
        .join(one_late.filter(col("late_suppliers") == 1), on="l_orderkey", how="semi")
        .group_by("s_name")
        .agg(numwait=pl.len())
        .sort("numwait", "s_name", descending=[True, False])
        .head(100)
    )


def sales_opportunity(t: Tables) -> pl.LazyFrame:
    """22."""
    code = col("c_phone").str.slice(0, 2)
    customers = (
        t["customer"]
        .filter(code.is_in(["13", "31", "23", "29", "30", "18", "17"]))
        .select("c_custkey", "c_acctbal", cntrycode=code)
    )
    average = customers.filter(col("c_acctbal") > 0).select(
        average=col("c_acctbal").cast(pl.Float64).mean()
    )
    return (
        customers.join(average, how="cross")
        .filter(col("c_acctbal").cast(pl.Float64) > col("average"))
        .join(t["orders"], left_on="c_custkey", right_on="o_custkey", how="anti")
        .group_by("cntrycode")
        .agg(numcust=pl.len(), totacctbal=col("c_acctbal").sum())
        .sort("cntrycode")
    )


QUERIES: Final[Mapping[int, Callable[[Tables], pl.LazyFrame]]] = dict(
    enumerate(
        [
            pricing_summary,
            minimum_cost_supplier,
            shipping_priority,
            order_priority,
            local_supplier_volume,
            forecast_revenue_change,
            volume_shipping,
            national_market_share,
            product_type_profit,
            returned_items,
            important_stock,
            shipping_modes,
            customer_distribution,
            promotion_effect,
            top_supplier,
            part_suppliers,
            small_quantity_orders,
            large_orders,
            discounted_revenue,
            potential_promotion,
            waiting_suppliers,
            sales_opportunity,
        ],
        start=1,
    )
)
