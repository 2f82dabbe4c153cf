"""``fluss-df create``, ``drop`` and ``alter``: databases, tables and partitions."""

from __future__ import annotations

from typing import Annotated

import typer

from fluss_df.cli.base.console import errors_as_messages
from fluss_df.cli.base.options import Connection, Table, open_existing, open_table, split_names
from fluss_df.cli.commands.admin.words import (
    IfExists,
    IfNotExists,
    Properties,
    Reset,
    Set,
    Spec,
    Yes,
    ask,
    pairs,
)
from fluss_df.cli.loading.guessing import parse_schema
from fluss_df.client.connection import resolve_connection
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import DatabaseDescriptor
from fluss_df.schema import Schema, TableDescriptor

create = typer.Typer(
    help="Create a database, a table or a partition.", no_args_is_help=True, add_completion=False
)
drop = typer.Typer(
    help="Drop a database, a table or a partition.", no_args_is_help=True, add_completion=False
)
alter = typer.Typer(
    help="Change a database or a table.", no_args_is_help=True, add_completion=False
)

Database = Annotated[str, typer.Argument(metavar="DATABASE", help="Its name.")]
Comment = Annotated[str | None, typer.Option(help="A comment.", show_default="none")]
Names = "NAME,NAME"


# ---- create


@create.command("database")
def create_database(
    database: Database,
    comment: Comment = None,
    property: Properties = None,
    if_not_exists: IfNotExists = False,
    connection: Connection = None,
) -> None:
    """Create a database."""
    with errors_as_messages():
        descriptor = DatabaseDescriptor(comment, pairs(property or (), "--property"))
        admin = resolve_connection(connection).get_admin()
        admin.create_database(database, descriptor, ignore_if_exists=if_not_exists)
        typer.echo(f"database {database} is there")


@create.command("table")
def create_table(
    table: Table,
    schema: Annotated[
        str, typer.Option(metavar="'NAME TYPE, ...'", help="Its columns, as in 'id INT, day DATE'.")
    ],
    primary_key: Annotated[
        str | None, typer.Option(metavar=Names, help="Columns of the primary key.")
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option(metavar=Names, help="Columns of the partitions.")
    ] = None,
    buckets: Annotated[
        int | None, typer.Option(min=1, help="How many buckets.", show_default="of the cluster")
    ] = None,
    bucket_key: Annotated[
        str | None,
        typer.Option(
            metavar=Names, help="Columns that say the bucket.", show_default="the primary key"
        ),
    ] = None,
    comment: Comment = None,
    property: Properties = None,
    if_not_exists: IfNotExists = False,
    connection: Connection = None,
) -> None:
    """Create a table."""
    with errors_as_messages():
        opened, path = open_table(connection, table, may_be_new=True)
        columns = parse_schema(schema)
        given = pairs(property or (), "--property")
        descriptor = TableDescriptor(
            Schema.from_columns(columns, split_names(primary_key) or ()),
            partition_keys=split_names(partition_by) or [],
            bucket_count=buckets,
            bucket_keys=split_names(bucket_key) or [],
            comment=comment,
            properties={k: v for k, v in given.items() if k.startswith("table.")},
            custom_properties={k: v for k, v in given.items() if not k.startswith("table.")},
        )
        opened.get_admin().create_table(path, descriptor, ignore_if_exists=if_not_exists)
        typer.echo(f"table {path} is there")


@create.command("partition")
def create_partition(
    table: Table, spec: Spec, if_not_exists: IfNotExists = False, connection: Connection = None
) -> None:
    """Create a partition of a table."""
    with errors_as_messages():
        opened, path = open_table(connection, table)
        values = pairs(spec, "partition")
        opened.get_admin().create_partition(path, values, ignore_if_exists=if_not_exists)
        typer.echo(f"partition {_named(values)} of table {path} is there")


# ---- drop


@drop.command("database")
def drop_database(
    database: Database,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="With all its tables; else it must be empty.")
    ] = False,
    if_exists: IfExists = False,
    yes: Yes = False,
    connection: Connection = None,
) -> None:
    """Drop a database."""
    with errors_as_messages():
        admin = open_existing(connection).get_admin()
        if if_exists and not admin.database_exists(database):
            typer.echo(f"there is no database {database}")
            return
        tables = admin.list_tables(database)
        if tables and not cascade:
            raise FlussError(
                f"database {database} has {len(tables)} tables: --cascade drops them, too",
                ErrorCode.DATABASE_NOT_EMPTY,
            )
        lost = f" with its {len(tables)} tables and all their data" if tables else ""
        ask(f"Drop database {database}{lost}?", yes=yes)
        admin.drop_database(database, ignore_if_not_exists=if_exists, cascade=cascade)
        typer.echo(f"dropped database {database}")


@drop.command("table")
def drop_table(
    table: Table, if_exists: IfExists = False, yes: Yes = False, connection: Connection = None
) -> None:
    """Drop a table with all its data."""
    with errors_as_messages():
        opened, path = open_table(connection, table)
        admin = opened.get_admin()
        if if_exists and not (
            admin.database_exists(path.database_name) and admin.table_exists(path)
        ):
            typer.echo(f"there is no table {path}")
            return
        # raises where the table does not exist, and names those that do
        admin.get_table_info(path)
        ask(f"Drop table {path} with all its data?", yes=yes)
        admin.drop_table(path, ignore_if_not_exists=if_exists)
        typer.echo(f"dropped table {path}")


@drop.command("partition")
def drop_partition(
    table: Table,
    spec: Spec,
    if_exists: IfExists = False,
    yes: Yes = False,
    connection: Connection = None,
) -> None:
    """Drop a partition of a table with all its data."""
    with errors_as_messages():
        opened, path = open_table(connection, table)
        admin = opened.get_admin()
        values = pairs(spec, "partition")
        ask(f"Drop partition {_named(values)} of table {path} with all its data?", yes=yes)
        admin.drop_partition(path, values, ignore_if_not_exists=if_exists)
        typer.echo(f"dropped partition {_named(values)} of table {path}")


# ---- alter


@alter.command("database")
def alter_database(
    database: Database,
    set: Set = None,
    reset: Reset = None,
    comment: Comment = None,
    connection: Connection = None,
) -> None:
    """Change the comment and the properties of a database (servers of 1.0 and later)."""
    with errors_as_messages():
        open_existing(connection).get_admin().alter_database(
            database,
            comment=comment,
            set_properties=pairs(set or (), "--set"),
            reset_properties=reset or (),
        )
        typer.echo(f"changed database {database}")


@alter.command("table")
def alter_table(
    table: Table,
    add_columns: Annotated[
        str | None,
        typer.Option(
            metavar="'NAME TYPE, ...'", help="Columns to add behind the others; they may be null."
        ),
    ] = None,
    set: Set = None,
    reset: Reset = None,
    connection: Connection = None,
) -> None:
    """Add columns to a table, and change its properties."""
    with errors_as_messages():
        opened, path = open_table(connection, table)
        if not (add_columns or set or reset):
            raise FlussError(
                f"nothing to change in table {path}: give --add-columns, --set or --reset"
            )
        opened.get_admin().alter_table(
            path,
            add_columns=parse_schema(add_columns, "--add-columns") if add_columns else None,
            set_properties=pairs(set or (), "--set"),
            reset_properties=reset or (),
        )
        typer.echo(f"changed table {path}")


def _named(values: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
