"""The SQL dialect: that of Polars, with the types, quotes and hints of Flink; its messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import sqlglot
from ibis.backends.sql.dialects import Polars, Postgres
from sqlglot import TokenType, exp
from sqlglot.dialects.dialect import rename_func

from fluss_df.errors import FlussError


def _position(generator: Any, node: exp.StrPosition) -> str:
    """Write STRPOS so that it counts characters: that of Polars counts bytes."""
    if any(node.args.get(name) for name in ("position", "occurrence")):
        generator.unsupported("a text is looked for from the beginning on, and once")
    text, part = generator.sql(node, "this"), generator.sql(node, "substr")
    place = f"STRPOS({text}, {part})"
    # how many characters stand before the part
    before = f"CHAR_LENGTH(SPLIT_PART({text}, {part}, 1))"
    return f"CASE WHEN {place} > 1 THEN {before} + 1 ELSE {place} END"


_PLAIN = frozenset((TokenType.NUMBER, TokenType.STRING))


def _literals(tokens: Sequence[sqlglot.Token], begin: int) -> list[exp.Expr] | None:
    """Return the literals of ``(1, 'a')`` in tokens; None where anything else stands in it."""
    if begin >= len(tokens) or tokens[begin].token_type != TokenType.L_PAREN:
        return None
    if tokens[begin].comments:
        return None
    found: list[exp.Expr] = []
    for at in range(begin + 1, len(tokens) - 1, 2):
        token, after = tokens[at], tokens[at + 1]
        kind = token.token_type
        if kind not in _PLAIN or token.comments or after.comments:
            return None
        literal = exp.Literal(this=token.text, is_string=kind == TokenType.STRING)
        found.append(literal.update_positions(token))
        if after.token_type == TokenType.R_PAREN:
            return found
        if after.token_type != TokenType.COMMA:
            return None
    return None


class Items:
    """The literals of a long list behind IN, kept outside the syntax tree.

    The IN node itself has the first literal only, so walks and copies of the tree stay cheap.
    Copies of the node share this object. ``grouped`` puts negative numbers in parentheses.
    """

    def __init__(self, literals: Sequence[exp.Expr], *, grouped: bool = False) -> None:
        self.literals = literals
        self._grouped = grouped

    @cached_property
    def text(self) -> str:
        """The list in SQL, without the parentheses around it."""
        write = Fluss().generator().sql
        if not self._grouped:
            return ", ".join(map(write, self.literals))
        return ", ".join(
            f"({write(literal)})" if isinstance(literal, exp.Neg) else write(literal)
            for literal in self.literals
        )


class Fluss(Polars):  # type: ignore[misc]
    """SQL over Fluss: queries as Polars understands them, DDL as Flink writes it."""

    class Tokenizer(Postgres.Tokenizer):  # type: ignore[misc]
        """Names stand in double quotes or in backticks."""

        IDENTIFIERS: ClassVar[list[Any]] = ['"', "`"]
        KEYWORDS: ClassVar[dict[str, Any]] = {
            **Postgres.Tokenizer.KEYWORDS,
            "ROW": TokenType.STRUCT,
            "BYTES": TokenType.VARBINARY,
            "FLOAT": TokenType.FLOAT,
            "STRING": TokenType.TEXT,
            "TIMESTAMP_LTZ": TokenType.TIMESTAMPLTZ,
        }

    class Parser(Postgres.Parser):  # type: ignore[misc]
        """Raises for statements that it cannot parse; other parsers make commands of them."""

        # Polars has its own functions of these names: they are handed on as they were written
        FUNCTIONS: ClassVar[dict[str, Any]] = {
            name: make
            for name, make in Postgres.Parser.FUNCTIONS.items()
            if name not in ("BIT_AND", "BIT_OR", "BIT_XOR", "LOG10", "LOG2")
        }

        def _warn_unsupported(self) -> None:
            self.raise_error("there is no such statement, or not in this form", self._tokens[0])

        def _parse_in(self, this: exp.Expr | None, alias: bool = False) -> exp.In:
            """Read a list of literals, which may be long, without looking for more in each one."""
            literals = None if alias else _literals(self._tokens, self._index)
            if literals is None:
                other: exp.In = super()._parse_in(this, alias=alias)
                return other
            # the parenthesis, the literals and the commas between them
            self._advance(2 * len(literals))
            found: exp.In = self.expression(exp.In(this=this, expressions=literals))
            self._match_r_paren(found)
            return found

        def _parse_types(
            self, *args: Any, with_collation: bool = False, **kwargs: Any
        ) -> exp.Expr | None:
            """Read a type; where it is part of another, NOT NULL may follow."""
            found: exp.Expr | None = super()._parse_types(
                *args, with_collation=with_collation, **kwargs
            )
            # sqlglot sets with_collation for types within <...> only: it tells a nested type here
            if with_collation and found is not None and self._match_text_seq("NOT", "NULL"):
                found.set("nullable", False)
            return found

        def _parse_alter_table_add(self) -> list[exp.Expr]:
            """Read columns, which Flink puts in parentheses where they are several."""
            if not self._match(TokenType.L_PAREN):
                alone: list[exp.Expr] = super()._parse_alter_table_add()
                return alone
            found: list[exp.Expr] = self._parse_csv(self._parse_column_def_with_exists)
            self._match_r_paren()
            return found

    class Generator(Postgres.Generator):  # type: ignore[misc]
        """Types and operators as Polars writes them."""

        TRANSFORMS: ClassVar[dict[Any, Any]] = {
            **Postgres.Generator.TRANSFORMS,
            exp.NullSafeEQ: lambda self, node: self.binary(node, "<=>"),
            exp.StrPosition: _position,
            # PostgreSQL cannot round a DOUBLE, so sqlglot would cast it; Polars rounds all numbers
            exp.Round: rename_func("ROUND"),
            exp.TryCast: lambda self, node: self.cast_sql(node, safe_prefix="TRY_"),
            **{
                kind: rename_func(name)
                for kind, name in (
                    (exp.ArrayContains, "ARRAY_CONTAINS"),
                    (exp.ArraySize, "ARRAY_LENGTH"),
                    (exp.DayOfWeek, "DAYOFWEEK"),
                    (exp.Median, "MEDIAN"),
                )
            },
        }

        TYPE_MAPPING: ClassVar[dict[Any, str]] = {
            **Postgres.Generator.TYPE_MAPPING,
            exp.DType.TIMESTAMPLTZ: "TIMESTAMPTZ",
            exp.DType.TINYINT: "TINYINT",
        }

        def in_sql(self, expression: exp.In) -> str:
            """Write a list, of which the tree may have the first literal alone."""
            items = expression.args.get("items")
            if isinstance(items, Items):
                return f"{self.sql(expression, 'this')} IN ({items.text})"
            return str(super().in_sql(expression))


class Text(str):
    """The text of a statement, whose tokens are made once, by whoever asks first.

    Making the tokens takes half as long as parsing.
    """

    @cached_property
    def tokens(self) -> tuple[sqlglot.Token, ...]:
        """The tokens; raises TokenError each time where the text has none."""
        return tuple(sqlglot.tokenize(str(self), dialect=Fluss))


def tokens_of(text: str) -> tuple[sqlglot.Token, ...]:
    """Return the tokens of a text of SQL; raises TokenError for what has none."""
    return (text if isinstance(text, Text) else Text(text)).tokens


def spot(part: exp.Expr) -> str:
    """Return where a part of a statement stands, as far as that is known, for a message."""
    for node in part.walk():
        if "line" in node.meta:
            # sqlglot's column is that of the last character
            column = node.meta["col"] - (node.meta["end"] - node.meta["start"])
            return f" (line {node.meta['line']}, column {column})"
    return ""


def unsupported(what: str, part: exp.Expr | None) -> FlussError:
    """Return the error for a part of SQL that can be read and not run, and where it stands."""
    if part is None:
        return FlussError(f"a {what} is missing: expected more of the statement")
    text = part.sql(Fluss, comments=False)[:200]
    return FlussError(f"this {what} cannot be run: {text}{spot(part)}")
