"""Files of rows to load: finding them, reading them, and naming the place of a wrong value."""

from __future__ import annotations

import codecs
import contextlib
import csv
import functools
import glob
import gzip
import io
import itertools
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import polars as pl
import pyarrow as pa
import pyarrow.csv as pc

from fluss_df.cli.loading.exact import Doubts, rounded, wrong_cell
from fluss_df.cli.loading.guessing import SAMPLE, Guess
from fluss_df.cli.loading.json_lines import check_fields, check_lines, field_order, objects
from fluss_df.cli.loading.shapes import leaves
from fluss_df.errors import FlussError
from fluss_df.io.base.names import exact
from fluss_df.io.base.texts import decoded, misfit, raw_type, typed
from fluss_df.io.scans.flow import Flow
from fluss_df.polars_adapter.scans import lazy_frames, polars_text

# a file may be called rows[1].parquet, which as a pattern is the file rows1.parquet
_scan_ipc = functools.partial(pl.scan_ipc, glob=False)
_SCANS: dict[str, Callable[..., pl.LazyFrame]] = {
    ".parquet": functools.partial(pl.scan_parquet, glob=False),
    ".arrow": _scan_ipc,
    ".ipc": _scan_ipc,
    ".feather": _scan_ipc,
}
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
# other characters than a comma that files have between columns of CSV
_SEPARATORS = ";\t|,"
#: Files of JSON lines.
LINES = (".ndjson", ".jsonl")
TEXTS = (*_DELIMITERS, *LINES)
#: How names of files that are read may end.
ENDINGS = (*_SCANS, *TEXTS, *(f"{text}.gz" for text in TEXTS))

# how files begin that are not text
_BEGINNINGS = {
    b"PAR1": "Parquet: name it .parquet",
    b"ARROW1": "an Arrow file: name it .arrow",
    b"\x1f\x8b": "compressed by gzip: name it .csv.gz, or as it is",
    b"PK\x03\x04": "a ZIP archive, or of Excel: save it as CSV or Parquet",
}

_BLOCK = 4 << 20
# bytes to which a block of CSV may grow, so that a long row fits
_LARGEST_BLOCK = 1 << 30
# the most characters of a value of CSV: the largest C long on all systems
_LONGEST = (1 << 31) - 1
# errors of readers and decompressors
_UNREADABLE = (
    pl.exceptions.PolarsError,
    pa.ArrowException,
    ValueError,
    OSError,
    EOFError,
    zlib.error,
)


def ending(file: Path, known: Sequence[str]) -> str:
    """Return how the name of a file ends, of the known endings.

    Raises FlussError where it ends in none.
    """
    name = file.name.lower()
    for end in sorted(known, key=len, reverse=True):
        if name.endswith(end):
            return end
    raise FlussError(f"{file}: the name of the file ends in none of {', '.join(known)}")


@dataclass
class Source:
    """A file, and what is known of its columns.

    ``null_values`` are texts of CSV that mean null, besides the empty one without quotes.
    ``separator`` is the character between columns of CSV, None for that of the file's ending.
    """

    path: Path
    null_values: tuple[str, ...] = ()
    separator: str | None = None
    kind: str = field(init=False)
    # of JSON lines: the types that a reader found, and the columns with values of several types
    _found: dict[str, pl.DataType] | None = field(init=False, default=None)
    _several: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.kind = ending(self.path, ENDINGS).removesuffix(".gz")

    @property
    def delimiter(self) -> str:
        """The character between columns of CSV."""
        return self.separator or _DELIMITERS[self.kind]

    def error(self, line: int | None, column: str | None, text: str) -> FlussError:
        """Return an error that names the file and the place in it."""
        where = "" if line is None else f", line {line}"
        where += "" if column is None else f", column '{column}'"
        return FlussError(f"{self.path}{where}: {text}; nothing was loaded")

    @property
    def _escaped(self) -> str:
        """The path as a pattern that means this file alone, where a reader takes patterns only."""
        return glob.escape(str(self.path))

    def open(self) -> IO[bytes]:
        """Open the file; what is compressed is read as it was before."""
        if self.path.name.lower().endswith(".gz"):
            return gzip.open(self.path, "rb")  # type: ignore[return-value]
        return open(self.path, "rb")

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what readers raise into errors that name the file."""
        try:
            yield
        except FlussError:
            raise
        except _UNREADABLE as e:
            with contextlib.suppress(*_UNREADABLE):
                self.locate()
            text = polars_text(e) if isinstance(e, pl.exceptions.PolarsError) else str(e)
            reason = text.split("\n\n", maxsplit=1)[0]
            raise self.error(None, None, f"it cannot be read: {' '.join(reason.split())}") from e

    def locate(self) -> None:
        """Raise the error of a file of text that is wrong, with its place; else return."""
        if self.kind not in TEXTS:
            return
        _check_utf8(self)
        if self.kind in LINES:
            check_lines(self)
            for _ in objects(self):
                pass
        else:
            for _ in _records(self):
                pass

    # ---- what it has

    def names(self) -> list[str]:
        """Return the columns of CSV."""
        with self.errors():
            names: list[str] = next(self._batches({})).schema.names
        for at, name in enumerate(names, 1):
            if not name.strip():
                raise self.error(
                    1,
                    None,
                    f"column {at} of {len(names)} has no name: give it one, or take it out of the"
                    " file",
                )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise self.error(1, twice[0], "the name stands there twice")
        return names

    def kinds(
        self, guesses: dict[str, Guess], known: Collection[str] = ()
    ) -> dict[str, pl.DataType]:
        """Return the types of the columns by all that is in the file.

        ``guesses`` has the types of columns by the files before this one, and is updated here.
        Of columns that are ``known``, nothing is guessed.
        """
        if self.kind in _SCANS:
            with self.errors():
                if not self.path.stat().st_size:
                    raise self.error(None, None, f"it is empty, and no {self.kind[1:]} file")
                return dict(self.scan().collect_schema())
        found: dict[str, pl.DataType]
        if self.kind in LINES:
            found = {name: _whole(kind) for name, kind in self.fields().items()}
            shapes = {n: pl.String() if _loose(k) else k for n, k in found.items()}
            texts = {n for n, k in found.items() if _loose(k)}
            real = {n: k for n, k in found.items() if any(leaf.is_float() for leaf in leaves(k))}
        else:
            shapes = dict.fromkeys(self.names(), pl.String())
            found, texts, real = dict(shapes), set(shapes), {}
        texts -= set(known)
        doubts = Doubts(self, {n: k for n, k in real.items() if n not in known}, guessed=True)
        row = 0
        for frame in _sampled(self.texts(shapes)):
            doubts.look(frame)
            for name in texts:
                guess = guesses.setdefault(name, Guess())
                wrong = guess.see(frame[name])
                if wrong is not None:
                    raise self.error(
                        self.line_of(row + wrong),
                        name,
                        f"{frame[name][wrong]!r} is not {guess.expected}, as the {SAMPLE:,} rows"
                        " before are: --null-values names texts that mean null, --schema"
                        f" '{name} STRING' reads texts",
                    )
            row += frame.height
        return {n: guesses[n].kind if n in texts and n in guesses else found[n] for n in found}

    def fields(self) -> dict[str, pl.DataType]:
        """Return the fields of all objects of a file of JSON lines, the last one's too."""
        with self.errors():
            if self._is_blank():
                return {}
            if self._found is None:
                check_lines(self)
                frame = pl.scan_ndjson(self._escaped, infer_schema_length=None)
                fields = dict(frame.collect_schema())
                self._several = check_fields(self, fields)
                self._found = {name: fields[name] for name in field_order(self, fields)}
            return dict(self._found)

    def _is_blank(self) -> bool:
        with self.open() as file:
            return all(not line.strip() for line in file)

    # ---- its rows

    def texts(self, kinds: Mapping[str, pl.DataType]) -> Iterator[pl.DataFrame]:
        """Give the rows of a file of text, with texts in place of all values."""
        if self.kind in LINES:
            schema = {name: raw_type(kind) for name, kind in kinds.items()}
            with self.errors():
                if not schema or self._is_blank():
                    yield pl.DataFrame(schema=schema)
                    return
                scan = pl.scan_ndjson(self._escaped, schema=schema)
                yield from Flow().batches(scan)
            return
        if self._is_uneven():
            # the reader takes a quote that does not end for one that ends with the file
            self.locate()
        with self.errors():
            columns = dict.fromkeys(kinds, pa.string())
            row = 0
            for batch in itertools.islice(self._batches(columns), 1, None):
                frame = pl.DataFrame(batch)
                yield self._decoded(frame, kinds, row)
                row += frame.height

    def _decoded(
        self, frame: pl.DataFrame, kinds: Mapping[str, pl.DataType], row: int
    ) -> pl.DataFrame:
        """Return rows of CSV with what the JSON in them says; ``row`` is that of the first."""
        nested = {name: kind for name, kind in kinds.items() if kind.is_nested()}
        self._check_cells(frame, nested, row, quick=True)
        try:
            return frame.select(decoded(name, kind) for name, kind in kinds.items())
        except pl.exceptions.PolarsError:
            # what it alone takes for no JSON, as a number beyond those of doubles
            self._check_cells(frame, nested, row, quick=False)
            raise

    def _check_cells(
        self, frame: pl.DataFrame, nested: Mapping[str, pl.DataType], row: int, *, quick: bool
    ) -> None:
        for name, kind in nested.items():
            found = wrong_cell(name, frame[name], kind, quick=quick)
            if found is not None:
                at, column, text = found
                raise self.error(self.line_of(row + at), column, text)

    def _is_uneven(self) -> bool:
        """Whether the file has an odd number of quotes."""
        with self.errors(), self.open() as file:
            blocks = iter(lambda: file.read(_BLOCK), b"")
            return sum(block.count(b'"') for block in blocks) % 2 == 1

    def _batches(self, columns: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """Give the rows of CSV; first none, which has the names of the columns."""
        block, given = _BLOCK, -1
        while True:
            try:
                with self.open() as file:
                    reader = self._reader(file, columns, block)
                    if given < 0:
                        self.check_names(reader.schema.names)
                        yield pa.RecordBatch.from_pylist([], reader.schema)
                        given = 0
                    skip = given
                    for batch in reader:
                        if batch.num_rows > skip:
                            given += batch.num_rows - skip
                            yield batch.slice(skip)
                        skip = max(skip - batch.num_rows, 0)
                return
            except pa.ArrowInvalid as error:
                # a row must lie within two blocks
                if "straddling" not in str(error):
                    raise
                if block >= _LARGEST_BLOCK:
                    raise self.error(
                        None, None, "a row is longer than 1 GiB: write it as .parquet or .ndjson"
                    ) from None
                block *= 8

    def check_names(self, names: list[str]) -> None:
        """Raise for what looks like several columns with another character between them."""
        other = next((c for c in _SEPARATORS if c in names[0]), None) if len(names) == 1 else None
        if other is not None and self.separator is None:
            shown = "a tab" if other == "\t" else f"'{other}'"
            raise self.error(
                1,
                None,
                f"its only column is {names[0]!r}: name the character between columns with"
                f" --separator, which may be {shown}, or '{self.delimiter}' if that is one column",
            )

    def _reader(
        self, file: IO[bytes], columns: dict[str, pa.DataType], block: int
    ) -> pc.CSVStreamingReader:
        parsed = pc.ParseOptions(
            delimiter=self.delimiter,
            newlines_in_values=True,
            # in a file of one column, an empty line is a null
            ignore_empty_lines=len(columns) != 1,
        )
        converted = pc.ConvertOptions(
            column_types=columns,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=["", *self.null_values],
        )
        read = pc.ReadOptions(block_size=block)
        begun = file.read(_BLOCK)
        if begun.strip() and b"\n" not in begun and b"\r" not in begun and not file.read(1):
            # the reader wants a line break after a line of names
            return pc.open_csv(pa.BufferReader(begun + b"\n"), read, parsed, converted)
        file.seek(0)
        return pc.open_csv(file, read, parsed, converted)

    def frames(self, kinds: Mapping[str, pl.DataType]) -> Iterator[pl.DataFrame]:
        """Give the rows of a file of text, as values of the types.

        Raises FlussError for a text that does not fit its column's type, with its line and column.
        """
        doubts = Doubts(
            self,
            {
                name: kind
                for name, kind in kinds.items()
                if name in self._several or rounded((self._found or {}).get(name), kind)
            },
        )
        row = 0
        for frame in self.texts(kinds):
            doubts.look(frame)
            values = frame.select(typed(exact(n), kind).alias(n) for n, kind in kinds.items())
            for name, kind in kinds.items():
                wrong = misfit(frame[name], values[name])
                if wrong is not None:
                    shown = repr(frame[name][wrong])[:80]
                    raise self.error(
                        self.line_of(row + wrong), name, f"{shown} is no value of {kind}"
                    )
            row += frame.height
            yield values

    def line_of(self, row: int) -> int | None:
        """Return the line in which a row begins."""
        rows = objects(self) if self.kind in LINES else _records(self)
        for at, line in enumerate(rows):
            if at == row:
                return line
        return None

    def scan(self, kinds: Mapping[str, pl.DataType] | None = None) -> pl.LazyFrame:
        """Return the rows as a lazy frame; of a file of text with the types of its columns."""
        if self.kind in _SCANS:
            return _SCANS[self.kind](self.path)
        assert kinds is not None
        schema = pl.Schema(kinds)

        return lazy_frames(lambda: self.frames(schema), schema)


def _sampled(frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Give frames, of the first one its first rows by themselves."""
    for at, frame in enumerate(frames):
        yield from [frame] if at else [frame[:SAMPLE], frame[SAMPLE:]]


def _loose(kind: pl.DataType) -> bool:
    return kind == pl.String


def _whole(kind: pl.DataType) -> pl.DataType:
    """Return the type of a table for one that Polars found in JSON."""
    if isinstance(kind, pl.List):
        return pl.List(_whole(kind.inner))  # type: ignore[arg-type]
    if isinstance(kind, pl.Struct):
        return pl.Struct({f.name: _whole(f.dtype) for f in kind.fields})  # type: ignore[arg-type]
    if kind == pl.Null:
        return pl.String()
    return pl.Int64() if kind.is_integer() else kind


def _check_utf8(source: Source) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with source.open() as file:
        for number, line in enumerate(file, 1):
            try:
                decoder.decode(line, final=True)
            except UnicodeDecodeError as error:
                raise source.error(number, None, _not_utf8(source, line, error)) from None
            decoder.reset()


def _not_utf8(source: Source, line: bytes, error: UnicodeDecodeError) -> str:
    """Say of a file that is no UTF-8 what it seems to be."""
    with source.open() as file:
        head = file.read(8)
    for begins, name in _BEGINNINGS.items():
        if head.startswith(begins):
            return f"it is not text but {name}"
    code = "UTF-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "latin1"
    return (
        f"byte {line[error.start]:#04x} at {error.start + 1} is not UTF-8, which files of text are"
        f" read as: convert it, as with iconv -f {code} -t utf8"
    )


@contextlib.contextmanager
def _values_of_any_length() -> Iterator[None]:
    before = csv.field_size_limit(_LONGEST)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _records(source: Source) -> Iterator[int]:
    """Give the lines in which rows of CSV begin; raise for what is no row."""
    with source.open() as file, _values_of_any_length():
        # newline="": lines end where those of CSV do, and not at the other line ends of Unicode.
        # -sig: a byte order mark is no part of the first name, and does not stand before its quote
        lines = io.TextIOWrapper(file, "utf-8-sig", newline="")
        reader = csv.reader(lines, delimiter=source.delimiter, strict=True)
        width: int | None = None
        begins = 1
        try:
            for record in reader:
                if width is None:
                    width = len(record)
                    source.check_names(record)
                elif record or width == 1:
                    if record and len(record) != width:
                        raise source.error(
                            begins, None, f"the row has {len(record)} values for {width} columns"
                        )
                    yield begins
                begins = reader.line_num + 1
        except csv.Error as error:
            raise source.error(begins, None, f"the row cannot be read: {error}") from None
    if width is None:
        raise source.error(None, None, "it is empty, and has no names of columns")
