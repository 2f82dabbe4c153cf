"""What the server's SQL can do, and the types that it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from fluss_df.flight import flight_messages_pb2 as pb
from fluss_df.flight.sessions import Session
from fluss_df.version import __version__

_STRING, _BOOL, _BIGINT, _BITS, _LIST, _MAP = range(6)
_VALUES: Final = [
    pa.field("string_value", pa.string()),
    pa.field("bool_value", pa.bool_()),
    pa.field("bigint_value", pa.int64()),
    pa.field("int32_bitmask", pa.int32()),
    pa.field("string_list", pa.list_(pa.string())),
    pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
]
SQL_INFO: Final = pa.schema(
    [pa.field("info_name", pa.uint32(), False), pa.field("value", pa.dense_union(_VALUES), False)]
)
TYPE_INFO: Final = pa.schema(
    [
        pa.field("type_name", pa.string(), False),
        pa.field("data_type", pa.int32(), False),
        ("column_size", pa.int32()),
        ("literal_prefix", pa.string()),
        ("literal_suffix", pa.string()),
        ("create_params", pa.list_(pa.field("item", pa.string(), False))),
        pa.field("nullable", pa.int32(), False),
        pa.field("case_sensitive", pa.bool_(), False),
        pa.field("searchable", pa.int32(), False),
        ("unsigned_attribute", pa.bool_()),
        pa.field("fixed_prec_scale", pa.bool_(), False),
        ("auto_increment", pa.bool_()),
        ("local_type_name", pa.string()),
        ("minimum_scale", pa.int32()),
        ("maximum_scale", pa.int32()),
        pa.field("sql_data_type", pa.int32(), False),
        ("datetime_subcode", pa.int32()),
        ("num_prec_radix", pa.int32()),
        ("interval_precision", pa.int32()),
    ]
)
_FUNCTIONS: Final = {
    509: "ABS,CEIL,EXP,FLOOR,LN,LOG10,MOD,PI,POWER,ROUND,SIGN,SQRT",
    510: "CONCAT,LENGTH,LOWER,LTRIM,REPLACE,REVERSE,RTRIM,STRPOS,SUBSTR,TRIM,UPPER",
    511: "COALESCE,NULLIF,GREATEST,LEAST",
    512: "DATE_PART,EXTRACT",
}
_KEYWORDS: Final = "BUCKETS,ILIKE,LIMIT,OFFSET,QUALIFY"

# by the numbers of Flight SQL's SqlInfo: the kind of the value, and the value
_INFO: Final[dict[int, tuple[int, Any]]] = {
    0: (_STRING, "fluss_df"),
    1: (_STRING, __version__),
    2: (_STRING, pa.__version__),
    3: (_BOOL, False),  # read only
    4: (_BOOL, True),  # SQL
    5: (_BOOL, False),  # Substrait
    8: (_BITS, 0),  # transactions: none
    9: (_BOOL, True),  # cancel
    10: (_BOOL, True),  # bulk ingestion
    11: (_BOOL, False),  # in transactions
    100: (_BITS, 0),
    101: (_BITS, 0),
    500: (_BOOL, False),  # CREATE and DROP of catalogs
    501: (_BOOL, True),
    502: (_BOOL, True),
    503: (_BIGINT, 1),  # names mean what is written
    504: (_STRING, '"'),
    505: (_BIGINT, 1),
    506: (_BOOL, True),
    507: (_BIGINT, 1),
    508: (_LIST, _KEYWORDS.split(",")),
    **{number: (_LIST, names.split(",")) for number, names in _FUNCTIONS.items()},
    513: (_STRING, "\\"),
    514: (_STRING, ""),
    515: (_BOOL, True),
    516: (_BOOL, True),
    517: (_MAP, []),
    518: (_BOOL, True),
    519: (_BOOL, False),
    520: (_BOOL, True),
    521: (_BOOL, True),
    522: (_BITS, 1),
    523: (_BOOL, True),
    524: (_BOOL, True),
    525: (_BITS, 1),
    526: (_BITS, 1),
    527: (_BOOL, False),
    528: (_BITS, 2),
    529: (_STRING, "database"),
    530: (_STRING, ""),
    531: (_STRING, "catalog"),
    532: (_BOOL, True),
    533: (_BITS, 0),
    534: (_BITS, 0),
    535: (_BITS, 0),
    536: (_BOOL, False),  # SELECT FOR UPDATE
    537: (_BOOL, False),  # stored procedures
    538: (_BITS, 0b111),  # subqueries in comparisons, EXISTS and IN
    539: (_BOOL, True),
    540: (_BITS, 0b11),  # UNION and UNION ALL
    # lengths and counts: no limit, or none that is known
    **dict.fromkeys(range(541, 563), (_BIGINT, 0)),
    556: (_BOOL, False),
    563: (_BOOL, False),  # transactions
    564: (_BITS, 1),
    565: (_BOOL, False),
    566: (_BOOL, False),
    567: (_BITS, 0b10),  # results are read forwards
    568: (_BITS, 0),
    569: (_BITS, 0b10),
    570: (_BITS, 0),
    571: (_BITS, 0),
    572: (_BOOL, False),
    573: (_BOOL, False),  # savepoints
    574: (_BOOL, False),
    575: (_BOOL, False),
    576: (_BOOL, False),
}


def sql_info(_: Session, asked: pb.CommandGetSqlInfo) -> Iterator[pa.RecordBatch]:
    """Return what was asked for, or all; numbers that are not known have no row."""
    numbers = list(dict.fromkeys(asked.info)) or list(_INFO)
    known = [number for number in numbers if number in _INFO]
    kinds: list[int] = []
    offsets: list[int] = []
    values: list[list[Any]] = [[] for _ in _VALUES]
    for number in known:
        kind, value = _INFO[number]
        kinds.append(kind)
        offsets.append(len(values[kind]))
        values[kind].append(value)
    union = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(v, field.type) for v, field in zip(values, _VALUES, strict=True)],
        [field.name for field in _VALUES],
    )
    yield pa.RecordBatch.from_arrays([pa.array(known, pa.uint32()), union], schema=SQL_INFO)


_TEXT: Final = ("'", "'")
# name, number in XDBC (ODBC and JDBC), most digits, quotes, parameters, scales, radix, subcode
_TYPES: Final[list[tuple[str, int, int | None, tuple[str, str] | None, str, int | None]]] = [
    ("BOOLEAN", 16, 1, None, "", None),
    ("TINYINT", -6, 3, None, "", 0),
    ("SMALLINT", 5, 5, None, "", 0),
    ("INT", 4, 10, None, "", 0),
    ("BIGINT", -5, 19, None, "", 0),
    ("FLOAT", 7, 7, None, "", None),
    ("DOUBLE", 8, 15, None, "", None),
    ("DECIMAL", 3, 38, None, "precision,scale", 38),
    ("CHAR", 1, None, _TEXT, "length", None),
    ("STRING", 12, None, _TEXT, "", None),
    ("BINARY", -2, None, ("X'", "'"), "length", None),
    ("BYTES", -3, None, ("X'", "'"), "", None),
    ("DATE", 91, 10, ("DATE '", "'"), "", None),
    ("TIME", 92, 12, ("TIME '", "'"), "", None),
    ("TIMESTAMP", 93, 29, ("TIMESTAMP '", "'"), "precision", 9),
    ("TIMESTAMP_LTZ", 93, 29, ("TIMESTAMP_LTZ '", "'"), "precision", 9),
]
_NUMBERS: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")


def type_info(_: Session, asked: pb.CommandGetXdbcTypeInfo) -> Iterator[pa.RecordBatch]:
    """Return the types of columns, or those of one number."""
    rows = []
    for name, number, size, quotes, parameters, scale in _TYPES:
        if asked.HasField("data_type") and asked.data_type != number:
            continue
        numeric = name in _NUMBERS
        rows.append(
            {
                "type_name": name,
                "data_type": number,
                "column_size": size,
                "literal_prefix": quotes and quotes[0],
                "literal_suffix": quotes and quotes[1],
                "create_params": parameters.split(",") if parameters else None,
                "nullable": 1,
                "case_sensitive": quotes is _TEXT,
                "searchable": 3,
                "unsigned_attribute": False if numeric else None,
                "fixed_prec_scale": False,
                "auto_increment": False if numeric else None,
                "local_type_name": name,
                "minimum_scale": 0 if scale is not None else None,
                "maximum_scale": scale,
                "sql_data_type": 9 if number in (91, 92, 93) else number,
                "datetime_subcode": number - 90 if number in (91, 92, 93) else None,
                "num_prec_radix": 10 if numeric else None,
                "interval_precision": None,
            }
        )
    yield pa.RecordBatch.from_pylist(rows, schema=TYPE_INFO)
