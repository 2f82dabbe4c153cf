"""The page about one table: columns, keys, properties, buckets, growth, its half in the lake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from fluss_df.client.admin.results import HIDDEN
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.options import ENABLED, FORMAT
from fluss_df.metadata import OffsetSpec, PartitionInfo, TableBucket
from fluss_df.pushdown.plan import Bucket
from fluss_df.schema import TableInfo
from fluss_df.ui.pages.overview import parts
from fluss_df.ui.shown import plots, texts
from fluss_df.ui.state import State, asks, number, path_of

_BUCKETS: Final = 200
_ON: Final = "true"


@dataclass(frozen=True, slots=True)
class LakeHalf:
    """The part of a table that is in the data lake.

    Parameters
    ----------
    format
        As ``iceberg``.
    snapshot
        The id of the newest snapshot; None where there is none yet.
    rows
        Rows of the log that are in it.
    lag
        Rows of the log that are not in it yet.
    problem
        Why that is not known.
    """

    format: str
    snapshot: int | None
    rows: int
    lag: int | None
    problem: str = ""


@asks
def about(state: State, request: Request) -> Response:
    """Return the page."""
    path = path_of(request)
    info = state.watch.info(path)
    partitions = state.admin.list_partition_infos(path) if info.is_partitioned() else []
    like = request.query_params.get("partition", "").strip()
    wanted = [p for p in partitions if like in p.partition_name]
    buckets = state.watch.buckets(info, wanted)
    shown, page, pages = parts(
        buckets, number(request.query_params.get("page"), 1, 10**6), _BUCKETS
    )
    offsets = state.watch.offsets(info, shown)
    lake = _lake(state, info, partitions)
    growth = state.watch.growth(path)
    return state.page(
        request,
        "table.html",
        path=path,
        info=info,
        here="about",
        columns=info.schema.columns,
        keys=info.get_primary_keys(),
        properties=texts.properties(info.get_properties()),
        custom=texts.properties(info.get_custom_properties()),
        hidden=HIDDEN,
        partitions=len(partitions),
        like=like,
        buckets=[_bucket(state, info, b, offsets[b]) for b in shown],
        of_buckets=len(buckets),
        page=page,
        pages=pages,
        growth=growth,
        lake=lake,
        here_engine=state.connection.cluster.engine is not None,
        plot=_plot(state, info, partitions),
    )


def _bucket(state: State, info: TableInfo, bucket: Bucket, at: tuple[int, int]) -> dict[str, Any]:
    key = TableBucket(info.table_id, bucket.bucket_id, bucket.partition_id)
    leader = state.connection.cluster.known_leader(key)
    return {
        "partition": bucket.partition_name,
        "bucket": bucket.bucket_id,
        "first": at[0],
        "end": at[1],
        "rows": at[1] - at[0],
        "leader": leader,
    }


@asks
def growth(state: State, request: Request) -> Response:
    """Return the plot of the growth of a table, as a picture that the page shows in its place."""
    path = path_of(request)
    info = state.watch.info(path)
    partitions = state.admin.list_partition_infos(path) if info.is_partitioned() else []
    return Response(str(_plot(state, info, partitions)), media_type="image/svg+xml")


def _plot(state: State, info: TableInfo, partitions: list[PartitionInfo]) -> Markup:
    samples = state.watch.history(info.table_path)
    at = np.array([sample.at for sample in samples])
    ends = np.array([sample.end for sample in samples], dtype=np.float64)
    name = "changes that came" if info.has_primary_key() else "rows that came"
    return plots.lines(
        at, [plots.Line(name, ends)], f"How many rows came into {info.table_path}", moments=True
    )


def _lake(state: State, info: TableInfo, partitions: list[PartitionInfo]) -> LakeHalf | None:
    """Return what is in the lake; None where the table has no such half."""
    options = info.get_properties()
    if options.get(ENABLED, "").lower() != _ON:
        return None
    kind = options.get(FORMAT, "unknown")
    try:
        snapshot = state.admin.get_latest_lake_snapshot(info.table_path)
    except FlussError as error:
        if error.error_code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
            lag = _behind(state, info, partitions, {})
            return LakeHalf(kind, None, 0, lag[1])
        return LakeHalf(kind, None, 0, None, error.message)
    rows, lag_rows = _behind(state, info, partitions, snapshot.table_buckets_offset)
    return LakeHalf(kind, snapshot.snapshot_id, rows, lag_rows)


def _behind(
    state: State, info: TableInfo, partitions: list[PartitionInfo], tiered: dict[TableBucket, int]
) -> tuple[int, int]:
    """Return how many rows of the log are tiered, and how many are still to be."""
    buckets = state.watch.buckets(info, partitions)
    keys = [TableBucket(info.table_id, b.bucket_id, b.partition_id) for b in buckets]
    if not keys:
        return 0, 0
    ends = state.admin.get_bucket_offsets(info, keys, OffsetSpec.latest())
    done = sum(min(tiered.get(key, 0), ends[key]) for key in keys)
    return done, sum(ends.values()) - done
