"""Values that clients bind to the parameters of statements, and statements of many rows of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import sqlglot
from sqlglot import TokenType, exp

from fluss_df.backend.parameters import numbered, placeholders
from fluss_df.backend.sql.dialect import Fluss
from fluss_df.backend.sql.statements import parsed_statement
from fluss_df.flight.refusals import exhausted, invalid
from fluss_df.flight.wire import Upload, written_out

# limits for values that are bound at once
_MOST_ROWS: Final = 100_000
_MOST_BYTES: Final = 64 << 20
_ROWS_TOGETHER: Final = 1000
# parsing a statement takes a third of a millisecond, and 5 kB, for each value
_VALUES_TOGETHER: Final = 20_000
_VALUES_OVERWRITTEN: Final = 40_000


def bound_values(tree: exp.Expr | None, upload: Upload) -> list[pa.RecordBatch] | None:
    """Return the rows of values that a client binds; None for a statement that takes none.

    Raises RefusalError for another number of columns, and too many rows or bytes.
    """
    wanted = 0 if tree is None else len(placeholders(tree))
    if len(upload.schema) != wanted:
        raise invalid(
            f"the statement has {wanted} parameters, and {len(upload.schema)} values came"
        )
    batches = []
    rows = size = 0
    for batch in upload:
        if not batch.num_rows:
            continue
        rows += batch.num_rows
        # what is kept, such as whole dictionaries, or the values written out if that is more
        size += max(sum(map(written_out, batch.columns)), batch.get_total_buffer_size())
        if rows > 1 and isinstance(tree, exp.Query):
            # a query keeps its values until it runs, which may be later and several times
            raise invalid(f"{rows} rows of values are bound, and a query takes one")
        if rows > _MOST_ROWS or size > _MOST_BYTES:
            raise exhausted(
                f"at most {_MOST_ROWS:,} rows of values, of {_MOST_BYTES >> 20} MB, are bound at"
                " once: use bulk ingestion for more"
            )
        batches.append(batch)
    return batches if wanted else None


def rows_of(batches: Sequence[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """Iterate over rows of scalars; few are made at once, as each is larger than its value."""
    for batch in batches:
        for begin in range(0, batch.num_rows, _ROWS_TOGETHER):
            part = batch.slice(begin, _ROWS_TOGETHER)
            yield from zip(*(list(column) for column in part.columns), strict=True)


def together(
    statement: str, batches: Sequence[pa.RecordBatch] | None
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Make few statements of ``INSERT INTO t VALUES (?, ?)`` for many rows.

    ``statement`` is to run for each row of values. Where ``batches`` is None it has no values, and
    runs once. Raises RefusalError where statements would overwrite each other's rows.
    """
    if batches is None:
        yield statement, ()
        return
    count, rows = sum(batch.num_rows for batch in batches), rows_of(batches)
    tree = parsed_statement(numbered(statement)) if count > 1 else None
    begins = _values_begin(statement, tree)
    overwrites = isinstance(tree, exp.Insert) and bool(tree.args.get("overwrite"))
    if begins is None:
        if overwrites:
            raise invalid(
                f"INSERT OVERWRITE with {count:,} rows of values: each would overwrite the one"
                " before; write VALUES with one row of parameters alone, such as VALUES (?, ?)"
            )
        for row in rows:
            yield statement, row
        return
    width = batches[0].num_columns
    step = max(1, min(_ROWS_TOGETHER, _VALUES_TOGETHER // width))
    if overwrites:
        # all rows in one statement, because a second one would overwrite the rows of the first
        step = max(1, _VALUES_OVERWRITTEN // width)
        if count > step:
            raise invalid(
                f"INSERT OVERWRITE with {count:,} rows of values: it takes at most {step:,} of"
                f" {width} columns, in one statement; ingest the rows into a table, and INSERT"
                " OVERWRITE ... SELECT from it"
            )
    item = f"({', '.join('?' * width)})"
    while part := list(itertools.islice(rows, step)):
        many = statement[:begins] + ", ".join([item] * len(part))
        yield many, tuple(value for row in part for value in row)


def _values_begin(statement: str, tree: exp.Expr | None) -> int | None:
    """Return where the one row of ``INSERT INTO t VALUES (?, ?)`` begins.

    None for any other statement: of one that has more in it, such as a row of its own, another
    parameter or a function, the whole is run for each row of values.
    """
    if not isinstance(tree, exp.Insert) or not isinstance(tree.expression, exp.Values):
        return None
    if len(tree.expression.expressions) != 1:
        return None
    tokens = sqlglot.tokenize(statement, dialect=Fluss)
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    kinds = [token.token_type for token in tokens]
    first = len(kinds) - 1 - kinds[::-1].index(TokenType.L_PAREN)
    row = kinds[first:]
    size = len(row) // 2
    between = [TokenType.PLACEHOLDER, TokenType.COMMA] * size
    alone = row == [TokenType.L_PAREN, *between[:-1], TokenType.R_PAREN]
    if not alone or kinds.count(TokenType.PLACEHOLDER) != size:
        return None
    return int(tokens[first].start)
