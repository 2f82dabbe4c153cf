"""``fluss-df cluster`` with real servers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fluss_df.cli import app
from fluss_df.cluster import LocalCluster
from fluss_df.cluster.processes.processes import identify, wait_until_gone
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.version import __version__


@dataclass(frozen=True)
class Ended:
    """What a command left."""

    code: int
    out: str
    err: str


def run(*arguments: str, input: str | None = None) -> Ended:
    result = CliRunner().invoke(app, list(arguments), input=input)
    return Ended(result.exit_code, result.stdout, result.stderr)


def run_process(*arguments: str) -> Ended:
    """Run the command in a process of its own: what it starts must outlive it."""
    result = subprocess.run(
        [sys.executable, "-c", "from fluss_df.cli import app; app()", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return Ended(result.returncode, result.stdout, result.stderr)


@pytest.fixture
def folder(fluss_cluster_factory: ClusterFactory, tmp_path: Path) -> Iterator[str]:
    path = tmp_path / ("long" * 30)
    yield str(path)
    if path.exists():
        cluster = LocalCluster.open(path)
        for process in cluster.status().processes:  # quicker than to stop them in order
            if process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
        cluster.stop()


def test_start_status_stop(folder: str) -> None:
    assert run("cluster", "status", "--dir", folder) == Ended(3, f"no cluster in {folder}\n", "")
    assert run("cluster", "stop", "--dir", folder) == Ended(
        0, f"no cluster is running in {folder}\n", ""
    )

    sasl = ["--sasl", "alice:wonderland"]
    started = run_process("cluster", "start", "--dir", folder, "--tablet-servers", "2", *sasl)
    assert started.code == 0, started.err
    match = re.search(r"is running at (127\.0\.0\.1:\d+)\n", started.out)
    assert match is not None
    address = match[1]
    assert f"logs: {folder}/logs\n" in started.out

    status = run("cluster", "status", "--dir", folder)
    assert status.code == 0
    assert "health:    healthy\n" in status.out
    assert f"bootstrap: {address}\n" in status.out
    assert "users:     alice (SASL/PLAIN)\n" in status.out
    assert "wonderland" not in started.out + started.err + status.out
    rows = re.findall(rf"^(\S+) +(\d+) +([\d, ]+?) +({folder}/logs/\S+)$", status.out, re.M)
    assert [row[0] for row in rows] == [
        "zookeeper",
        "coordinator",
        "tablet-server-0",
        "tablet-server-1",
    ]
    assert address.split(":")[1] in rows[1][2].split(", ")

    again = run("cluster", "start", "--dir", folder, "--tablet-servers", "1")
    assert again.code == 0
    assert again.out.startswith(f"already running at {address}\n")

    server = identify(int(rows[2][1]))
    assert server is not None
    server.send_signal(signal.SIGKILL)
    wait_until_gone([server], 10)
    hurt = run("cluster", "status", "--dir", folder)
    assert hurt.code == 1
    assert "problem:   not running: tablet-server-0\n" in hurt.out
    again = run("cluster", "start", "--dir", folder)
    assert again.code == 1
    assert "not healthy: not running: tablet-server-0; stop it first" in again.err

    assert run("cluster", "stop", "--dir", folder).out == "stopped\n"
    stopped = run("cluster", "status", "--dir", folder)
    assert stopped.code == 3
    assert stopped.out.count("not running") == 4
    assert not any(identify(int(row[1])) for row in rows)

    fewer = run("cluster", "start", "--dir", folder, "--tablet-servers", "1")
    assert fewer.code == 1
    assert "has 2 tablet servers with data" in fewer.err
    open_to_all = run("cluster", "start", "--dir", folder, "--no-sasl")
    assert open_to_all.code == 0
    assert f"is running at {address}\n" in open_to_all.out
    status = run("cluster", "status", "--dir", folder)
    assert status.code == 0
    assert "users" not in status.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--sasl", "a:b", "--no-sasl"], 1, "error: --sasl and --no-sasl exclude each other"),
        (["--sasl", "al ice:b"], 1, "error: invalid user name 'al ice'"),
        (["--jar", "/no/such.jar"], 1, "error: the server jar, /no/such.jar, does not exist"),
        (["--port", "70000"], 2, "Invalid value for '--port'"),
        (["--tablet-servers", "0"], 2, "Invalid value for '--tablet-servers'"),
        (["--tablet-servers", "99"], 1, "from 1 to 32, not 99"),
        (["--datalake", "delta"], 1, "datalake must be one of iceberg, paimon, lance, not 'delta'"),
    ],
)
def test_mistakes_are_named(folder: str, arguments: list[str], code: int, message: str) -> None:
    ended = run("cluster", "start", "--dir", folder, *arguments)
    assert ended.code == code
    assert message in ended.err
    assert ended.out == ""
    assert not Path(folder).exists()


def test_a_password_left_out_is_asked_for(folder: str) -> None:
    ended = run("cluster", "start", "--dir", folder, "--sasl", "al ice", input="secret\n")
    assert ended.code == 1
    assert "Password of al ice" in ended.err
    assert "secret" not in ended.out + ended.err


def test_missing_java_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    ended = run("cluster", "start", "--dir", str(tmp_path / "cluster"))
    assert ended.code == 1
    assert ended.err.startswith("error: a Fluss server needs Java 11 or newer")
    assert "apt-get install" in ended.err


def test_the_version_and_the_help() -> None:
    assert run("--version") == Ended(0, f"fluss-df {__version__}\n", "")
    for command in ("start", "stop", "status"):
        assert run("cluster", command, "--help").code == 0


def test_the_library_does_not_import_the_command() -> None:
    script = (
        "import sys, fluss_df\n"
        "heavy = ('typer', 'rich', 'fluss_df.cli', 'fluss_df.cluster')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


def test_a_folder_below_home_is_found_by_all_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for command in ("status", "stop"):
        said = CliRunner().invoke(app, ["cluster", command, "--dir=~/x"])
        assert str(tmp_path / "x") in said.output.replace("\n", ""), command
