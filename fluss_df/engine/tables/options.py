"""The table properties of Fluss 0.9.1 (and statistics, of 1.0), and what values they take."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from typing import Final
from zoneinfo import ZoneInfo

from fluss_df.errors import ErrorCode, FlussError

REPLICATION_FACTOR: Final = "table.replication.factor"
LOG_TTL: Final = "table.log.ttl"
AUTO_PARTITION: Final = "table.auto-partition.enabled"
AUTO_PARTITION_KEY: Final = "table.auto-partition.key"
AUTO_PARTITION_UNIT: Final = "table.auto-partition.time-unit"
AUTO_PARTITION_ZONE: Final = "table.auto-partition.time-zone"
AUTO_PARTITION_PRECREATE: Final = "table.auto-partition.num-precreate"
AUTO_PARTITION_RETENTION: Final = "table.auto-partition.num-retention"
SEQUENCE_CACHE: Final = "table.auto-increment.cache-size"
DATALAKE_ENABLED: Final = "table.datalake.enabled"
STATISTICS_COLUMNS: Final = "table.statistics.columns"
FORMAT_VERSION: Final = "table.kv.format-version"
MERGE_ENGINES: Final = ("FIRST_ROW", "VERSIONED", "AGGREGATION")

# the two that 0.9.1 can change
ALTERABLE: Final = ("table.datalake.enabled", "table.datalake.freshness")
ALTERABLE_LOCAL: Final = ("table.log.tiered.local-segments",)

_SEQUENCE_CACHE: Final = 100_000
_MOST_SEQUENCE_CACHE: Final = 10_000_000
# the largest of a BIGINT
MAX_NUMBER: Final = 2**63 - 1

# names of zones that Java has beside those of the IANA database
_GMT_OFFSET = re.compile(r"GMT([+-])(\d{1,2})(?::?([0-5]\d))?")
_WHOLE = re.compile(r"[+-]?\d+")
_DURATION = re.compile(r"(\d+)\s*([a-zA-Zµ]*)")
_UNITS: Final = {
    "": 1,
    **dict.fromkeys(("ns", "nano", "nanos", "nanosecond", "nanoseconds"), 0),
    **dict.fromkeys(("µs", "micro", "micros", "microsecond", "microseconds"), 0),
    **dict.fromkeys(("ms", "milli", "millis", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}


def duration_ms(text: str) -> int:
    """Return the milliseconds of ``"7d"``, ``"3 min"`` or ``"500"``; ValueError for others.

    New tables need a unit (:func:`check_option`), as in Fluss; older ones may have none.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None or found[2].lower() not in _UNITS:
        raise ValueError(text)
    return int(found[1]) * _UNITS[found[2].lower()]


def _duration(text: str) -> object:
    if text.strip().isdecimal():
        # Fluss refuses a number without a unit
        raise ValueError(text)
    return duration_ms(text)


def _whole_number(bits: int) -> Callable[[str], int]:
    """Return what reads an integer of ``bits`` bits as Java does: no spaces, no underscores."""

    def parse(text: str) -> int:
        number = int(text)
        if _WHOLE.fullmatch(text) is None or not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise ValueError(text)
        return number

    return parse


_int32: Final = _whole_number(32)
_int64: Final = _whole_number(64)


def time_zone(name: str) -> datetime.tzinfo:
    """Return the zone of ``"Asia/Shanghai"`` or ``"GMT+8"``; ValueError for others."""
    found = _GMT_OFFSET.fullmatch(name)
    if found is not None and int(found[2]) < 24:
        offset = datetime.timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
        return datetime.timezone(-offset if found[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (LookupError, OSError, ValueError):
        # a folder of the time zone database, and a name too long for a file, are OSErrors
        raise ValueError(name) from None


def _time_zone(text: str) -> object:
    try:
        return time_zone(text) if text else None
    except ValueError:
        raise invalid_config(
            f"Invalid value for config '{AUTO_PARTITION_ZONE}'. Reason: '{text[:100]}' is no time"
            " zone of this machine. Use a name as 'Asia/Shanghai', 'UTC' or 'GMT+8'."
        ) from None


def _sequence_cache(text: str) -> object:
    size = _int64(text)
    if not 1 <= size <= _MOST_SEQUENCE_CACHE:
        raise invalid_config(
            f"Invalid value for config '{SEQUENCE_CACHE}'. Reason: {size} is not between 1 and"
            f" {_MOST_SEQUENCE_CACHE}."
        )
    return size


def sequence_cache(properties: Mapping[str, str]) -> int:
    """Return how many numbers of an auto-increment column a bucket takes at once.

    Tables of earlier versions may have a property that is refused today. One with which no bucket
    could ever take numbers is put right; others stay, as what was taken is in blocks of that size.
    """
    size = integer(properties, SEQUENCE_CACHE, _SEQUENCE_CACHE)
    return max(size, 1) if size < MAX_NUMBER else _MOST_SEQUENCE_CACHE


def _boolean(text: str) -> object:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _one_of(*values: str) -> Callable[[str], object]:
    def parse(text: str) -> object:
        if text.upper() not in values:
            raise ValueError(text)
        return text.upper()

    return parse


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    REPLICATION_FACTOR: _int32,
    "table.log.format": _one_of("ARROW", "INDEXED", "COMPACTED"),
    "table.log.arrow.compression.type": _one_of("NONE", "LZ4_FRAME", "ZSTD"),
    "table.log.arrow.compression.zstd.level": _int32,
    "table.kv.format": _one_of("COMPACTED", "INDEXED"),
    FORMAT_VERSION: _int32,
    AUTO_PARTITION: _boolean,
    AUTO_PARTITION_KEY: str,
    AUTO_PARTITION_UNIT: _one_of("YEAR", "QUARTER", "MONTH", "DAY", "HOUR"),
    AUTO_PARTITION_ZONE: _time_zone,
    AUTO_PARTITION_PRECREATE: _int32,
    AUTO_PARTITION_RETENTION: _int32,
    LOG_TTL: _duration,
    "table.log.tiered.local-segments": _int32,
    DATALAKE_ENABLED: _boolean,
    "table.datalake.format": _one_of("PAIMON", "LANCE", "ICEBERG"),
    "table.datalake.freshness": _duration,
    "table.datalake.auto-compaction": _boolean,
    "table.datalake.auto-expire-snapshot": _boolean,
    "table.merge-engine": _one_of(*MERGE_ENGINES),
    "table.merge-engine.versioned.ver-column": str,
    "table.delete.behavior": _one_of("ALLOW", "IGNORE", "DISABLE"),
    SEQUENCE_CACHE: _sequence_cache,
    STATISTICS_COLUMNS: str,
    "table.changelog.image": _one_of("FULL", "WAL"),
}

NAMES: Final = tuple(_PARSERS)


def invalid_config(message: str) -> FlussError:
    """Return the error for a property."""
    return FlussError(message, ErrorCode.INVALID_CONFIG_EXCEPTION)


def check_option(key: str, value: str) -> None:
    """Refuse a property that Fluss does not have, or a value that it does not take."""
    parse = _PARSERS.get(key)
    if parse is None:
        if key.startswith("table."):
            raise invalid_config(
                f"'{key}' is not a recognized Fluss table property in the current cluster version."
                " You may be using an older Fluss cluster that does not support this property."
            )
        raise invalid_config(
            f"'{key}' is not a Fluss table property. Please use '.customProperty(..)' to set"
            " custom properties."
        )
    try:
        parse(value)
    except ValueError:
        raise invalid_config(
            f"Invalid value for config '{key}'. Reason: Could not parse value '{value}' for key"
            f" '{key}'."
        ) from None


def check_no_place(properties: Mapping[str, str]) -> None:
    """Refuse stored properties of a table that say where a lake is, or what program reads it.

    A server tells these to clients, which import and call what they name; no table has its own.
    """
    for key in properties:
        if key.startswith("table.datalake.") and key not in _PARSERS:
            raise invalid_config(f"a table has no property '{key}': it is one of the server")


def integer(properties: Mapping[str, str], key: str, default: int) -> int:
    """Return an integer property that was checked before."""
    return int(properties.get(key, default))


def boolean(properties: Mapping[str, str], key: str) -> bool:
    """Return a boolean property, false where it is not set."""
    return properties.get(key, "false").lower() == "true"


def log_ttl_ms(properties: Mapping[str, str]) -> int | None:
    """Return how long log segments live, in ms; None for ever."""
    ttl = duration_ms(properties.get(LOG_TTL, "7d"))
    return ttl or None
