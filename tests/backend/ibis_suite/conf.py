"""What Ibis's tests of backends need to know of Fluss: its ``TestConf``."""

from __future__ import annotations

import itertools
import os
from typing import Any

import ibis
import numpy as np
import pandas as pd
from ibis.backends.conftest import TEST_TABLES
from ibis.backends.tests.base import BackendTest
from ibis.backends.tests.data import array_types, struct_types, topk, win

#: Where the tests run: an address, or an embedded engine in memory.
TARGET_VARIABLE = "FLUSS_IBIS_TARGET"

_numbers = itertools.count()


class TestConf(BackendTest):  # type: ignore[misc]
    """Fluss, with the tables of Ibis's tests as log tables of one bucket."""

    # one bucket keeps the order of rows, which these tests compare without sorting
    supports_structs = True
    supports_json = False
    reduction_tolerance = 1e-3
    stateful = False
    deps = ("polars",)

    @classmethod
    def name(cls) -> str:
        return "fluss"

    @staticmethod
    def connect(*, tmpdir: Any, worker_id: str, **options: Any) -> Any:
        target = os.environ.get(TARGET_VARIABLE, ":memory:")
        con = ibis.fluss.connect(target, **options)
        database = f"suite_{worker_id}_{os.getpid()}_{next(_numbers)}"
        con.create_database(database, force=True)
        made = ibis.fluss.connect(con.connection, database=database)
        return made

    def _load_data(self, **_: Any) -> None:
        con = self.connection
        for name in TEST_TABLES:
            path = self.data_dir / "parquet" / f"{name}.parquet"
            con.create_table(name, con.read_parquet(path), buckets=1)
        for name, rows in (
            ("array_types", array_types),
            ("struct", struct_types),
            ("win", win),
            ("topk", topk),
        ):
            con.create_table(name, rows, buckets=1)

    @classmethod
    def assert_series_equal(
        cls, left: pd.Series[Any], right: pd.Series[Any], *args: Any, **kwargs: Any
    ) -> None:
        # pandas' unit of timedelta is not Ibis's: as in the tests of its Polars backend
        check_dtype = kwargs.pop("check_dtype", True) and not (
            issubclass(left.dtype.type, np.timedelta64)
            and issubclass(right.dtype.type, np.timedelta64)
        )
        super().assert_series_equal(left, right, *args, **kwargs, check_dtype=check_dtype)
