"""Creating tables on a server whose coordinator may miss one."""

from collections.abc import Callable
from typing import Any

from fluss_df.metadata import TablePath
from fluss_df.schema import TableDescriptor
from tests.client.support import Tables


def patient(con: Any) -> Callable[..., None]:
    """Return what creates tables, and again where the server's coordinator missed one.

    Fluss 0.9.1 has a race there, after which a table never has a leader.
    """
    tables = Tables(con.connection, con.current_database)

    def create(
        path: TablePath, descriptor: TableDescriptor, *, if_not_exists: bool = False
    ) -> None:
        admin = con.connection.get_admin()
        while True:
            admin.create_table(path, descriptor, if_not_exists)
            if descriptor.partition_keys or tables.has_leader(path):
                return
            admin.drop_table(path)

    return create
