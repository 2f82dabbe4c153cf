"""The buckets that a stream reads, which are the same for as long as it uses a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fluss_df.io.runs.losses import Losses, listed, without_dropped
from fluss_df.io.scans.planning import chosen_buckets
from fluss_df.io.source import ScanSource, choose_partitions, is_chosen
from fluss_df.pushdown.plan import Bucket
from fluss_df.pushdown.prune import all_buckets
from fluss_df.spark.plan.options import invalid
from fluss_df.spark.plan.planning import TableScan


class Buckets:
    """The buckets of a table as they are now, and which of them a stream reads.

    Parameters
    ----------
    scan
        The table, with the options of the stream.
    source
        The scan of a stream that begins: partitions that ``starting.offsets`` and ``partitions``
        name are looked for. A stream that has begun goes on where they were dropped since.

    Attributes
    ----------
    chosen
        Those that the options choose.
    """

    def __init__(self, scan: TableScan, source: ScanSource | None = None) -> None:
        there = []
        if scan.info.is_partitioned():
            there = scan.connection.get_admin().list_partition_infos(scan.path)
        self._gone: list[str] = []
        if source is None:
            named = scan.source(scan.arrow_schema.names)
            source = dataclasses.replace(named, start="earliest")
            if named.partitions is not None:
                # what was dropped since is told by what was read of it
                left = [c for c in named.partitions if any(is_chosen(p, c) for p in there)]
                self._gone = [str(c) for c in named.partitions if c not in left]
                source = dataclasses.replace(source, partitions=tuple(left))
        self._scan = scan
        self._there = there
        self._all = all_buckets(scan.info, there)
        self._last = max((p.partition_id for p in there), default=-1)
        self.chosen = chosen_buckets(scan.info, source, there)

    def still_there(self, losses: Losses, known: Mapping[Bucket, int]) -> dict[Bucket, int]:
        """Return those of the known buckets that the table still has.

        Raises FlussError for those that the options leave out now, whatever is done about losses:
        a stream that passed over them would have no rows of them any more, or have them twice. It
        raises for partitions that were dropped where losses are to fail.
        """
        left_out = sorted((known.keys() & set(self._all)) - set(self.chosen), key=str)
        if left_out:
            raise invalid(
                f"the stream of table {self._scan.path} has read bucket"
                f" {listed(map(str, left_out))} so far, which {_told(self._options())} leaves out:"
                " a stream reads the same buckets for as long as it uses a checkpoint. Give the"
                " options that it began with, or start over with another checkpoint, with"
                " starting.offsets behind what was read"
            )
        return without_dropped(losses, self._scan.path, known, self._all)

    def require_once_there(self, start: Mapping[str, Any], known: Mapping[Bucket, int]) -> None:
        """Raise for partitions that the options name, and that the stream cannot have lost.

        It has read them, or its checkpoint says that it was to, where they were dropped since.
        """
        named = {bucket.partition_name for bucket in known}
        named.update((start.get("only") or {}).get("partitions") or ())
        never = tuple(name for name in self._gone if name not in named)
        choose_partitions(self._scan.info, self._there, never)

    def require_new(self, start: Mapping[str, Any], known: Mapping[Bucket, int]) -> None:
        """Raise for chosen buckets that the stream passed over so far.

        They would be read from their beginning, wherever the stream began. New ones are: those of
        partitions that came later.
        """
        missing = [bucket for bucket in self.chosen if bucket not in known]
        if "only" in start:
            only = start["only"]
            passed = [b for b in missing if only is not None and _was_passed_over(only, b)]
        else:
            # earlier releases did not write down what was chosen; a partition has all its buckets
            # from its beginning
            only, begun = None, {bucket.partition_id for bucket in known}
            passed = [b for b in missing if b.partition_id in begun]
        if passed:
            by = "options 'buckets' or 'partitions'" if only is None else _told(only)
            raise invalid(
                f"the stream of table {self._scan.path} has passed over bucket"
                f" {listed(map(str, passed))} so far, by {by}, and where to begin there is not"
                " known: a stream reads the same buckets for as long as it uses a checkpoint. Give"
                " the options that it began with, and read these buckets by a stream of their own"
            )

    def only(self, start: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what a checkpoint says of the options that choose; None where they choose all.

        With it goes the last partition there was when the stream began: later ones are new,
        whatever the options say.
        """
        options = self._options()
        if not any(options.values()):
            return None
        before = start.get("only") or {}
        return {**options, "last": before.get("last", self._last)}

    def _options(self) -> dict[str, Any]:
        given = self._scan.options
        return {
            name: None if value is None else list(value)
            for name, value in (("buckets", given.buckets), ("partitions", given.partitions))
        }


def _was_passed_over(only: Mapping[str, Any], bucket: Bucket) -> bool:
    """Whether the options that a checkpoint tells of had left out a bucket that was there."""
    buckets, partitions = only["buckets"], only["partitions"]
    chosen = (buckets is None or bucket.bucket_id in buckets) and (
        partitions is None or bucket.partition_name in partitions
    )
    came_later = bucket.partition_id is not None and bucket.partition_id > only["last"]
    return not chosen and not came_later


def _told(options: Mapping[str, Any]) -> str:
    return " and ".join(
        f"option '{name}' with '{','.join(map(str, options[name]))}'"
        for name in ("buckets", "partitions")
        if options[name] is not None
    )
