"""``fluss-df cluster``: a real Apache Fluss cluster on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fluss_df.cli.base.console import EXIT_ERROR, err, errors_as_messages, out
from fluss_df.cluster import ClusterAlreadyRunningError, ClusterError, ClusterStatus, LocalCluster
from fluss_df.cluster.processes.places import default_cluster_dir
from fluss_df.cluster.processes.ports import is_free

EXIT_STOPPED = 3  # what `status` of an init script returns for a service that is not running

_DEFAULT_PORT = 9123  # where Fluss clients look by default

app = typer.Typer(
    help="Run a real Apache Fluss cluster on this machine.",
    no_args_is_help=True,
    add_completion=False,
)

Dir = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help="Folder of the cluster: its data, settings and logs.",
        show_default=str(default_cluster_dir()).replace(str(Path.home()), "~", 1),
        file_okay=False,
    ),
]


@app.command()
def start(
    dir: Dir = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Port of the bootstrap address.",
            show_default="that of last time, else 9123 or a free one",
        ),
    ] = None,
    tablet_servers: Annotated[
        int | None,
        typer.Option(
            "--tablet-servers",
            min=1,
            help="Number of tablet servers.",
            show_default="that of last time, else 1",
        ),
    ] = None,
    sasl: Annotated[
        list[str] | None,
        typer.Option(
            "--sasl",
            metavar="USER[:PASSWORD]",
            help="Let only this user connect; repeat for more. Asks for a password left out.",
            show_default="the users of last time",
        ),
    ] = None,
    super_user: Annotated[
        list[str] | None,
        typer.Option(
            "--super-user",
            metavar="USER",
            help="Have rights checked (authorizer.enabled), and let this user do everything;"
            " repeat for more.",
            show_default="those of last time",
        ),
    ] = None,
    no_sasl: Annotated[bool, typer.Option("--no-sasl", help="Let everyone connect.")] = False,
    jar: Annotated[
        Path | None,
        typer.Option(
            help="Fluss server jar.",
            envvar="FLUSS_SERVER_JAR",
            show_default="that of last time, else Apache Fluss 0.9.1, fetched with Maven",
        ),
    ] = None,
    datalake: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Give the cluster a data lake in its folder: iceberg, paimon or lance.",
            show_default="that of last time, else none",
        ),
    ] = None,
) -> None:
    """Start the cluster of a folder; it runs until `fluss-df cluster stop`.

    Data and settings of last time are kept. Where it runs already, says so and changes nothing.
    """
    with errors_as_messages():
        if sasl and no_sasl:
            raise ClusterError("--sasl and --no-sasl exclude each other")
        folder = (dir or default_cluster_dir()).expanduser()
        users = {} if no_sasl else _users(sasl)
        if port is None and not (folder / "cluster.json").exists() and is_free(_DEFAULT_PORT):
            port = _DEFAULT_PORT
        cluster = LocalCluster(
            folder,
            port=port,
            tablet_servers=tablet_servers,
            sasl=users,
            super_users=super_user or None,
            jar=jar,
            datalake=datalake,
            detached=True,
        )
        try:
            with err.status("Starting the servers ..."):
                cluster.start()
        except ClusterAlreadyRunningError as error:
            status = LocalCluster.open(folder).status()
            if status.health != "healthy":
                raise ClusterError(
                    f"{error.message}, but is not healthy: {status.problem}; stop it first"
                ) from error
            out.print(f"[green]already running[/] at [bold]{status.bootstrap_servers}[/]")
        else:
            status = cluster.status()
            out.print(
                f"Fluss {escape(status.server_version)} [green]is running[/] at"
                f" [bold]{status.bootstrap_servers}[/]"
            )
        out.print(f"logs: {escape(str(folder.absolute() / 'logs'))}")


def _users(sasl: list[str] | None) -> dict[str, str] | None:
    if not sasl:
        return None
    users = {}
    for entry in sasl:
        user, colon, password = entry.partition(":")
        if not colon:
            password = typer.prompt(f"Password of {user}", hide_input=True, err=True)
        users[user] = password
    return users


@app.command()
def stop(dir: Dir = None) -> None:
    """Stop the cluster of a folder; its data stays."""
    with errors_as_messages():
        folder = (dir or default_cluster_dir()).expanduser()
        cluster = _open(folder)
        if cluster is None or cluster.status().health == "stopped":
            out.print(f"no cluster is running in {escape(str(folder))}")
            return
        with err.status("Stopping the servers ..."):
            cluster.stop()
        out.print("stopped")


@app.command()
def status(dir: Dir = None) -> None:
    """Show the cluster of a folder: address, processes, logs.

    Exit code 0 if it is healthy, 1 if it is not, 3 if it is stopped.
    """
    with errors_as_messages():
        folder = (dir or default_cluster_dir()).expanduser()
        cluster = _open(folder)
        if cluster is None:
            out.print(f"no cluster in {escape(str(folder))}")
            raise typer.Exit(EXIT_STOPPED)
        report = cluster.status()
        _print_status(report)
    if report.health == "stopped":
        raise typer.Exit(EXIT_STOPPED)
    if report.health == "unhealthy":
        raise typer.Exit(EXIT_ERROR)


def _open(folder: Path) -> LocalCluster | None:
    if not (folder / "cluster.json").exists():
        return None
    return LocalCluster.open(folder)


_COLOURS = {"healthy": "green", "unhealthy": "red", "stopped": "yellow"}


def _print_status(report: ClusterStatus) -> None:
    colour = _COLOURS[report.health]
    out.print(f"health:    [{colour}]{report.health}[/]")
    if report.problem:
        out.print(f"problem:   {escape(report.problem)}")
    out.print(f"bootstrap: [bold]{report.bootstrap_servers}[/]")
    out.print(f"server:    Fluss {escape(report.server_version)}")
    if report.users:
        out.print(f"users:     {escape(', '.join(report.users))} (SASL/PLAIN)")
    # Not a table of rich: it would shorten paths in a narrow terminal.
    out.print(f"\n[bold]{'process':18}{'pid':13}{'ports':14}log[/]")
    for process in report.processes:
        pid = f"{process.pid:<13}" if process.pid else f"[red]{'not running':13}[/]"
        ports = ", ".join(map(str, process.ports))
        out.print(f"{process.name:18}{pid}{ports:14}{escape(str(process.log))}")
