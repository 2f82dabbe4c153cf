"""Fluss types and columns as SQL writes them, read and written."""

from __future__ import annotations

from sqlglot import exp

from fluss_df.backend.sql.dialect import Fluss, spot, unsupported
from fluss_df.errors import FlussError
from fluss_df.types import DataField, DataType, TypeRoot

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
# Flink writes STRING as VARCHAR of this length
_ANY_LENGTH = 2**31 - 1
_PRECISE = {
    _T.TIME: (TypeRoot.TIME_WITHOUT_TIME_ZONE, 0),
    _T.TIMESTAMP: (TypeRoot.TIMESTAMP_WITHOUT_TIME_ZONE, 6),
    _T.TIMESTAMPLTZ: (TypeRoot.TIMESTAMP_WITH_LOCAL_TIME_ZONE, 6),
}


def fluss_type(kind: exp.DataType, column: str) -> DataType:
    """Return the Fluss type of a type in SQL.

    Raises FlussError for a type that Fluss does not have, naming the column.
    """
    root = kind.this
    numbers = [int(p.name) for p in kind.expressions if isinstance(p, exp.DataTypeParam)]
    if root in _SIMPLE and not numbers:
        return DataType(_SIMPLE[root])
    if root == _T.VARCHAR and numbers in ([], [_ANY_LENGTH]):
        return DataType(TypeRoot.STRING)
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
        return DataType(TypeRoot.ARRAY, element=_part(kind.expressions[0], column))
    if root == _T.MAP and len(kind.expressions) == 2:
        key, value = (_part(part, column) for part in kind.expressions)
        return DataType(TypeRoot.MAP, key=key.with_nullable(False), value=value)
    if root == _T.STRUCT and kind.expressions:
        return DataType(TypeRoot.ROW, fields=tuple(_field(f, column) for f in kind.expressions))
    # of a type that it does not know, sqlglot keeps the name in args["kind"]
    of_user = root == _T.USERDEFINED and kind.args.get("kind")
    named = str(of_user or root.value) + (f"({', '.join(map(str, numbers))})" if numbers else "")
    raise FlussError(
        f"column '{column}': SQL cannot create the type {named}; there are STRING, CHAR,"
        " BOOLEAN, BYTES, BINARY, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL, DATE,"
        " TIME, TIMESTAMP, TIMESTAMP_LTZ, ARRAY, MAP and ROW"
    )


def _part(kind: exp.DataType, column: str) -> DataType:
    """Return the type of an element, key or value."""
    nullable = kind.args.get("nullable") is not False
    return fluss_type(kind, column).with_nullable(nullable)


def _field(item: exp.ColumnDef, column: str) -> DataField:
    """Return a field of a row."""
    name = f"{column}.{item.name}"
    if item.kind is None:
        raise FlussError(f"field '{name}' has no type{spot(item)}")
    kind, comment = constrained(fluss_type(item.kind, name), item, name)
    return DataField(item.name, kind, comment)


def constrained(kind: DataType, item: exp.ColumnDef, name: str) -> tuple[DataType, str | None]:
    """Apply what follows a column's type (NOT NULL, PRIMARY KEY, COMMENT); return type and comment.

    Raises FlussError for what Fluss does not have, such as defaults.
    """
    comment = None
    for constraint in item.args.get("constraints") or ():
        what = constraint.kind
        if isinstance(what, exp.NotNullColumnConstraint):
            kind = kind.with_nullable(bool(what.args.get("allow_null")))
        elif isinstance(what, exp.CommentColumnConstraint):
            comment = what.this.name
        elif isinstance(what, exp.PrimaryKeyColumnConstraint):
            kind = kind.with_nullable(False)
        else:
            raise unsupported(f"part of column '{name}'", constraint)
    return kind, comment


def sql_type(kind: DataType) -> str:
    """Return a type as SQL writes it, so that :func:`fluss_type` reads the same type back.

    Examples
    --------
    >>> sql_type(DataType(TypeRoot.ARRAY, element=DataType(TypeRoot.INTEGER, nullable=False)))
    'ARRAY<INT NOT NULL>'
    """
    if kind.root is TypeRoot.ROW:
        fields = (
            f"{quoted(f.name)} {sql_type(f.type)}" + commented(f.description) for f in kind.fields
        )
        text = f"ROW<{', '.join(fields)}>"
    elif kind.element is not None:
        text = f"ARRAY<{sql_type(kind.element)}>"
    elif kind.key is not None and kind.value is not None:
        text = f"MAP<{sql_type(kind.key)}, {sql_type(kind.value)}>"
    else:
        return str(kind).upper()
    return text if kind.nullable else f"{text} NOT NULL"


def type_of_sql(kind: DataType) -> exp.DataType:
    """Return a type as a cast in SQL has it.

    Examples
    --------
    >>> type_of_sql(DataType(TypeRoot.DATE)).sql()
    'DATE'
    """
    return exp.DataType.build(sql_type(kind.with_nullable(True)), dialect=Fluss)


def quoted(name: str) -> str:
    """Return a name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return text in quotes."""
    return "'" + text.replace("'", "''") + "'"


def commented(comment: str | None) -> str:
    """Return the part of a statement that has a comment."""
    return f" COMMENT {literal(comment)}" if comment else ""
