"""Queries in SQL: names are resolved to frames, hints to options of scans."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import polars as pl
import sqlglot
from sqlglot import exp

from fluss_df.backend.key_lookups import KeySide, narrowed, narrows
from fluss_df.backend.sql.clauses import ONE_ROW, from_of, from_one_row, refuse_what_polars_ignores
from fluss_df.backend.sql.dialect import Fluss, Text, spot, tokens_of
from fluss_df.backend.sql.operands.listed import group, restore, shorten
from fluss_df.backend.sql.operands.numbers import told_beyond
from fluss_df.backend.sql.operands.outputs import name_apart, order_by_tables, type_keys
from fluss_df.backend.sql.operands.types import clauses_in_sight
from fluss_df.backend.sql.predicates import prepare
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.base.names import exact, is_pattern, with_fields_named
from fluss_df.metadata import BUCKET_COLUMN, VIEW_PROPERTY, nearest
from fluss_df.polars_adapter.plans import sql_query
from fluss_df.polars_adapter.scans import polars_reason
from fluss_df.record.change_tables import split_virtual

if TYPE_CHECKING:
    from fluss_df.backend.catalog.catalog import Catalog

_OPTIONS = re.compile(r"\+\s*OPTIONS\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_PAIR = r"'([^']*)'\s*=\s*'([^']*)'"
_PLAIN_PREFIX = "__fluss_name_"
_PLAIN = re.compile(rf"{_PLAIN_PREFIX}((?:[0-9a-f]{{2}})+)")
_PAIRS = re.compile(rf"\s*{_PAIR}\s*(,\s*{_PAIR}\s*)*")


def parse(query: str) -> exp.Expr:
    """Parse one statement.

    Raises FlussError with line and column of what cannot be read.
    """
    query = query if isinstance(query, Text) else Text(query)
    try:
        _check_commas(query)
        read: list[exp.Expr | None] = Fluss().parser().parse(list(query.tokens), str(query))
        # a lone semicolon is a node where a comment belongs to it
        statements = [s for s in read if s is not None and not isinstance(s, exp.Semicolon)]
    except sqlglot.errors.TokenError as error:
        raise FlussError(f"SQL cannot be read: {_open_quote(query) or error}") from None
    except sqlglot.errors.ParseError as error:
        raise FlussError(f"SQL cannot be read: {_misspelt(query) or _unread(error)}") from None
    if len(statements) != 1:
        raise FlussError(f"expected one statement in SQL, found {len(statements)}")
    for part in statements[0].find_all(exp.Group):
        if not any(part.args.values()):
            raise FlussError("SQL cannot be read: expected columns behind GROUP BY")
    return statements[0]


def _misspelt(query: str) -> str:
    """Return a hint where the first word is nearly one that begins a statement."""
    first = re.match(r"\s*(\w+)", query)
    if first is None or first[1].upper() in _FIRST_WORDS:
        return ""
    hint = nearest(first[1].upper(), _FIRST_WORDS)
    before = query[: first.start(1)]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return hint and f"{first[1]} begins no statement (line {line}, column {column}){hint}"


def _unread(error: sqlglot.errors.ParseError) -> str:
    """Return what is wrong and where, from an error of sqlglot."""
    found = error.errors[0]
    # sqlglot's messages show its objects
    text = re.sub(r"<Token .*?text: (\S*), line.*?>", r"'\1'", found["description"])
    text = text.replace("'SENTINEL'", "the end")
    text = re.sub(r"<class '[\w.]*?(\w+)'>", r"\1", text)
    at = found["highlight"]
    # sqlglot's column is that of the last character
    column = found["col"] - max(len(at) - 1, 0)
    return f"{text.rstrip('.')} (line {found['line']}, column {column}" + (
        f", at {at!r})" if at else ")"
    )


_FIRST_WORDS = (
    *("SELECT", "WITH", "VALUES", "INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "DROP", "ALTER"),
    *("SHOW", "DESCRIBE", "EXPLAIN", "TRUNCATE", "USE"),
)
_T = sqlglot.TokenType
_NEEDS_ITEM = frozenset((_T.COMMA, _T.ON))
_NO_ITEM = frozenset((_T.COMMA, _T.R_PAREN, _T.FROM, _T.SEMICOLON, _T.WHERE))


def _check_commas(query: str) -> None:
    """Raise for a comma or an ON that nothing follows, which sqlglot passes over."""
    tokens = tokens_of(query)
    kinds = [token.token_type for token in tokens]
    for token, kind, following in zip(tokens, kinds, [*kinds[1:], _T.SEMICOLON], strict=False):
        if kind in _NEEDS_ITEM and following in _NO_ITEM:
            column = token.col - len(token.text) + 1
            raise FlussError(
                f"SQL cannot be read: nothing follows {token.text!r} (line {token.line}, column"
                f" {column})"
            )


def _open_quote(query: str) -> str | None:
    """Say where a quote begins that does not end."""
    begun: tuple[str, int] | None = None
    for at, char in enumerate(query):
        if begun is None and char in "'\"`":
            begun = char, at
        elif begun is not None and char == begun[0]:
            begun = None
    if begun is None:
        return None
    before = query[: begun[1]]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return f"the quote {begun[0]} does not end (line {line}, column {column})"


def require_no_files(tree: exp.Expr, who: str) -> None:
    """Raise for table functions, such as ``read_csv('...')``, anywhere in a statement.

    They open files of the machine on which the statement runs, with the rights of its process:
    that is not for the text of another user.
    """
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            raise FlussError(
                f"{who} tables and views, not files: {table.sql()[:80]}; load the file into a table"
            )


def count_hints(query: str) -> int:
    """Return how many hints stand in a statement that can be parsed."""
    return sum(comment.startswith("+") for token in tokens_of(query) for comment in token.comments)


class SqlScope:
    """What the names in a query mean; Ibis takes it where Polars has an ``SQLContext``.

    A name without a database means a local table, else one of the current database. Where
    ``database`` is given it means a table of that one, and never a local table.
    """

    def __init__(self, catalog: Catalog, database: str | None = None) -> None:
        self._catalog = catalog
        self._database = database
        self._frames: dict[str, pl.LazyFrame] = {}

    def register(self, name: str, frame: pl.LazyFrame) -> None:
        """Give a frame a name for the queries of this scope."""
        self._frames[name] = frame

    def execute(self, query: str, *, eager: bool = False) -> pl.LazyFrame:
        """Return a query as a lazy frame; ``eager`` is always False."""
        text = Text(query)
        tree = parse(text)
        return self.run(tree, count_hints(text))

    def run(self, tree: exp.Expr, hints: int = 0) -> pl.LazyFrame:
        """Return a parsed query, with its number of hints, as a lazy frame."""
        if not isinstance(tree, exp.Query):
            raise FlussError(f"expected a query, not {tree.sql(Fluss)[:80]!r}: use raw_sql")
        has_lists = shorten(tree)
        refuse_what_polars_ignores(tree)
        begins = tree.sql(Fluss, comments=False, unsupported_level=sqlglot.ErrorLevel.IGNORE)[:80]
        frames: dict[str, pl.LazyFrame] = {}
        sides, used = self._key_sides(tree)
        databases = {(t.db, t.name) for t in tree.find_all(exp.Table) if t.db}
        for table in list(tree.find_all(exp.Table)):
            if not isinstance(table.this, exp.Identifier) or _is_cte(table):
                continue
            given = [c for c in table.comments or () if c.startswith("+")]
            used += len(given)
            key = f"__fluss_{len(frames)}"
            frames[key] = self._frame(table, _options(given))
            for side in sides.get(id(table), ()):
                path = self._catalog.path(table.name, self._database_of(table))
                frames[key] = narrowed(frames[key], path, self._catalog._connection, side)
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
            table.set("this", exp.to_identifier(key, quoted=True))
            table.set("db", None)
            table.comments = None
        # Polars' SQL takes some names for patterns: these are replaced, and put back in the result
        for key, frame in frames.items():
            frames[key] = _renamed(frame, _plain_name)
        for identifier in tree.find_all(exp.Identifier):
            identifier.set("this", _plain_name(identifier.name))
        for part in tree.find_all(exp.JSONPathKey):
            if isinstance(part.this, str):
                part.set("this", _plain_name(part.this))
        if from_one_row(tree):
            frames[ONE_ROW] = pl.LazyFrame({ONE_ROW: [True]})
        if has_lists:
            restore(tree, frames)
        name_apart(tree, frames)
        tree = order_by_tables(tree, frames)
        type_keys(tree)
        prepare(tree, frames)
        if has_lists:
            group(tree)
        if used != hints:
            raise FlussError(
                "a hint /*+ ... */ stands where it has no effect: it belongs behind a table's name"
            )
        for column in tree.find_all(exp.Column):
            _without_database(column, databases)
        try:
            text = tree.sql(Fluss, comments=False, unsupported_level=sqlglot.ErrorLevel.RAISE)
        except sqlglot.errors.UnsupportedError as error:
            # the error names what sqlglot could not write and left out
            reason = str(error).replace("PostgreSQL", "SQL over Fluss")
            raise FlussError(f"SQL cannot be run: {reason}, in: {begins}") from None
        try:
            frame = sql_query(text, frames)
            frame.collect_schema()  # raises for wrong names and types
        except (
            pl.exceptions.PolarsError,
            pl.exceptions.SQLInterfaceError,
            # derives from BaseException: what catches errors would let it end the program
            pl.exceptions.PanicException,
        ) as error:
            reason = _given_name(polars_reason(error))
            place = _named(reason, tree) or f", in: {begins}"
            raise FlussError(f"SQL cannot be run: {reason}{place}{_meant(reason, tree)}") from error
        return _renamed(frame, _given_name)

    def _key_sides(self, tree: exp.Query) -> tuple[dict[int, list[KeySide]], int]:
        """Take conditions ``key IN (SELECT ...)`` out of a query, for the scans of their tables.

        Returns what the tables, by ``id``, are to be joined with, and how many hints there were in
        the subqueries.
        """
        sides: dict[int, list[KeySide]] = {}
        hints = 0
        for select in list(tree.find_all(exp.Select)):
            where = select.args.get("where")
            table = _only_left(select)
            if where is None or table is None or select.root() is not tree:
                continue
            whole = where.this
            conditions = list(whole.flatten()) if isinstance(whole, exp.And) else [whole]
            left = []
            for condition in conditions:
                found = self._key_side(table, condition.unnest(), bool(select.args.get("joins")))
                if found is None:
                    left.append(condition)
                else:
                    sides.setdefault(id(table), []).append(found)
                    hints += hints_within(condition)
            if len(left) < len(conditions):
                select.set("where", exp.Where(this=exp.and_(*left)) if left else None)
        return sides, hints

    def _key_side(self, table: exp.Table, condition: exp.Expr, joined: bool) -> KeySide | None:
        """Return the keys that a condition has for a table by a subquery that stands alone."""
        query = condition.args.get("query") if isinstance(condition, exp.In) else None
        column = condition.this
        if not isinstance(query, exp.Subquery) or not isinstance(column, exp.Column):
            return None
        if column.table != table.alias_or_name and (column.table or joined):
            return None
        name, database = table.name, self._database_of(table)
        if self._is_local(name, database) or split_virtual(name)[1]:
            return None
        alone = query.this.copy()
        for inside, copied in zip(
            query.this.find_all(exp.Table), alone.find_all(exp.Table), strict=True
        ):
            if _is_cte(inside) and not _is_cte(copied):
                return None
        try:
            if not narrows(self._catalog.table_info(name, database), [column.name]):
                return None
            keys = self.run(alone, hints_within(alone))
        except FlussError:
            # it refers to outer rows, or has an error: Polars will say which
            return None
        given = keys.collect_schema().names()
        if len(given) != 1:
            return None
        return KeySide((column.name,), keys.select(exact(given[0]).alias(column.name)))

    def _database_of(self, table: exp.Table) -> str | None:
        return table.db or self._database

    def _is_local(self, name: str, database: str | None) -> bool:
        return database is None and (name in self._frames or self._catalog.is_local(name))

    def _is_log(self, name: str, database: str | None) -> bool:
        if split_virtual(name)[1]:
            return False
        info = self._catalog.table_info(name, database)
        if VIEW_PROPERTY in info.get_custom_properties():
            return False
        return not info.has_primary_key() and BUCKET_COLUMN not in info.get_column_names()

    def _frame(self, table: exp.Table, options: dict[str, Any]) -> pl.LazyFrame:
        name, database = table.name, self._database_of(table)
        if table.catalog:
            raise FlussError(f"table {table.sql(Fluss)}: Fluss has databases and no catalogs")
        local = self._frames.get(name) if not table.db else None
        if local is None and self._catalog.is_local(name, database):
            local = self._catalog._tables[name]
        if local is not None:
            if options:
                raise FlussError(f"{name!r} is local to the connection and takes no options")
            return local
        try:
            counted = _counted(table)
            if counted is not None and self._is_log(name, database):
                # the number of rows follows from offsets alone: for this column nothing is read
                counted.set("this", exp.column(BUCKET_COLUMN, quoted=True))
                options = {**options, "include_metadata": [BUCKET_COLUMN]}
            return self._catalog.scan_table(name, database, **options)
        except FlussError as error:
            message = error.message
            if "start" in options and error.error_code == ErrorCode.INVALID_TABLE_EXCEPTION:
                message = (
                    f"hint: table {name} has a primary key, and its current rows have no offset to"
                    f" start at; {name}$changelog is the log of its changes"
                )
            raise type(error)(f"{message}{spot(table)}", error.error_code) from None


def _without_database(column: exp.Column, tables: set[tuple[str, str]]) -> None:
    """Take the database out of ``database.table.column``, and of its fields.

    A column may as well be ``column.field.field``, which stays as it is: ``tables`` has the tables
    that the query names, with their databases.
    """
    for database, table in (("catalog", "db"), ("db", "table")):
        if (column.text(database), column.text(table)) in tables:
            column.set(database, None)
            return


def _plain_name(name: str) -> str:
    """Return the name by which Polars' SQL gets a column, or something else with a name."""
    return f"{_PLAIN_PREFIX}{name.encode().hex()}" if is_pattern(name) else name


def _given_name(name: str) -> str:
    """Return a name or message with the names for which :func:`_plain_name` gave other ones.

    Polars adds to a name that a result would have twice.
    """
    return _PLAIN.sub(lambda plain: bytes.fromhex(plain[1]).decode(), name)


def _renamed(frame: pl.LazyFrame, new_name: Callable[[str], str]) -> pl.LazyFrame:
    """Return a frame with other names of columns, and of fields in them."""
    schema = frame.collect_schema()
    fields = [
        made.alias(name)
        for name, kind in schema.items()
        if (made := with_fields_named(exact(name), kind, new_name)) is not None
    ]
    if fields:
        frame = frame.with_columns(fields)
    others = {name: other for name in schema if (other := new_name(name)) != name}
    return frame.rename(others) if others else frame


def _meant(reason: str, tree: exp.Expr) -> str:
    """Say how texts are written, where one in double quotes was taken for a column."""
    missing = re.search(r'unable to find column "([^"]+)"', reason)
    quoted = {node.name for node in tree.find_all(exp.Identifier) if node.args.get("quoted")}
    if missing is None or missing[1] not in quoted:
        return ""
    return f"; if it is a text, write '{missing[1]}': double quotes are for names"


def _named(reason: str, tree: exp.Expr) -> str:
    """Return where a statement has a name that Polars complains of, if it is found."""
    # what follows are the names that there are
    wrong = re.split(r"; valid |Did you mean", reason)[0]
    named = set(re.findall(r"[\"'`](\w+)[\"'`]", wrong))
    for node in tree.find_all(exp.Identifier, exp.Anonymous, exp.Func):
        if node.name in named and spot(node):
            return spot(node)
    return ""


def _counted(table: exp.Table) -> exp.Count | None:
    """Return the count(*) of a query that asks for nothing but how many rows a table has."""
    source = table.parent
    select = source.parent if isinstance(source, exp.From) else None
    if not isinstance(select, exp.Select) or len(select.expressions) != 1:
        return None
    (item,) = select.expressions
    count: exp.Expr = item.unalias()
    given = {name for name, value in select.args.items() if value}
    if not isinstance(count, exp.Count) or not isinstance(count.this, exp.Star):
        return None
    if given - {"expressions", "from_", "kind"}:
        return None
    if item is count:
        # named as Polars names count(*)
        select.set("expressions", [exp.alias_(count, "len", copy=False)])
    return count


def _only_left(select: exp.Select) -> exp.Table | None:
    """Return the table of FROM, where a condition on it can be as well applied before joins."""
    source = from_of(select)
    table = source.this if source else None
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        return None
    joins = select.args.get("joins") or ()
    if _is_cte(table) or any(
        j.side.upper() not in ("", "LEFT") or j.kind == "OUTER" for j in joins
    ):
        return None
    return table


def hints_within(tree: exp.Expr) -> int:
    """Return how many hints stand behind tables in a part of a statement."""
    tables = tree.find_all(exp.Table)
    return sum(comment.startswith("+") for table in tables for comment in table.comments or ())


def _is_cte(table: exp.Table) -> bool:
    """Whether a name means a common table expression that is in sight of it."""
    if table.db:
        return False
    return any(cte.alias == table.name for clause in clauses_in_sight(table) for cte in clause)


def _options(hints: list[str]) -> dict[str, Any]:
    """Return the arguments of a scan that hints mean."""
    given: dict[str, str] = {}
    for hint in hints:
        match = _OPTIONS.fullmatch(hint)
        if match is None or not _PAIRS.fullmatch(match[1]):
            raise FlussError(f"hint /*{hint}*/: expected OPTIONS('key'='value', ...)")
        given.update(re.findall(_PAIR, match[1]))
    mode = given.pop("scan.startup.mode", None)
    stamp = given.pop("scan.startup.timestamp", None)
    if given:
        raise FlussError(
            f"hint: there is no option {min(given)!r}; there are 'scan.startup.mode' and"
            " 'scan.startup.timestamp'"
        )
    if (mode == "timestamp") != (stamp is not None):
        raise FlussError(
            "hint: 'scan.startup.mode'='timestamp' and 'scan.startup.timestamp' need each other"
        )
    if mode is None:
        return {}
    if mode == "timestamp" and stamp is not None:
        return {"start": _instant(stamp)}
    # as in Flink, full is the lake and the log, and the others are the log
    options: dict[str, dict[str, Any]]
    options = {"full": {}, "earliest": {"lake": False}, "latest": {"start": "latest"}}
    if mode not in options:
        raise FlussError(
            f"hint: 'scan.startup.mode'={mode!r}: expected full, earliest, latest or timestamp"
        )
    return options[mode]


def _instant(text: str) -> datetime:
    """Return the time of a hint: milliseconds since 1970, or as text, in UTC without a zone."""
    if text.isdigit():
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(text))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise FlussError(
            f"hint: 'scan.startup.timestamp'={text!r}: expected milliseconds since 1970 or"
            " '2024-01-31 12:00:00'"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@contextlib.contextmanager
def errors_of_polars() -> Iterator[None]:
    """Say as other errors of SQL what is found wrong only when rows are there."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        raise FlussError(f"SQL cannot be run: {told_beyond(polars_reason(error))}") from error
