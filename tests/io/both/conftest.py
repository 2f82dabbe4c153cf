"""Tests here run on a cluster and on an embedded engine alike."""

from __future__ import annotations

import pytest

from fluss_df.client.connection import FlussConnection
from tests.io.conftest import MakeTable, Place


@pytest.fixture(scope="module")
def connection(place: Place) -> FlussConnection:
    """A connection to one of the two."""
    return place.connection


@pytest.fixture(scope="module")
def make_table(place: Place) -> MakeTable:
    """Return a function that creates a table there and writes frames to it, each as batches."""
    return place.make_table
