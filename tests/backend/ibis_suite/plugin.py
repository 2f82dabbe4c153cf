"""A pytest plugin that makes Ibis's own tests of backends run against Fluss.

Those tests look for a backend's code and ``TestConf`` in ``ibis.backends.<name>``, and mark what a
backend cannot do by its name. What is marked for Ibis's Polars backend is expected to fail on Fluss
too, except for what :mod:`fluss_df.backend` adds (``added.txt``); what fails for a reason of Fluss
is in ``xfail.txt``. An expected failure that passes is an error.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import pkgutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.backend import entry_point

DATA_VARIABLE = "FLUSS_IBIS_TESTING_DATA"
_HERE = Path(__file__).parent
_MARKS = ("notimpl", "notyet", "never")

# gone with the process
_FOLDER = tempfile.TemporaryDirectory(prefix="fluss-ibis-")

entry_point.install(Path(_FOLDER.name) / "entry_point")


def listed(name: str) -> dict[str, tuple[str, str]]:
    """Return test -> reason and exception of a list; ``*`` in a test stands for any text."""
    found: dict[str, tuple[str, str]] = {}
    for line in (_HERE / name).read_text().splitlines():
        if line and not line.startswith("#"):
            test, _, reason = line.partition("  ")
            reason, _, exception = reason.partition("  ")
            found[test] = reason.strip(), exception.strip()
    return found


def pytest_configure(config: pytest.Config) -> None:
    from ibis.backends import _get_backend_names

    import fluss_df.backend
    from tests.backend.ibis_suite import conf

    for name, module in (
        ("ibis.backends.fluss", fluss_df.backend),
        ("ibis.backends.fluss.tests.conftest", conf),
    ):
        sys.modules[name] = module

    for name in _get_backend_names():
        config.addinivalue_line("markers", f"{name}: a test on this backend")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is expected to fail on Fluss."""
    added, failing = listed("added.txt"), listed("xfail.txt")
    for item in items:
        if item.get_closest_marker("fluss") is None:
            continue
        name = f"{item.path.name}::{item.name}"
        own = _find(failing, name)
        if own is not None:
            raises = pkgutil.resolve_name(own[1] if "." in own[1] else f"builtins.{own[1]}")
            item.add_marker(pytest.mark.xfail(reason=own[0], raises=raises))
        _give_results(item)
        if own is None and _find(added, name) is None:
            _give_releases(item)
            for kind in _MARKS:
                for mark in item.iter_markers(kind):
                    if "polars" in _promoted(mark.args[0]):
                        _expect(item, kind, mark.kwargs)


def _give_results(item: pytest.Item) -> None:
    """Expect of Fluss the results that a test expects of Polars by name."""
    callspec = getattr(item, "callspec", None)
    for value in callspec.params.values() if callspec else ():
        if isinstance(value, dict) and "polars" in value:
            value.setdefault("fluss", value["polars"])


def _give_releases(item: pytest.Item) -> None:
    """Expect failures with the releases of Polars that a test names."""
    for mark in item.iter_markers("xfail_version"):
        if "polars" in mark.kwargs:
            item.add_marker(
                pytest.mark.xfail_version(
                    fluss=mark.kwargs["polars"], reason=mark.kwargs.get("reason")
                )
            )


def _expect(item: pytest.Item, kind: str, given: Mapping[str, Any]) -> None:
    options = dict(given)
    if not options.get("reason"):
        options["reason"] = f"{kind} in Ibis's Polars backend"
    # Ibis lists None where an exception of a package that is not there would stand
    raises = tuple(r for r in _promoted(options.pop("raises", ())) if r is not None)
    if raises:
        options["raises"] = raises
    item.add_marker(pytest.mark.xfail(**options))


def _promoted(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def _find(patterns: dict[str, tuple[str, str]], name: str) -> tuple[str, str] | None:
    if name in patterns:
        return patterns[name]
    for pattern, found in patterns.items():
        if "*" in pattern and fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")):
            return found
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any) -> None:
    """Have the fixture of Ibis's data give ours, which it looks for in a checkout of Ibis."""
    if fixturedef.argname == "data_dir":
        fixturedef.func = _data


@functools.cache
def _data() -> Path:
    """Return a folder of the data as Parquet and CSV."""
    folder = Path(_FOLDER.name)
    source = os.environ.get(DATA_VARIABLE)
    if source:
        (folder / "parquet").symlink_to(Path(source).resolve() / "parquet")
    else:
        # what it imports of Ibis must not be imported before the entry point is there
        from tests.backend.ibis_suite import made_up

        made_up.write(folder / "parquet")
    (folder / "csv").mkdir()
    for path in sorted((folder / "parquet").glob("*.parquet")):
        pl.read_parquet(path).write_csv(folder / "csv" / f"{path.stem}.csv")
    return folder
