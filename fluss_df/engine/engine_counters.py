"""The counters of an embedded engine: requests, connections and tables."""

from __future__ import annotations

from dataclasses import dataclass, field

from fluss_df.observe.counters import Counts, Durations, Tables


@dataclass(eq=False, slots=True, weakref_slot=True)
class EngineCounters:
    """Counters of one engine, which only grow.

    Attributes
    ----------
    requests
        How long requests took, by their names, waiting for rows or for the disk included.
    flushes
        How long it took to bring what was written to the disk, of buckets of log tables
        (``log``) and of primary-key tables (``kv``).
    tables
        By table: ``messages_in``, ``bytes_in`` and ``bytes_out``, rows and bytes as they come from
        clients and go to them.
    bytes_in, bytes_out
        Bytes of sockets; requests of this process pass through none. Used by the event loop alone,
        as are the counters that follow.
    connections_accepted, connections_refused
        Connections that were let in, and those that the limits kept out.
    """

    requests: Durations = field(default_factory=lambda: Durations("requests"))
    flushes: Durations = field(default_factory=lambda: Durations("flushes"))
    tables: Tables = field(default_factory=Tables)
    bytes_in: int = 0
    bytes_out: int = 0
    connections_accepted: int = 0
    connections_refused: int = 0

    def counts(self) -> Counts:
        """Return all counters, as their exporter takes them."""
        requests = self.requests.counts()
        plain: Counts = {
            ("logins_refused",): requests.get(("requests.errors", "AUTHENTICATE"), 0),
            ("bytes_in",): self.bytes_in,
            ("bytes_out",): self.bytes_out,
            ("connections_accepted",): self.connections_accepted,
            ("connections_refused",): self.connections_refused,
        }
        return plain | requests | self.flushes.counts() | self.tables.counts()
