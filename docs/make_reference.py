"""Writes docs/reference/ from the docstrings: ``make docs``."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import fluss_df
import fluss_df.aio
from fluss_df.config import Option

FOLDER = Path(__file__).parent / "reference"
PAGES = {"fluss_df.md": fluss_df, "fluss_df.aio.md": fluss_df.aio}

_SECTION = re.compile(r"^([A-Z][A-Za-z ]+)\n-{3,}\n", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


def _items(text: str) -> str:
    """Return a list of ``name`` lines with indented descriptions as Markdown."""
    lines: list[str] = []
    for line in text.strip().splitlines():
        if line and not line.startswith(" "):
            lines.append(f"- `{line.strip()}`:")
        elif line.strip() and lines:
            lines[-1] += f" {line.strip()}"
    return "\n".join(lines)


def _markdown(docstring: str) -> str:
    """Return a docstring of NumPy style as Markdown."""
    text = _ROLE.sub(r"`\1`", docstring).replace("``", "`")
    parts = _SECTION.split(text)
    result = [parts[0].strip()]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title == "Examples":
            result.append(f"**Example**\n\n```python\n{body.strip()}\n```")
        elif title in ("Parameters", "Attributes", "Raises", "Returns", "Yields"):
            result.append(f"**{title}**\n\n{_items(body)}")
        else:
            result.append(f"**{title}**\n\n{textwrap.dedent(body).strip()}")
    return "\n\n".join(result)


def _signature(name: str, thing: Any, *, drop_self: bool) -> str:
    signature = inspect.signature(thing)
    parameters = list(signature.parameters.values())
    if drop_self and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    signature = signature.replace(parameters=parameters)
    # annotations are strings; what a default is must not depend on where something was loaded
    text = re.sub(r"'([^',]*)'(?=[,)\s]|$)", r"\1", str(signature))
    prefix = "async " if inspect.iscoroutinefunction(thing) else ""
    return f"{prefix}{name}{text}"


def _members(kind: type) -> Iterator[str]:
    for name in sorted(vars(kind)):
        if name.startswith("_"):
            continue
        static = inspect.getattr_static(kind, name)
        doc = inspect.getdoc(static)
        if isinstance(static, Option):
            yield f"- `{name}` (`{static.key}`, default `{static.default!r}`): {static.__doc__}"
        elif isinstance(static, property):
            yield f"### `{name}`\n\n{_markdown(doc or '')}"
        elif isinstance(static, (staticmethod, classmethod)) or inspect.isfunction(static):
            function = getattr(kind, name)
            drop = not isinstance(static, (staticmethod, classmethod))
            shown = _signature(name, function, drop_self=drop)
            yield f"### `{shown}`\n\n{_markdown(doc or '')}"


def page(module: ModuleType) -> str:
    """Return the page of a module: everything in its ``__all__``."""
    parts = [f"# `{module.__name__}`", _markdown(inspect.getdoc(module) or "")]
    parts.append("Written from the docstrings by `make docs`.")
    for name in sorted(module.__all__, key=str.lower):
        thing = getattr(module, name)
        if inspect.isclass(thing):
            parts += [f"## `{name}`", _markdown(inspect.getdoc(thing) or ""), *_members(thing)]
        elif callable(thing):
            shown = _signature(name, thing, drop_self=False)
            parts += [f"## `{shown}`", _markdown(inspect.getdoc(thing) or "")]
        elif not name.startswith("_"):
            parts += [f"## `{name}`", f"`{thing!r}`"]
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """Return the text of every page by its file name."""
    return {name: page(module) for name, module in PAGES.items()}


def main() -> None:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
