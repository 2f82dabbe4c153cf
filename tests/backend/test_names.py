"""Columns whose names Polars takes for patterns."""

import re
from pathlib import Path

import polars as pl
import pytest

import fluss_df
from fluss_df.backend import Backend
from fluss_df.errors import FlussError
from fluss_df.io.names import exact

NAMES = ["*", "^a.*$", "ab", "^", "$", "a b", "a.b", "select"]
ROWS = pl.DataFrame({"k": [1, 2], **{name: [2 * i, 2 * i + 1] for i, name in enumerate(NAMES)}})

# a struct's field of such a name, too, is another one
_TAKEN = re.compile(r"\bpl\.col\((?!\")|\.struct\.field\((?!\")")


@pytest.fixture
def named(con: Backend) -> Backend:
    con.raw_sql("CREATE DATABASE IF NOT EXISTS odd_names")
    con.raw_sql("USE odd_names")
    con.raw_sql("DROP TABLE IF EXISTS t")
    con.create_table("t", ROWS, buckets=1)
    return con


def test_expressions(named: Backend) -> None:
    table = named.table("t")
    for name in NAMES:
        assert table[[name]].to_polars().equals(ROWS.select(exact(name)))
        assert table.filter(table[name] == ROWS[name][1]).to_polars().equals(ROWS[1:])


def test_sql_answers_exactly_or_says_why_not(named: Backend) -> None:
    for name in NAMES:
        text = f'SELECT "{name}" FROM t WHERE "{name}" = {ROWS[name][1]}'
        if name in ("*", "^a.*$"):
            with pytest.raises(FlussError, match="for a pattern"):
                named.raw_sql(text)
        else:
            assert named.raw_sql(text).equals(ROWS.select(exact(name))[1:])


def test_names_in_variables_go_one_way() -> None:
    """Where a name is in a variable, ``pl.col`` would take some names for patterns."""
    root = Path(fluss_df.__file__).parent
    found = []
    for file in sorted(root.rglob("*.py")):
        where = file.relative_to(root).as_posix()
        if where == "io/names.py":
            continue
        lines = file.read_text().splitlines()
        found += [f"{where}: {line}" for line in lines if _TAKEN.search(line)]
    assert [line for line in found if ">>>" not in line and "``" not in line] == []
