"""Which tables a user can name."""

from __future__ import annotations

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TablePath


def list_tables(opened: FlussConnection) -> list[TablePath]:
    """Return the tables of all databases that are listed, and of the connection's own database.

    Who may read one table alone is not told of its database, and still sees the table in it.
    """
    admin = opened.get_admin()
    databases = admin.list_databases()
    own = opened.default_database or TablePath.parse("any").database_name
    found = [
        TablePath(database, table)
        for database in databases
        for table in admin.list_tables(database)
    ]
    if own not in databases:
        try:
            found += [TablePath(own, table) for table in admin.list_tables(own)]
        except FlussError as error:
            if error.error_code not in (
                ErrorCode.DATABASE_NOT_EXIST,
                ErrorCode.AUTHORIZATION_EXCEPTION,
            ):
                raise
    return found
