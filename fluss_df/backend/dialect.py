"""The SQL dialect: that of Polars, with the types, quotes and hints of Flink."""

from __future__ import annotations

from typing import Any, ClassVar

from ibis.backends.sql.dialects import Polars, Postgres
from sqlglot import TokenType, exp

from fluss_df.errors import FlussError
from fluss_df.types import DataField, DataType, TypeRoot


class Fluss(Polars):  # type: ignore[misc]
    """SQL over Fluss: queries as Polars understands them, DDL as Flink writes it."""

    class Tokenizer(Postgres.Tokenizer):  # type: ignore[misc]
        """Names stand in double quotes or in backticks."""

        IDENTIFIERS: ClassVar[list[Any]] = ['"', "`"]
        KEYWORDS: ClassVar[dict[str, Any]] = {
            **Postgres.Tokenizer.KEYWORDS,
            "ROW": TokenType.STRUCT,
            "BYTES": TokenType.VARBINARY,
            "STRING": TokenType.TEXT,
            "TIMESTAMP_LTZ": TokenType.TIMESTAMPLTZ,
        }

    class Parser(Postgres.Parser):  # type: ignore[misc]
        """What it cannot read is an error, where others pass it on as a command."""

        def _warn_unsupported(self) -> None:
            self.raise_error("there is no such statement, or not in this form")


_T = exp.DataType.Type
_SIMPLE = {
    _T.TEXT: TypeRoot.STRING,
    _T.BOOLEAN: TypeRoot.BOOLEAN,
    _T.TINYINT: TypeRoot.TINYINT,
    _T.SMALLINT: TypeRoot.SMALLINT,
    _T.INT: TypeRoot.INTEGER,
    _T.BIGINT: TypeRoot.BIGINT,
    _T.FLOAT: TypeRoot.FLOAT,
    _T.DOUBLE: TypeRoot.DOUBLE,
    _T.DATE: TypeRoot.DATE,
}
_PRECISE = {
    _T.TIME: (TypeRoot.TIME_WITHOUT_TIME_ZONE, 0),
    _T.TIMESTAMP: (TypeRoot.TIMESTAMP_WITHOUT_TIME_ZONE, 6),
    _T.TIMESTAMPLTZ: (TypeRoot.TIMESTAMP_WITH_LOCAL_TIME_ZONE, 6),
}


def fluss_type(kind: exp.DataType, column: str) -> DataType:
    """Return the Fluss type of a type in SQL.

    Raises
    ------
    FlussError
        For a type that Fluss does not have, naming the column.
    """
    root = kind.this
    numbers = [int(p.name) for p in kind.expressions if isinstance(p, exp.DataTypeParam)]
    if root in _SIMPLE and not numbers:
        return DataType(_SIMPLE[root])
    if root == _T.VARBINARY and not numbers:
        return DataType(TypeRoot.BYTES)
    if root in _PRECISE and len(numbers) <= 1:
        precise, default = _PRECISE[root]
        return DataType(precise, precision=numbers[0] if numbers else default)
    if root == _T.DECIMAL and len(numbers) <= 2:
        precision, scale = [*numbers, *(10, 0)[len(numbers) :]]
        return DataType(TypeRoot.DECIMAL, precision=precision, scale=scale)
    if root in (_T.CHAR, _T.BINARY) and len(numbers) <= 1:
        fixed = TypeRoot.CHAR if root == _T.CHAR else TypeRoot.BINARY
        return DataType(fixed, length=numbers[0] if numbers else 1)
    if root == _T.ARRAY and len(kind.expressions) == 1:
        return DataType(TypeRoot.ARRAY, element=fluss_type(kind.expressions[0], column))
    if root == _T.MAP and len(kind.expressions) == 2:
        key, value = (fluss_type(part, column) for part in kind.expressions)
        return DataType(TypeRoot.MAP, key=key.with_nullable(False), value=value)
    if root == _T.STRUCT and kind.expressions:
        return DataType(
            TypeRoot.ROW,
            fields=tuple(
                DataField(part.name, fluss_type(part.kind, f"{column}.{part.name}"))
                for part in kind.expressions
            ),
        )
    raise FlussError(
        f"column '{column}': SQL cannot create the type {kind.sql(Fluss)}; there are STRING, CHAR,"
        " BOOLEAN, BYTES, BINARY, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL, DATE,"
        " TIME, TIMESTAMP, TIMESTAMP_LTZ, ARRAY, MAP and ROW"
    )
