"""Databases: the part of the admin about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fluss_df.client.admin.checks import unicode
from fluss_df.client.admin.results import DatabaseSummary
from fluss_df.client.cluster.table_requests import changing, config_changes
from fluss_df.client.runtime.awaitable import blocking
from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import DatabaseDescriptor, DatabaseInfo, check_name
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb


class DatabaseAdmin(TableQuestions):
    """Creates, changes, drops and lists databases."""

    @blocking
    async def create_database(
        self,
        name: str,
        database_descriptor: DatabaseDescriptor | None = None,
        ignore_if_exists: bool = False,
    ) -> None:
        """Create a database."""
        check_name(name, "database")
        request = pb.CreateDatabaseRequest(
            database_name=name, ignore_if_exists=bool(ignore_if_exists)
        )
        if database_descriptor is not None:
            if not isinstance(database_descriptor, DatabaseDescriptor):
                raise FlussError(
                    f"database {name}: invalid descriptor {database_descriptor!r}: expected a"
                    " DatabaseDescriptor"
                )
            unicode(database_descriptor.comment or "", "comment")
            request.database_json = database_descriptor.to_json()
        await self._cluster.request_coordinator(
            api.CREATE_DATABASE, request, done_by_lost_try=ErrorCode.DATABASE_ALREADY_EXIST
        )

    @blocking
    async def alter_database(
        self,
        name: str,
        *,
        comment: str | None = None,
        set_properties: Mapping[str, object] | None = None,
        reset_properties: Iterable[str] = (),
        ignore_if_not_exists: bool = False,
    ) -> None:
        """Change the comment and the custom properties of a database (servers of 1.0 and later).

        Parameters
        ----------
        name
            The database.
        comment
            A new comment; None to keep the old one.
        set_properties, reset_properties
            Custom properties to set, and to remove.
        ignore_if_not_exists
            Whether a database that does not exist is no error.

        Raises
        ------
        FlussError
            ``UNSUPPORTED_VERSION`` when the server does not know this request.
        """
        request = pb.AlterDatabaseRequest(
            database_name=check_name(name, "database"),
            ignore_if_not_exists=bool(ignore_if_not_exists),
            config_changes=config_changes(set_properties, reset_properties),
            comment=None if comment is None else unicode(comment, "comment"),
        )
        if comment is None and not request.config_changes:
            raise FlussError(
                f"nothing to change in database {name}: give comment, set_properties or"
                " reset_properties"
            )
        await self._cluster.request_coordinator(api.ALTER_DATABASE, request)

    @blocking
    async def drop_database(
        self, name: str, ignore_if_not_exists: bool = False, cascade: bool = True
    ) -> None:
        """Drop a database; with ``cascade`` its tables too, else it must be empty."""
        request = pb.DropDatabaseRequest(
            database_name=unicode(name, "database name"),
            ignore_if_not_exists=bool(ignore_if_not_exists),
            cascade=bool(cascade),
        )
        with changing():
            await self._cluster.request_coordinator(
                api.DROP_DATABASE, request, done_by_lost_try=ErrorCode.DATABASE_NOT_EXIST
            )

    @blocking
    async def list_databases(self) -> list[str]:
        """Return the names of all databases, sorted."""
        response = await self._cluster.request_any(api.LIST_DATABASES, pb.ListDatabasesRequest())
        return sorted(response.database_name)

    @blocking
    async def list_database_summaries(self) -> list[DatabaseSummary]:
        """Return all databases with their number of tables, sorted by name; in one request."""
        response = await self._cluster.request_any(
            api.LIST_DATABASES, pb.ListDatabasesRequest(include_summary=True)
        )
        found = [
            DatabaseSummary(each.database_name, each.created_time, each.table_count)
            for each in response.database_summary
        ]
        return sorted(found, key=lambda each: each.database_name)

    @blocking
    async def database_exists(self, name: str) -> bool:
        """Return whether there is such a database."""
        response = await self._cluster.request_any(
            api.DATABASE_EXISTS,
            pb.DatabaseExistsRequest(database_name=unicode(name, "database name")),
        )
        return response.exists

    @blocking
    async def get_database_info(self, name: str) -> DatabaseInfo:
        """Return what is known of a database."""
        response = await self._cluster.request_any(
            api.GET_DATABASE_INFO,
            pb.GetDatabaseInfoRequest(database_name=unicode(name, "database name")),
        )
        return DatabaseInfo(
            name,
            DatabaseDescriptor.from_json(response.database_json),
            response.created_time,
            response.modified_time,
        )
