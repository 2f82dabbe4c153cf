"""The types of texts, for tables that are made from files; and types that users write down."""

from __future__ import annotations

import re

import polars as pl

from fluss_df.errors import FlussError
from fluss_df.types import Column, DataType, TypeRoot

_R = TypeRoot

# rows from which the type of a column is guessed: a later row of another type is an error
SAMPLE = 10_000

_DAY = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
# in order of preference; a number that begins with a zero is a name, such as a post code
_GUESSES: dict[str, tuple[str, pl.DataType]] = {
    "true or false": (r"(?i)^(?:true|false)$", pl.Boolean()),
    "a whole number": (r"^[+-]?(?:0|[1-9][0-9]{0,18})$", pl.Int64()),
    "a number": (
        r"^[+-]?(?:(?:0|[1-9][0-9]{0,17})|(?:(?:0|[1-9][0-9]*)?\.[0-9]+|(?:0|[1-9][0-9]*)\.?)(?:[eE][+-]?[0-9]+)?"
        r"|(?i:nan|inf|infinity))$",
        pl.Float64(),
    ),
    "a date": (rf"^{_DAY}$", pl.Date()),
    "a time": (rf"^{_CLOCK}$", pl.Time()),
    "a timestamp": (rf"^{_DAY}[T ]{_CLOCK}$", pl.Datetime("us")),
    "a timestamp with a zone": (
        rf"^{_DAY}[T ]{_CLOCK}(?:Z|[+-][0-9]{{2}}:?[0-9]{{2}})$",
        pl.Datetime("us", "UTC"),
    ),
}
# whole numbers that may be too long for a type
_LONG = {"a whole number": r"^[+-]?[0-9]{19,}$", "a number": r"^[+-]?[0-9]{16,}$"}
_SHORTEST_LONG = 16
# messages about them
_LIMITS = {
    "a whole number": "a whole number that BIGINT holds",
    "a number": "a number whose digits DOUBLE keeps, whole ones up to 2^53",
}
_DOUBLE_WHOLE = 2**53
_NANOSECONDS = r"\.[0-9]{7,9}"


def _fits(texts: pl.Series, guess: str) -> pl.Series:
    """Return which texts are what a guess says; null for null."""
    fits = texts.str.contains(_GUESSES[guess][0])
    if guess not in _LONG:
        return fits
    # most texts are short, and it takes little to see that
    if (texts.str.len_bytes().max() or 0) < _SHORTEST_LONG:  # type: ignore[operator]
        return fits
    long = texts.str.contains(_LONG[guess])
    if not long.any():
        return fits
    whole = texts.cast(pl.Int64, strict=False)
    held = whole.is_not_null()
    if guess == "a number":
        # not a float, which would lose digits: two ids would become one
        held &= whole.is_between(-_DOUBLE_WHOLE, _DOUBLE_WHOLE).fill_null(False)
    return fits & (held | ~long)


class Guess:
    """The types that a column of texts may have, by the texts so far."""

    def __init__(self) -> None:
        self._left = list(_GUESSES)
        self._sampled: list[str] = []
        self._rows = 0
        self._fine = False
        self._any = False
        #: What the rows were before the first that is something else, in words.
        self.expected = ""

    def see(self, texts: pl.Series) -> int | None:
        """Take in more texts; return the index of the first that does not fit the sample.

        Return None where all fit, and while the sample is not complete.
        """
        # methods of a series look it up by its name, which may be a pattern
        texts = texts.alias("texts")
        known = texts.drop_nulls()
        self._any = self._any or bool(known.len())
        if known.len() and self._left:
            self._fine = self._fine or bool(known.str.contains(_NANOSECONDS).any())
            left = [g for g in self._left if _fits(known, g).all()]
            if self._sampled and not left:
                return self._misfit(texts)
            self._left = left
        self._rows += texts.len()
        if self._rows >= SAMPLE and self._any and not self._sampled:
            self._sampled = list(self._left)
        return None

    def _misfit(self, texts: pl.Series) -> int:
        """Return the first row at which nothing is left that the column may be."""
        ends: dict[str, int] = {}
        for guess in self._left:
            at = (~_fits(texts, guess).fill_null(True)).arg_max()
            assert at is not None
            ends[guess] = at
        first = max(ends.values())
        last = [guess for guess, at in ends.items() if at == first]
        self.expected = "a number" if "a number" in last else last[0]
        long = _LONG.get(last[0])
        if long is not None and texts[first : first + 1].str.contains(long).item():
            self.expected = _LIMITS[last[0]]
        return first

    @property
    def kind(self) -> pl.DataType:
        """The type that all texts have."""
        if not self._any or not self._left:
            return pl.String()
        kind = _GUESSES[self._left[0]][1]
        if isinstance(kind, pl.Datetime) and self._fine:
            return pl.Datetime("ns", kind.time_zone)
        return kind


# ---- types that are written down

_TYPE = re.compile(
    r"\s*([A-Za-z_]+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*(NOT\s+NULL)?\s*\Z", re.I
)
_COLUMN = re.compile(r"\s*(?:`([^`]+)`|\"([^\"]+)\"|([^\s`\"]+))\s+(.*)\Z", re.DOTALL)
_NAMES = {
    "INT": _R.INTEGER,
    "VARCHAR": _R.STRING,
    "VARBINARY": _R.BYTES,
    "TIME": _R.TIME_WITHOUT_TIME_ZONE,
    "TIMESTAMP": _R.TIMESTAMP_WITHOUT_TIME_ZONE,
    "TIMESTAMP_LTZ": _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE,
    **{root.value: root for root in TypeRoot if root not in (_R.ARRAY, _R.MAP, _R.ROW)},
}
_PRECISIONS = {
    _R.TIME_WITHOUT_TIME_ZONE: 0,
    _R.TIMESTAMP_WITHOUT_TIME_ZONE: 6,
    _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE: 6,
}


def parse_schema(text: str, option: str = "--schema") -> list[Column]:
    """Read ``"id INT, name STRING, price DECIMAL(10, 2)"``.

    Raises FlussError for what is no name with a type, naming it and the option.
    """
    columns = []
    for part in re.split(r",(?![^(]*\))", text):
        column = _COLUMN.match(part)
        kind = None if column is None else _TYPE.match(column[4])
        if column is None or kind is None:
            raise FlussError(
                f"{option}: {part.strip()!r}: expected a name and a type, as in"
                f" 'id INT, price DECIMAL(10, 2)'{_nested(text)}"
            )
        name = column[1] or column[2] or column[3]
        try:
            columns.append(Column(name, _type(kind)))
        except FlussError as error:
            raise FlussError(f"{option}: column '{name}': {error.message}") from None
    return columns


def _nested(text: str) -> str:
    """Say where to write types that hold others, if a text has one."""
    if re.search(r"\b(ARRAY|MAP|ROW)\b", text, re.I) is None:
        return ""
    return "; ARRAY, MAP and ROW are for CREATE TABLE and ALTER TABLE of fluss-df sql"


def _type(match: re.Match[str]) -> DataType:
    root = _NAMES.get(match[1].upper())
    if root is None:
        raise FlussError(
            f"there is no type {match[1]}; there are {', '.join(sorted(_NAMES))}{_nested(match[1])}"
        )
    first = None if match[2] is None else int(match[2])
    second = None if match[3] is None else int(match[3])
    nullable = match[4] is None
    if root is _R.DECIMAL:
        return DataType(root, nullable, precision=10 if first is None else first, scale=second or 0)
    if root in _PRECISIONS and second is None:
        precision = _PRECISIONS[root] if first is None else first
        return DataType(root, nullable, precision=precision)
    if root in (_R.CHAR, _R.BINARY) and second is None:
        return DataType(root, nullable, length=1 if first is None else first)
    if first is not None:
        raise FlussError(f"{match[1]} has no parameter")
    return DataType(root, nullable)
