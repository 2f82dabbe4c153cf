"""What ``fluss-df doctor`` finds, and its way out."""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import polars as pl
import pytest
from typer.testing import CliRunner

import fluss_df
from fluss_df.cli import app
from fluss_df.cli.health.packages import _too_old
from fluss_df.cli.health.place import _TABLES_ASKED, _clock, _difference
from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss, Security
from fluss_df.spark import workers
from tests.certificates import Authority

Report = tuple[int, dict[str, dict[str, str]]]


# What it finds is found once: it starts that Python, which imports Spark, and each doctor asks.
_cannot_import = functools.cache(workers.cannot_import)


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cannot_import", _cannot_import)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    for name in ("FLUSS_BOOTSTRAP_SERVERS", "FLUSS_HOME"):
        monkeypatch.delenv(name, raising=False)


def doctor(*arguments: str) -> Report:
    """Return the exit status, and the last finding of each check."""
    done = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(bool(f["advice"]) == (f["status"] != "ok") for f in findings)
    assert (done.exit_code == 1) == any(f["status"] == "problem" for f in findings), done.output
    return done.exit_code, {f["check"]: f for f in findings}


def test_a_machine_that_is_well() -> None:
    status, found = doctor()
    assert status == 0
    assert found["fluss_df"]["message"] == fluss_df.__version__
    assert found["polars"]["message"] == pl.__version__
    assert "pyspark" in found["extra spark"]["message"]
    assert "extra dev" not in found
    assert "none given" in found["connection"]["message"]


def test_a_report_for_people() -> None:
    done = CliRunner().invoke(app, ["doctor", "nosuch.invalid:9123"])
    assert done.exit_code == 1
    assert "problem  address" in done.stdout
    assert "what to do: correct the name" in done.stdout
    assert "1 problem" in done.stderr


def test_a_cluster(fluss_cluster: LocalCluster) -> None:
    address = fluss_cluster.bootstrap_servers
    with fluss_df.connect(address) as connection:
        rows = pl.DataFrame({"a": [1]})
        fluss_df.write_fluss(
            rows, "asked_by_doctor", connection=connection, create_if_not_exists=True
        )
    status, found = doctor(address)
    assert status == 0, found
    assert "TabletServer" in found["server"]["message"]
    version = "Fluss 0.9" if fluss_cluster.server_version.startswith("0.9") else "Fluss 1.0"
    assert version in found["server"]["message"]
    assert "over 20 requests" in found["latency"]["message"]
    assert "the server's is 0." in found["clock"]["message"]
    assert "asks for none" in found["login"]["message"]


def test_a_folder_that_is_served(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with EmbeddedFluss(folder):
        status, found = doctor(str(folder))
    assert status == 0, found
    assert f"process {os.getpid()} has the folder open" in found["owner"]["message"]
    assert "latency" in found
    assert "clock" in found


def test_a_folder_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    status, found = doctor(str(folder))
    assert status == 0
    assert "does not exist" in found["data"]["message"]
    assert not folder.exists()
    with EmbeddedFluss(folder):
        pass
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    status, found = doctor("--connection", str(folder))
    assert status == 0
    assert "nobody has the folder open" in found["owner"]["message"]
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()} == before


def test_folders_that_are_none_of_an_engine(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    status, found = doctor(str(tmp_path))
    assert status == 1
    assert "none of an embedded Fluss" in found["data"]["message"]
    status, found = doctor(str(tmp_path / "letter.txt"))
    assert status == 1
    assert "is no folder" in found["folder"]["message"]


def test_a_folder_of_a_newer_version(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with EmbeddedFluss(folder):
        pass
    (folder / "FORMAT").write_text("{}")
    _, found = doctor(str(folder))
    assert found["data"]["status"] == "warning"
    assert "fluss-df check" in found["data"]["advice"]


def test_something_else_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        status, found = doctor(f"127.0.0.1:{port}")
    assert status == 1
    assert found["address"]["status"] == "ok"
    assert found["protocol"]["status"] == "problem"


@pytest.mark.parametrize(
    "address", ["", " ", "host", "host:0", "host:99999", "fluss://", "a..b:1", "ftp://x", "\x00:1"]
)
def test_what_is_no_address(address: str) -> None:
    status, found = doctor("--", address)
    assert status == (0 if not address else 1), found
    assert len(found) > 10


def test_passwords_are_not_shown() -> None:
    for address in ("fluss://ann:s3cret@127.0.0.1:1/db", "fluss://ann:s3cret@127.0.0.1"):
        done = CliRunner().invoke(app, ["doctor", address])
        assert done.exit_code == 1
        assert "s3cret" not in done.output


def test_a_python_of_workers_without_fluss_df(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "other", with_pip=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "other/bin/python"))
    status, found = doctor()
    assert status == 1
    assert "cannot import fluss_df" in found["PYSPARK_PYTHON"]["message"]
    assert found["PYSPARK_PYTHON"]["advice"] == f"export PYSPARK_PYTHON={sys.executable}"


def test_limits_of_a_shell() -> None:
    command = f"ulimit -n 100 && exec {sys.executable} -m tests.cli.main doctor --json"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    found = {f["check"]: f for f in map(json.loads, done.stdout.splitlines())}
    assert found["open files"]["status"] == "problem", done.stderr
    assert done.returncode == 1


def test_a_broken_library_is_named(tmp_path: Path) -> None:
    (tmp_path / "rocksdict.py").write_text("raise ImportError('no such symbol')")
    done = subprocess.run(
        [sys.executable, "-c", "from fluss_df.cli import app; app()", "doctor", "--json"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1, done.stderr
    assert any(f["check"] == "rocksdict" and "no such symbol" in f["message"] for f in found)


@pytest.mark.parametrize(
    ("version", "wanted", "old"),
    [
        ("2.1.0", ">=2.1", False),
        ("2.0.9", ">=2.1", True),
        ("10.0", ">=9.5", False),
        ("1.0rc1", ">=1", False),
        ("3", "", False),
    ],
)
def test_versions(version: str, wanted: str, old: bool) -> None:
    assert _too_old(version, wanted) == old


@pytest.mark.parametrize(
    ("server", "status"), [(100.5, "ok"), (99.5, "ok"), (103.5, "warning"), (90.0, "warning")]
)
def test_clocks(server: float, status: str) -> None:
    assert _difference(server, 100.0, 101.0).status == status


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    status, _ = doctor(str(link))
    assert status == 1


def test_a_folder_without_a_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    status, found = doctor("data")
    assert status == 1
    assert found["connection"]["advice"].endswith("fluss-df doctor ./data")


def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server")
    security = Security(tls_cert=issued.cert, tls_key=issued.key)
    with EmbeddedFluss(tmp_path / "d", port=0, security=security) as engine:
        trusted = f"security.ssl.truststore.path={authority.file}"
        url = f"fluss://{engine.address}?security.ssl.enabled=true"
        status, found = doctor(f"{url}&{trusted}")
        assert status == 0
        assert "certificate is valid" in found["tls"]["message"]
        for address, message in ((url, "truststore.path"), (engine.address, "speaks TLS")):
            assert address is not None
            status, found = doctor(address)
            assert status == 1
            assert message in found["tls"]["message"]
            assert "Access and TLS" in found["tls"]["advice"]
            assert "login" not in found


def test_the_clock_is_looked_for_in_few_tables() -> None:
    asked: list[str] = []

    def tables_of(database: str) -> list[str]:
        asked.append(database)
        return ["t"]

    admin = SimpleNamespace(
        list_databases=lambda: [f"d{i}" for i in range(1000)],
        list_tables=tables_of,
        # a partitioned table does not tell the time
        get_table_info=lambda path: SimpleNamespace(is_partitioned=lambda: True),
    )
    opened = cast(fluss_df.FlussConnection, SimpleNamespace(get_admin=lambda: admin))
    assert _clock(opened).status == "ok"
    assert len(asked) == _TABLES_ASKED + 1
