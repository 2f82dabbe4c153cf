"""Where the lake half of a table is: the options of its catalog, which servers hand out with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TablePath
from fluss_df.schema import TableInfo
from fluss_df.texts.secret_texts import is_secret, shown_option, without_secrets

ENABLED: Final = "table.datalake.enabled"
FORMAT: Final = "table.datalake.format"
READABLE: Final = ("iceberg", "paimon", "lance")
# the formats into which our tiering service writes
WRITTEN: Final = ("iceberg", "paimon")
# the columns that tiering services add to each row
BUCKET: Final = "__bucket"
OFFSET: Final = "__offset"
TIMESTAMP: Final = "__timestamp"
# a property of a snapshot: the path of a file in Fluss's remote storage that has its offsets
OFFSETS_PATH_PROPERTY: Final = "fluss-offsets"
# properties of Iceberg by which files are written to another place than the table's
WRITTEN_TO: Final = ("write.data.path", "write.metadata.path", "write.object-storage.path")
# shorter secrets are not removed from the text of errors, because they may be parts of other words
_SHORTEST_SECRET: Final = 4


@dataclass(frozen=True)
class LakeOptions:
    """The catalog of a lake table, which has the same path there as in Fluss.

    ``format`` is ``"iceberg"``, ``"paimon"`` or ``"lance"``. ``properties`` are the options of the
    catalog, as the cluster has them below ``datalake.<format>.``.
    """

    path: TablePath
    format: str
    properties: Mapping[str, str]

    def __repr__(self) -> str:
        shown = {key: shown_option(key, value) for key, value in self.properties.items()}
        return f"LakeOptions({str(self.path)!r}, {self.format!r}, {shown})"

    def redacted(self, text: str) -> str:
        """Return a text, as that of an error, without the credentials of the catalog."""
        found = {value for key, value in self.properties.items() if is_secret(key)}
        for secret in sorted(found, key=len, reverse=True):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "***")
        return without_secrets(text)


def is_lake_table(info: TableInfo) -> bool:
    """Whether a table is tiered into a lake."""
    return info.get_properties().get(ENABLED, "false").lower() == "true"


def lake_options(info: TableInfo, readable: Sequence[str] = READABLE) -> LakeOptions:
    """Return where the lake half of a table is.

    Raises ``INVALID_TABLE_EXCEPTION`` for a table without a lake, and ``UNSUPPORTED_VERSION`` for a
    format that is not in ``readable``.
    """
    name = info.lake_format
    if name is None or not is_lake_table(info):
        raise FlussError(
            f"table {info.table_path} has no data lake: its property {ENABLED} is not true",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    if name not in readable:
        raise FlussError(
            f"table {info.table_path} is tiered into {name}, which fluss_df does not"
            f" {'read' if tuple(readable) == READABLE else 'write'} (only {', '.join(readable)});"
            " lake=False reads what Fluss itself has",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    prefix = f"table.datalake.{name}."
    properties = {
        key.removeprefix(prefix): value
        for key, value in info.get_properties().items()
        if key.startswith(prefix)
    }
    return LakeOptions(info.table_path, name, properties)
