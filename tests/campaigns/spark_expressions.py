# ruff: noqa: E501 - conditions and expressions are read best on one line
"""Random expressions of Spark SQL over columns of any type, for ``spark_fuzz``."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal

from pyspark.sql import types as T  # noqa: N812 - as Spark's own documentation has it

from tests.campaigns.spark_tables import TEXTS

_WHOLE = {
    T.ByteType: "tinyint",
    T.ShortType: "smallint",
    T.IntegerType: "int",
    T.LongType: "bigint",
}
_BASIC: dict[type[T.DataType], str] = {
    **dict.fromkeys(_WHOLE, "int"), T.FloatType: "float", T.DoubleType: "float", T.DecimalType: "decimal",
    T.StringType: "text", T.BooleanType: "bool", T.DateType: "date", T.TimestampType: "ltz",
    T.TimestampNTZType: "ntz", T.BinaryType: "binary", T.ArrayType: "array", T.StructType: "struct", T.MapType: "map",
}  # fmt: skip
_OPS = ["=", "<>", "<", "<=", ">", ">=", "<=>", "=="]
_PATTERNS = [
    "%",
    "_",
    "a%",
    "%a",
    "%b%",
    "a\\\\_b",
    "a\\\\%b",
    "a_b",
    "",
    "%\\\\\\\\%",
    "__",
    "é",
    "%😀%",
    "null",
    "%%",
    "ab",
]
_NUMBERS = ["0", "1", "-1", "127", "128", "300", "2147483648", "9223372036854775807", "-9223372036854775808",
            "1.5", "0.1", "1e0", "0.1D", "0.1F", "-0.0D", "1.50BD", "'1'", "1Y", "-7S", "20L", "CAST('NaN' AS DOUBLE)",
            "CAST('NaN' AS FLOAT)", "double('inf')", "99999999999999999999999999999999999999", "0.000001", "16777216.0F"]  # fmt: skip
_DAYS = [
    "0001-01-01",
    "1582-10-10",
    "1969-12-31",
    "1970-01-01",
    "2024-02-29",
    "9999-12-31",
    "2024-03-10",
]
_CLOCKS = ["00:00:00", "23:59:59.999999", "02:30:00", "01:02:03.004005", "12:00:00"]
_LITERAL_KINDS: Mapping[str, Sequence[str]] = {
    "int": _NUMBERS,
    "float": _NUMBERS,
    "decimal": _NUMBERS,
    "bool": ["true", "false", "'true'", "NULL"],
    "binary": ["X''", "X'61'", "X'FF'", "X'00'", "X'6162'", "'a'", "X'FFFE'"],
}


def kind_of(found: T.DataType) -> str:
    """Return in which of the kinds of expressions a type belongs."""
    return _BASIC.get(type(found)) or (
        "time" if found.simpleString().startswith("time(") else "other"
    )


def quoted(name: str) -> str:
    """Write a name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(value: str) -> str:
    """Write a text."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def spark_literal(value: object, found: T.DataType, rng: random.Random | None = None) -> str:
    """Write a value of a table as a literal of its type; with random choices of another, too."""
    kind = kind_of(found)
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return text_literal(value)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(" ")
        return f"TIMESTAMP_LTZ '{text}Z'" if kind == "ltz" else f"TIMESTAMP_NTZ '{text}'"
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, dt.time):
        return f"TIME '{value.isoformat()}'"
    if isinstance(value, Decimal):
        return rng.choice([f"{value:f}", f"{value:f}BD"]) if rng else f"{value:f}BD"
    if isinstance(value, int) and rng:
        return rng.choice([str(value), str(value), f"CAST('{value}' AS {found.simpleString()})"])
    if isinstance(value, float) and math.isfinite(value) and rng:
        number = f"{value:e}" if float(f"{value:e}") == value else repr(value)
        return rng.choice([number if "e" in number else number + "e0", f"{value!r}D", repr(value)])
    return f"CAST('{value}' AS {found.simpleString()})"


class Expressions:
    """Random expressions over the columns of a schema.

    Parameters
    ----------
    rng
        Where choices come from.
    schema
        The columns.
    values
        Values that are in the columns, by their names.
    prefix
        What stands before names, such as ``t.``.
    """

    def __init__(
        self,
        rng: random.Random,
        schema: T.StructType,
        values: Mapping[str, Sequence[object]],
        prefix: str = "",
    ) -> None:
        self.rng, self.values = rng, values
        self.columns: dict[str, list[tuple[str, T.DataType]]] = {}
        self.all = [(field.name, field.dataType) for field in schema]
        self.prefix = prefix
        for name, found in self.all:
            self.columns.setdefault(kind_of(found), []).append((name, found))

    def name(self, name: str) -> str:
        return self.prefix + quoted(name)

    def literal(self, name: str, found: T.DataType) -> str:
        """Return a literal to compare a column with; most often a value that it has."""
        rng, kind = self.rng, kind_of(found)
        there = self.values.get(name)
        if there and rng.random() < 0.6:
            return spark_literal(rng.choice(there), found, rng)
        if kind in _LITERAL_KINDS:
            return rng.choice(_LITERAL_KINDS[kind])
        if kind == "text":
            return rng.choice([text_literal(rng.choice(TEXTS)), "1", "NULL"] if rng.random() < 0.1
                              else [text_literal(rng.choice(TEXTS))])  # fmt: skip
        day, clock = rng.choice(_DAYS), rng.choice(_CLOCKS)
        if kind == "time":
            return f"TIME '{clock}'"
        return rng.choice([f"DATE '{day}'", f"TIMESTAMP_NTZ '{day} {clock}'", f"TIMESTAMP '{day} {clock}'", f"'{day}'",
                           f"TIMESTAMP_LTZ '{day} {clock}+02:00'", f"'{day} {clock}'", f"TIMESTAMP '{day} {clock}Z'"])  # fmt: skip

    def leaf(self) -> str:
        """Return a condition on one column."""
        rng = self.rng
        name, found = rng.choice(self.all)
        kind = kind_of(found)
        column = self.name(name)
        if kind == "bool" and rng.random() < 0.3:
            return column
        if rng.random() < 0.15:
            return f"{column} IS {rng.choice(['', 'NOT '])}NULL"
        if kind == "struct":
            assert isinstance(found, T.StructType)
            field = rng.choice(found.fields)
            return f"{column}.{quoted(field.name)} IS {rng.choice(['', 'NOT '])}NULL"
        if kind == "array":
            return rng.choice(
                [
                    f"size({column}) {rng.choice(_OPS)} 1",
                    f"{column}[0] IS NULL",
                    f"{column} = {column}",
                ]
            )
        if kind == "map":
            return f"cardinality({column}) {rng.choice(_OPS)} 1"
        word = rng.choice(["", "NOT "])
        value = [self.literal(name, found) for _ in range(3)]
        forms = [f"{column} {rng.choice(_OPS)} {value[0]}"] * 5
        forms += [f"{value[0]} {rng.choice(_OPS)} {column}", f"{column} {word}IN ({', '.join(value)})",
                  f"{column} {word}IN ({value[0]}, NULL)", f"{column} {word}BETWEEN {value[0]} AND {value[1]}",
                  f"{column} <=> NULL", f"{column} IS {word}DISTINCT FROM {value[0]}",
                  f"coalesce({column}, {value[0]}) {rng.choice(_OPS)} {value[1]}",
                  f"CAST({column} AS STRING) {rng.choice(_OPS)} {text_literal(rng.choice(TEXTS))}"]  # fmt: skip
        same = [n for n, _ in self.columns[kind] if n != name]
        if same:
            forms.append(f"{column} {rng.choice(_OPS)} {self.name(rng.choice(same))}")
        if kind == "text":
            pattern = rng.choice(_PATTERNS)
            call = rng.choice(["startswith", "endswith", "contains"])
            forms += [f"{column} {word}LIKE '{pattern}'"] * 4
            forms += [f"{column} {word}LIKE 'a!_%' ESCAPE '!'", f"{call}({column}, {value[0]})", f"{column} {word}ILIKE '{pattern}'",
                      f"{word}{call}({column}, {value[0]})", f"length({column}) {rng.choice(_OPS)} 1", f"trim({column}) = {value[0]}",
                      f"upper({column}) {rng.choice(_OPS)} {value[0]}"]  # fmt: skip
        if kind in ("int", "decimal", "float"):
            forms += [f"{column} + 1 {rng.choice(_OPS)} {value[0]}", f"-{column} > {value[0]}", f"{column} % 2 = 0",
                      f"isnan({column})" if kind == "float" else f"abs({column}) >= {value[0]}"]  # fmt: skip
        if kind in ("date", "ntz", "ltz"):
            forms += [f"year({column}) {rng.choice(_OPS)} {rng.choice([1, 1970, 2024, 9999])}", f"CAST({column} AS DATE) = DATE '2024-02-29'",
                      f"CAST({column} AS TIMESTAMP) < TIMESTAMP '2000-01-01 00:00:00Z'"]  # fmt: skip
        return rng.choice(forms)

    def simple(self, depth: int = 1) -> str:
        """Return a condition that compares columns with literals, as most that are written do."""
        rng = self.rng
        if depth and rng.random() < 0.6:
            word = rng.choice(["AND", "OR", "OR", "NOT"])
            one = self.simple(depth - 1)
            return f"NOT ({one})" if word == "NOT" else f"({one}) {word} ({self.simple(depth - 1)})"
        some = [(n, k) for n, k in self.all if kind_of(k) not in ("array", "struct", "map", "time")]
        name, found = rng.choice(some)
        column = self.name(name)
        literals = [self.literal(name, found) for _ in range(3)]
        there = self.values.get(name)
        if there and rng.random() < 0.7:
            literals = [spark_literal(rng.choice(there), found, rng) for _ in range(3)]
        word = rng.choice(["", "NOT "])
        forms = [f"{column} {rng.choice(_OPS)} {literals[0]}"] * 4
        forms += [
            f"{literals[0]} {rng.choice(_OPS)} {column}",
            f"{column} {word}IN ({', '.join(literals)})",
            f"{column} {word}BETWEEN {literals[0]} AND {literals[1]}",
            f"{column} IS {word}NULL",
        ]
        if kind_of(found) == "text":
            call = rng.choice(["startswith", "endswith", "contains"])
            forms += [f"{call}({column}, {literals[0]})"] * 2
            forms += [f"{column} {word}LIKE '{rng.choice(_PATTERNS)}'"] * 2
        return rng.choice(forms)

    def condition(self, depth: int = 2) -> str:
        """Return a condition of some leaves."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.35:
            return self.leaf()
        word = rng.choice(["AND", "OR", "NOT", "AND"])
        if word == "NOT":
            return f"NOT ({self.condition(depth - 1)})"
        return f"({self.condition(depth - 1)}) {word} ({self.condition(depth - 1)})"

    def value(self) -> str:
        """Return an expression that computes something of a column."""
        rng = self.rng
        name, found = rng.choice(self.all)
        kind, c = kind_of(found), self.name(name)
        forms: dict[str, list[str]] = {
            "int": [f"{c} + 1", f"{c} * 2L", f"{c} / 3", f"CAST({c} AS STRING)", f"CAST({c} AS DOUBLE)", f"hash({c})", f"{c} & 255"],
            "float": [f"{c} * 2", f"CAST({c} AS DOUBLE)", f"CAST({c} AS STRING)", f"floor({c} / 3)", f"hash({c})", f"-{c}", f"nanvl({c}, 0)"],
            "decimal": [f"{c} + 1", f"CAST({c} AS STRING)", f"CAST({c} AS DOUBLE)", f"-{c}", f"{c} / 3", f"hash({c})"],
            "text": [f"upper({c})", f"length({c})", f"concat({c}, '!')", f"substr({c}, 2)", f"CAST({c} AS BINARY)", f"reverse({c})",
                     f"try_cast({c} AS INT)", f"try_cast({c} AS DATE)", f"ascii({c})", f"hash({c})"],
            "bool": [f"NOT {c}", f"CAST({c} AS INT)", f"CAST({c} AS STRING)"],
            "date": [f"date_add({c}, -1)", f"CAST({c} AS STRING)", f"year({c})", f"CAST({c} AS TIMESTAMP)", f"dayofweek({c})", f"unix_date({c})"],
            "ltz": [f"CAST({c} AS STRING)", f"CAST({c} AS DATE)", f"CAST({c} AS TIMESTAMP_NTZ)", f"unix_micros({c})", f"hour({c})",
                    f"date_trunc('HOUR', {c})"],
            "ntz": [f"CAST({c} AS STRING)", f"CAST({c} AS DATE)", f"CAST({c} AS TIMESTAMP)", f"hour({c})", f"year({c})", f"{c} + INTERVAL 1 MONTH"],
            "binary": [f"hex({c})", f"length({c})", f"base64({c})", f"md5({c})", f"concat({c}, X'00')"],
            "time": [f"CAST({c} AS STRING)", f"hour({c})", f"second({c})", f"hash({c})"],
            "array": [f"size({c})", f"{c}[0]", f"reverse({c})", f"to_json(struct({c}))", f"array_distinct({c})"],
            "struct": [f"to_json({c})", f"hash({c})", f"CAST({c} AS STRING)", f"struct({c}, 1)"],
            "map": [f"map_keys({c})", f"cardinality({c})", f"map_values({c})", f"map_entries({c})"],
        }  # fmt: skip
        some = [*forms.get(kind, [c]), f"coalesce({c}, {c})", f"CASE WHEN {self.leaf()} THEN {c} END", f"nullif({c}, {c})"
                if kind != "map" else c, f"({self.condition(1)})", f"array({c})"]  # fmt: skip
        return rng.choice(some)

    def reduction(self) -> str:
        """Return an aggregate that is the same in every order of the rows."""
        rng = self.rng
        name, found = rng.choice(self.all)
        kind, c = kind_of(found), self.name(name)
        if kind == "float":
            # of 0.0 and -0.0 either is the smallest, by the order of the rows
            c = f"({c} + 0)"
        some = [f"count({c})", "count(*)", f"count_if({self.leaf()})", f"bool_or({self.leaf()})"]
        if kind != "map":
            some += [f"min({c})", f"max({c})", f"count(DISTINCT {c})", f"sort_array(collect_set({c}))" if kind not in ("float",) else f"max({c})",
                     f"count({c}) FILTER (WHERE {self.leaf()})"]  # fmt: skip
        if kind in ("int", "decimal"):
            some += [
                f"try_sum({c})",
                f"bit_xor(hash({c}))",
                f"sum(CAST({c} AS DECIMAL(38, 0)))" if kind == "int" else f"max({c})",
            ]
        return rng.choice(some)
