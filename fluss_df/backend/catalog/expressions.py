"""Expressions of Ibis as text that holds data alone, and back: views are kept as that.

A pickle would run whatever another user put into it. Here a text names operations of
``ibis.expr.operations`` and their arguments, Ibis checks each as it makes it, and nothing else can
be named: no function of a user, no file, no rows.
"""

from __future__ import annotations

import base64
import datetime as dt
import enum
import inspect
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import ibis.common.temporal as temporal
import ibis.expr.datatypes as ibis_types
import ibis.expr.operations as ops
import ibis.expr.types as ir
from ibis.common.collections import FrozenOrderedDict
from ibis.common.graph import Graph
from ibis.expr.schema import Schema

from fluss_df.errors import FlussError

#: Gives the operation of a table, by its name and database.
FindTable = Callable[[str, str], ops.Relation]
#: Gives the operation of a query in SQL, by its text and its database.
FindQuery = Callable[[str, str], ops.Relation]
#: Gives text and database of a query in SQL, by its name in the connection; None for other names.
QueryOf = Callable[[str], tuple[str, str] | None]

# operations that hold code, statements or rows
_REFUSED: Final = (
    ops.SQLQueryResult,
    ops.SQLStringView,
    ops.ScalarUDF,
    ops.AggUDF,
    ops.InMemoryTable,
    ops.UnboundTable,
)
_TEXTS: Final[dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]]] = {
    "datetime": (dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),
    "date": (dt.date, dt.date.isoformat, dt.date.fromisoformat),
    "time": (dt.time, dt.time.isoformat, dt.time.fromisoformat),
    "decimal": (Decimal, str, Decimal),
    "uuid": (uuid.UUID, str, uuid.UUID),
    "float": (float, repr, float),
    "bytes": (
        bytes,
        lambda value: base64.b64encode(value).decode(),
        lambda text: base64.b64decode(text, validate=True),
    ),
}
_UNITS: Final = {
    name: kind
    for name, kind in vars(temporal).items()
    if inspect.isclass(kind) and issubclass(kind, enum.Enum)
}


def expression_to_data(expr: ir.Table, query_of: QueryOf) -> list[Any]:
    """Return an expression as lists, dicts, texts and numbers: its operations, each after its own.

    Raises FlussError for what is not only an expression over tables of the cluster: rows in memory,
    names that are local to a connection, functions of users.
    """
    numbers: dict[ops.Node, int] = {}
    made: list[Any] = []
    ordered, _ = Graph.from_bfs(expr.op()).toposort()
    for node in ordered:
        made.append(_node(node, numbers, query_of))
        numbers[node] = len(made) - 1
    return made


def _node(node: ops.Node, numbers: Mapping[ops.Node, int], query_of: QueryOf) -> Any:
    name = type(node).__name__
    if isinstance(node, ops.DatabaseTable):
        database = node.namespace.database
        query = query_of(node.name) if database is None else None
        if query is not None:
            return ["sql", *query]
        if database is None:
            raise FlussError(
                f"'{node.name}' is local to this connection, so a view cannot speak of it: create a"
                " table of it, or keep the rows here by create_table(..., temp=True)"
            )
        return ["table", node.name, database]
    if isinstance(node, _REFUSED) or getattr(ops, name, None) is not type(node):
        what = "rows in memory" if isinstance(node, ops.InMemoryTable) else name
        raise FlussError(
            f"a view cannot be kept of an expression with {what}: create a table of it, make the"
            " view by SQL, or keep its rows here by create_table(..., temp=True)"
        )
    return [
        name,
        {
            key: _value(value, numbers)
            for key, value in zip(node.__argnames__, node.__args__, strict=True)
        },
    ]


def _value(value: Any, numbers: Mapping[ops.Node, int]) -> Any:
    if value is None or (isinstance(value, bool | str) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, ops.Node):
        return {"node": numbers[value]}
    if isinstance(value, enum.Enum):
        if type(value).__name__ not in _UNITS:
            raise FlussError(f"a view cannot be kept of an expression with {value!r}")
        return {"unit": [type(value).__name__, value.name]}
    if isinstance(value, int):
        return value
    if isinstance(value, tuple | list):
        return [_value(item, numbers) for item in value]
    if isinstance(value, frozenset):
        return {"set": sorted((_value(item, numbers) for item in value), key=repr)}
    if isinstance(value, ibis_types.DataType):
        return {"type": _type(value)}
    if isinstance(value, Schema):
        return {"schema": [[name, _type(kind)] for name, kind in value.items()]}
    if isinstance(value, Mapping):
        return {"map": [[_value(k, numbers), _value(v, numbers)] for k, v in value.items()]}
    for name, (kind, written, _) in _TEXTS.items():
        if type(value) is kind or (isinstance(value, kind) and name == "float"):
            return {name: written(value)}
    if isinstance(value, dt.datetime):  # of pandas
        return {"datetime": value.isoformat()}
    raise FlussError(f"a view cannot be kept of an expression with {type(value).__name__}")


def _type(kind: ibis_types.DataType) -> Any:
    """Return a type: fields by themselves, because Ibis cannot read all of their names."""
    if isinstance(kind, ibis_types.Struct):
        fields = [[name, _type(field)] for name, field in kind.items()]
        return {"struct": fields, "nullable": kind.nullable}
    if isinstance(kind, ibis_types.Array):
        return {"array": _type(kind.value_type), "nullable": kind.nullable}
    if isinstance(kind, ibis_types.Map):
        pair = [_type(kind.key_type), _type(kind.value_type)]
        return {"map": pair, "nullable": kind.nullable}
    return str(kind)


def _type_of(data: Any) -> ibis_types.DataType:
    if isinstance(data, str):
        return ibis_types.dtype(data)
    nullable = bool(data["nullable"])
    if "struct" in data:
        fields = {str(name): _type_of(kind) for name, kind in data["struct"]}
        return ibis_types.Struct(fields, nullable=nullable)
    if "array" in data:
        return ibis_types.Array(_type_of(data["array"]), nullable=nullable)
    key, value = data["map"]
    return ibis_types.Map(_type_of(key), _type_of(value), nullable=nullable)


def expression_of_data(data: list[Any], find: FindTable, find_query: FindQuery) -> ir.Table:
    """Return the expression that :func:`expression_to_data` gave, over the tables of now.

    Raises FlussError when its tables have no such columns any more, or it is of a version of Ibis
    that has other operations.
    """
    nodes: list[ops.Node] = []
    try:
        for item in data:
            nodes.append(_operation(item, nodes, find, find_query))
        found = nodes[-1].to_expr()
    except FlussError:
        raise
    # Ibis raises errors of many types, its own and those of its libraries
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise FlussError(f"its tables have changed, or it is of another Ibis: {reason}") from error
    if not isinstance(found, ir.Table):
        raise FlussError("it is no table")
    return found


def _operation(
    item: Any, nodes: list[ops.Node], find: FindTable, find_query: FindQuery
) -> ops.Node:
    if item[0] in ("table", "sql"):
        kind, name, database = item
        return (find if kind == "table" else find_query)(str(name), str(database))
    name, arguments = item
    kind = getattr(ops, str(name), None)
    if not (inspect.isclass(kind) and issubclass(kind, ops.Node)) or issubclass(kind, _REFUSED):
        raise FlussError(f"there is no operation {name!r}")
    return kind(**{str(key): _of_data(value, nodes) for key, value in arguments.items()})


def _of_data(value: Any, nodes: list[ops.Node]) -> Any:
    if isinstance(value, list):
        return tuple(_of_data(item, nodes) for item in value)
    if not isinstance(value, dict):
        return value
    ((name, held),) = value.items()
    if name == "node":
        return nodes[held]
    if name == "set":
        return frozenset(_of_data(item, nodes) for item in held)
    if name == "unit":
        kind, member = held
        return _UNITS[kind][member]
    if name == "type":
        return _type_of(held)
    if name == "schema":
        return Schema({field: _type_of(kind) for field, kind in held})
    if name == "map":
        pairs = ((_of_data(k, nodes), _of_data(v, nodes)) for k, v in held)
        return FrozenOrderedDict(dict(pairs))
    return _TEXTS[name][2](held)
