"""``fluss-df config``, ``rebalance`` and ``health``: the cluster as such."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Annotated

import typer

from fluss_df.cli.base.console import errors_as_messages, out
from fluss_df.cli.base.options import AsJson, Connection, open_existing
from fluss_df.cli.commands.admin.words import Yes, ask, pairs
from fluss_df.cli.commands.tables import show_rows
from fluss_df.client.admin import ClusterHealthStatus, GoalType, ServerTag
from fluss_df.errors import FlussError

# exit code of health for monitors, which differs from those of errors and of click
EXIT_NOT_GREEN = 3

config = typer.Typer(
    help="Show and change the settings of a cluster.", no_args_is_help=True, add_completion=False
)
rebalance = typer.Typer(
    help="Move buckets between tablet servers, and away from some.",
    no_args_is_help=True,
    add_completion=False,
)

RebalanceId = Annotated[
    str | None, typer.Argument(metavar="ID", help="Of a rebalance.", show_default="the last one")
]
Servers = Annotated[
    list[int], typer.Argument(metavar="SERVER...", help="Ids, as `rebalance servers` lists them.")
]
Tag = Annotated[
    str,
    typer.Option(
        "--tag", metavar="TAG", help=" or ".join(tag.name.lower() for tag in ServerTag) + "."
    ),
]
_COLOURS = {
    ClusterHealthStatus.GREEN: "green",
    ClusterHealthStatus.YELLOW: "yellow",
    ClusterHealthStatus.RED: "red",
    ClusterHealthStatus.UNKNOWN: "yellow",
}


# ---- settings


@config.command("list")
def list_configs(
    changed: Annotated[
        bool, typer.Option("--changed", help="Only those that were changed while servers ran.")
    ] = False,
    connection: Connection = None,
    as_json: AsJson = False,
) -> None:
    """List the settings that are not at their default, without passwords and keys."""
    with errors_as_messages():
        entries = open_existing(connection).get_admin().describe_cluster_configs()
        rows = [
            {"key": entry.key, "value": entry.shown, "source": entry.source.value}
            for entry in entries
            if not changed or entry.source.value.startswith("DYNAMIC")
        ]
        show_rows(rows, as_json=as_json, nothing="no settings")


@config.command("set")
def set_configs(
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="Settings; all, or none.")
    ],
    connection: Connection = None,
) -> None:
    """Change settings while servers run; they stay changed after a restart."""
    with errors_as_messages():
        changes = pairs(settings, "setting")
        open_existing(connection).get_admin().alter_cluster_configs(set_configs=changes)
        typer.echo(f"set {', '.join(changes)}")


@config.command("reset")
def reset_configs(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Settings; all, or none.")],
    connection: Connection = None,
) -> None:
    """Put settings back to what the servers were started with."""
    with errors_as_messages():
        open_existing(connection).get_admin().alter_cluster_configs(reset_configs=keys)
        typer.echo(f"reset {', '.join(keys)}")


# ---- balance


@rebalance.command("servers")
def servers(connection: Connection = None, as_json: AsJson = False) -> None:
    """List the servers that are alive."""
    with errors_as_messages():
        rows = [
            {"server": node.server_type, "id": node.id, "address": node.address}
            for node in open_existing(connection).get_admin().get_server_nodes()
        ]
        show_rows(rows, as_json=as_json, nothing="no servers")


@rebalance.command("start")
def start(
    goal: Annotated[
        list[str] | None,
        typer.Option(
            "--goal",
            metavar="GOAL",
            help=f"{', '.join(each.name.lower() for each in GoalType)}; repeat for more, the most"
            " important first.",
            show_default="replica_distribution, leader_distribution",
        ),
    ] = None,
    yes: Yes = False,
    connection: Connection = None,
) -> None:
    """Have buckets moved between tablet servers."""
    with errors_as_messages():
        goals = goal or [GoalType.REPLICA_DISTRIBUTION.name, GoalType.LEADER_DISTRIBUTION.name]
        admin = open_existing(connection).get_admin()
        nodes = [n for n in admin.get_server_nodes() if n.server_type == "TabletServer"]
        ask(f"Move buckets between {len(nodes)} tablet servers?", yes=yes)
        typer.echo(admin.rebalance(goals))


@rebalance.command("status")
def status(
    rebalance_id: RebalanceId = None, connection: Connection = None, as_json: AsJson = False
) -> None:
    """Show how far a rebalance is."""
    with errors_as_messages():
        progress = open_existing(connection).get_admin().list_rebalance_progress(rebalance_id)
        if progress is None:
            raise FlussError("there was no rebalance yet: `fluss-df rebalance start` starts one")
        moved = progress.progress_for_buckets.items()
        if as_json:
            buckets = [
                {**dataclasses.asdict(bucket), **dataclasses.asdict(result)}
                | {"status": result.status.name}
                for bucket, result in moved
            ]
            about = {"id": progress.rebalance_id, "status": progress.status.name}
            typer.echo(json.dumps({**about, "progress": progress.progress, "buckets": buckets}))
            return
        rows = [
            {
                "table id": bucket.table_id,
                "partition id": "" if bucket.partition_id is None else bucket.partition_id,
                "bucket": bucket.bucket_id,
                "leader": f"{result.original_leader} -> {result.new_leader}",
                "replicas": f"{_servers(result.original_replicas)} ->"
                f" {_servers(result.new_replicas)}",
                "status": result.status.name,
            }
            for bucket, result in moved
        ]
        part = "nothing to move" if progress.progress is None else f"{progress.progress:.0%}"
        out.print(f"[bold]{progress.rebalance_id}[/]: {progress.status.name}, {part}")
        if rows:
            show_rows(rows)


@rebalance.command("cancel")
def cancel(rebalance_id: RebalanceId = None, connection: Connection = None) -> None:
    """End a rebalance; what was moved stays where it is."""
    with errors_as_messages():
        open_existing(connection).get_admin().cancel_rebalance(rebalance_id)
        typer.echo("no rebalance is running")


@rebalance.command("tag")
def tag(servers: Servers, tag: Tag, connection: Connection = None) -> None:
    """Say of tablet servers that they go: the next rebalance moves buckets away from them."""
    with errors_as_messages():
        open_existing(connection).get_admin().add_server_tag(servers, tag.replace("-", "_"))
        typer.echo(f"tagged {_servers(servers)}")


@rebalance.command("untag")
def untag(servers: Servers, tag: Tag, connection: Connection = None) -> None:
    """Take a tag from tablet servers."""
    with errors_as_messages():
        open_existing(connection).get_admin().remove_server_tag(servers, tag.replace("-", "_"))
        typer.echo(f"untagged {_servers(servers)}")


def _servers(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))


# ---- health


def health(connection: Connection = None, as_json: AsJson = False) -> None:
    """Show whether all buckets can be used (servers of 1.0 and later); exit code 3 if not green."""
    with errors_as_messages():
        found = open_existing(connection).get_admin().get_cluster_health()
        if as_json:
            typer.echo(json.dumps({**dataclasses.asdict(found), "status": found.status.name}))
        else:
            out.print(
                f"[{_COLOURS[found.status]}]{found.status.name}[/]:"
                f" {found.active_leader_replicas:,} of {found.num_leader_replicas:,} leaders are"
                f" active, {found.in_sync_replicas:,} of {found.num_replicas:,} replicas in sync"
            )
    if found.status is not ClusterHealthStatus.GREEN:
        raise typer.Exit(EXIT_NOT_GREEN)
