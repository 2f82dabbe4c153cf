"""Requests of tiering services, and for the newest lake snapshot of a table.

How far a table is tiered stands in the file of the table, which is durable before an answer. So it
is kept twice, is part of each backup, and goes with the table.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from fluss_df.engine.engine import Engine
from fluss_df.engine.lake.tiering_states import TieringStates
from fluss_df.engine.tables.tables import Table, now_ms
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.message_parts import partition_of, path_message, path_of, set_error

# offsets of rounds that may still be committed: more are of services that ended
_MOST_PREPARED: Final = 8
# epochs are of the type int32
_MOST_EPOCH: Final = 2**31

# [partition id or None, bucket, offset]
_Offsets = list[list[int | None]]


class LakeRequests:
    """Answers them from the catalog of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._states = TieringStates(engine.catalog.all_tables)
        self._epoch: int | None = None
        # the first heartbeats of two services may come at once, and are to have one epoch
        self._first = threading.Lock()
        # what a table says of its lake is read, changed and written by one request at a time
        self._changing = threading.Lock()

    def handlers(self) -> list[tuple[api.Api[Any, Any], Callable[..., Any]]]:
        """Return what answers each kind of request."""
        return [
            (api.GET_LAKE_SNAPSHOT, self._snapshot),
            (api.LAKE_TIERING_HEARTBEAT, self._heartbeat),
            (api.PREPARE_LAKE_TABLE_SNAPSHOT, self._prepare),
            (api.COMMIT_LAKE_TABLE_SNAPSHOT, self._commit),
        ]

    def _snapshot(self, request: pb.GetLakeSnapshotRequest) -> pb.GetLakeSnapshotResponse:
        table = self._engine.catalog.table(path_of(request.table_path))
        snapshot = table.lake.get("snapshot")
        asked = request.snapshot_id if request.HasField("snapshot_id") else None
        if snapshot is None or asked not in (None, snapshot["id"]):
            which = "" if asked is None else f", snapshot id: {asked}"
            raise FlussError(
                f"Lake table snapshot doesn't exist for table: {table.path}, table id: {table.id}"
                f"{which}",
                ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
            )
        lake = self._engine.lake
        problem = None if lake is None else lake.problem_of(table.path)
        if problem is not None:
            raise FlussError(
                f"table {table.path}: the lake of the folder cannot be used: {problem};"
                " lake=False reads what Fluss itself has",
                ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
            )
        response = pb.GetLakeSnapshotResponse(table_id=table.id, snapshot_id=snapshot["id"])
        for partition, bucket, offset in snapshot["offsets"]:
            response.bucket_snapshots.add(
                partition_id=partition, bucket_id=bucket, log_offset=offset
            )
        return response

    # ---- which tables are due

    def _heartbeat(
        self, request: pb.LakeTieringHeartbeatRequest
    ) -> pb.LakeTieringHeartbeatResponse:
        with self._first:
            if self._epoch is None:
                # a number that no owner of the folder had before
                self._epoch = self._engine.catalog.writer_id() % _MOST_EPOCH
        again = set(request.force_finished_tables)
        states = self._states
        response = pb.LakeTieringHeartbeatResponse(coordinator_epoch=self._epoch)
        self._report(request.failed_tables, response.failed_table_resp, states.fail)
        self._report(request.tiering_tables, response.tiering_table_resp, states.renew)
        self._report(
            request.finished_tables,
            response.finished_table_resp,
            lambda table_id, epoch: states.finish(table_id, epoch, again=table_id in again),
        )
        lake = self._engine.lake
        if request.request_table and lake is not None and lake.problem is None:
            found = states.request(lambda path: lake.problem_of(path) is None)
            if found is not None:
                table, epoch = found
                response.tiering_table.table_id = table.id
                response.tiering_table.tiering_epoch = epoch
                response.tiering_table.table_path.CopyFrom(path_message(table.path))
        return response

    def _report(
        self,
        reports: Iterable[pb.HeartbeatForTable],
        answers: Any,
        function: Callable[[int, int], None],
    ) -> None:
        for report in reports:
            answer = answers.add(table_id=report.table_id)
            try:
                if report.coordinator_epoch != self._epoch:
                    raise FlussError(
                        f"The coordinator epoch {report.coordinator_epoch} is not match current"
                        f" coordinator epoch {self._epoch} for table {report.table_id}.",
                        ErrorCode.INVALID_COORDINATOR_EXCEPTION,
                    )
                function(report.table_id, report.tiering_epoch)
            except FlussError as error:
                set_error(answer.error, error)

    # ---- how far they are tiered

    def _prepare(
        self, request: pb.PrepareLakeTableSnapshotRequest
    ) -> pb.PrepareLakeTableSnapshotResponse:
        response = pb.PrepareLakeTableSnapshotResponse()
        for asked in request.bucket_offsets:
            answer = response.prepare_lake_table_resp.add(table_id=asked.table_id)
            try:
                table = self._table(asked.table_id)
                ends = {
                    (partition_of(entry), entry.bucket_id): entry.log_end_offset
                    for entry in asked.bucket_offsets
                }
                self._sync(table, ends)
                name = uuid.uuid4().hex
                with self._changing:
                    offsets: dict[tuple[int | None, int], int] = {}
                    if not request.ignore_previous_table_offsets:
                        old: _Offsets = table.lake.get("snapshot", {}).get("offsets", [])
                        offsets = {(p, int(b or 0)): int(o or 0) for p, b, o in old}
                    offsets |= ends
                    prepared = list(table.lake.get("prepared", {}).items())[1 - _MOST_PREPARED :]
                    prepared.append((name, [[p, b, offset] for (p, b), offset in offsets.items()]))
                    self._engine.catalog.set_lake(table, {**table.lake, "prepared": dict(prepared)})
                # like the paths in remote storage: readers look for the table's id in it
                answer.lake_table_offsets_path = (
                    f"lake/{table.path.database_name}/{table.path.table_name}-{table.id}"
                    f"/metadata/{name}.offsets"
                )
            except FlussError as error:
                set_error(answer, error)
        return response

    def _sync(self, table: Table, ends: Mapping[tuple[int | None, int], int]) -> None:
        """Have the disk hold the rows that the lake is about to have.

        After a loss of power other rows would get the offsets of those that it did not hold, and
        be left out as if they were in the lake.
        """
        for (partition, bucket), end in ends.items():
            try:
                _, tablet = self._engine.bucket(TableBucket(table.id, bucket, partition))
            except FlussError as error:
                # nothing of a partition that was dropped meanwhile is read again
                if error.error_code != ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION:
                    raise
            else:
                if tablet.synced_offset < end:
                    tablet.sync()

    def _commit(
        self, request: pb.CommitLakeTableSnapshotRequest
    ) -> pb.CommitLakeTableSnapshotResponse:
        response = pb.CommitLakeTableSnapshotResponse()
        for asked in request.lake_table_snapshot_metadata:
            answer = response.table_resp.add(table_id=asked.table_id)
            try:
                with self._changing:
                    self._take(asked)
            except FlussError as error:
                set_error(answer, error)
        return response

    def _take(self, asked: pb.LakeTableSnapshotMetadata) -> None:
        """Bring a snapshot to the disk; one that is there already is left as it is."""
        table = self._table(asked.table_id)
        path = asked.tiered_bucket_offsets_file_path
        name = path.rpartition("/")[2].removesuffix(".offsets")
        snapshot = table.lake.get("snapshot", {})
        if snapshot.get("id") == asked.snapshot_id and snapshot.get("name") == name:
            return
        prepared = table.lake.get("prepared", {})
        if name not in prepared or f"-{table.id}/" not in path:
            raise FlussError(
                f"the offsets {path} of lake snapshot {asked.snapshot_id} of table {table.path} are"
                " not known: prepare them again",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        taken = {"id": asked.snapshot_id, "name": name, "offsets": prepared[name], "time": now_ms()}
        left = {key: value for key, value in prepared.items() if key != name}
        self._engine.catalog.set_lake(table, {"snapshot": taken, "prepared": left})
        if self._engine.lake is not None:
            self._engine.lake.committed(table.path)

    def _table(self, table_id: int) -> Table:
        table = self._engine.catalog.table_by_id(table_id)
        if table is None:
            raise FlussError(f"The table {table_id} doesn't exist.", ErrorCode.TABLE_NOT_EXIST)
        return table
