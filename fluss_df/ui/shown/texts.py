"""Values and numbers as people read them; whatever comes from a server is hostile text."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import pyarrow as pa

from fluss_df.client.admin.results import HIDDEN, ConfigEntry, ConfigSource
from fluss_df.io.base.names import exact
from fluss_df.io.base.texts import MOST_SECONDS
from fluss_df.metadata import ServerNode
from fluss_df.protocol.address import shown_host
from fluss_df.texts.secret_texts import shown_option

#: How many characters of a value are shown.
MOST_CHARACTERS: Final = 300
_KINDS: Final = {
    "Int8": "tinyint", "Int16": "smallint", "Int32": "int", "Int64": "bigint", "Float32": "float",
    "Float64": "double", "Binary": "bytes",
}  # fmt: skip
_MOST_ENTRIES: Final = 20
# characters that would move the text around them, or hide: shown as their numbers
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_UNITS: Final = ("bytes", "KB", "MB", "GB", "TB", "PB")
_PROPERTY: Final = re.compile(r"('(?P<key>(?:[^']|'')*)'\s*=\s*)'(?:[^']|'')*'")


@dataclass(frozen=True, slots=True)
class Cell:
    """A value in a table.

    ``kind`` is ``"null"``, ``"number"``, ``"moment"`` or ``"text"``. ``cut`` says that the text is
    only the value's beginning.
    """

    text: str
    kind: str = "text"
    cut: bool = False


#: What stands for a number that is not known.
UNKNOWN: Final = "\N{EN DASH}"
NULL: Final = Cell("null", "null")


def visible(text: str) -> str:
    """Return a text in which nothing is hidden, and nothing turns the order of letters round."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def count(number: float | None) -> str:
    """Return a number with separators; of None, a dash."""
    if number is None:
        return UNKNOWN
    return f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"


def things(number: int, name: str) -> str:
    """Return how many there are of something, as ``1 table`` or ``2 tables``."""
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"


def address(node: ServerNode) -> str:
    """Return where a server is; an engine on this machine has a socket of its own."""
    return shown_host(node.host, visible(node.address))


def size(number: float | None) -> str:
    """Return bytes with a unit."""
    if number is None:
        return UNKNOWN
    unit = 0
    while number >= 1000 and unit < len(_UNITS) - 1:
        number /= 1000
        unit += 1
    return f"{number:,.0f} bytes" if unit == 0 else f"{number:,.1f} {_UNITS[unit]}"


def duration(seconds: float | None) -> str:
    """Return a time with a unit."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{seconds * 1000:,.0f} ms"
    if seconds < 120:
        return f"{seconds:,.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:,.0f} min"
    return f"{seconds / 3600:,.1f} h"


def moment(ms: float | None) -> str:
    """Return a moment in ms since 1970."""
    if ms is None:
        return UNKNOWN
    try:
        return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{ms:,} ms since 1970"


def properties(pairs: Mapping[str, str]) -> dict[str, str]:
    """Return properties with secrets as ``***``: passwords, keys, logins in addresses."""
    return {key: _shown(key, value) for key, value in sorted(pairs.items())}


def _shown(key: str, value: str) -> str:
    entry = ConfigEntry(key, value, ConfigSource.DYNAMIC_SERVER_CONFIG)
    return HIDDEN if entry.shown == HIDDEN else shown_option(key, value)


def statement(text: str) -> str:
    """Return a statement with the secrets in its properties as ``***``."""

    def hidden(found: re.Match[str]) -> str:
        key = found["key"].replace("''", "'")
        value = found[0][len(found[1]) + 1 : -1].replace("''", "'")
        shown = _shown(key, value)
        return found[0] if shown == value else f"{found[1]}'{shown}'"

    return _PROPERTY.sub(hidden, text)


# ---- rows


def kind_name(kind: pl.DataType) -> str:
    """Return a type of Polars as Fluss calls it."""
    match kind:
        case pl.Datetime():
            return "timestamp" if kind.time_zone is None else "timestamp_ltz"
        case pl.Decimal():
            return f"decimal({kind.precision}, {kind.scale})"
        case pl.List():
            return "array"
        case pl.Struct():
            return "row"
        case pl.Map():
            return "map"
    return _KINDS.get(str(kind), str(kind).lower())


def cells(frame: pl.DataFrame) -> list[list[Cell]]:
    """Return the values of a frame row by row, as much of each as is shown."""
    columns = [_column(frame[:, index]) for index in range(frame.width)]
    return [list(row) for row in zip(*columns, strict=True)]


def _column(values: pl.Series) -> list[Cell]:
    """Return a column; long values are cut before Python sees them."""
    kind = values.dtype
    frame = values.alias("v").to_frame()
    if isinstance(kind, pl.String):
        # cut by Polars, because in Python a thousand values of a megabyte take 0.1 s
        frame = frame.select(exact("v").str.slice(0, MOST_CHARACTERS + 1))
    elif isinstance(kind, pl.Binary):
        frame = frame.select(exact("v").bin.slice(0, MOST_CHARACTERS // 2 + 1))
    elif isinstance(kind, pl.Datetime) and _is_sayable(values, kind):
        # written by Polars, because Python has no nanoseconds
        zone = "" if kind.time_zone is None else "Z"
        frame = frame.select(exact("v").dt.strftime(f"%Y-%m-%d %H:%M:%S%.f{zone}"))
    elif isinstance(kind, pl.Time):
        frame = frame.select(exact("v").dt.strftime("%H:%M:%S%.f"))
    elif isinstance(kind, pl.List):
        frame = frame.select(exact("v").list.head(_MOST_ENTRIES + 1))
    shown = "number" if kind.is_numeric() else "moment" if kind.is_temporal() else "text"
    return [cell(value, shown) for value in _python(frame.get_column("v"))]


def _is_sayable(moments: pl.Series, kind: pl.Datetime) -> bool:
    """Whether Polars can write moments out: for years of more than six digits it panics."""
    if kind.time_unit == "ns":
        return True
    most = MOST_SECONDS * {"ms": 10**3, "us": 10**6}[kind.time_unit]
    numbers = moments.to_physical().drop_nulls()
    return bool(((numbers < most) & (numbers > -most)).all())


def _python(values: pl.Series) -> list[Any]:
    """Return values of Python; texts in place of times, where Python lacks some of them.

    Python's years have four digits, those of Fluss seven; and it has no nanoseconds.
    """
    kind = repr(values.dtype)
    if "Date" not in kind:
        return values.to_list()
    if "'ns'" not in kind or isinstance(values.dtype, pl.Datetime):
        with contextlib.suppress(ValueError, OverflowError, pl.exceptions.PanicException):
            return values.to_list()
    rows = values.to_arrow()
    found: list[Any] = rows.cast(_with_texts(rows.type)).to_pylist()
    return found


def _has_times(kind: pa.DataType) -> bool:
    if kind.num_fields:
        return any(_has_times(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _with_texts(kind: pa.DataType) -> pa.DataType:
    """Return a type with texts in the place of dates and timestamps, however deep."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _with_texts(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_with_texts(kind.key_type), _with_texts(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_with_texts(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_with_texts(kind.value_type), kind.list_size)
    return pa.string() if _has_times(kind) else kind


def cell(value: Any, kind: str = "text") -> Cell:
    """Return a value as it is shown."""
    if value is None:
        return NULL
    text = visible(_text(value, 0))
    if len(text) > MOST_CHARACTERS:
        return Cell(text[:MOST_CHARACTERS] + "…", kind, True)
    return Cell(text, kind)


def _text(value: Any, depth: int) -> str:
    match value:
        case str():
            return value if depth == 0 else repr(value[: MOST_CHARACTERS + 1])
        case bool():
            return "true" if value else "false"
        case bytes():
            return value[: MOST_CHARACTERS + 1].hex()
        case float():
            return repr(value)
        case dt.datetime():
            return value.isoformat(" ")
        case dict():
            inner = (
                f"{_text(k, 1)}: {_text(v, depth + 1)}" for k, v in _first(list(value.items()))
            )
            return "{" + ", ".join(inner) + ("" if len(value) <= _MOST_ENTRIES else ", …") + "}"
        case list() | tuple():
            inner = (_text(item, depth + 1) for item in _first(value))
            return "[" + ", ".join(inner) + ("" if len(value) <= _MOST_ENTRIES else ", …") + "]"
        case pl.Series():
            return _text(value.head(_MOST_ENTRIES + 1).to_list(), depth)
        case None:
            return "null"
    return str(value)


def _first(values: Sequence[Any]) -> Sequence[Any]:
    return values[:_MOST_ENTRIES]
