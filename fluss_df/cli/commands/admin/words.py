"""What the commands that change something share: settings as words, and the question before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from fluss_df.errors import FlussError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
IfExists = Annotated[bool, typer.Option("--if-exists", help="What does not exist is no error.")]
IfNotExists = Annotated[
    bool, typer.Option("--if-not-exists", help="What exists already is no error.")
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property", "-p", metavar="KEY=VALUE", help="A property; repeat for more.",
        show_default="none",
    ),
]  # fmt: skip
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a property; repeat for more."),
]
Reset = Annotated[
    list[str] | None,
    typer.Option("--reset", metavar="KEY", help="Put a property back; repeat for more."),
]
Spec = Annotated[
    list[str], typer.Argument(metavar="COLUMN=VALUE...", help="The value of each partition column.")
]


def pairs(words: Iterable[str], what: str) -> dict[str, str]:
    """Return ``KEY=VALUE`` words as a dict.

    Raises FlussError for a word without ``=``, and a key that is there twice.
    """
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise FlussError(f"{what} {word!r}: expected a key and a value, as in key=value")
        if key in found:
            raise FlussError(f"{what}: '{key}' is named twice")
        found[key] = value
    return found


def ask(question: str, *, yes: bool) -> None:
    """Ask before something is lost, unless the user said yes already; ends the command on no."""
    if not yes:
        typer.confirm(question, abort=True, err=True)
