"""The lake of a folder: Iceberg tables beside the data, tiered by the process that has the folder.

``FOLDER/lake/catalog.db`` is a catalog of Iceberg in SQLite, and ``FOLDER/lake/warehouse`` has the
Parquet files. Any reader of Iceberg may read them.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fluss_df.client.connection import FlussConnection
from fluss_df.engine.files.files import read_bytes, write_atomically
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TablePath
from fluss_df.schema import TableDescriptor
from fluss_df.types import DataType, TypeRoot

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.types import IcebergType

    from fluss_df.lake import TieringService

logger = logging.getLogger(__name__)

LAKE: Final = "lake"
_CATALOG: Final = "fluss-iceberg-catalog"
_FORMAT: Final = "table.datalake.format"
# of lake tables that this module made
_MARK: Final = "fluss-df.folder"
# these mean something else in addresses
_NOT_IN_PLACES: Final = frozenset("%?#")
_SYSTEM: Final = ("__bucket", "__offset", "__timestamp")


class FolderLake:
    """The lake tables of a folder, and the thread that tiers into them.

    Parameters
    ----------
    folder
        The folder of the engine.
    address
        Where this process reaches the engine, as ``host:port``.
    tiers
        Whether the owner of the folder tiers its tables; else ``fluss-df tier`` does.
    """

    def __init__(self, folder: Path, address: str, tiers: bool = True) -> None:
        self._folder = folder / LAKE
        self._address = address
        self._tiers = tiers
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._service: TieringService | None = None
        self._closing = False
        self._usable: bool | None = None

    # ---- what the engine asks

    @property
    def usable(self) -> bool:
        """Whether the folder is where its lake was made: Iceberg's metadata has whole paths."""
        if self._usable is None:
            found = read_bytes(self._folder / "place")
            made = str(self._folder) if found is None else os.fsdecode(found)
            self._usable = made == str(self._folder)
            if not self._usable:
                logger.warning(
                    "the lake of %s was made at %s: nothing is tiered into it, and its files are"
                    " not found, until the folder is there again",
                    self._folder,
                    made,
                )
        return self._usable

    def properties(self) -> Mapping[str, str]:
        """Return the properties by which clients find the lake."""
        prefix = "table.datalake.iceberg."
        return {
            _FORMAT: "iceberg",
            f"{prefix}type": "jdbc",
            f"{prefix}uri": f"jdbc:sqlite:{self._folder / 'catalog.db'}",
            f"{prefix}warehouse": f"file://{self._folder / 'warehouse'}",
        }

    def require(self) -> None:
        """Raise where the extra ``lake`` is missing, or the folder is not where a lake can be."""
        try:
            import pyiceberg.catalog.sql  # noqa: F401
        except ImportError as error:
            raise FlussError(
                "table.datalake.enabled: a lake in the folder needs the extra 'lake':"
                f" pip install 'fluss-df[lake]' ({error})",
                ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
            ) from error
        odd = sorted(_NOT_IN_PLACES & {*str(self._folder)})
        if odd:
            raise FlussError(
                f"table.datalake.enabled: a lake cannot be at {self._folder}: the addresses of its"
                f" files and of its catalog cannot have {' '.join(odd)} in them; rename the folder",
                ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
            )
        if not self.usable:
            raise FlussError(
                f"table.datalake.enabled: the lake of {self._folder} was made at another place, and"
                " Iceberg's files have that in them: move the folder back, or use another folder",
                ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
            )

    def create(self, path: TablePath, descriptor: TableDescriptor) -> None:
        """Make the lake table of a table that is about to be created; it has Fluss's layout."""
        given = descriptor.properties.get(_FORMAT, "iceberg").lower()
        if given != "iceberg":
            raise FlussError(
                f"table {path}: {_FORMAT}={given!r}: the lake of a folder is 'iceberg'",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
        self.require()
        from pyiceberg.exceptions import NoSuchTableError

        name = (path.database_name, path.table_name)
        schema, fields = _layout(path, descriptor)
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(path.database_name)
        with contextlib.suppress(NoSuchTableError):
            old = catalog.load_table(name)
            if _MARK not in old.properties:
                raise FlussError(
                    f"The table {path} already exists in Iceberg catalog, and the embedded engine"
                    " did not make it: drop or rename it there.",
                    ErrorCode.LAKE_TABLE_ALREADY_EXIST,
                )
            # of a table whose creation or drop was interrupted
            self.drop(path)
        marks = {_MARK: "true", "format-version": "2"}
        table = catalog.create_table(name, schema, properties=marks)
        with table.update_spec() as update:
            for column, transform in fields:
                update.add_field(column, transform, *_field_name(column, transform))
        # it decides how keys are hashed, so it is the table's for good
        descriptor.properties[_FORMAT] = "iceberg"

    def created(self) -> None:
        """Begin to tier, where that is not begun; called once a table with a lake is there."""
        with self._lock:
            if self._tiers and self._thread is None and not self._closing:
                self._thread = threading.Thread(
                    target=self._run, name="fluss-df-folder-lake", daemon=True
                )
                self._thread.start()

    def drop(self, path: TablePath) -> None:
        """Remove the lake table of a table that was dropped, and its files."""
        try:
            from pyiceberg.exceptions import NoSuchTableError

            with contextlib.suppress(NoSuchTableError):
                name = (path.database_name, path.table_name)
                catalog = self._catalog()
                table = catalog.load_table(name)
                if _MARK not in table.properties:
                    return
                place = Path(table.location().removeprefix("file://"))
                catalog.drop_table(name)
                if self._folder / "warehouse" in place.parents:
                    shutil.rmtree(place, ignore_errors=True)
        except Exception as error:
            # the table is gone already; the next one of its name removes what is left
            logger.warning("the lake table of %s could not be removed: %s", path, error)

    def close(self) -> None:
        """End the tiering, after the round that it is at."""
        with self._lock:
            self._closing = True
            thread, service = self._thread, self._service
        if service is not None:
            service.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # ---- within

    def _run(self) -> None:
        try:
            from fluss_df.lake import TieringService

            with (
                FlussConnection.create(self._address) as connection,
                TieringService(connection, tables_at_once=1) as service,
            ):
                with self._lock:
                    self._service = service
                    closing = self._closing
                if not closing:
                    service.run()
        except Exception as error:
            # RuntimeError: the process ends, and takes no new work
            if not self._closing and not isinstance(error, RuntimeError):
                logger.warning("the tiering of %s ended: %s", self._folder, error)

    def _catalog(self) -> Catalog:
        from pyiceberg.catalog.sql import SqlCatalog

        warehouse = self._folder / "warehouse"
        for folder in (self._folder, warehouse):
            if not folder.exists():
                folder.mkdir(0o700, parents=True, exist_ok=True)
        place = self._folder / "place"
        if not place.exists():
            write_atomically(place, os.fsencode(self._folder))
        return SqlCatalog(
            _CATALOG,
            uri=f"sqlite:///{self._folder / 'catalog.db'}",
            warehouse=f"file://{warehouse}",
            **{"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"},
        )


def _layout(path: TablePath, descriptor: TableDescriptor) -> tuple[Any, list[tuple[str, Any]]]:
    """Return the schema, and the columns and transforms of the partitions, as Fluss makes them."""
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import BucketTransform, IdentityTransform
    from pyiceberg.types import IntegerType, LongType, NestedField, TimestamptzType

    schema, keys = descriptor.schema, descriptor.bucket_keys
    if len(keys) > 1:
        raise FlussError(
            f"table {path}: Iceberg format supports at most one bucket key, but got: {list(keys)}",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    ids = itertools.count(1)
    columns: list[NestedField] = []
    for column in schema.columns:
        if column.name in _SYSTEM:
            raise FlussError(
                f"table {path}: Column '{column.name}' conflicts with a reserved system column.",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        columns.append(
            NestedField(
                next(ids),
                column.name,
                _lake_type(column.type, ids),
                required=not column.type.nullable,
                doc=column.comment,
            )
        )
    kinds = {column.name: column.type for column in schema.columns}
    for key in descriptor.partition_keys:
        if kinds[key].root is not TypeRoot.STRING:
            raise FlussError(
                f"table {path}: Partition key only support string type for iceberg currently."
                f" Column `{key}` is not string type.",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
    for name, kind in zip(_SYSTEM, (IntegerType(), LongType(), TimestamptzType()), strict=True):
        columns.append(NestedField(next(ids), name, kind, required=True))
    named = {column.name: column.field_id for column in columns}
    fields: list[tuple[str, Any]] = [
        (key, IdentityTransform()) for key in descriptor.partition_keys
    ]
    if keys:
        fields.append((keys[0], BucketTransform(descriptor.bucket_count or 1)))
    else:
        fields.append(("__bucket", IdentityTransform()))
    made = Schema(*columns, identifier_field_ids=[named[key] for key in schema.primary_keys])
    return made, fields


def _field_name(column: str, transform: Any) -> tuple[str]:
    """Return what Java's Iceberg calls a partition field."""
    from pyiceberg.transforms import IdentityTransform

    return (column if isinstance(transform, IdentityTransform) else f"{column}_bucket",)


def _lake_type(kind: DataType, ids: Iterator[int]) -> IcebergType:
    """Return the type that Fluss gives a column in Iceberg."""
    from pyiceberg import types as lake

    root = kind.root
    if root is TypeRoot.DECIMAL:
        return lake.DecimalType(kind.precision or 1, kind.scale or 0)
    if root is TypeRoot.ARRAY:
        assert kind.element is not None
        number = next(ids)
        element = _lake_type(kind.element, ids)
        return lake.ListType(number, element, element_required=not kind.element.nullable)
    if root is TypeRoot.MAP:
        assert kind.key is not None
        assert kind.value is not None
        first, second = next(ids), next(ids)
        key, value = _lake_type(kind.key, ids), _lake_type(kind.value, ids)
        return lake.MapType(first, key, second, value, value_required=not kind.value.nullable)
    if root is TypeRoot.ROW:
        return lake.StructType(
            *(
                lake.NestedField(
                    next(ids),
                    field.name,
                    _lake_type(field.type, ids),
                    required=not field.type.nullable,
                    doc=field.description,
                )
                for field in kind.fields
            )
        )
    plain: dict[TypeRoot, type[IcebergType]] = {
        TypeRoot.CHAR: lake.StringType,
        TypeRoot.STRING: lake.StringType,
        TypeRoot.BOOLEAN: lake.BooleanType,
        TypeRoot.BINARY: lake.BinaryType,
        TypeRoot.BYTES: lake.BinaryType,
        TypeRoot.TINYINT: lake.IntegerType,
        TypeRoot.SMALLINT: lake.IntegerType,
        TypeRoot.INTEGER: lake.IntegerType,
        TypeRoot.BIGINT: lake.LongType,
        TypeRoot.FLOAT: lake.FloatType,
        TypeRoot.DOUBLE: lake.DoubleType,
        TypeRoot.DATE: lake.DateType,
        TypeRoot.TIME_WITHOUT_TIME_ZONE: lake.TimeType,
        TypeRoot.TIMESTAMP_WITHOUT_TIME_ZONE: lake.TimestampType,
        TypeRoot.TIMESTAMP_WITH_LOCAL_TIME_ZONE: lake.TimestamptzType,
    }
    return plain[root]()
