"""``fluss-df sql``, on a real cluster and in a folder."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fluss_df.backend import Backend
from fluss_df.cli.commands import sql as commands
from fluss_df.cli.commands.sql import sql
from fluss_df.cli.main import app
from fluss_df.cluster import LocalCluster


def test_statements_of_arguments_and_of_the_standard_input(fluss_cluster: LocalCluster) -> None:
    name = f"t_{uuid.uuid4().hex[:12]}"
    options = ["-c", fluss_cluster.bootstrap_servers, "--json"]
    script = f"CREATE TABLE {name} (a INT); INSERT INTO {name} VALUES (1), (2)"
    made = CliRunner().invoke(app, ["sql", script, *options])
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout) == {"table": f"fluss.{name}", "rows": 2}

    script = f"""-- a report
SELECT sum(a) AS s, 'a;
b' AS t -- of all;
FROM {name}; -- done
SELECT count(*) AS n FROM {name}"""
    shown = CliRunner().invoke(app, ["sql", *options], input=script)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout == '{"s":3,"t":"a;\\nb"}\n{"n":2}\n'

    failed = CliRunner().invoke(app, ["sql", "SELEC 1", *options])
    assert failed.exit_code == 1
    assert "cannot be" in failed.stderr


@pytest.mark.parametrize("given", ["argument", "standard input"])
def test_the_first_statement_that_fails_ends_a_script(tmp_path: Path, given: str) -> None:
    script = """CREATE TABLE t (a INT); INSERT INTO t VALUES (1);
SELECT * FROM nowhere;
INSERT INTO t VALUES (2);"""
    options = ["-c", str(tmp_path), "--json"]
    arguments = [script] if given == "argument" else []
    failed = CliRunner().invoke(
        app, ["sql", *arguments, *options], input=None if arguments else script
    )
    assert failed.exit_code == 1
    assert "line 2, statement 3 of 4: " in failed.stderr
    assert "nowhere does not exist" in failed.stderr
    assert "those before it were run" in failed.stderr
    counted = CliRunner().invoke(app, ["sql", "SELECT count(*) AS n FROM t", *options])
    assert json.loads(counted.stdout) == {"n": 1}


@pytest.mark.parametrize(
    "script", ["", "\n", "-- nothing\n", ";", "quit", "SELECT 1 AS a; EXIT; SELECT"]
)
def test_scripts_that_run_little(tmp_path: Path, script: str) -> None:
    done = CliRunner().invoke(app, ["sql", "-c", str(tmp_path), "--json"], input=script)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == ('{"a":1}\n' if "SELECT" in script else "")


def test_a_script_in_another_encoding(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["sql", "-c", str(tmp_path)], input="SELECT 'ä'".encode("cp1252")
    )
    assert done.exit_code == 1
    assert "the standard input is no text of utf-8" in done.stderr


def test_a_file_in_the_place_of_a_statement(tmp_path: Path) -> None:
    script = tmp_path / "report.sql"
    script.write_text("SELECT 1 AS a")
    options = ["-c", str(tmp_path / "data"), "--json"]
    failed = CliRunner().invoke(app, ["sql", str(script), *options])
    assert failed.exit_code == 1
    assert f"{script} is a file, and no statement: fluss-df sql < {script}" in failed.stderr
    # what is too long to be a name is a statement still
    failed = CliRunner().invoke(app, ["sql", "SELEC " + "x" * 5000, *options])
    assert failed.exit_code == 1
    assert "cannot be" in failed.stderr
    assert "too long" not in failed.stderr


def test_without_a_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after ``<&-`` in a shell."""
    runner = CliRunner()
    with runner.isolation():
        monkeypatch.setattr(sys, "stdin", None)
        with pytest.raises(typer.Exit) as ended:
            sql(connection=str(tmp_path))
    assert ended.value.exit_code == 1


def test_a_prompt_goes_on_after_an_error(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty", reason="Windows has no such terminals")
    typed = b"""SELECT * FROM nowhere;
SELECT 'a;
b' AS t;
quit
SELECT 1 AS never;
"""
    ours, theirs = pty.openpty()
    tool = Path(sys.executable).with_name("fluss-df")
    with subprocess.Popen(
        [tool, "sql", "-c", tmp_path, "--json"],
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        os.write(ours, typed)
        shown, said = process.communicate()
    os.close(ours)
    assert process.returncode == 0
    assert '{"t":"a;\\nb"}' in shown
    assert "never" not in shown
    assert "nowhere does not exist" in said


def test_statements_that_change_tables(tmp_path: Path) -> None:
    """Each line is a process of its own to the folder: what is kept is seen by the next."""
    options = ["-c", str(tmp_path), "--json"]

    def run(statement: str) -> str:
        done = CliRunner().invoke(app, ["sql", statement, *options])
        assert done.exit_code == 0, done.output
        return done.stdout

    run("CREATE TABLE t (PRIMARY KEY (k) NOT ENFORCED) AS SELECT 1 AS k, 'a' AS v")
    merged = run(
        "MERGE INTO t USING (VALUES (1, 'b'), (2, 'c')) AS s(k, v) ON t.k = s.k"
        " WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *"
    )
    assert json.loads(merged) == {
        "table": "fluss.t",
        "rows": 2,
        "inserted": 1,
        "updated": 1,
        "deleted": 0,
    }
    run("CREATE VIEW v AS SELECT max(v) AS m FROM t; INSERT OVERWRITE t VALUES (3, 'z')")
    assert json.loads(run("SELECT * FROM v")) == {"m": "z"}
    assert json.loads(run("SHOW VIEWS")) == {"view": "v"}
    run("TRUNCATE TABLE t; DROP VIEW v")
    assert json.loads(run("SELECT count(*) AS n FROM t")) == {"n": 0}
    failed = CliRunner().invoke(app, ["sql", "ALTER TABLE t RENAME TO u", *options])
    assert failed.exit_code == 1
    assert "cannot be renamed" in " ".join(failed.stderr.split())


def test_an_interrupt_ends_a_statement_and_not_the_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["SELECT 1 AS one;", "SELECT 2 AS two;", "SELECT 3 AS three;", "quit"])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    run, errors = commands._run, [KeyboardInterrupt(), OSError("no room"), None]

    def failing(*given: Any) -> None:
        error = errors.pop(0)
        if error is not None:
            raise error
        run(*given)

    monkeypatch.setattr(commands, "_run", failing)
    commands._prompt(Backend().connect(tmp_path), as_json=True)
    shown = capsys.readouterr()
    assert shown.out == '{"three":3}\n'
    assert "no room" in shown.err
