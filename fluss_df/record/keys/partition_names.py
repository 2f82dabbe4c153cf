"""Values of partition columns to partition names, and back.

A partition is named by its values as text, joined with ``$``. Only letters, digits, ``_`` and ``-``
may stand in a value, so Fluss writes other characters as those:

============================== ==================================================================
Fluss type                     text
============================== ==================================================================
CHAR, STRING                   as it is
BOOLEAN                        ``true``, ``false``
TINYINT .. BIGINT              digits
FLOAT, DOUBLE                  as in Java, ``_`` for the point; ``NaN``, ``Inf``, ``-Inf``
BINARY, BYTES                  hexadecimal
DATE                           ``2026-11-21``
TIME                           ``12-34-56_789``, milliseconds
TIMESTAMP, TIMESTAMP_LTZ (UTC) ``2026-11-21-12-34-56_789``, fraction without trailing zeros
============================== ==================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.errors import ErrorCode, FlussError, ProtocolError, SchemaMismatchError
from fluss_df.record.layout.bytes_columns import as_array, time_millis
from fluss_df.record.layout.taking import take_rows
from fluss_df.types import Column, DataType, TypeRoot, to_arrow

_R = TypeRoot
_LEGAL: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")
_SEPARATOR: Final = "$"

#: The types that servers take for partition columns.
PARTITION_TYPES: Final = frozenset(
    {
        _R.CHAR,
        _R.STRING,
        _R.BOOLEAN,
        _R.BINARY,
        _R.BYTES,
        _R.TINYINT,
        _R.SMALLINT,
        _R.INTEGER,
        _R.BIGINT,
        _R.FLOAT,
        _R.DOUBLE,
        _R.DATE,
        _R.TIME_WITHOUT_TIME_ZONE,
        _R.TIMESTAMP_WITHOUT_TIME_ZONE,
        _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE,
    }
)


@dataclass(frozen=True, slots=True)
class PartitionData:
    """The rows of one partition.

    ``spec`` has the text of the value of each partition column. The rows keep the order that they
    had before.
    """

    spec: dict[str, str]
    name: str
    data: pa.Table


@dataclass(frozen=True, slots=True)
class _Groups:
    """Distinct combinations of texts, and the one of each row."""

    texts: list[tuple[str, ...]]
    codes: npt.NDArray[np.int64]


def split_by_partition(
    data: pa.Table, keys: Sequence[Column], *, table: str, any_text: bool = False
) -> list[PartitionData]:
    """Split rows by their partition.

    ``data`` has the table's Arrow types. Rows of a partition keep their order. With ``any_text``,
    values that can name no partition are no error: their rows get a name that no partition has.

    Raises SchemaMismatchError for a null, or a value that cannot name a partition; names column,
    value and row (from 0).
    """
    if not data.num_rows:
        return []
    names = [key.name for key in keys]
    columns = [data.column(n) for n in names]
    groups = _group(columns, [k.type for k in keys], names, table, any_text=any_text)
    if len(groups.texts) == 1:
        parts = [data]
    else:
        order = np.argsort(groups.codes, kind="stable")
        ends = np.cumsum(np.bincount(groups.codes, minlength=len(groups.texts))).tolist()
        moved = take_rows(data, pa.array(order))
        starts = [0, *ends[:-1]]
        parts = [moved.slice(a, b - a) for a, b in zip(starts, ends, strict=True)]
    return [
        PartitionData(dict(zip(names, texts, strict=True)), _SEPARATOR.join(texts), part)
        for texts, part in zip(groups.texts, parts, strict=True)
    ]


def partition_names(
    columns: Sequence[pa.Array | pa.ChunkedArray],
    types: Sequence[DataType],
    *,
    names: Sequence[str] | None = None,
    table: str = "",
) -> pa.DictionaryArray:
    """Return the name of each row's partition, each name once in the dictionary.

    Raises SchemaMismatchError for a null, or a value that cannot name a partition; names column,
    value and row (from 0). Raises FlussError for a type that cannot be a partition column.
    """
    names = [f"#{i}" for i in range(len(columns))] if names is None else names
    groups = _group(columns, types, names, table)
    dictionary = pa.array([_SEPARATOR.join(texts) for texts in groups.texts], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(groups.codes, pa.int32()), dictionary)


def names_of_rows(
    rows: pa.Table | pa.RecordBatch, keys: Sequence[Column], *, table: str
) -> list[str]:
    """Return the partitions that rows belong to, each once; raises as :func:`partition_names`."""
    names = [key.name for key in keys]
    arrays = [rows.column(name) for name in names]
    found = partition_names(arrays, [key.type for key in keys], names=names, table=table)
    return [str(name) for name in found.dictionary.to_pylist()]


def _group(
    columns: Sequence[pa.Array | pa.ChunkedArray],
    types: Sequence[DataType],
    names: Sequence[str],
    table: str,
    *,
    any_text: bool = False,
) -> _Groups:
    combined: npt.NDArray[np.int64] | None = None
    texts: list[list[str]] = []
    for column, t, name in zip(columns, types, names, strict=True):
        if t.root not in PARTITION_TYPES:
            raise FlussError(f"column '{name}' of type {t} cannot be a partition column")
        array = as_array(column)
        if array.null_count:
            row = pc.index(array.is_null(), True).as_py()
            raise SchemaMismatchError(
                f"table {table}, partition column '{name}': null in row {row}"
            )
        encoded = array.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        values = value_texts(encoded.dictionary, t)
        for code, value in enumerate(values):
            why = None if any_text else invalid_value(value)
            if why is not None:
                row = int(np.flatnonzero(codes == code)[0])
                raise SchemaMismatchError(
                    f"table {table}, partition column '{name}': row {row}: {value!r} cannot name "
                    f"a partition: {why}",
                    ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
                )
        # values that read alike (0.5 ms and 0.6 ms of a TIME(6)) are one partition
        distinct = list(dict.fromkeys(values))
        if len(distinct) != len(values):
            place = {value: i for i, value in enumerate(distinct)}
            codes = np.array([place[v] for v in values], np.int64)[codes]
        texts.append(distinct)
        if combined is None:
            combined = codes
        else:
            # numbered again for each column, so that the numbers stay below rows * values
            _, combined = np.unique(combined, return_inverse=True)
            combined = combined * len(distinct) + codes
            texts = _combine(texts, combined)
            _, combined = np.unique(combined, return_inverse=True)
    if combined is None:
        raise FlussError("a partition needs at least one column")
    return _Groups(list(zip(*texts, strict=True)), combined)


def _combine(texts: list[list[str]], combined: npt.NDArray[np.int64]) -> list[list[str]]:
    """Repeat the texts of the columns so far for each combination that has rows."""
    width = len(texts[-1])
    used = np.unique(combined)
    before = (used // width).tolist()
    last = (used % width).tolist()
    return [[column[i] for i in before] for column in texts[:-1]] + [[texts[-1][i] for i in last]]


def invalid_value(text: str) -> str | None:
    """Return why a text cannot be a value in a partition name, None where it can."""
    if not text:
        return "it is empty"
    if text.startswith("__"):
        return "the prefix '__' is the server's"
    if _LEGAL.fullmatch(text) is None:
        if len(text) > 200:
            return f"it has {len(text)} characters, more than 200"
        return "only letters, digits, '_' and '-' can stand in it"
    return None


def value_texts(values: pa.Array, t: DataType) -> list[str]:
    """Return the text of each value in the names of partitions; called with distinct values."""
    root = t.root
    if root in (_R.CHAR, _R.STRING):
        return list(values.to_pylist())
    if root is _R.BOOLEAN:
        return ["true" if v else "false" for v in values.to_pylist()]
    if root in (_R.BINARY, _R.BYTES):
        return [v.hex() for v in values.to_pylist()]
    if root in (_R.TINYINT, _R.SMALLINT, _R.INTEGER, _R.BIGINT):
        return [str(v) for v in values.to_pylist()]
    if root is _R.FLOAT:
        return [_float_text(np.float32(v)) for v in values.to_pylist()]
    if root is _R.DOUBLE:
        return [_float_text(np.float64(v)) for v in values.to_pylist()]
    if root is _R.DATE:
        days = values.cast(pa.int32()).to_numpy().astype("datetime64[D]")
        return [_day_text(day) for day in days]
    if root is _R.TIME_WITHOUT_TIME_ZONE:
        return [_time_text(millis) for millis in time_millis(values).tolist()]
    unit = values.type.unit
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    return [_timestamp_text(v, per_second) for v in values.cast(pa.int64()).to_pylist()]


def _float_text(value: np.floating[Any]) -> str:
    """Return what Java's ``String.valueOf`` prints, with ``_`` for the point.

    That is the shortest text that reads back; Java before 19 gives a few floats a digit more.
    """
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    sign = "-" if np.signbit(value) else ""
    magnitude = abs(value)
    if magnitude == 0:
        return sign + "0_0"
    mantissa, _, exponent = np.format_float_scientific(magnitude, unique=True, trim="-").partition(
        "e"
    )
    digits, power = mantissa.replace(".", ""), int(exponent)
    if -3 <= power < 7:
        if power < 0:
            return f"{sign}0_{'0' * (-power - 1)}{digits}"
        digits = digits.ljust(power + 2, "0")
        return f"{sign}{digits[: power + 1]}_{digits[power + 1 :]}"
    return f"{sign}{digits[0]}_{digits[1:] or '0'}E{power}"


def _day_text(day: np.datetime64) -> str:
    month = day.astype("datetime64[M]")
    year = int(day.astype("datetime64[Y]").astype(np.int64)) + 1970
    months = int(month.astype(np.int64)) % 12 + 1
    days = int((day - month).astype(np.int64)) + 1
    return f"{year:04d}-{months:02d}-{days:02d}"


def _time_text(millis: int) -> str:
    seconds, millis = divmod(millis, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}-{minutes:02d}-{seconds:02d}_{millis:03d}"


def _timestamp_text(value: int, per_second: int) -> str:
    seconds, fraction = divmod(value, per_second)
    days, seconds = divmod(seconds, 86400)
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    nanos = f"{fraction * (10**9 // per_second):09d}".rstrip("0")
    day = _day_text(np.datetime64(days, "D"))
    if len(day) != 10 or day < "0001":
        # Java writes such a year with a plus sign, or as a year of its era, and neither reads back.
        # The space is an illegal character, for which the value is refused.
        day = f"year {day}"
    return f"{day}-{hours:02d}-{minutes:02d}-{seconds:02d}_{nanos}"


# ---- back ---------------------------------------------------------------------------------------


def partition_values(name: str, partition_keys: Sequence[Column]) -> tuple[Any, ...]:
    """Return the Python values that a partition's name stands for.

    Raises ProtocolError for a name that is none of a partition with these columns. Raises
    FlussError for nanoseconds that a ``datetime`` cannot hold: use :func:`partition_scalars`.
    """
    values = []
    for scalar, key in zip(partition_scalars(name, partition_keys), partition_keys, strict=True):
        try:
            values.append(scalar.as_py())
        except (ValueError, OverflowError) as error:
            raise FlussError(f"partition {name!r}, column '{key.name}': {error}") from None
    return tuple(values)


def partition_scalars(name: str, partition_keys: Sequence[Column]) -> tuple[pa.Scalar, ...]:
    """Return the values that a partition's name stands for, with the columns' Arrow types.

    Raises ProtocolError for a name that is none of a partition with these columns.
    """
    texts = name.split(_SEPARATOR)
    if len(texts) != len(partition_keys):
        raise ProtocolError(
            f"partition {name!r} has {len(texts)} values for {len(partition_keys)} columns"
        )
    return tuple(_parse(text, key, name) for text, key in zip(texts, partition_keys, strict=True))


def _parse(text: str, key: Column, name: str) -> pa.Scalar:
    t = key.type
    try:
        parser = _PARSERS.get(t.root)
        if parser is None:
            raise FlussError(f"column '{key.name}' of type {t} cannot be a partition column")
        target = to_arrow(t)
        if t.root in (_R.TIMESTAMP_WITHOUT_TIME_ZONE, _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE):
            return pa.scalar(_parse_timestamp(text, target.unit), pa.int64()).cast(target)
        if t.root is _R.TIME_WITHOUT_TIME_ZONE:
            return pa.scalar(_parse_time(text), pa.int32()).cast(pa.time32("ms")).cast(target)
        return pa.scalar(parser(text), target)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        raise ProtocolError(
            f"partition {name!r}: {text!r} is no value of column '{key.name}' ({t}): {error}"
        ) from None


def _parse_bool(text: str) -> bool:
    lower = text.lower()
    if lower not in ("true", "false"):
        raise ValueError("neither true nor false")
    return lower == "true"


def _parse_float(text: str) -> float:
    special = {"NaN": "nan", "Inf": "inf", "-Inf": "-inf"}
    return float(special.get(text, text.replace("_", ".")))


def _parse_day(text: str) -> Any:
    if re.fullmatch(r"-?\d{3,}-\d\d-\d\d", text) is None:
        raise ValueError("not a date as yyyy-mm-dd")
    return int(np.datetime64(text, "D").astype(np.int64))


_TIME: Final = re.compile(r"(\d\d)-(\d\d)-(\d\d)_(\d{3})")
_TIMESTAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:-(\d\d))?(?:-(\d\d))?(?:-(\d\d))?(?:_(\d{0,9}))?"
)


def _parse_time(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError("not a time as hh-mm-ss_mmm")
    hours, minutes, seconds, millis = map(int, match.groups())
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + millis


def _parse_timestamp(text: str, unit: str) -> int:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError("not a timestamp as yyyy-mm-dd-hh-mm-ss_fraction")
    day, *clock, fraction = match.groups()
    hours, minutes, seconds = (int(part or 0) for part in clock)
    total = ((_parse_day(day) * 24 + hours) * 60 + minutes) * 60 + seconds
    nanos = total * 10**9 + int((fraction or "").ljust(9, "0"))
    value, rest = divmod(nanos, {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}[unit])
    if rest:
        raise ValueError(f"more digits than the unit {unit} has")
    return int(value)


_PARSERS: Final[dict[TypeRoot, Callable[[str], Any]]] = {
    _R.CHAR: str,
    _R.STRING: str,
    _R.BOOLEAN: _parse_bool,
    _R.BINARY: bytes.fromhex,
    _R.BYTES: bytes.fromhex,
    _R.TINYINT: int,
    _R.SMALLINT: int,
    _R.INTEGER: int,
    _R.BIGINT: int,
    _R.FLOAT: _parse_float,
    _R.DOUBLE: _parse_float,
    _R.DATE: _parse_day,
    _R.TIME_WITHOUT_TIME_ZONE: str,
    _R.TIMESTAMP_WITHOUT_TIME_ZONE: str,
    _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE: str,
}
