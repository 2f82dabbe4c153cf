"""Options of Spark reads and writes, checked, as plain values."""

from __future__ import annotations

import datetime as dt
import difflib
import json
import os
import re
import zoneinfo
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fluss_df.addresses import embedded_folder
from fluss_df.client.connection import FlussConnection, resolve_connection
from fluss_df.config import Config
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.spark.workers import is_worker

_ROWS_PER_TASK: Final = 5_000_000

READ_MODES: Final = ("log", "snapshot", "changelog", "upsert")
WRITE_MODES: Final = ("auto", "append", "upsert", "delete", "partial_update")
GUARANTEES: Final = ("at-least-once", "exactly-once")

# each option once, as docs/spark.md has it
_TABLE: Final = ("table", "connection")
_READ: Final = (
    "columns",
    "filter",
    "filter.timezone",
    "partitions",
    "buckets",
    "metadata.columns",
    "changelog.mode",
    "starting.offsets",
    "ending.offsets",
    "rows.per.task",
    "max.offsets.per.trigger",
    "fail.on.data.loss",
    "lake",
    "push.filters",
    "truncate.nanoseconds",
)
_WRITE: Final = (
    "all.or.nothing",
    "write.mode",
    "operation.column",
    "create.partitions",
    "delivery.guarantee",
    "ledger.database",
)
# options of streams that are read, and of those that are written
_BOTH: Final = frozenset({"fail.on.data.loss"})
# Spark adds these itself
_SPARK: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
# names under which others give milliseconds since 1970, and no offsets
_MOMENTS: Final = frozenset({"startingtimestamp", "endingtimestamp"})
_SYNONYMS: Final = {
    "path": "table",
    "start": "starting.offsets",
    "stop": "ending.offsets",
    "startingtimestamp": "starting.offsets",
    "endingtimestamp": "ending.offsets",
    "mode": "changelog.mode",
    "metadata": "metadata.columns",
    "partition": "partitions",
}


def plain(key: str) -> str:
    """Return a key without what writers of options differ in, as in ``startingOffsets``."""
    return re.sub(r"[.\-_]", "", key.lower())


_SERVERS: Final = plain("bootstrap.servers")
_NAMES: Final = {plain(name): name for name in (*_TABLE, *_READ, *_WRITE)} | _SYNONYMS


@dataclass(frozen=True, slots=True)
class Connection:
    """How tasks reach the cluster; its text shows no password.

    ``address`` is an address, URL or folder. None where ``properties``, which are those of
    :class:`fluss_df.Config`, or the environment say it.
    """

    address: str | None = field(repr=False)
    properties: tuple[tuple[str, str], ...] = field(repr=False)

    def open(self) -> FlussConnection:
        """Return the connection of this process.

        Raises ``STORAGE_EXCEPTION`` in a worker of Spark, for a folder that nobody has open: an
        engine of its own would end with the worker, before other workers are through.
        """
        properties = self.resolved()
        folder = embedded_folder(self.address)
        if folder is not None and is_worker():
            _require_owner(folder)
        if self.address is None:
            return resolve_connection(properties or None)
        if not properties:
            return resolve_connection(self.address)
        if self.address.startswith("fluss://"):
            config, database = Config.from_url(self.address)
            return resolve_connection(FlussConnection(_merged(config, properties), database))
        return resolve_connection({"bootstrap.servers": self.address, **properties})

    def resolved(self) -> dict[str, str]:
        """Return the properties, with the passwords that environment variables hold.

        ``env:NAME`` is looked up in each process by itself, so that no password travels.
        """
        properties = dict(self.properties)
        for key, value in properties.items():
            if key.endswith((".password", "_password")) and value.startswith("env:"):
                name = value.removeprefix("env:")
                if name not in os.environ:
                    raise invalid(
                        f"option '{key}': the environment variable {name} is not set in this"
                        " process; set it for the driver and, by spark.executorEnv, for executors"
                    )
                properties[key] = os.environ[name]
        return properties

    def __repr__(self) -> str:
        address = self.address or dict(self.properties).get("bootstrap.servers", "default")
        return f"Connection({address.rpartition('@')[2]!r})"


def _require_owner(folder: Path | str) -> None:
    # imported only for folders
    from fluss_df.engine.files.lock_file import owner_of

    owner = owner_of(folder.expanduser().resolve()) if isinstance(folder, Path) else None
    if owner is None or not os.path.exists(owner[1]):
        raise FlussError(
            f"format 'fluss': no process has the folder {folder} open, and Spark reads it in many"
            " processes: open it in the driver, fluss_df.connect(folder), or run fluss-df serve"
            " --dir with it, and give this folder or that address",
            ErrorCode.STORAGE_EXCEPTION,
        )


def _merged(config: Config, properties: Mapping[str, str]) -> Config:
    return Config({**config.to_dict(), **properties})


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read.

    ``start`` and ``stop`` are ``"earliest"``, ``"latest"``, an offset, a moment, or offsets by
    bucket, as :func:`fluss_df.scan_fluss` takes them.
    """

    table: str
    connection: Connection
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    timezone: str = "UTC"
    partitions: tuple[str, ...] | None = None
    buckets: tuple[int, ...] | None = None
    metadata_columns: tuple[str, ...] | None = None
    mode: str | None = None
    start: Any = None
    stop: Any = None
    rows_per_task: int = _ROWS_PER_TASK
    max_offsets: int | None = None
    fail_on_data_loss: bool = True
    truncate_nanoseconds: bool = False
    lake: bool = True
    push_filters: bool = False

    @staticmethod
    def parse(options: Mapping[str, str]) -> ReadOptions:
        """Return the options that Spark hands on, their keys in any case.

        Raises ``INVALID_CONFIG_EXCEPTION`` for a missing table, an unknown option (naming the
        nearest known one) or a value that cannot be read.
        """
        table, connection, left = _common(options)
        _refuse(left, _WRITE, "an option of writes, and this is a read")
        most = left.get("max.offsets.per.trigger")
        return ReadOptions(
            table=table,
            connection=connection,
            columns=_names(left, "columns"),
            filter=left.get("filter"),
            timezone=_zone(left, "filter.timezone"),
            partitions=_names(left, "partitions"),
            buckets=_numbers(left, "buckets"),
            metadata_columns=_names(left, "metadata.columns"),
            mode=_choice(left, "changelog.mode", READ_MODES, None),
            start=_offset(left, "starting.offsets"),
            stop=_offset(left, "ending.offsets"),
            rows_per_task=_positive("rows.per.task", left.get("rows.per.task", _ROWS_PER_TASK)),
            max_offsets=None if most is None else _positive("max.offsets.per.trigger", most),
            fail_on_data_loss=_flag(left, "fail.on.data.loss", True),
            truncate_nanoseconds=_flag(left, "truncate.nanoseconds", False),
            lake=_flag(left, "lake", True),
            push_filters=_flag(left, "push.filters", False),
        )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write."""

    table: str
    connection: Connection
    mode: str = "auto"
    operation_column: str | None = None
    create_partitions: bool = False
    guarantee: str = "at-least-once"
    ledger_database: str = "fluss_df_ledger"
    fail_on_data_loss: bool = True
    all_or_nothing: bool = False
    checkpoint: str | None = None

    @staticmethod
    def parse(options: Mapping[str, str]) -> WriteOptions:
        """Return the options that Spark hands on, their keys in any case.

        Raises FlussError where :meth:`ReadOptions.parse` does.
        """
        table, connection, left = _common(options)
        reads = [name for name in _READ if name not in _BOTH]
        _refuse(left, reads, "an option of reads, and this is a write")
        mode = _choice(left, "write.mode", WRITE_MODES, "auto")
        guarantee = _choice(left, "delivery.guarantee", GUARANTEES, "at-least-once")
        return WriteOptions(
            table=table,
            connection=connection,
            mode=mode or "auto",
            operation_column=left.get("operation.column"),
            create_partitions=_flag(left, "create.partitions", False),
            guarantee=guarantee or "at-least-once",
            ledger_database=left.get("ledger.database", "fluss_df_ledger"),
            fail_on_data_loss=_flag(left, "fail.on.data.loss", True),
            all_or_nothing=_flag(left, "all.or.nothing", False),
            checkpoint=next(
                (value for key, value in options.items() if plain(key) == "checkpointlocation"),
                None,
            ),
        )


def _common(options: Mapping[str, str]) -> tuple[str, Connection, dict[str, str]]:
    """Return table, connection, and the options of reads and writes by their documented names."""
    ours: dict[str, str] = {}
    properties: dict[str, str] = {}
    spelt: dict[str, str] = {}
    for key, value in options.items():
        name = _NAMES.get(plain(key))
        if name is not None:
            if name in spelt:
                raise invalid(
                    f"options '{spelt[name]}' and '{key}' are the same option, '{name}': give one"
                )
            ours[name] = _moment(key, value) if plain(key) in _MOMENTS else value
            spelt[name] = key
        elif plain(key) not in _SPARK:
            properties[key] = value
    servers = [key for key in properties if plain(key).removeprefix("client") == _SERVERS]
    if servers and "connection" in ours:
        raise invalid(
            f"options '{spelt['connection']}' and '{servers[0]}' both say where the tables are:"
            " give one"
        )
    table = ours.pop("table", None)
    if not table:
        raise invalid(
            "no table given: read with .load('database.table'), write with .save('database.table')"
            " or .start('database.table'), or give option 'table'; saveAsTable and toTable make"
            " tables of Spark's own catalog, which Fluss is not"
        )
    for key, value in properties.items():
        if key.lower().startswith("option."):
            raise invalid(
                "CREATE TABLE ... USING fluss is of no use, because Spark does not hand its options"
                " to scans: CREATE TEMPORARY VIEW ... USING fluss OPTIONS (...) does"
            )
        _check_property(key, value)
    return table, Connection(ours.pop("connection", None), tuple(sorted(properties.items()))), ours


def _check_property(key: str, value: str) -> None:
    try:
        Config({key: value})
    except FlussError as error:
        known = [*_NAMES.values()]
        near = difflib.get_close_matches(key.lower(), known, n=1) or [
            _NAMES[name] for name in difflib.get_close_matches(plain(key), list(_NAMES), n=1)
        ]
        if "invalid value" in error.message or not near:
            raise FlussError(f"format 'fluss': {error.message}", error.error_code) from None
        raise invalid(f"unknown option '{key}'; did you mean '{near[0]}'?") from None


def _refuse(options: Mapping[str, str], names: Iterable[str], why: str) -> None:
    for name in names:
        if name in options:
            raise invalid(f"option '{name}' is {why}")


def invalid(message: str) -> FlussError:
    """Return the error for an option."""
    return FlussError(f"format 'fluss': {message}", ErrorCode.INVALID_CONFIG_EXCEPTION)


def _names(options: Mapping[str, str], key: str) -> tuple[str, ...] | None:
    """Read names that are separated by commas, or a list in JSON (for names with commas)."""
    text = options.get(key)
    if text is None:
        return None
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise invalid(f"option '{key}': {text!r} is no list in JSON: {error}") from None
        return tuple(map(str, found))
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _numbers(options: Mapping[str, str], key: str) -> tuple[int, ...] | None:
    names = _names(options, key)
    try:
        return None if names is None else tuple(map(int, names))
    except ValueError:
        raise invalid(f"option '{key}': expected numbers such as '0,1', not {names!r}") from None


def _positive(key: str, value: str | int) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise invalid(f"option '{key}': expected a whole number from 1, not {value!r}")
    return number


def _flag(options: Mapping[str, str], key: str, default: bool) -> bool:
    text = options.get(key)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise invalid(f"option '{key}': expected 'true' or 'false', not {text!r}")
    return text.strip().lower() == "true"


def _choice(
    options: Mapping[str, str], key: str, choices: tuple[str, ...], default: str | None
) -> str | None:
    text = options.get(key)
    if text is None:
        return default
    found = {plain(choice): choice for choice in choices}.get(plain(text))
    if found is None:
        near = difflib.get_close_matches(text, choices, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise invalid(f"option '{key}': {text!r} is none of {', '.join(choices)}{hint}")
    return found


def time_zone(name: str) -> dt.tzinfo | None:
    """Return a time zone by its name; None where there is none of it."""
    if name == "UTC":
        # known also on a machine without a database of zones
        return dt.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # a folder of zones, such as 'Europe', is an OSError
        return None


def _zone(options: Mapping[str, str], key: str) -> str:
    text = options.get(key, "UTC")
    if time_zone(text) is None:
        raise invalid(
            f"option '{key}': {text!r} is no time zone; there are names such as 'Europe/Berlin'"
        )
    return text


def _offset(options: Mapping[str, str], key: str) -> Any:
    text = options.get(key)
    if text is None:
        return None
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    if text.lstrip().startswith("{"):
        return _offsets_by_bucket(key, text)
    if text.strip().isdecimal():
        return int(text)
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise invalid(
            f"option '{key}': expected 'earliest', 'latest', an offset, a time with its zone such"
            " as 2024-01-31T12:00:00+00:00, or offsets by bucket as JSON such as"
            f' {{"0": 17}} or {{"partition/0": 17}}, not {text!r}'
        )
    return moment


def _moment(key: str, text: str) -> str:
    """Return a time as other options have it: a whole number is milliseconds since 1970 here."""
    if text.lstrip().startswith("{"):
        raise invalid(
            f"option '{key}' is a time for all buckets, not {text!r}: offsets by bucket are for"
            f" option '{_NAMES[plain(key)]}'"
        )
    if not text.strip().isdecimal():
        return text
    try:
        since = dt.timedelta(milliseconds=int(text))
        return (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + since).isoformat()
    except (OverflowError, ValueError):
        raise invalid(
            f"option '{key}': {text[:40]!r} milliseconds since 1970 is after the year 9999"
        ) from None


def _offsets_by_bucket(key: str, text: str) -> dict[int | tuple[str, int], int]:
    found: dict[int | tuple[str, int], int] = {}
    try:
        for name, offset in json.loads(text, object_pairs_hook=_each_once).items():
            partition, slash, bucket = name.rpartition("/")
            number = _whole(bucket)
            place = (partition, number) if slash else number
            if place in found:
                # as "0" and "00"
                raise _TwiceError(name)
            found[place] = _whole(offset)
    except _TwiceError as twice:
        raise invalid(f"option '{key}': bucket {twice} is named twice in {text!r}") from None
    except (ValueError, TypeError, AttributeError):
        raise invalid(
            f"option '{key}': {text!r} is no JSON object of offsets by bucket, such as"
            ' {"0": 17} or {"partition/0": 17}'
        ) from None
    return found


class _TwiceError(Exception):
    """A bucket is named twice."""


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; Python itself takes the last of those of one name."""
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise _TwiceError(name)
        made[name] = value
    return made


def _whole(value: object) -> int:
    """Return a whole number; raise ValueError for what would be cut or taken for one."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    raise ValueError
