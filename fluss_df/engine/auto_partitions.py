"""Auto partitions: created ahead of time, dropped when they are old."""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from fluss_df.engine.catalog.validation import MAX_PARTITIONS
from fluss_df.engine.tables import options
from fluss_df.engine.tables.tables import Table
from fluss_df.errors import ErrorCode, FlussError

if TYPE_CHECKING:
    from fluss_df.engine.engine import Engine

logger = logging.getLogger(__name__)

# a table has as many partitions as it may have
_FULL: Final = (ErrorCode.PARTITION_MAX_NUM_EXCEPTION, ErrorCode.BUCKET_MAX_NUM_EXCEPTION)
_MONTHS: Final = {"YEAR": 12, "QUARTER": 3, "MONTH": 1}
_FORMATS: Final = {"YEAR": "%Y", "MONTH": "%Y%m", "DAY": "%Y%m%d", "HOUR": "%Y%m%d%H"}


def partition_time(now: datetime.datetime, steps: int, unit: str) -> str:
    """Return the value of the partition that is ``steps`` units after now, such as ``20261121``.

    Steps below zero are before now. Units are YEAR, QUARTER, MONTH, DAY and HOUR. A time without a
    zone is one of the system's zone; hours are counted in UTC, so that they are right where summer
    time begins or ends in between.

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
        # tables of earlier versions may have any text
        with contextlib.suppress(ValueError):
            return datetime.datetime.now(options.time_zone(name))
    return datetime.datetime.now()


def keep_partitions(engine: Engine, only: Table | None = None) -> None:
    """Create the partitions that are due, and drop those that are too old.

    An error with one table is logged, and the other tables are looked after all the same.
    """
    for table in [only] if only is not None else engine.catalog.all_tables():
        properties = table.descriptor.properties
        if not options.boolean(properties, options.AUTO_PARTITION):
            continue
        try:
            _keep(engine, table, properties)
        except Exception as error:
            if getattr(error, "error_code", None) == ErrorCode.TABLE_NOT_EXIST:
                continue  # it was dropped meanwhile
            logger.exception("the auto partitions of table %s could not be kept", table.path)


def _keep(engine: Engine, table: Table, properties: Mapping[str, str]) -> None:
    unit = properties.get(options.AUTO_PARTITION_UNIT, "DAY").upper()
    now = _now(properties)
    try:
        # first: a table that has as many as it may have takes no new ones before
        _drop_old(engine, table, properties, unit, now)
    finally:
        # also where an old one cannot be dropped: writers need those of today
        _create_due(engine, table, properties, unit, now)


def _create_due(
    engine: Engine, table: Table, properties: Mapping[str, str], unit: str, now: datetime.datetime
) -> None:
    keys = table.descriptor.partition_keys
    # with several keys, nobody knows which values of the others there will be
    if len(keys) != 1:
        return
    wanted = options.integer(properties, options.AUTO_PARTITION_PRECREATE, 2)
    for step in range(min(wanted, MAX_PARTITIONS)):
        try:
            value = partition_time(now, step, unit)
            engine.catalog.create_partition(table, {keys[0]: value}, True)
        except (OverflowError, ValueError):
            break  # the time is after year 9999
        except FlussError as error:
            if error.error_code not in _FULL:
                raise
            break


def _drop_old(
    engine: Engine, table: Table, properties: Mapping[str, str], unit: str, now: datetime.datetime
) -> None:
    keys = table.descriptor.partition_keys
    kept = options.integer(properties, options.AUTO_PARTITION_RETENTION, 7)
    if kept < 0:
        return
    try:
        oldest = partition_time(now, -kept, unit)
    except (OverflowError, ValueError):
        return  # that is before year 1: all are kept for ever
    key = properties.get(options.AUTO_PARTITION_KEY, keys[0])
    place = keys.index(key) if key in keys else 0
    for partition in list(table.partitions.values()):
        value = partition.values[place]
        # a value of another form was made by hand, or by another unit
        if len(value) == len(oldest) and value.isdigit() and value < oldest:
            spec = dict(zip(keys, partition.values, strict=True))
            dropped = engine.catalog.drop_partition(table, spec, True)
            if dropped is not None:
                engine.drop_partition(*dropped)
