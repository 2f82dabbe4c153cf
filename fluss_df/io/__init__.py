"""Polars over Fluss: lazy scans that fetch only what a query needs, and sinks."""

from fluss_df.io.lookup_join import lookup_join
from fluss_df.io.runs.micro_batches import MicroBatch, MicroBatches
from fluss_df.io.runs.runner import RunResult, run
from fluss_df.io.scan import count, explain, fetched, read_fluss, scan_fluss
from fluss_df.io.scans.report import ScanReport, last_scan, track_scans
from fluss_df.io.sinks.sink import SinkResult, sink_fluss, write_fluss

__all__ = [
    "MicroBatch",
    "MicroBatches",
    "RunResult",
    "ScanReport",
    "SinkResult",
    "count",
    "explain",
    "fetched",
    "last_scan",
    "lookup_join",
    "read_fluss",
    "run",
    "scan_fluss",
    "sink_fluss",
    "track_scans",
    "write_fluss",
]
