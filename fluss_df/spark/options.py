"""Options of a Spark read, checked, as plain values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from fluss_df.errors import ErrorCode, FlussError

_ROWS_PER_TASK = 5_000_000


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read was asked for; all other options are the connection's."""

    table: str
    connection: dict[str, str]
    columns: tuple[str, ...] | None
    partitions: tuple[str, ...] | None
    metadata_columns: tuple[str, ...]
    start: str | int | dt.datetime
    stop: str | int | dt.datetime
    rows_per_task: int

    @staticmethod
    def parse(options: Mapping[str, str]) -> ReadOptions:
        """Return the options that Spark hands on, their keys in any case.

        Raises
        ------
        FlussError
            ``INVALID_CONFIG_EXCEPTION`` for a missing table or a value that cannot be read.
        """
        left = {key.lower(): value for key, value in options.items()}
        table = left.pop("path", None) or left.pop("table", None)
        if not table:
            raise _invalid("no table given: use .load('database.table') or option 'table'")
        return ReadOptions(
            table=table,
            columns=_names(left.pop("columns", None)),
            partitions=_names(left.pop("partitions", None)),
            metadata_columns=_names(left.pop("metadata.columns", None)) or (),
            start=_offset("start", left.pop("start", "earliest")),
            stop=_offset("stop", left.pop("stop", "latest")),
            rows_per_task=_positive("rows.per.task", left.pop("rows.per.task", _ROWS_PER_TASK)),
            connection=left,
        )


def _invalid(message: str) -> FlussError:
    return FlussError(f"format 'fluss': {message}", ErrorCode.INVALID_CONFIG_EXCEPTION)


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(","))


def _positive(key: str, value: str | int) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise _invalid(f"option '{key}': expected a whole number from 1, not {value!r}")
    return number


def _offset(key: str, text: str) -> str | int | dt.datetime:
    if text in ("earliest", "latest"):
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise _invalid(
            f"option '{key}': expected 'earliest', 'latest', an offset, or a time with its zone"
            f" such as 2024-01-31T12:00:00+00:00, not {text!r}"
        )
    return moment
