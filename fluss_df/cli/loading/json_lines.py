"""JSON lines: where a line is no object, has a field twice, or a text that no text can be."""

from __future__ import annotations

import codecs
import itertools
import json
import math
from collections.abc import Collection, Iterator
from typing import Any, cast

import polars as pl

from fluss_df.cli.loading.exact import LinesFile, mixed, numbered_lines, read_lines
from fluss_df.cli.loading.shapes import no_constant

_BLOCK = 4 << 20
# of how many lines the order of fields is taken
_ORDERING_LINES = 10_000
# a name of JSON with an escape, or with space before its colon
_ODD_FIELD = r'(?:\\.[^"\\]*"\s*|"\s+):'
# the two halves of a character beyond U+FFFF, and one of them
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"


def check_lines(source: LinesFile) -> None:
    """Raise for what native readers take wrongly, before they see it.

    A value that is no object can end the process in Arrow's reader, and is passed over by that of
    Polars. Half of a surrogate pair, which no UTF-8 has, becomes another text there.
    """
    number = 0
    with source.open() as file:
        while lines := file.readlines(_BLOCK):
            if not number and lines[0].startswith(codecs.BOM_UTF8):
                raise source.error(
                    1,
                    None,
                    "the file begins with a byte order mark, which JSON has none of: take it away,"
                    " as with sed -i '1s/^\\xef\\xbb\\xbf//'",
                )
            texts = pl.Series("lines", lines).cast(pl.String)
            begun = texts.str.strip_chars_start(" \t\r\n")
            none = ~(begun.str.starts_with("{") | (begun == ""))
            if none.any():
                at = none.arg_true()[0]
                raise source.error(
                    number + at + 1, None, f"expected a JSON object, found {lines[at][:40]!r}"
                )
            halves = texts.str.contains(_HALF)
            if halves.any():
                whole = texts.filter(halves).str.replace_all(_PAIR, "")
                odd = whole.str.contains(_HALF)
                for at in halves.arg_true().filter(odd):
                    if _has_half(lines[at]):
                        raise source.error(
                            number + at + 1,
                            None,
                            "a text has half of a surrogate pair (\\ud800 to \\udfff) by itself,"
                            " which is no character",
                        )
            number += len(lines)


def field_order(source: LinesFile, names: Collection[str]) -> list[str]:
    """Return names of fields in the order in which they first occur.

    Native readers tell more than 32 fields in an order of chance. Fields that the first lines do
    not have stand behind the others, by name.
    """
    found: dict[str, None] = {}
    with source.open() as file:
        for line in itertools.islice(file, _ORDERING_LINES):
            if line.strip():
                try:
                    found |= dict.fromkeys(json.loads(line))
                except (ValueError, RecursionError):
                    # what the native reader takes nevertheless
                    break
            if found.keys() >= set(names):
                break
    first = [name for name in found if name in names]
    return [*first, *sorted(set(names) - found.keys())]


def _has_half(line: bytes) -> bool:
    """Whether a text in a line cannot be UTF-8: the escape may be escaped itself."""
    try:
        json.dumps(json.loads(line), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except ValueError:
        # not JSON: the reader reports that
        return False
    return False


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text} is beyond those of DOUBLE")
    return value


def objects(source: LinesFile) -> Iterator[int]:
    """Give the lines of JSON objects; raise for what is no JSON.

    That lines are objects, if they are JSON, is :func:`check_lines`' to say.
    """
    for number, line in numbered_lines(source):
        try:
            json.loads(line.strip(), parse_float=_finite, parse_constant=no_constant)
        except ValueError as error:
            at = getattr(error, "colno", None)
            where = "" if at is None else f" at character {at}"
            raise source.error(
                number, None, f"no JSON object{where}: {getattr(error, 'msg', error)}"
            ) from None
        yield number


def check_fields(source: LinesFile, fields: dict[str, pl.DataType]) -> set[str]:
    """Raise for an object of JSON lines that has a field twice, of which readers drop one.

    Returns the columns that may have values of several types, as numbers beside texts.

    Arrow's reader refuses such an object, and others. Of what it refuses, lines in which a name may
    be there twice are found first, and read then: Python reads a line of nested rows in six times
    the time that Arrow takes.
    """
    names = itertools.chain(fields, *map(_field_names, fields.values()))
    written = {json.dumps(name, ensure_ascii=False) for name in names}
    any_name = "|".join(map(pl.escape_regex, sorted(written)))
    line = 0
    several: set[str] = set()
    with source.open() as file:
        while lines := file.readlines(_BLOCK):
            read = read_lines(b"".join(lines))
            several |= mixed(fields, read)
            if read is None:
                texts = pl.Series("lines", lines).cast(pl.String)
                found = texts.str.extract_all(f"(?:{any_name}):")
                twice_there = found.list.n_unique() != found.list.len()
                for at in (texts.str.contains(_ODD_FIELD) | twice_there).arg_true():
                    twice = _twice(lines[at])
                    if twice is not None:
                        raise source.error(line + at + 1, twice, "the field stands there twice")
            line += len(lines)
    return several


def _field_names(dtype: pl.DataType) -> Iterator[str]:
    """Return the names of the fields of the rows within a type."""
    if isinstance(dtype, pl.Struct):
        for field in dtype.fields:
            yield field.name
            yield from _field_names(cast("pl.DataType", field.dtype))
    elif isinstance(dtype, pl.List | pl.Array):
        yield from _field_names(cast("pl.DataType", dtype.inner))


def _twice(line: bytes) -> str | None:
    """Return a name that an object of the line has twice."""
    twice: list[str] = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(found)
        if len(made) != len(found):
            names = [name for name, _ in found]
            twice.append(next(name for name in names if names.count(name) > 1))
        return made

    if line.strip():
        json.loads(line.strip(), object_pairs_hook=pairs)
    return twice[0] if twice else None
