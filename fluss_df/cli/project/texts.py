"""The texts of a new project's files."""

from __future__ import annotations

from typing import Any, Final

README: Final = """\
# A project with Fluss

| file | what it is |
|---|---|
| `data/` | an embedded Fluss, in which the table `visits` is |
| `pipeline.py` | adds rows, and writes what is new into Parquet files, each row once |
| `explore.ipynb` | a notebook that queries the table |

```
python pipeline.py                          # each run adds five rows
fluss-df head visits --connection ./data
fluss-df count visits --connection ./data
fluss-df doctor ./data                      # when something does not work
```

The notebook needs `pip install 'fluss-df[notebook]'`.

To use a cluster rather than the folder, name it: `export FLUSS_BOOTSTRAP_SERVERS=host:9123`.
`pipeline.py` creates the table there.
"""

PIPELINE: Final = '''\
"""Adds visits to a table, and writes what came since the last run into Parquet files."""

import datetime as dt
import os
from pathlib import Path

import polars as pl

import fluss_df

HERE = Path(__file__).parent
fluss_df.set_default_connection(os.environ.get("FLUSS_BOOTSTRAP_SERVERS") or HERE / "data")

now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
visits = pl.DataFrame(
    {
        "at": [now] * 5,
        "page": ["home", "shop", "home", "help", "shop"],
        "seconds": [3.5, 40.0, 1.25, 12.0, 8.0],
    }
)
visits.write_fluss("visits", create_if_not_exists=True)

# the checkpoint says how far the last run came: run it again, and it goes on there
long = pl.scan_fluss("visits").filter(pl.col("seconds") > 5)
done = long.fluss.run(to=str(HERE / "long-visits"), checkpoint=str(HERE / "long-visits.checkpoint"))
print(done)

pages = pl.scan_fluss("visits").group_by("page").agg(pl.col("seconds").sum()).sort("page")
print(pages.collect())
'''

_CELLS: Final = (
    ("markdown", "# Visits\n\nThe table is in the folder `data`, or where the environment says."),
    (
        "code",
        "import os\n\nimport polars as pl\n\nimport fluss_df\n\n"
        'fluss_df.set_default_connection(os.environ.get("FLUSS_BOOTSTRAP_SERVERS") or "./data")',
    ),
    ("code", 'pl.scan_fluss("visits").tail(5).collect()'),
    (
        "code",
        'query = (\n    pl.scan_fluss("visits")\n    .group_by("page")\n'
        '    .agg(pl.len().alias("visits"), pl.col("seconds").mean())\n    .sort("page")\n)\n'
        "print(query.fluss.explain())\nquery.collect()",
    ),
)

GITIGNORE: Final = "data/\nlong-visits/\nlong-visits.checkpoint/\n.ipynb_checkpoints/\n"


def notebook() -> dict[str, Any]:
    """Return the notebook, as its file has it."""
    cells = []
    for number, (kind, text) in enumerate(_CELLS):
        cell: dict[str, Any] = {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": text.splitlines(keepends=True),
        }
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        cells.append(cell)
    return {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
