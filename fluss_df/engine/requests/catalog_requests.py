"""Requests for databases, tables and partitions."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from fluss_df.engine.auto_partitions import keep_partitions
from fluss_df.engine.catalog.alter import altered, altered_database, checked_columns
from fluss_df.engine.engine import Engine
from fluss_df.engine.lake.lake_of_table import has_lake, shown
from fluss_df.engine.requests.cluster_requests import ClusterRequests
from fluss_df.engine.tables.tables import Table
from fluss_df.errors import FlussError
from fluss_df.metadata import TablePath
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.message_parts import path_of
from fluss_df.types import Column


class CatalogRequests:
    """Answers them from the catalog of an engine."""

    def __init__(self, engine: Engine, cluster: ClusterRequests) -> None:
        self._engine = engine
        self._cluster = cluster
        # An alteration is made from what there is, and replaces that: of two at once, the second
        # would undo the first, whose peer was told that it is done.
        self._altering = threading.Lock()

    def handlers(self) -> list[tuple[api.Api[Any, Any], Callable[..., Any]]]:
        """Return what answers each kind of request."""
        return [
            (api.CREATE_DATABASE, self._create_database),
            (api.ALTER_DATABASE, self._alter_database),
            (api.DROP_DATABASE, self._drop_database),
            (api.LIST_DATABASES, self._list_databases),
            (api.DATABASE_EXISTS, self._database_exists),
            (api.GET_DATABASE_INFO, self._database_info),
            (api.CREATE_TABLE, self._create_table),
            (api.DROP_TABLE, self._drop_table),
            (api.ALTER_TABLE, self._alter_table),
            (api.GET_TABLE_INFO, self._table_info),
            (api.LIST_TABLES, self._list_tables),
            (api.TABLE_EXISTS, self._table_exists),
            (api.GET_TABLE_SCHEMA, self._table_schema),
            (api.CREATE_PARTITION, self._create_partition),
            (api.DROP_PARTITION, self._drop_partition),
            (api.LIST_PARTITION_INFOS, self._list_partitions),
        ]

    # ---- databases

    def _create_database(self, request: pb.CreateDatabaseRequest) -> pb.CreateDatabaseResponse:
        self._engine.catalog.create_database(
            request.database_name, request.ignore_if_exists, request.database_json
        )
        return pb.CreateDatabaseResponse()

    def _alter_database(self, request: pb.AlterDatabaseRequest) -> pb.AlterDatabaseResponse:
        catalog, name = self._engine.catalog, request.database_name
        if request.ignore_if_not_exists and not catalog.has_database(name):
            return pb.AlterDatabaseResponse()
        with self._altering:
            changed = altered_database(catalog.database(name).descriptor, request)
            if changed is not None:
                catalog.alter_database(name, changed)
        return pb.AlterDatabaseResponse()

    def _drop_database(self, request: pb.DropDatabaseRequest) -> pb.DropDatabaseResponse:
        dropped: list[Table] = []
        try:
            self._engine.catalog.drop_database(
                request.database_name, request.ignore_if_not_exists, request.cascade, dropped
            )
        finally:
            # also those before the one that a full disk did not let go: there is room then
            for table in dropped:
                self._engine.drop_table(table)
        return pb.DropDatabaseResponse()

    def _list_databases(self, request: pb.ListDatabasesRequest) -> pb.ListDatabasesResponse:
        catalog = self._engine.catalog
        names = catalog.databases()
        if not request.include_summary:
            return pb.ListDatabasesResponse(database_name=names)
        tables = Counter(table.path.database_name for table in catalog.all_tables())
        response = pb.ListDatabasesResponse()
        for name in names:
            # a database may be dropped meanwhile
            with contextlib.suppress(FlussError):
                response.database_summary.add(
                    database_name=name,
                    created_time=catalog.database(name).created,
                    table_count=tables[name],
                )
        return response

    def _database_exists(self, request: pb.DatabaseExistsRequest) -> pb.DatabaseExistsResponse:
        exists = self._engine.catalog.has_database(request.database_name)
        return pb.DatabaseExistsResponse(exists=exists)

    def _database_info(self, request: pb.GetDatabaseInfoRequest) -> pb.GetDatabaseInfoResponse:
        database = self._engine.catalog.database(request.database_name)
        return pb.GetDatabaseInfoResponse(
            database_json=database.descriptor.to_json(),
            created_time=database.created,
            modified_time=database.modified,
        )

    # ---- tables

    def _create_table(self, request: pb.CreateTableRequest) -> pb.CreateTableResponse:
        self._cluster.require_server()
        lake = self._engine.lake
        table = self._engine.catalog.create_table(
            path_of(request.table_path),
            request.table_json,
            request.ignore_if_exists,
            None if lake is None else lake.create,
        )
        if table is not None:
            if lake is not None and has_lake(table):
                lake.created()
            keep_partitions(self._engine, table)
        return pb.CreateTableResponse()

    def _drop_table(self, request: pb.DropTableRequest) -> pb.DropTableResponse:
        table = self._engine.catalog.drop_table(
            path_of(request.table_path), request.ignore_if_not_exists
        )
        if table is not None:
            self._engine.drop_table(table)
        return pb.DropTableResponse()

    def _alter_table(self, request: pb.AlterTableRequest) -> pb.AlterTableResponse:
        path = path_of(request.table_path)
        if (
            request.ByteSize()
            == pb.AlterTableRequest(
                table_path=request.table_path, ignore_if_not_exists=request.ignore_if_not_exists
            ).ByteSize()
        ):
            # nothing to change succeeds on a Fluss server, whatever the table
            return pb.AlterTableResponse()
        added = checked_columns(request)
        if request.ignore_if_not_exists and not self._engine.catalog.has_table(path):
            return pb.AlterTableResponse()
        with self._altering:
            self._change_table(path, request, added)
        return pb.AlterTableResponse()

    def _change_table(
        self, path: TablePath, request: pb.AlterTableRequest, added: Sequence[Column]
    ) -> None:
        table = self._engine.catalog.table(path)
        changed = altered(table, request, added)
        if changed is None:
            return
        old, new, lake = table.descriptor.schema, changed.schema, self._engine.lake
        with contextlib.ExitStack() as held:
            if new != old and lake is not None and has_lake(table):
                held.enter_context(lake.altering(path, old, new))
            self._engine.catalog.replace(table, changed)

    def _table_info(self, request: pb.GetTableInfoRequest) -> pb.GetTableInfoResponse:
        table = self._engine.catalog.table(path_of(request.table_path))
        # once: an ALTER that comes in between would give its id to columns of before
        version = table.version
        return pb.GetTableInfoResponse(
            table_id=table.id,
            schema_id=version.schema_id,
            table_json=shown(version, self._engine.lake).to_json(),
            created_time=table.created,
            modified_time=version.modified,
        )

    def _list_tables(self, request: pb.ListTablesRequest) -> pb.ListTablesResponse:
        return pb.ListTablesResponse(table_name=self._engine.catalog.tables(request.database_name))

    def _table_exists(self, request: pb.TableExistsRequest) -> pb.TableExistsResponse:
        exists = self._engine.catalog.has_table(path_of(request.table_path))
        return pb.TableExistsResponse(exists=exists)

    def _table_schema(self, request: pb.GetTableSchemaRequest) -> pb.GetTableSchemaResponse:
        wanted = request.schema_id if request.HasField("schema_id") else None
        schema_id, schema = self._engine.catalog.schema(path_of(request.table_path), wanted)
        return pb.GetTableSchemaResponse(
            schema_id=schema_id, schema_json=json.dumps(schema.to_json()).encode()
        )

    # ---- partitions

    def _create_partition(self, request: pb.CreatePartitionRequest) -> pb.CreatePartitionResponse:
        self._cluster.require_server()
        self._engine.catalog.create_partition(
            path_of(request.table_path), _spec(request.partition_spec), request.ignore_if_exists
        )
        return pb.CreatePartitionResponse()

    def _drop_partition(self, request: pb.DropPartitionRequest) -> pb.DropPartitionResponse:
        dropped = self._engine.catalog.drop_partition(
            path_of(request.table_path), _spec(request.partition_spec), request.ignore_if_not_exists
        )
        if dropped is not None:
            self._engine.drop_partition(*dropped)
        return pb.DropPartitionResponse()

    def _list_partitions(
        self, request: pb.ListPartitionInfosRequest
    ) -> pb.ListPartitionInfosResponse:
        table, partitions = self._engine.catalog.list_partitions(
            path_of(request.table_path), _spec(request.partial_partition_spec)
        )
        response = pb.ListPartitionInfosResponse()
        for partition in partitions:
            info = response.partitions_info.add(partition_id=partition.id)
            info.partition_spec.SetInParent()
            for key, value in zip(table.descriptor.partition_keys, partition.values, strict=True):
                info.partition_spec.partition_key_values.add(key=key, value=value)
        return response


def _spec(spec: pb.PartitionSpec) -> dict[str, str]:
    return {pair.key: pair.value for pair in spec.partition_key_values}
