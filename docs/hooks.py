"""What MkDocs calls while it builds the site: pages from the repository, pictures, tables.

A line ``<!-- include: NAME -->`` in a page stands for what :data:`INCLUDES` makes, or for a file of
the repository's root. A picture (``![...](pictures/NAME.svg)``) becomes part of the page, so that
it has the colours of the theme.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT)]

import fluss_df.aio  # noqa: E402
from fluss_df.cli import app  # noqa: E402
from fluss_df.config import Config, Option  # noqa: E402

_INCLUDE = re.compile(r"^<!-- include: (\S+) -->$", re.MULTILINE)
_PICTURE = re.compile(r'<img alt="([^"]*)" src="(?:\.\./)*pictures/([\w-]+\.svg)"\s*/?>')
_STYLE = re.compile(r"<style>.*?</style>\s*", re.DOTALL)
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


def _cell(text: str) -> str:
    """Return a text of one or several lines as a cell of a table."""
    return " ".join(_ROLE.sub(r"`\1`", text).split()).replace("|", "\\|")


def _value(value: object) -> str:
    if isinstance(value, int) and value == 2**64 - 1:
        return "no limit"
    return f"`{value}`" if value != "" else ""


def settings() -> str:
    """Return the options of a connection as a table."""
    lines = ["| key | default | what it does |", "|---|---|---|"]
    for option in vars(Config).values():
        if isinstance(option, Option):
            doc = _cell(str(option.__doc__))
            lines.append(f"| `{option.key}` | {_value(option.default)} | {doc} |")
    return "\n".join(lines)


def _parameters(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.param_type_name == "option":
            names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
            text = parameter.help or ""
        else:
            names = f"`{parameter.metavar or (parameter.name or '').upper()}`"
            text = getattr(parameter, "help", None) or ""
        default = getattr(parameter, "show_default", None)
        given = parameter.default
        shown = ""
        if isinstance(default, str):
            shown = default
        elif isinstance(given, (str, int, Path)) and not isinstance(given, bool):
            shown = f"`{given}`"
        yield f"| {names} | {shown} | {_cell(text)} |"


def _command(name: str, command: Any) -> Iterator[str]:
    if hasattr(command, "list_commands"):
        for child in command.list_commands(None):
            yield from _command(f"{name} {child}", command.get_command(None, child))
        return
    yield f"## {name}\n"
    yield inspect.cleandoc(command.help or "") + "\n"
    rows = [row for row in _parameters(command) if not row.startswith("| `--help`")]
    if rows:
        yield "\n".join(["| argument or option | default | what it does |", "|---|---|---|", *rows])
        yield ""


def commands() -> str:
    """Return every subcommand of ``fluss-df`` with its options."""
    return "\n".join(_command("fluss-df", typer.main.get_command(app)))


def _signature(name: str, function: Callable[..., Any]) -> str:
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    text = str(inspect.signature(function).replace(parameters=parameters))
    text = re.sub(r"'([^',]*)'(?=[,)\s\]|]|$)", r"\1", text)  # annotations are strings
    return ("async " if inspect.iscoroutinefunction(function) else "") + name + text


def asynchronous() -> str:
    """Return the classes of ``fluss_df.aio`` whose methods are its own."""
    parts = []
    for name in sorted(fluss_df.aio.__all__, key=str.lower):
        kind = getattr(fluss_df.aio, name)
        if not inspect.isclass(kind) or not kind.__module__.startswith("fluss_df.aio."):
            continue
        parts.append(f"## {name}\n\n{_summary(kind)}\n")
        bases = [base for base in kind.__mro__ if base.__module__.startswith("fluss_df.aio.")]
        for method in sorted({method for base in bases for method in vars(base)}):
            static = inspect.getattr_static(kind, method)
            if method.startswith("_") or method == "core":
                continue
            if isinstance(static, property):
                parts.append(f"`{method}`\n:   {_summary(static)}\n")
            elif callable(static) or isinstance(static, (staticmethod, classmethod)):
                shown = _signature(method, getattr(kind, method))
                parts.append(f"`{shown}`\n:   {_summary(static)}\n")
    return "\n".join(parts)


def _summary(thing: object) -> str:
    text = _ROLE.sub(r"`\1`", inspect.getdoc(thing) or "").replace("``", "`")
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())


INCLUDES = {"settings": settings, "commands": commands, "asynchronous": asynchronous}


def _included(match: re.Match[str]) -> str:
    name = match.group(1)
    if name in INCLUDES:
        return INCLUDES[name]()
    text = (ROOT / name).read_text()
    # links of a file in the root are those of a page in docs/
    text = text.replace("](docs/", "](")
    for file, page in (("CONTRIBUTING", "contributing"), ("CHANGELOG", "changelog")):
        text = text.replace(f"]({file}.md", f"]({page}.md")
    text = text.replace("](SECURITY.md", "](reporting.md")
    return re.sub(r"\[([^\]]+)\]\(((?:LICENSE|CODE_OF_CONDUCT\.md|\.github/)[^)]*)\)", r"\1", text)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put in what a page includes."""
    return _INCLUDE.sub(_included, markdown)


def _picture(match: re.Match[str]) -> str:
    alt, name = match.groups()
    svg = _STYLE.sub("", (DOCS / "pictures" / name).read_text().strip())
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{alt}" class="picture" ', 1)
    return f'<span class="picture-frame">{svg}</span>'


def on_page_content(html: str, **_: Any) -> str:
    """Put pictures into the page."""
    return _PICTURE.sub(_picture, html)
