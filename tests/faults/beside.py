"""A server whose traffic can be broken, for programs of either client."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.cluster.pytest_plugin import ClusterFactory
from tests.client.put_recorder import recorded_cluster
from tests.client.support import Tables
from tests.faults.fault_cases import FRAMES, ROWS, SCHEMA, Case, frames, run_program
from tests.faults.fault_proxy import FETCH_LOG, PRODUCE_LOG, FaultProxy

ALL = list(range(FRAMES * ROWS))


@dataclass
class Beside:
    """Runs cases."""

    address: str
    coordinator: FaultProxy
    proxy: FaultProxy
    tables: Tables
    direct: fluss.FlussConnection

    def run(self, case: Case, client: str, timeout_s: float = 60) -> dict[str, Any]:
        """Run a case; ``rows`` of the answer says what became of the rows."""
        table = self.tables(SCHEMA)
        path = table.get_table_path()
        if case.does == "read":
            with self.direct.get_table(path).new_append().create_writer() as writer:
                for frame in frames():
                    writer.write_arrow_batch(frame)
                    writer.flush()
        key = PRODUCE_LOG if case.does == "write" else FETCH_LOG
        plain = self.proxy.rewrite
        answers = itertools.count(1)
        assert plain is not None

        def rewrite(api_key: int, frame: bytes) -> bytes:
            if api_key == key and case.rewrite is not None and next(answers) == 3:
                return case.rewrite(frame)
            return plain(api_key, frame)

        rules = [] if case.rule is None else [case.rule()]
        self.proxy.rules[:] = rules
        self.proxy.rewrite = rewrite
        try:
            seen = run_program(client, case.does, self.address, str(path), timeout_s)
        finally:
            self.proxy.rewrite = plain
            self.proxy.rules.clear()
        seen["hit"] = all(rule.hits for rule in rules) and (
            case.rewrite is None or next(answers) > 3
        )
        ids = seen.pop("ids")
        if case.does == "write":
            scanner = self.direct.get_table(path).new_scan().create_record_batch_log_scanner()
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            ids = scanner.to_arrow().column("id").to_pylist()
        seen["rows"] = _verdict(ids, case.does)
        return seen


def _verdict(ids: list[int] | None, does: str) -> str:
    if ids is None:
        return "none returned"
    if ids == ALL:
        return "each once"
    doubled, lost = len(ids) - len(set(ids)), len(set(ALL) - set(ids))
    parts = [f"{lost} {'not written' if does == 'write' else 'missing'}"] if lost else []
    parts += [f"{doubled} doubled"] if doubled else []
    return ", ".join(parts) or "another order"


@contextlib.contextmanager
def beside(factory: ClusterFactory | type[LocalCluster]) -> Iterator[Beside]:
    """Start a cluster behind proxies."""
    with recorded_cluster(factory) as recorded:
        address = recorded.tables.connection.config.bootstrap_servers
        with fluss.connect(recorded.cluster.bootstrap_servers) as direct:
            proxies = recorded.coordinator, recorded.proxy
            yield Beside(address, *proxies, recorded.tables, direct)
