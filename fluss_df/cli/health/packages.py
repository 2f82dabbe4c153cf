"""Versions: of Python, of this package, of what it needs, and of what its extras need."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator

from fluss_df.cli.health.finding import Finding, ok, problem
from fluss_df.version import __version__

_DISTRIBUTION = "fluss-df"
_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?\s*([^;]*)(?:;\s*(.*))?\Z")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")
_AT_LEAST = re.compile(r">=\s*([0-9.]+)")
# extras for developers of fluss_df
_NOT_SHOWN = {"dev"}
# libraries with native parts: an installed one may still fail to load
_LOADED = ("polars", "pyarrow", "numpy", "rocksdict", "google_crc32c")


def packages() -> Iterator[Finding]:
    """Give the versions that are installed, and what is missing or too old."""
    yield ok("python", f"{platform.python_version()} ({sys.executable})")
    yield ok("fluss_df", __version__)
    try:
        requirements = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        yield problem(
            "packages",
            "fluss_df is imported from a folder, and is not installed",
            f"install it: {sys.executable} -m pip install fluss-df",
        )
        return
    extras: dict[str, list[tuple[str, str]]] = {}
    for text in requirements:
        found = _REQUIREMENT.match(text)
        if found is None:
            continue
        name, wanted, marker = found[1], found[2], found[3] or ""
        extra = _EXTRA.search(marker)
        if extra is not None:
            extras.setdefault(extra[1], []).append((name, wanted))
        else:
            yield _package(name, wanted)
    for module in _LOADED:
        try:
            importlib.import_module(module)
        except Exception as error:
            yield problem(
                module,
                f"cannot be imported: {type(error).__name__}: {error}",
                f"install it again: {sys.executable} -m pip install --force-reinstall {module}",
            )
    for extra_name, parts in extras.items():
        if extra_name not in _NOT_SHOWN:
            yield _extra(extra_name, parts)


def installed(name: str) -> str | None:
    """Return the version of a distribution; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(name: str, wanted: str) -> Finding:
    version = installed(name)
    advice = f"{sys.executable} -m pip install '{name}{wanted}'"
    if version is None:
        return problem(name, "is not installed", advice)
    if _too_old(version, wanted):
        return problem(name, f"{version} is too old: fluss_df needs {wanted}", advice)
    return ok(name, version)


def _extra(extra: str, parts: list[tuple[str, str]]) -> Finding:
    check = f"extra {extra}"
    install = f"{sys.executable} -m pip install 'fluss-df[{extra}]'"
    # an extra that brings another one names this package
    own = [(name, wanted) for name, wanted in parts if name != _DISTRIBUTION]
    versions = {name: installed(name) for name, _ in own}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return ok(check, f"not installed ({', '.join(missing)}); {install}")
    old = [name for name, wanted in own if _too_old(versions[name] or "", wanted)]
    if old:
        return problem(check, f"too old: {', '.join(f'{n} {versions[n]}' for n in old)}", install)
    return ok(check, ", ".join(f"{name} {version}" for name, version in versions.items()))


def _too_old(version: str, wanted: str) -> bool:
    least = _AT_LEAST.search(wanted)
    return least is not None and _numbers(version) < _numbers(least[1])


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [] if found is None else [int(part) for part in found[0].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
