"""A name for a table of a test."""

from __future__ import annotations

import uuid

import pytest


@pytest.fixture
def table() -> str:
    return f"t_{uuid.uuid4().hex[:12]}"
