"""What users see of the backend before they run anything: its names, and what is missing."""

import subprocess
import sys
from pathlib import Path

import ibis
import pytest

import fluss_df
from fluss_df.backend import Backend
from fluss_df.errors import FlussError
from tests.backend import entry_point

# what docs/ibis.md tells of, and Ibis asks for
OURS = {
    *(
        "connection",
        "current_database",
        "follow",
        "list_views",
        "insert",
        "raw_sql",
        "run",
        "run_script",
    ),
    *("to_spark", "truncate_table", "upsert", "delete"),
    *("create_database", "drop_database", "list_databases"),
}


def test_only_names_for_users_are_completed() -> None:
    con = Backend().connect(":memory:")
    polars = ibis.polars.connect()
    ours = {name for name in set(dir(con)) - set(dir(polars)) if not name.startswith("_")}
    assert ours == OURS
    for name in ours:
        assert hasattr(con, name)


@pytest.mark.parametrize("missing", ["packaging", "sqlglot", "ibis"])
def test_what_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    entry_point.describe(tmp_path)
    root = Path(__file__).parents[2]
    what = "ibis.fluss" if missing == "packaging" else "__import__('fluss_df.backend')"
    program = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(root)!r}]\n"
    if missing == "packaging":
        program += "import ibis\n"
    program += f"sys.modules[{missing!r}] = None\ntry:\n    {what}\n"
    program += "except Exception as error:\n    print(type(error).__name__, error)\n"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert "FlussError" in done.stdout, done.stdout + done.stderr
    assert "fluss-df[ibis]" in done.stdout
    assert missing in done.stdout


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("CREATE TABLE x (a INTT)", "column 'a': SQL cannot create the type INTT;"),
        ("CREATE TABLE x (b ARRAY<STRINGG>)", "cannot create the type STRINGG;"),
        ("CREATE TABLE x (a INTT(5))", r"cannot create the type INTT\(5\);"),
    ],
)
def test_a_type_is_named_as_it_was_written(statement: str, named: str) -> None:
    with pytest.raises(FlussError, match=named):
        Backend().connect(":memory:").raw_sql(statement)


def test_an_option_that_there_is_not() -> None:
    for connect in (
        lambda: ibis.connect("fluss://h:1/db?foo=1"),
        lambda: fluss_df.connect("fluss://h:1/db?foo=1"),
        lambda: Backend().connect("h:1", foo=1),
        lambda: fluss_df.Config({}).copy(foo=1),
    ):
        with pytest.raises(FlussError, match="unknown property 'foo'"):
            connect()
    with pytest.raises(FlussError, match="request-timeout"):
        fluss_df.Config({}).copy(request_timeout_ms="soon")
