"""Auto partitions: created ahead of time, dropped when they are old."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fluss_df.embedded import options
from fluss_df.embedded.tables import Table
from fluss_df.errors import FlussError

if TYPE_CHECKING:
    from fluss_df.embedded.engine import Engine

_MONTHS: Final = {"YEAR": 12, "QUARTER": 3, "MONTH": 1}
_FORMATS: Final = {"YEAR": "%Y", "MONTH": "%Y%m", "DAY": "%Y%m%d", "HOUR": "%Y%m%d%H"}


def partition_time(now: datetime.datetime, steps: int, unit: str) -> str:
    """Return the value of the partition some units after now.

    Examples
    --------
    >>> partition_time(datetime.datetime(2026, 11, 21), 1, "QUARTER")
    '20271'
    """
    if unit in _MONTHS:
        months = now.year * 12 + now.month - 1 + steps * _MONTHS[unit]
        at = now.replace(year=months // 12, month=months % 12 + 1, day=1)
    elif unit == "DAY":
        at = now + datetime.timedelta(days=steps)
    else:
        at = (now.astimezone(datetime.UTC) + datetime.timedelta(hours=steps)).astimezone(now.tzinfo)
    if unit == "QUARTER":
        return f"{at.year:04d}{(at.month - 1) // 3 + 1}"
    return at.strftime(_FORMATS[unit])


def _now(properties: Mapping[str, str]) -> datetime.datetime:
    name = properties.get(options.AUTO_PARTITION_ZONE)
    if name:
        try:
            return datetime.datetime.now(ZoneInfo(name))
        except (ZoneInfoNotFoundError, ValueError):
            pass
    return datetime.datetime.now().astimezone()


def keep_partitions(engine: Engine, only: Table | None = None) -> None:
    """Create the partitions that are due, and drop those that are too old."""
    for table in [only] if only is not None else engine.catalog.all_tables():
        properties = table.descriptor.properties
        if options.boolean(properties, options.AUTO_PARTITION):
            _keep(engine, table, properties)


def _keep(engine: Engine, table: Table, properties: Mapping[str, str]) -> None:
    keys = table.descriptor.partition_keys
    unit = properties.get(options.AUTO_PARTITION_UNIT, "DAY").upper()
    now = _now(properties)
    if len(keys) == 1:
        for step in range(options.integer(properties, options.AUTO_PARTITION_PRECREATE, 2)):
            value = partition_time(now, step, unit)
            try:
                engine.catalog.create_partition(table.path, {keys[0]: value}, True)
            except FlussError:
                break
    kept = options.integer(properties, options.AUTO_PARTITION_RETENTION, 7)
    if kept < 0:
        return
    oldest = partition_time(now, -kept, unit)
    key = properties.get(options.AUTO_PARTITION_KEY, keys[0])
    place = keys.index(key) if key in keys else 0
    for partition in list(table.partitions.values()):
        value = partition.values[place]
        # only what looks like a time of this unit is one
        if len(value) == len(oldest) and value.isdigit() and value < oldest:
            spec = dict(zip(keys, partition.values, strict=True))
            dropped = engine.catalog.drop_partition(table.path, spec, True)
            if dropped is not None:
                engine.drop_partition(*dropped)
