"""Values of JSON that are looked at one by one, where a quick look at many left a doubt."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import IO, Protocol

import polars as pl
import pyarrow as pa
import pyarrow.json as pj

from fluss_df.cli.loading.shapes import (
    DOUBLE_DIGITS,
    Fields,
    Place,
    Whole,
    leaves,
    surely_fits,
    values_of,
    wrong,
)

_NAME = "v"
# texts that a reader of JSON may have made of what is no text
_NO_TEXT = r"^(?:-?(?:[0-9.]|inf)|NaN|true$|false$|[\[{])"
# numbers whose digits a double may have changed, as the reader writes a double
_LONG = rf"^-?[0-9]{{{DOUBLE_DIGITS + 1},}}$"
_NUMBER = r"^-?[0-9.]"


def read_lines(data: bytes) -> pa.Table | None:
    """Return what Arrow reads of lines of JSON; None for what it refuses.

    It refuses objects that have a field twice, and lists beside numbers, among others.
    """
    try:
        # one block: it looks at no field before the block that has it
        return pj.read_json(
            pa.BufferReader(data), pj.ReadOptions(use_threads=False, block_size=len(data))
        )
    except (pa.ArrowException, OverflowError):
        return None


# ---- JSON in a column of CSV


def wrong_cell(
    name: str, cells: pl.Series, kind: pl.DataType, *, quick: bool = True
) -> tuple[int, str, str] | None:
    """Return the first text that is no JSON of a column's type: its row, the column, and why.

    ``quick`` lets Arrow look first, which reads all at once.
    """
    # methods of a series take a name such as '^.*$' for a pattern
    cells = cells.alias("texts")
    if quick and _all_fit(cells.drop_nulls(), kind):
        return None
    for row, cell in enumerate(cells):
        if cell is None:
            continue
        try:
            found = wrong(name, values_of(cell), kind)
        except RecursionError:
            continue
        except ValueError as error:
            at = getattr(error, "colno", None)
            where = "" if at is None else f" at character {at}"
            return row, name, f"no JSON{where}: {getattr(error, 'msg', error)}"
        if found is not None:
            return row, *found
    return None


def _all_fit(cells: pl.Series, kind: pl.DataType) -> bool:
    if not cells.len():
        return True
    # none can be a part of two lines: a line break in a text is no JSON, and behind one of these
    # objects no comma comes
    data = f'{{"{_NAME}":' + f'}}\n{{"{_NAME}":'.join(cells) + "}\n"
    read = read_lines(data.encode())
    return (
        read is not None
        and read.num_rows == cells.len()
        and read.schema.names == [_NAME]
        and surely_fits(read.schema.types[0], kind)
    )


# ---- JSON lines


class LinesFile(Place, Protocol):
    """A file of JSON lines that may be compressed, and its errors."""

    def open(self) -> IO[bytes]:
        """Open the file; what is compressed is read as it was before."""


class Doubts:
    """Columns of JSON lines of whose values the texts that a reader made of them say too little.

    ``guessed`` says that no user asked for their types.
    """

    def __init__(
        self, source: LinesFile, kinds: Mapping[str, pl.DataType], *, guessed: bool = False
    ) -> None:
        self._source = source
        self._kinds = kinds
        self._guessed = guessed
        self._lines = numbered_lines(source)
        self._behind = 0

    def look(self, texts: pl.DataFrame) -> None:
        """Look at the next rows; raise FlussError for a value that is not of its column's type."""
        chosen: set[int] = set()
        for name, kind in self._kinds.items():
            chosen.update(self._doubtful(texts[name].alias("texts"), kind))
        if not chosen:
            self._behind += texts.height
            return
        lines = itertools.islice(self._lines, self._behind, self._behind + texts.height)
        self._behind = 0
        for row, (number, line) in enumerate(lines):
            if row in chosen:
                self._look_at(number, line)

    def _doubtful(self, texts: pl.Series, kind: pl.DataType) -> list[int]:
        if kind.is_nested():
            if self._guessed and not _has(texts, _LONG):
                return []
            return list(range(texts.len()))
        if kind == pl.String:
            form = _NO_TEXT
        elif kind.is_integer() or kind.is_float():
            form = _LONG
        else:
            form = _NUMBER
        return texts.str.contains(form).arg_true().to_list()

    def _look_at(self, number: int, line: bytes) -> None:
        try:
            fields = values_of(line.strip())
        except (ValueError, RecursionError):
            # what the reader took nevertheless
            return
        assert isinstance(fields, Fields)
        for name, value in fields:
            if name in self._kinds:
                found = wrong(name, value, self._kinds[name], guessed=self._guessed)
                if found is not None:
                    column, text = found
                    if self._guessed and isinstance(value, Whole):
                        # a column of numbers: --schema has no types that hold others
                        text += f", or --schema '{name} DOUBLE' rounds it"
                    raise self._source.error(number, column, text)


def _has(texts: pl.Series, form: str) -> bool:
    """Whether a text within nested values has a form."""
    if isinstance(texts.dtype, pl.List):
        inner = texts.list.explode(empty_as_null=False, keep_nulls=False)
        return _has(inner, form)
    if isinstance(texts.dtype, pl.Struct):
        return any(_has(part.alias("texts"), form) for part in texts.struct.unnest().get_columns())
    return bool(texts.str.contains(form).any())


def numbered_lines(source: LinesFile) -> Iterator[tuple[int, bytes]]:
    """Give the lines that are not blank, with their numbers in the file."""
    with source.open() as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def mixed(found: Mapping[str, pl.DataType], read: pa.Table | None) -> set[str]:
    """Return the columns in which Arrow found values that are not of the type of all lines.

    They are those that Polars makes texts or lists of. Where Arrow read nothing, all may be.
    """
    if read is None:
        return {n for n, kind in found.items() if kind.is_nested() or kind == pl.String}
    types = {field.name: field.type for field in read.schema}
    return {n for n, kind in found.items() if n in types and not surely_fits(types[n], kind)}


def rounded(found: pl.DataType | None, wanted: pl.DataType) -> bool:
    """Whether numbers with a point may go into whole numbers, whose digits doubles do not keep."""
    if found is None or not any(kind.is_float() for kind in leaves(found)):
        return False
    return any(kind.is_integer() for kind in leaves(wanted))
