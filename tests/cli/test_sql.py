"""``fluss-df sql`` on a real cluster."""

import json
import uuid

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
