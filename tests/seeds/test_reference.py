"""Every name, parameter and default of the documented API reference is there."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

import pytest

import fluss_df as fluss
from tests.other_peoples import pages
from tests.seeds import programs

REFERENCE = pages()["api-reference"]

KEYWORD_ONLY_SETTING = "writer.bucket.no-key-assigner"


def rows() -> list[tuple[str, str, str]]:
    """Return (class, first cell, second cell) of each row of each table."""
    found = []
    kind = ""
    for line in REFERENCE.splitlines():
        if heading := re.match(r"## (.*)$", line):
            kind = heading[1].strip("`")
        elif line.startswith("|") and not re.match(r"\|[-| ]+\|$", line):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if "`" in cells[0]:
                found.append((kind, cells[0].strip("`"), cells[1]))
    return found


ROWS = rows()


def call_of(entry: str) -> ast.Call | None:
    """Return ``name(parameter=default, ...)`` without what is around it."""
    text = entry.split(" ->")[0].removeprefix("await ").lstrip(".")
    # types of parameters are not Python's call syntax
    text = re.sub(r"(\w+): [\w.]+", r"\1", text)
    node = ast.parse(text, mode="eval").body
    return node if isinstance(node, ast.Call) else None


def check_call(owner: str, call: ast.Call, keyword_only: bool) -> None:
    name = ast.unparse(call.func).split(".")[-1]
    target: Any = getattr(fluss, owner)
    if name != owner:
        target = getattr(target, name)
    parameters = dict(inspect.signature(target).parameters)
    parameters.pop("self", None)
    names = list(parameters)
    for number, argument in enumerate(call.args):
        if isinstance(argument, ast.Constant):  # an example of an argument
            continue
        assert isinstance(argument, ast.Name)
        assert names[number] == argument.id, f"{owner}.{name}: {names[number]}"
        assert parameters[names[number]].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    for keyword in call.keywords:
        parameter = parameters[str(keyword.arg)]
        assert parameter.default == ast.literal_eval(keyword.value), keyword.arg
        assert (parameter.kind is inspect.Parameter.KEYWORD_ONLY) == keyword_only
    given = len(call.args) + len(call.keywords)
    for extra in list(parameters.values())[given:]:
        assert extra.default is not inspect.Parameter.empty, f"{owner}.{name} needs {extra.name}"


@pytest.mark.parametrize(
    ("owner", "entry"),
    [
        (owner, entry)
        for owner, entry, _ in ROWS
        if hasattr(fluss, owner)
        if owner not in ("Config", "ChangeType", "ScanRecords") or "(" in entry
        if "ChangeType." not in entry and not entry.startswith("len(")
    ],
)
def test_entry(owner: str, entry: str) -> None:
    # the star says that what follows is for keywords only
    keyword_only = "*, " in entry
    call = call_of(entry.replace("*, ", "")) if "(" in entry else None
    if call is not None:
        check_call(owner, call, keyword_only)
        return
    name = entry.split(" ->")[0].lstrip(".")
    kind = getattr(fluss, owner)
    if owner == "FlussError":
        kind = fluss.FlussError("text", 7)
    assert hasattr(kind, name) or name in getattr(kind, "__dataclass_fields__", ()), name


@pytest.mark.parametrize(
    "name", [entry for owner, entry, _ in ROWS if owner == "Config" and "(" not in entry]
)
def test_setting(name: str) -> None:
    """Each is a property that can be set, and a key with and without its prefix."""
    if name == KEYWORD_ONLY_SETTING:
        for key in (name, f"client.{name}"):
            config = fluss.Config({key: "round_robin"})
            assert config.writer_bucket_no_key_assigner == "round_robin"
        return
    config = fluss.Config()
    value = getattr(config, name)
    other: Any = value + 1 if isinstance(value, int) else value or "someone"
    setattr(config, name, other)
    assert getattr(config, name) == other
    key = name.replace("_", "-")
    for spelt in (key, f"client.{key}", name.replace("_", ".")):
        assert getattr(fluss.Config({spelt: other}), name) == other


def test_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(fluss.FlussError, match=r"did you mean 'writer\.retries'") as raised:
        fluss.Config({"client.writer.retrys": "1"})
    assert raised.value.error_code == fluss.ErrorCode.INVALID_CONFIG_EXCEPTION


def test_constants_and_change_types() -> None:
    assert fluss.EARLIEST_OFFSET == -2
    documented = [
        (entry, cell) for owner, entry, cell in ROWS if owner == "ChangeType" and "." in entry
    ]
    assert len(documented) == 5
    for entry, short in documented:
        found = re.match(r"ChangeType\.(\w+)` \((\d)\)", entry)
        assert found is not None
        kind = fluss.ChangeType[found[1]]
        assert int(kind) == int(found[2])
        assert kind.short_string() == short.strip("`")


def test_every_heading_is_known() -> None:
    headings = {owner for owner, _, _ in ROWS}
    unknown = {name for name in headings if not hasattr(fluss, name)} - {"Constants"}
    assert not unknown
    assert len(ROWS) > 150


def test_connection_is_a_context_manager() -> None:
    assert hasattr(fluss.FlussConnection, "__enter__")
    assert issubclass(fluss.FlussError, Exception)


def test_our_own_programs_use_every_name() -> None:
    """They stand for the documentation where it is not here."""
    source = inspect.getsource(programs)
    cells = re.findall(r"^\| *`([^`]+)`", REFERENCE, re.M)
    entries = [re.split(r"[(\s\[:]", cell.removeprefix("await "))[0] for cell in cells]
    names = {entry.rpartition(".")[2] for entry in entries} - {""}
    missing = {name for name in names if not re.search(rf"\b{re.escape(name)}\b", source)}
    # how a setting is written, and an example's variable
    assert missing <= {"no-key-assigner", "scan_records"}
    assert len(names) > 120
