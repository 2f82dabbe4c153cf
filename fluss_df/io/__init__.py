"""Polars over Fluss: lazy scans that fetch only what a query needs, and sinks.

Its modules are imported when their names are used. If the package imported them, two threads that
use Fluss for the first time, one through the package and one through a module, would each wait for
what the other imports.
"""

from typing import TYPE_CHECKING

from fluss_df.lazy import lazy_names

if TYPE_CHECKING:
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

if not TYPE_CHECKING:
    # the names, and the modules that have them
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "lookup_join": "lookup_join",
            "runs.micro_batches": "MicroBatch MicroBatches",
            "runs.runner": "RunResult run",
            "scan": "count explain fetched read_fluss scan_fluss",
            "scans.report": "ScanReport last_scan track_scans",
            "sinks.sink": "SinkResult sink_fluss write_fluss",
        },
    )
