"""``fluss-df sql``, on a real cluster and in a folder."""

import json
import uuid
from pathlib import Path

from typer.testing import CliRunner

from fluss_df.cli.main import app
from fluss_df.cluster import LocalCluster


def test_statements_and_prompt(fluss_cluster: LocalCluster) -> None:
    name = f"t_{uuid.uuid4().hex[:12]}"
    options = ["-c", fluss_cluster.bootstrap_servers, "--json"]
    script = f"CREATE TABLE {name} (a INT); INSERT INTO {name} VALUES (1), (2)"
    made = CliRunner().invoke(app, ["sql", script, *options])
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout) == {"table": f"fluss.{name}", "rows": 2}

    typed = f"""SELECT * FROM nowhere;
SELECT sum(a) AS s, 'a;
b' AS t -- of all;
FROM {name}; -- done
quit
SELECT 1 AS never;
"""
    shown = CliRunner().invoke(app, ["sql", *options], input=typed)
    assert shown.exit_code == 0, shown.output
    assert '{"s":3,"t":"a;\\nb"}' in shown.stdout
    assert "never" not in shown.stdout
    assert "nowhere does not exist" in shown.stderr

    failed = CliRunner().invoke(app, ["sql", "SELEC 1", *options])
    assert failed.exit_code == 1
    assert "cannot be" in failed.stderr


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
