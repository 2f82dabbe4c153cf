"""The public names of fluss_df: ``make api`` writes ``docs/public_api.txt``."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fluss_df.config import Option

LIST = Path(__file__).parent.parent / "docs" / "public_api.txt"
MODULES = {
    "fluss_df": None,
    "fluss_df.aio": None,
    "fluss_df.arrow": None,
    "fluss_df.embedded": None,
    "fluss_df.cluster": None,
    "fluss_df.spark": None,
    "fluss_df.lake": None,
    "fluss_df.flight": None,
    "fluss_df.metrics": None,
    "fluss_df.errors": (
        "SchemaMismatchError",
        "ProtocolError",
        "NetworkError",
        "DeadlineExceededError",
    ),
    "fluss_df.types": ("Column", "from_arrow"),
    "fluss_df.register": ("FlussFrame",),
    "fluss_df.backend": None,
}
OURS = "fluss_df."
# whose objects fluss_df makes, and not the user: how is nobody's business
_MADE_BY = frozenset({"connection", "context", "core", "info", "table", "scanner", "writer"})
# the rules of their members are Spark's and Ibis's
_OTHERS = frozenset({"FlussDataSource", "Backend"})
_MARKS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
_INTERNAL = re.compile(
    re.findall(r'"!(\^\(.*\)\$)"', (LIST.parents[1] / "mkdocs.yml").read_text())[0]
)


def _parameters(function: Any) -> str:
    """Return names, kinds and whether there is a default; types are not part of the list."""
    parts: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        mark = _MARKS.get(parameter.kind, "")
        if parameter.kind is parameter.KEYWORD_ONLY and not any(p.startswith("*") for p in parts):
            parts.append("*")
        default = "" if parameter.default is parameter.empty else "=..."
        parts.append(f"{mark}{parameter.name}{default}")
    return f"({', '.join(parts)})"


def _members(path: str, kind: type) -> Iterator[str]:
    for name in dir(kind):
        static = inspect.getattr_static(kind, name)
        if name.startswith("_") or _INTERNAL.match(name) or not _is_ours(kind, name):
            continue
        if isinstance(static, Option):
            yield f"{path}.{name}: {static.key}"
        elif isinstance(static, property) or not callable(getattr(kind, name)):
            yield f"{path}.{name}"
        else:
            yield f"{path}.{name}{_parameters(getattr(kind, name))}"


def _is_ours(kind: type, name: str) -> bool:
    """Whether a member comes from fluss_df, and not from a base class of somebody else."""
    owner = next(base for base in kind.__mro__ if name in vars(base))
    return owner.__module__.startswith(OURS)


def _lines() -> Iterator[str]:
    for module_name, chosen in MODULES.items():
        module = importlib.import_module(module_name)
        for name in sorted(chosen or module.__all__):
            thing, path = getattr(module, name), f"{module_name}.{name}"
            if name == "__version__":
                yield path
            elif inspect.isclass(thing):
                named = getattr(importlib.import_module("fluss_df"), name, None)
                if module_name != "fluss_df" and named is thing:
                    yield f"{path} is fluss_df.{name}"
                    continue
                yield f"{path}{_class_parameters(thing)}"
                if name not in _OTHERS:
                    yield from _members(path, thing)
            elif callable(thing):
                yield f"{path}{_parameters(thing)}"
            else:
                yield f"{path} = {re.sub(' at 0x[0-9a-f]+', '', repr(thing))}"


def _class_parameters(kind: type) -> str:
    if vars(kind).get("__init__") is None and not _is_ours(kind, "__init__"):
        return ""
    parameters = _parameters(kind)
    first = re.split(r"\W", parameters[1:], maxsplit=1)[0]
    return "" if first in _MADE_BY else parameters


def public_names() -> str:
    """Return one line for each public name, with its parameters."""
    return "\n".join(_lines()) + "\n"


if __name__ == "__main__":
    LIST.write_text(public_names())
