"""A pipeline into each kind of target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.io.run_states.pipelines import TARGETS, Pipeline


@pytest.fixture(params=TARGETS)
def pipeline(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = Pipeline(tmp_path / "home", request.param)
    yield made
    made.close()
