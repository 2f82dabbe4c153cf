"""Files that Ibis reads and writes: CSV and JSON as users of ``ibis.duckdb`` know them.

Parquet, Delta and the rest are those of Ibis's Polars backend.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import ibis
import ibis.expr.schema as sch
import ibis.expr.types as ir
import polars as pl
import pyarrow as pa
from ibis.backends.polars import Backend as PolarsBackend
from ibis.formats.polars import PolarsSchema

from fluss_df.errors import FlussError

_Paths = str | Path | Iterable[str | Path]
_COMPRESSIONS: Final = {"none": None, "gzip": "gzip", "zstd": "zstd"}
_SUFFIXES: Final = {".gz": "gzip", ".zst": "zstd"}


class Files(PolarsBackend):  # type: ignore[misc]
    """Reading files into expressions, and writing expressions into files."""

    def read_csv(
        self,
        paths: _Paths,
        /,
        *,
        table_name: str | None = None,
        columns: Mapping[str, Any] | None = None,
        types: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> ir.Table:
        """Return CSV files as a table of this connection; each query reads them again.

        Parameters
        ----------
        paths
            A path, also with ``*``, or several.
        table_name
            Its name in SQL.
        columns
            All columns with their types; the first line of the files has the names.
        types
            Types of some columns, instead of what the file looks like.
        **kwargs
            Passed on to ``polars.scan_csv``.

        Examples
        --------
        >>> con.read_csv("rows.csv", types={"zip": "string"})  # doctest: +SKIP
        """
        if columns is not None:
            kwargs["schema"] = _kinds(columns)
        if types is not None:
            kwargs["schema_overrides"] = _kinds(types)
        found: ir.Table = super().read_csv(paths, table_name=table_name, **kwargs)
        return found

    def read_json(
        self,
        paths: _Paths,
        /,
        *,
        table_name: str | None = None,
        columns: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> ir.Table:
        """Return JSON files as a table of this connection; each query reads them again.

        A file has an object in each line, or is an array of objects, which is read into memory.

        Parameters
        ----------
        paths, table_name
            As for :meth:`read_csv`.
        columns
            All columns with their types.
        **kwargs
            Passed on to ``polars.scan_ndjson``, or to ``polars.read_json`` for arrays.
        """
        if columns is not None:
            kwargs["schema"] = _kinds(columns)
        given = [str(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
        if not given:
            raise FlussError("read_json takes one file at least")
        if _is_array(given[0]):
            parts = [pl.read_json(path, **kwargs) for path in given]
            frame = pl.concat(parts, how="diagonal_relaxed").lazy()
        else:
            frame = pl.scan_ndjson(given[0] if len(given) == 1 else given, **kwargs)
        name = table_name or ibis.util.gen_name("read_json")
        self._add_table(name, frame)
        found: ir.Table = self.table(name)
        return found

    def to_csv(
        self,
        expr: ir.Table,
        /,
        path: str | Path,
        *,
        params: Mapping[ir.Scalar, Any] | None = None,
        header: bool = True,
        **kwargs: Any,
    ) -> None:
        """Run an expression, and write its rows as CSV, in bounded memory.

        Parameters
        ----------
        expr, params
            As for ``execute``.
        path
            The file; it has this name only once all rows are written.
        header
            Whether the first line has the names.
        **kwargs
            Passed on to ``pyarrow.csv.CSVWriter``.
        """
        if not header:
            import pyarrow.csv

            kwargs.setdefault("write_options", pyarrow.csv.WriteOptions(include_header=False))
        with _whole(path) as part:
            super().to_csv(expr, part, params=params, **kwargs)

    def to_parquet(
        self,
        expr: ir.Table,
        /,
        path: str | Path,
        *,
        params: Mapping[ir.Scalar, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Run an expression, and write its rows as Parquet, in bounded memory.

        Parameters
        ----------
        expr, params
            As for ``execute``.
        path
            The file; it has this name only once all rows are written.
        **kwargs
            Passed on to ``pyarrow.parquet.ParquetWriter``.
        """
        with _whole(path) as part:
            super().to_parquet(expr, part, params=params, **kwargs)

    def to_json(
        self,
        expr: ir.Table,
        /,
        path: str | Path,
        *,
        compression: Literal["auto", "none", "gzip", "zstd"] = "auto",
        dateformat: str | None = None,
        timestampformat: str | None = None,
        params: Mapping[ir.Scalar, Any] | None = None,
    ) -> None:
        """Run an expression, and write its rows as a JSON array of objects, in bounded memory.

        Parameters
        ----------
        expr, params
            As for ``execute``.
        path
            The file; it has this name only once all rows are written.
        compression
            ``"auto"`` goes by the name: ``.gz``, ``.zst``.
        dateformat, timestampformat
            How dates and timestamps are written, such as ``"%d.%m.%Y"``; ISO 8601 by default.
        """
        if compression == "auto":
            codec = _SUFFIXES.get(Path(path).suffix)
        elif compression in _COMPRESSIONS:
            codec = _COMPRESSIONS[compression]
        else:
            raise FlussError(
                f"compression={compression!r}: expected 'auto', 'none', 'gzip' or 'zstd'"
            )
        formats = [
            pl.selectors.date().dt.strftime(dateformat) if dateformat else None,
            pl.selectors.datetime().dt.strftime(timestampformat) if timestampformat else None,
        ]
        wanted = [expression for expression in formats if expression is not None]
        with _whole(path) as part, pa.output_stream(part, compression=codec) as file:
            before = b"[\n\t"
            with self.to_pyarrow_batches(expr, params=params) as batches:
                for batch in batches:
                    rows = pl.DataFrame(pa.Table.from_batches([batch])).with_columns(wanted)
                    if rows.is_empty():
                        continue
                    # a line break within a value is written as the two characters \n, so each
                    # real one ends a row
                    lines = rows.write_ndjson().encode().rstrip(b"\n")
                    file.write(before + lines.replace(b"\n", b",\n\t"))
                    before = b",\n\t"
            file.write(b"[\n]\n" if before.startswith(b"[") else b"\n]\n")


def _kinds(columns: Mapping[str, Any]) -> dict[str, pl.DataType]:
    schema: sch.Schema = ibis.schema(columns)
    return dict(PolarsSchema.from_ibis(schema))


def _is_array(path: str) -> bool:
    """Whether a file on this machine begins with an array."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    return False


@contextlib.contextmanager
def _whole(path: str | Path) -> Iterator[str]:
    """Give the name of a file beside another one, which takes its place when all went well."""
    place = Path(path)
    if "://" in str(path) or not place.parent.is_dir():
        # an object store, or a folder that does not exist: opening the file reports it
        yield str(path)
        return
    part = place.with_name(f".{place.name}-{secrets.token_hex(4)}")
    try:
        yield str(part)
        os.replace(part, place)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
