"""``serve``: an engine for clients of Fluss; ``flight-sql``: SQL; ``passwd``: who may connect."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fluss_df.cli.base.console import errors_as_messages, out
from fluss_df.cli.base.options import Connection
from fluss_df.cli.base.stopping import until_signal
from fluss_df.errors import FlussError
from fluss_df.hooks import undoing

SASL_VARIABLE = "FLUSS_SASL_USERS"
FlightSqlInsecure = Annotated[
    bool,
    typer.Option(
        "--flight-sql-insecure",
        help="Let other machines in without TLS, or without passwords: whoever reaches the port"
        " reads and writes, and whoever is between reads passwords.",
    ),
]


def serve(
    dir: Annotated[Path, typer.Option("--dir", help="The folder with the data.")],
    port: Annotated[int, typer.Option("--port", help="0 for a free one.", min=0, max=65535)] = 9123,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    sasl: Annotated[
        list[str] | None,
        typer.Option(
            "--sasl",
            help="USER:PASSWORD of who may connect. Other users of the machine see it in the list"
            " of processes: use --sasl-file.",
        ),
    ] = None,
    sasl_file: Annotated[
        Path | None,
        typer.Option(
            "--sasl-file",
            help="A file with USER:PASSWORD of who may connect, one a line, the passwords as"
            " hashes where 'fluss-df passwd' wrote them; without it the environment variable"
            f" {SASL_VARIABLE} is read, in the same form.",
        ),
    ] = None,
    authorizer_enabled: Annotated[
        bool,
        typer.Option(
            "--authorizer-enabled",
            help="Let users do only what access control lists allow (fluss-df acl).",
        ),
    ] = False,
    super_users: Annotated[
        str,
        typer.Option(
            "--super-users",
            metavar="User:NAME;...",
            help="Who may do everything, as in 'User:admin;User:bob'.",
        ),
    ] = "",
    acl_principal_ignore_case: Annotated[
        bool,
        typer.Option(
            "--acl-principal-ignore-case",
            help="Compare users' names in access control lists without regard to capitals.",
        ),
    ] = False,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert",
            help="Let peers in by TLS alone, with this certificate (PEM, those between it and its"
            " authority included).",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", help="The private key of --tls-cert (PEM).")
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-client-ca",
            help="Let in only peers with a certificate of these authorities (PEM).",
        ),
    ] = None,
    durability: Annotated[
        str, typer.Option("--durability", help="commit, interval or none: when a write counts.")
    ] = "commit",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            help="Serve metrics to Prometheus on this port, by HTTP; 0 for a free one.",
            min=0,
            max=65535,
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="The address of the metrics.")
    ] = "127.0.0.1",
    flight_sql: Annotated[
        int | None,
        typer.Option(
            "--flight-sql",
            metavar="PORT",
            help="Serve SQL to clients of Arrow Flight SQL on this port, with the same users,"
            " rights and TLS; 0 for a free one.",
            min=0,
            max=65535,
        ),
    ] = None,
    flight_sql_host: Annotated[
        str, typer.Option("--flight-sql-host", help="The address of Flight SQL.")
    ] = "127.0.0.1",
    flight_sql_insecure: FlightSqlInsecure = False,
) -> None:
    """Serve a folder as a single-node Fluss, until SIGINT or SIGTERM."""
    from fluss_df.embedded import EmbeddedFluss, EngineOptions, Security

    users = _users(sasl or [], sasl_file) or None
    # RocksDB creates its files with these rights
    os.umask(0o077)
    try:
        options = EngineOptions(durability=durability)  # type: ignore[arg-type]
        security = Security(
            authorizer_enabled=authorizer_enabled,
            super_users=super_users,
            acl_principal_ignore_case=acl_principal_ignore_case,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
        )
        with until_signal() as wait, contextlib.ExitStack() as stack:
            served = None
            if metrics_port is not None:
                from fluss_df.metrics import start_http_server

                # first, because its package may be missing: nothing is open yet then
                served = stack.enter_context(start_http_server(metrics_port, metrics_host))
            engine = stack.enter_context(
                EmbeddedFluss(
                    dir, port=port, host=host, sasl=users, options=options, security=security
                )
            )
            if served is not None:
                typer.echo(f"metrics on {served.url}")
            if flight_sql is not None:
                require_flight()
                from fluss_df.flight import FlightSqlServer, FolderAccess

                sql = FlightSqlServer(
                    FolderAccess(engine),
                    flight_sql,
                    flight_sql_host,
                    tls_cert=tls_cert,
                    tls_key=tls_key,
                    tls_client_ca=tls_client_ca,
                    allow_insecure=flight_sql_insecure,
                )
                typer.echo(f"Flight SQL on {stack.enter_context(sql).url}")
            typer.echo(f"listening on {engine.address}")
            wait()
    except FlussError as error:
        typer.echo(f"fluss-df serve: {error}", err=True)
        raise typer.Exit(1) from None


def flight_sql(
    connection: Connection = None,
    port: Annotated[
        int, typer.Option("--port", help="0 for a free one.", min=0, max=65535)
    ] = 32010,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    sign_in: Annotated[
        bool,
        typer.Option(
            "--sign-in",
            help="Let in only who signs in, with the user and password of the cluster; others have"
            " the rights of --connection.",
        ),
    ] = False,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", help="Serve by TLS, with this certificate (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", help="The private key of --tls-cert (PEM).")
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-client-ca",
            help="Let in only clients with a certificate of these authorities (PEM).",
        ),
    ] = None,
    flight_sql_insecure: FlightSqlInsecure = False,
) -> None:
    """Serve SQL over Fluss to clients of Arrow Flight SQL, until SIGINT or SIGTERM."""
    with errors_as_messages():
        require_flight()
        from fluss_df.flight import ClusterAccess, FlightSqlServer

        with until_signal() as wait:
            server = FlightSqlServer(
                ClusterAccess(connection, needs_password=sign_in),
                port,
                host,
                tls_cert=tls_cert,
                tls_key=tls_key,
                tls_client_ca=tls_client_ca,
                allow_insecure=flight_sql_insecure,
            )
            with server:
                typer.echo(f"Flight SQL on {server.url}")
                wait()


def require_flight() -> None:
    """Say what is missing, where the server cannot be imported.

    Raises FlussError with the way to install it.
    """
    try:
        import fluss_df.flight  # noqa: F401
    except ImportError as error:
        raise FlussError(
            f"Flight SQL needs gRPC and Ibis ({error}): pip install 'fluss-df[flight]'"
        ) from None


def _users(given: list[str], file: Path | None) -> dict[str, str]:
    """Return the passwords of users: from the arguments, and a file or the environment."""
    users: dict[str, str] = {}
    if given:
        typer.echo(
            "fluss-df serve: warning: passwords of --sasl are shown to all users of this machine"
            f" (ps): put them into a file, --sasl-file, or into {SASL_VARIABLE}",
            err=True,
        )
    for entry in given:
        users.update([_user(entry, "--sasl")])
    lines: list[str] = []
    where = SASL_VARIABLE
    if file is not None:
        where = f"--sasl-file {file}"
        try:
            text = file.read_text()
            mode = stat.S_IMODE(file.stat().st_mode)
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(str(error), param_hint="--sasl-file") from None
        if mode & 0o077:
            typer.echo(
                f"fluss-df serve: warning: other users may read {file}: chmod 600 {file}", err=True
            )
        lines = text.splitlines()
        if not any(map(str.strip, lines)):
            # without users everybody would be let in
            raise typer.BadParameter(f"there is no user in {file}", param_hint="--sasl-file")
    elif SASL_VARIABLE in os.environ:
        # taken out, so that processes which this one starts do not get it
        lines = os.environ.pop(SASL_VARIABLE).splitlines()
        if not any(map(str.strip, lines)):
            raise typer.BadParameter("there is no user in it", param_hint=SASL_VARIABLE)
    users.update(_user(line, where) for line in lines if line.strip())
    return users


def _user(entry: str, where: str) -> tuple[str, str]:
    user, colon, password = entry.partition(":")
    if not (user and colon and password):
        raise typer.BadParameter("expected USER:PASSWORD", param_hint=where)
    return user, password


def passwd(
    user: Annotated[str, typer.Argument(metavar="USER", help="The user.")],
    file: Annotated[
        Path, typer.Option("--file", help="The file of users; created where it is missing.")
    ],
    drop: Annotated[bool, typer.Option("--drop", help="Remove the user.")] = False,
) -> None:
    """Set the password of a user in a file for `fluss-df serve --sasl-file`, as a salted hash."""
    # imported here, because the other commands do not need the engine
    from fluss_df.embedded import hash_password

    with errors_as_messages():
        if not user or ":" in user or not user.isprintable() or user != user.strip():
            raise FlussError(f"{user!r} cannot be a user's name: it is text without ':'")
        added = [] if drop else [f"{user}:{hash_password(_password_of(user))}"]
        with _alone(file):
            try:
                lines = file.read_text().splitlines() if file.exists() else []
            except (OSError, UnicodeDecodeError) as error:
                raise FlussError(f"cannot read {file}: {error}") from error
            kept = [line for line in lines if line.partition(":")[0] != user]
            if drop and len(kept) == len(lines):
                raise FlussError(f"there is no user {user} in {file}")
            _write(file, "".join(f"{line}\n" for line in [*kept, *added]))
        out.print(f"{'dropped' if drop else 'set'}: {escape(user)} in {escape(str(file))}")


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Have no other ``passwd`` change the file in the block: it would lose what is changed here."""
    from fluss_df.engine.files.files import file_locks

    locks = file_locks()
    try:
        folder = os.open(file.absolute().parent, os.O_RDONLY)
    except OSError as error:
        raise FlussError(f"cannot write {file}: {error}") from error
    try:
        with contextlib.suppress(OSError):  # where folders cannot be locked
            locks.flock(folder, locks.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _password_of(user: str) -> str:
    """Return the password that is typed twice, or that a script writes to standard input."""
    if sys.stdin.isatty():
        prompt = f"Password of {user}"
        typed: str = typer.prompt(prompt, hide_input=True, confirmation_prompt=True, err=True)
        return typed
    lines = sys.stdin.read().splitlines()
    if not lines or not lines[0]:
        raise FlussError(f"no password for {user}: write one line to standard input")
    if len(set(lines)) > 1:
        raise FlussError(f"the lines of standard input are two passwords for {user}: write one")
    return lines[0]


def _write(file: Path, text: str) -> None:
    """Replace the file: all of it, or nothing; for its owner alone."""
    try:
        fd, name = tempfile.mkstemp(dir=file.absolute().parent, prefix=f".{file.name}.")
        with undoing(lambda: Path(name).unlink(missing_ok=True)):
            with os.fdopen(fd, "w") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(fd)
            os.replace(name, file)
    except OSError as error:
        raise FlussError(f"cannot write {file}: {error}") from error
