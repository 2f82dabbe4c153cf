"""``fluss-df acl``: who may do what on a server with an authorizer."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from fluss_df.cli.base.console import errors_as_messages, out
from fluss_df.cli.base.options import AsJson, Connection, open_existing
from fluss_df.cli.commands.tables import show_rows
from fluss_df.errors import FlussError
from fluss_df.protocol.acl import (
    WILDCARD,
    AccessControlEntryFilter,
    AclBinding,
    AclBindingFilter,
    FlussPrincipal,
    OperationType,
    Resource,
    ResourceFilter,
    ResourceType,
)

app = typer.Typer(help="Say who may do what (needs a server with an authorizer).")

_RESOURCE = "cluster, database:NAME or table:DATABASE.NAME"
_NAMES = ", ".join(each.name for each in OperationType if each != OperationType.ANY)

OfPrincipal = Annotated[
    str | None,
    typer.Option("--principal", help="Of this user only; '*' is everyone.", show_default="any"),
]
OnResource = Annotated[
    str | None,
    typer.Option(
        "--resource",
        help=f"On this one only: {_RESOURCE}; a type alone for all of that type.",
        show_default="any",
    ),
]
OfOperation = Annotated[
    str | None, typer.Option("--operation", help=f"One of {_NAMES}.", show_default="any")
]
FromHost = Annotated[
    str | None, typer.Option("--host", help="For this address only.", show_default="any")
]


@app.command("list")
def list_(
    principal: OfPrincipal = None,
    resource: OnResource = None,
    operation: OfOperation = None,
    host: FromHost = None,
    connection: Connection = None,
    as_json: AsJson = False,
) -> None:
    """List rights: of the resources that you may describe."""
    with errors_as_messages():
        wanted = _filter(principal, resource, operation, host)
        found = open_existing(connection).get_admin().list_acls(wanted)
        show_rows([_row(each) for each in found], as_json=as_json, nothing="no rights")


@app.command()
def create(
    principal: Annotated[
        str, typer.Option("--principal", help="The user; '*' for everyone.", show_default=False)
    ],
    operation: Annotated[
        list[str],
        typer.Option("--operation", help=f"One of {_NAMES}; repeat for more.", show_default=False),
    ],
    resource: Annotated[
        str, typer.Option("--resource", help=f"{_RESOURCE}; '*' is every name.", show_default=False)
    ],
    host: Annotated[str, typer.Option("--host", help="The address they come from.")] = WILDCARD,
    connection: Connection = None,
) -> None:
    """Let a user do something."""
    with errors_as_messages():
        where = Resource.parse(resource)
        bindings = [
            AclBinding.allow(principal, OperationType.parse(each), where, host)
            for each in operation
        ]
        open_existing(connection).get_admin().create_acls(bindings)
        for binding in bindings:
            out.print(escape(str(binding)))


@app.command()
def drop(
    principal: OfPrincipal = None,
    resource: OnResource = None,
    operation: OfOperation = None,
    host: FromHost = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Drop every right, where nothing else is said.")
    ] = False,
    connection: Connection = None,
) -> None:
    """Take rights away, and list them."""
    with errors_as_messages():
        wanted = _filter(principal, resource, operation, host)
        if wanted == AclBindingFilter() and not everything:
            raise FlussError(
                "which rights? Give --principal, --resource, --operation or --host; --all drops"
                " every right of everyone"
            )
        dropped = open_existing(connection).get_admin().drop_acls([wanted])
        for binding in dropped:
            out.print(f"dropped: {escape(str(binding))}")
        if not dropped:
            out.print("[dim]no such rights[/]")


def _filter(
    principal: str | None, resource: str | None, operation: str | None, host: str | None
) -> AclBindingFilter:
    which = ResourceFilter()
    if resource is not None:
        kind, named, _ = resource.partition(":")
        # "table:" has an empty name, as from a script's empty variable: it is not all tables
        if named or ResourceType.parse(kind) == ResourceType.CLUSTER:
            known = Resource.parse(resource)
            which = ResourceFilter(known.type, known.name)
        else:
            which = ResourceFilter(ResourceType.parse(kind))
    return AclBindingFilter(
        which,
        AccessControlEntryFilter(
            None if principal is None else FlussPrincipal.parse(principal),
            host,
            OperationType.ANY if operation is None else OperationType.parse(operation),
        ),
    )


def _row(binding: AclBinding) -> dict[str, Any]:
    entry = binding.access_control_entry
    return {
        "principal": str(entry.principal),
        "operation": entry.operation_type.name,
        "resource": str(binding.resource),
        "host": entry.host,
    }
