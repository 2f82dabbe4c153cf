"""``fluss_df.aio`` in the place of the official client: its names, and its examples."""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import fluss_df.aio as ours
from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss
from tests.other_peoples import official_source
from tests.peer import official

EXAMPLES = official_source() / "example"

# what the official client has and fluss_df.aio has not, or has otherwise; also in docs/migration.md
DIFFERENCES = {
    # a plain False instead of a None that means False
    "FlussAdmin.create_table": "default of ignore_if_exists",
    # the documentation names them so, and the released names are keywords too
    "TablePath": "parameters",
    # the offset may be given in the older way instead
    "FlussAdmin.list_offsets": "offset_spec has a default",
    "FlussAdmin.list_partition_offsets": "offset_spec has a default",
    # measured better, or as the server is: see the docstrings of Config
    "Config.scanner_log_fetch_max_bytes_for_bucket": "default 8 MB",
    "Config.scanner_log_fetch_wait_max_time_ms": "default 30 ms",
    # said out loud in both, but lists its options here
    "TableDescriptor": "keywords are named",
}


def signature(thing: Any) -> inspect.Signature | None:
    """Return a signature without ``self``; None where there is none to compare."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return None
    kept = [p for p in found.parameters.values() if p.name != "self"]
    return found.replace(parameters=kept)


def difference(theirs: Any, here: Any) -> str | None:
    """Return how a callable differs from its official counterpart for who calls that."""
    if inspect.isclass(theirs) and theirs.__text_signature__ is None:
        return None  # not made by users
    if theirs.__name__.startswith("__"):
        return None  # operators
    wanted, found = signature(theirs), signature(here)
    if wanted is None or found is None:
        return None
    parameters = list(found.parameters.values())
    for number, parameter in enumerate(wanted.parameters.values()):
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            return f"takes {parameter}"
        if number >= len(parameters):
            return f"no parameter {parameter.name}"
        mine = parameters[number]
        if parameter.name.startswith("_"):
            continue
        if mine.name != parameter.name:
            return f"parameter {mine.name} instead of {parameter.name}"
        if parameter.default is not ... and mine.default != parameter.default:
            return f"default of {parameter.name}: {mine.default!r}, not {parameter.default!r}"
    for mine in parameters[len(wanted.parameters) :]:
        if mine.default is inspect.Parameter.empty and mine.kind is not mine.VAR_KEYWORD:
            return f"needs {mine.name} too"
    return None


def members(kind: type) -> list[str]:
    special = [
        "aenter",
        "aexit",
        "enter",
        "exit",
        "aiter",
        "len",
        "getitem",
        "contains",
        "iter",
        "hash",
        "eq",
        "and",
        "or",
    ]
    special = [f"__{name}__" for name in special]
    names = [name for name in vars(kind) if not name.startswith("_") or name in special]
    return sorted(names)


def found_differences() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in (name for name in dir(official) if not name.startswith("_")):
        theirs = getattr(official, name)
        here = getattr(ours, name, None)
        if here is None:
            found[name] = "missing"
            continue
        if not inspect.isclass(theirs):
            if not callable(theirs) and theirs != here:
                found[name] = f"{here!r}, not {theirs!r}"
            continue
        problem = difference(theirs, here)
        if problem is not None:
            found[name] = problem
        for member in members(theirs):
            if name == "FlussError":
                here = ours.FlussError("", 0)
            # fields of dataclasses with slots or without defaults are no attributes of the class
            if not hasattr(here, member) and member not in getattr(
                here, "__dataclass_fields__", ()
            ):
                found[f"{name}.{member}"] = "missing"
                continue
            if name == "ErrorCode" and getattr(theirs, member) != getattr(here, member):
                found[f"{name}.{member}"] = "another code"
            if callable(getattr(theirs, member)) and name != "FlussError":
                problem = difference(getattr(theirs, member), getattr(here, member))
                if problem is not None:
                    found[f"{name}.{member}"] = problem
    theirs_config, our_config = official.Config(), ours.Config()
    for member in members(official.Config):
        if member == "security_sasl_password":  # which the official client does not let be read
            continue
        if getattr(theirs_config, member) != getattr(our_config, member, None):
            found[f"Config.{member}"] = f"default {getattr(our_config, member, None)!r}"
    return found


def test_names_parameters_and_defaults() -> None:
    found = found_differences()
    assert set(found) == set(DIFFERENCES), {
        name: found.get(name, "not different any more") for name in set(found) ^ set(DIFFERENCES)
    }


def stub_coroutines() -> dict[str, bool]:
    """Return, of each method in the official type stubs, whether it is a coroutine."""
    stubs = Path(official.__file__).with_name("__init__.pyi").read_text()
    result: dict[str, bool] = {}
    kind = ""
    for line in stubs.splitlines():
        if found := re.match(r"class (\w+)", line):
            kind = found[1]
        elif found := re.match(r"    (async )?def (\w+)\(", line):
            result[f"{kind}.{found[2]}"] = bool(found[1])
    return result


def test_coroutines() -> None:
    # its file, too, is only there where the client is
    assert official.FlussConnection.__name__ == "FlussConnection"
    compared = 0
    for name, is_coroutine in stub_coroutines().items():
        kind, _, member = name.partition(".")
        if name in DIFFERENCES or (kind in DIFFERENCES and DIFFERENCES[kind] == "missing"):
            continue
        here = inspect.getattr_static(getattr(ours, kind), member, None)
        if isinstance(here, staticmethod):
            here = here.__func__
        if inspect.isfunction(here):
            compared += 1
            assert inspect.iscoroutinefunction(here) == is_coroutine, name
    assert compared > 60


def example(name: str) -> dict[str, Any]:
    """Return the names of an official example with its import changed."""
    source = (EXAMPLES / f"{name}.py").read_text()
    changed = source.replace("\nimport fluss\n", "\nimport fluss_df.aio as fluss\n")
    assert changed != source
    scope: dict[str, Any] = {"__name__": name}
    exec(compile(changed, f"{name}.py", "exec"), scope)
    return scope


# shows that rows are refused that are written here, see test_official_tests.py
OTHERWISE = {"auto_increment_table"}
# names a property that servers have from 1.0 on, as the embedded one does
SINCE_1_0 = {"log_table"}
NAMES = {path.stem for path in EXAMPLES.glob("*.py")} - OTHERWISE


@pytest.mark.parametrize("name", sorted(NAMES - SINCE_1_0))
def test_example(
    name: str, fluss_cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(example(name)["main"](fluss_cluster.bootstrap_servers))
    assert "Connection closed" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(NAMES))
def test_example_on_an_embedded_server(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedFluss(None, port=0) as server:
        asyncio.run(example(name)["main"](server.address))
    assert "Connection closed" in capsys.readouterr().out
