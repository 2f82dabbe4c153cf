"""Settings of a cluster that are changed while it runs: which there are, and what values they take.

Those of Fluss 0.9.1. An engine keeps and tells them, and nothing in it depends on them: RocksDB's
rate limiter would hold up every request, since a flush that waits for it keeps Python's lock, and
the lake of a folder has its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import messages_pb2 as pb

RATE_LIMIT: Final = "kv.rocksdb.shared-rate-limiter.bytes-per-sec"
_LAKE: Final = "datalake."
_LAKE_FORMAT: Final = "datalake.format"
_FORMATS: Final = ("paimon", "lance", "iceberg")
_CHANGES: Final = ("SET", "DELETE", "APPEND", "SUBTRACT")
_SIZE: Final = re.compile(r"([0-9]+)\s*([a-z]+)")
_UNITS: Final = {
    **dict.fromkeys(("b", "bytes"), 0),
    **dict.fromkeys(("k", "kb", "kibibytes"), 10),
    **dict.fromkeys(("m", "mb", "mebibytes"), 20),
    **dict.fromkeys(("g", "gb", "gibibytes"), 30),
    **dict.fromkeys(("t", "tb", "tebibytes"), 40),
}
_MOST: Final = 2**63 - 1
# the most characters of a value, and the most of it that an error repeats
_MOST_CHARACTERS: Final = 200


def altered_configs(
    configs: Mapping[str, str], changes: Iterable[pb.AlterConfig]
) -> dict[str, str | None]:
    """Return the settings that change: key -> value, None where it is to be as at the start.

    ``configs`` are the settings that were changed before. The changes are applied one after
    another: all of them, or none.

    Raises ``CONFIG_EXCEPTION`` for one that a running cluster cannot change, or a value that it
    does not take; ``UNKNOWN_SERVER_ERROR`` for an operation that there is not, and for a format of
    the data lake.
    """
    listed = list(changes)
    for change in listed:
        if not 0 <= change.op_type < len(_CHANGES):
            raise FlussError(
                f"Unsupported AlterConfigOpType: {change.op_type}", ErrorCode.UNKNOWN_SERVER_ERROR
            )
    wanted = dict(configs)
    for change in listed:
        key = change.config_key
        if key != RATE_LIMIT and not key.startswith(_LAKE):
            raise _refused(
                f"The config key {_shown(key)} is not allowed to be changed dynamically."
            )
        operation = _CHANGES[change.op_type]
        if operation == "DELETE":
            wanted.pop(key, None)
        elif operation != "SET":
            raise _refused(f"Unsupported config operation type {operation}")
        elif not change.HasField("config_value"):
            raise _refused(f"The config key {_shown(key)} is set without a value.")
        else:
            wanted[key] = change.config_value
    changed = {key: value for key, value in wanted.items() if configs.get(key) != value}
    for key, value in changed.items():
        _check(key, value)
    return changed | dict.fromkeys(configs.keys() - wanted.keys())


def _check(key: str, value: str) -> None:
    if key == RATE_LIMIT:
        if not _is_size(value):
            raise _unreadable(key, value, "MemorySize")
    elif key == _LAKE_FORMAT:
        if value.lower() not in _FORMATS:
            raise _unreadable(key, value, "DataLakeFormat")
        raise FlussError(
            f"No LakeStoragePlugin can be found for datalake format: {value.lower()}. The lake of a"
            " folder is in it, and is not configured",
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
    else:
        raise _refused(f"Invalid configuration '{_shown(key)}' for 'null' datalake format")


def _is_size(text: str) -> bool:
    found = _SIZE.fullmatch(text.strip().lower()) if len(text) <= _MOST_CHARACTERS else None
    return found is not None and found[2] in _UNITS and int(found[1]) << _UNITS[found[2]] <= _MOST


def _unreadable(key: str, value: str, kind: str) -> FlussError:
    shown = _shown(value)
    return _refused(
        f"Cannot parse '{shown}' as {kind} for config '{key}': Could not parse value '{shown}' for"
        f" key '{key}'."
    )


def _shown(text: str) -> str:
    return text[:_MOST_CHARACTERS]


def _refused(message: str) -> FlussError:
    return FlussError(message, ErrorCode.CONFIG_EXCEPTION)
