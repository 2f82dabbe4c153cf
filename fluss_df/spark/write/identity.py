"""How a batch of a stream is told apart from another one of the same number.

A query whose checkpoint went back gives its batches the numbers that they had, and other rows. The
ledger says which rows were written under a number: by what the batch read of its sources, where
the query's checkpoint can be read here, else by a digest of its rows.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote, urlparse

import numpy as np
import polars as pl
import pyarrow as pa

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.runs.losses import Losses
from fluss_df.schema import TableInfo
from fluss_df.spark.plan.options import WriteOptions
from fluss_df.spark.write.ledger import Decided, Manifest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Content:
    """Rows, whatever their order: how many, and the sum of their hashes."""

    rows: int
    hashes: int


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells a batch apart from another one of its number; see :class:`Manifest`."""

    read: str | None
    content: str | None
    table: str


class ContentDigest:
    """Computes the digest ``content`` of all rows that passed through it so far."""

    def __init__(self) -> None:
        self.content = Content(0, 0)

    def counted(
        self, tables: Iterator[pa.Table], columns: Iterable[str] | None = None
    ) -> Iterator[pa.Table]:
        """Yield tables unchanged, each after its columns, or some of them, were summed up."""
        for table in tables:
            frame = pl.from_arrow(table.select(sorted(columns or table.schema.names)))
            assert isinstance(frame, pl.DataFrame)
            hashes = int(np.sum(frame.hash_rows().to_numpy(), dtype=np.uint64))
            self.content = _sum(self.content, Content(table.num_rows, hashes))
            yield table


def _sum(one: Content, other: Content) -> Content:
    return Content(one.rows + other.rows, (one.hashes + other.hashes) % (1 << 64))


def sum_of_contents(contents: Iterable[Content | None]) -> str | None:
    """Return the content of a batch as text; None where that of a task is not known."""
    total = Content(0, 0)
    for content in contents:
        if content is None:
            return None
        total = _sum(total, content)
    # the release is part of the text, because each release of Polars may hash in its own way
    return f"{total.rows} rows, {total.hashes:016x}, Polars {pl.__version__}"


def read_of_batch(checkpoint: str | None, batch: int) -> str | None:
    """Return what a batch reads of its sources, by the offsets in the query's checkpoint.

    None where the checkpoint is not in a folder of this machine.
    """
    folder = _local_folder(checkpoint)
    if folder is None:
        return None
    ends = _sources(os.path.join(folder, "offsets", str(batch)))
    if ends is None:
        return None
    if batch == 0:
        return f"up to {ends}"
    starts = _sources(os.path.join(folder, "offsets", str(batch - 1)))
    return None if starts is None else f"from {starts} up to {ends}"


def _local_folder(checkpoint: str | None) -> str | None:
    if checkpoint is None:
        return None
    parsed = urlparse(checkpoint)
    if parsed.scheme == "file":
        return unquote(parsed.path)
    if parsed.scheme:
        return None
    # Spark, whose own folder this process has, takes a path without a scheme by its file system,
    # which may be another one: a relative path is a folder here if a checkpoint is in it
    folder = os.path.abspath(checkpoint)
    if os.path.isabs(checkpoint) or os.path.isdir(os.path.join(folder, "offsets")):
        return folder
    return None


def _sources(path: str) -> str | None:
    """Return the offsets in a file of Spark's log: a version, what holds for all, the sources."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, ValueError):
        return None
    if len(lines) < 3:
        return None
    return " and ".join(_without_clock(line) for line in lines[2:])


def _without_clock(line: str) -> str:
    """Return the offsets of a source without when they were asked for."""
    try:
        found = json.loads(line)
    except ValueError:
        return line
    if isinstance(found, dict):
        found.pop("clock", None)
    return json.dumps(found, sort_keys=True)


def check_decided(
    query: str, batch: int, info: TableInfo, decided: Decided, options: WriteOptions
) -> None:
    """Hold a batch against those that the ledger knows.

    Raises FlussError when later batches were written, when the entries of earlier ones are gone,
    when the table was made again since, or is another one.
    """
    losses = Losses(
        "fail" if options.fail_on_data_loss else "ignore",
        "start over with another checkpoint, or go on by option 'fail.on.data.loss' with 'false'",
    )
    where = f"batch {batch} of query {query}, table {info.table_path}"
    if decided.newest > batch:
        raise FlussError(
            f"{where}: the ledger has batches up to {decided.newest} of it, so the query's"
            " checkpoint went back to an earlier state, or a copy of it ran: rows would be lost,"
            " or written twice. Put back the newest checkpoint, or start over with another one,"
            " with starting.offsets behind what was written",
            ErrorCode.DUPLICATE_SEQUENCE_EXCEPTION,
        )
    before = decided.before or decided.manifest
    if batch and decided.manifest is None and decided.newest < batch - 1:
        known = "no batch" if decided.newest < 0 else f"batch {decided.newest} as the newest"
        losses.found(
            f"{where}: the ledger in database {options.ledger_database} has {known} of it, and"
            f" batch {batch - 1} was written before: the ledger was dropped, put back or has"
            " expired, or the query did not write exactly once so far. Whether rows of this batch"
            " are in the table already cannot be told",
            ErrorCode.CORRUPT_RECORD_EXCEPTION,
        )
    if before is None:
        return
    if before.table_id != info.table_id:
        name = before.table or str(info.table_path)
        if before.table not in (None, str(info.table_path)):
            raise FlussError(
                f"{where}: the query's checkpoint belongs to a write into table {name}; another"
                " destination needs a checkpoint of its own",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        losses.found(
            f"{where}: the table was dropped and made again while the query wrote to it (its id was"
            f" {before.table_id}, and is {info.table_id}), so that rows of earlier batches are not"
            " in it",
            ErrorCode.CORRUPT_RECORD_EXCEPTION,
        )


def check_same_batch(
    query: str, batch: int, manifest: Manifest, asked: Identity, options: WriteOptions
) -> None:
    """Refuse a batch of the number of another one that was written.

    Raises FlussError when what was written under this number is not what comes now; with
    ``fail.on.data.loss=false``, not where only the rows say so, which a query may give otherwise
    each time: then those that were decided are written.
    """
    way_out = ""
    if manifest.read is not None and asked.read is not None:
        if manifest.read == asked.read:
            return
        was, now = manifest.read, asked.read
        why = "the query's checkpoint went back to an earlier state, or a copy of it ran"
    else:
        if manifest.content is None or asked.content is None:
            return
        was, now = manifest.content, asked.content
        if was == now or was.rpartition(",")[2] != now.rpartition(",")[2]:
            return
        if not options.fail_on_data_loss:
            logger.warning(
                "batch %d of query %s has other rows than were decided for table %s: those are"
                " written, as 'fail.on.data.loss' says",
                *(batch, query, asked.table),
            )
            return
        why = (
            "the query's checkpoint went back to an earlier state, or a copy of it ran; or the"
            " query does not give the same rows again"
        )
        way_out = (
            ". Where the query does not give the same rows again, option 'fail.on.data.loss' with"
            " 'false' writes those of the first time; later batches are known by their offsets if"
            " its checkpointLocation is given as an option, as a folder of this machine"
        )
    digest = hashlib.sha256(was.encode()).hexdigest()[:8]
    raise FlussError(
        f"batch {batch} of query {query} is in table {asked.table} with other rows, and these"
        f" would be lost: {why}. It was ({digest}) {was}; and is now {now}. Put back the newest"
        " checkpoint, or start over with another one, with starting.offsets behind what was"
        f" written{way_out}",
        ErrorCode.DUPLICATE_SEQUENCE_EXCEPTION,
    )
