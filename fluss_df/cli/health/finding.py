"""One line of a health report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was looked at.

    Parameters
    ----------
    check
        What was looked at, in one or two words.
    status
        ``"ok"``, ``"warning"`` for what may go wrong, ``"problem"`` for what does.
    message
        What was found.
    advice
        What to do; empty where all is well.
    """

    check: str
    status: Status
    message: str
    advice: str = ""

    def as_json(self) -> dict[str, str]:
        """Return it as an object of JSON."""
        return asdict(self)


def ok(check: str, message: str) -> Finding:
    """Return that all is well."""
    return Finding(check, "ok", message)


def warning(check: str, message: str, advice: str) -> Finding:
    """Return what may go wrong, and the way out."""
    return Finding(check, "warning", message, advice)


def problem(check: str, message: str, advice: str) -> Finding:
    """Return what goes wrong, and the way out."""
    return Finding(check, "problem", message, advice)
