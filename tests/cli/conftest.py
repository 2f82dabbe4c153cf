"""What commands remember stays in the folders of tests."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fluss_df.cli import app
from tests.engines import ENGINES

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def data_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which commands remember."""
    folder = tmp_path_factory.mktemp("data_home")
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    return folder


@pytest.fixture(params=ENGINES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An address of a cluster, and a folder of an embedded Fluss."""
    if request.param == "cluster":
        yield request.getfixturevalue("fluss_cluster").bootstrap_servers
    else:
        yield str(tmp_path / "fluss")


@pytest.fixture
def at(place: str) -> Run:
    """Run a command there."""

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--connection", place])

    return call


@pytest.fixture
def command(place: str) -> Callable[..., list[str]]:
    """Return a command line for a process of its own."""
    return lambda *arguments: [
        *(sys.executable, "-m", "tests.cli.main"),
        *arguments,
        *("--connection", place),
    ]
