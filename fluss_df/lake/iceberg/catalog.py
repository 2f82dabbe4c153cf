"""Opens Iceberg tables by the catalogs that Fluss uses: JDBC, REST, Hadoop, and others by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.options import LakeOptions, lake_options
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

# the name under which Fluss keeps its tables in a catalog that several share
CATALOG_NAME: Final = "fluss-iceberg-catalog"
# what reads and writes files, unless options say otherwise
FILE_IO: Final = "fluss_df.lake.iceberg.file_io.SyncedFileIO"
# how long a query waits while another program writes into a catalog of SQLite: on a busy disk that
# takes more than the 5 seconds that SQLite's driver gives it
_SQLITE_WAIT_S: Final = 60
# a database, what SQLAlchemy calls it, and the package of its driver
_DRIVERS: Final = {
    "postgresql": ("postgresql+psycopg2", "psycopg2-binary"),
    "mysql": ("mysql+pymysql", "pymysql"),
}
_VERSION_FILE: Final = re.compile(r"v(\d+)(\.gz)?\.metadata\.json|(\d+)-.*\.metadata\.json")


def open_table(info: TableInfo) -> Table:
    """Return the Iceberg table that a Fluss table is tiered into.

    Raises FlussError where the extra ``lake`` is not installed, the catalog cannot be reached, or
    the table is not in it.
    """
    return open_lake_table(lake_options(info, ("iceberg",)))


def open_lake_table(options: LakeOptions) -> Table:
    """As :func:`open_table`, given where it is."""
    try:
        import pyiceberg.exceptions
    except ImportError as error:
        raise FlussError(
            f"table {options.path} is tiered into Iceberg: pip install 'fluss-df[lake]' to read"
            f" it, or pass lake=False for what Fluss itself has ({error})"
        ) from error
    place = (options.path.database_name, options.path.table_name)
    try:
        if options.properties.get("type", "").lower() == "hadoop":
            return _in_folders(options)
        catalog = _catalog(options)
        table = catalog.load_table(place)
        # a table is read without a connection to its catalog; a commit opens a new one
        catalog.close()
        return table
    except pyiceberg.exceptions.NoSuchTableError as error:
        raise FlussError(
            f"table {options.path} is not in its Iceberg catalog ({options!r}):"
            " was it dropped or renamed there?",
            ErrorCode.TABLE_NOT_EXIST,
        ) from error
    except FlussError:
        raise
    except Exception as error:
        # each catalog has errors of its own: of SQLAlchemy, requests, file systems
        raise FlussError(
            f"the Iceberg catalog of table {options.path} cannot be used:"
            f" {options.redacted(str(error))}; {options!r}; lake=False reads what Fluss itself has",
            ErrorCode.NETWORK_EXCEPTION,
        ) from error


def _catalog(options: LakeOptions) -> Catalog:
    properties = _for_python(options.properties)
    kind = properties.pop("type", None)
    if kind in ("jdbc", "sql"):
        from pyiceberg.catalog.sql import SqlCatalog

        uri = properties.pop("uri", "")
        user, password = properties.pop("jdbc.user", None), properties.pop("jdbc.password", None)
        address = _sql_uri(options, uri, user, password)
        try:
            return SqlCatalog(
                CATALOG_NAME,
                uri=address,
                # the catalog's tables were made by the cluster
                init_catalog_tables="false",
                **properties,
            )
        except ModuleNotFoundError as error:
            packages = dict(_DRIVERS.values())
            raise FlussError(
                f"the driver of the database with the Iceberg catalog of table {options.path} is"
                f" not installed: pip install {packages[address.split(':')[0]]} ({error});"
                " lake=False reads what Fluss itself has"
            ) from error
    if kind is None:
        raise FlussError(
            f"the Iceberg catalog of table {options.path} has no option 'type': {options!r}",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    from pyiceberg.catalog import load_catalog

    return load_catalog(CATALOG_NAME, type=kind, **properties)


def _for_python(properties: Any) -> dict[str, str]:
    """Return options of Java's Iceberg as pyiceberg calls them."""
    made = dict(properties)
    made.setdefault("py-io-impl", FILE_IO)
    for java, python in (("s3.path-style-access", "s3.force-virtual-addressing"),):
        if java in made:
            made[python] = "false" if made.pop(java).lower() == "true" else "true"
    return made


def _sql_uri(options: LakeOptions, uri: str, user: str | None, password: str | None) -> str:
    """Return a JDBC address as SQLAlchemy has it.

    User and password are options of their own, parameters of the address, or in front of its host.
    """
    given = uri.removeprefix("jdbc:")
    if given.startswith("sqlite:"):
        file = given.removeprefix("sqlite:").removeprefix("file:").split("?")[0]
        return f"sqlite:///{file}?timeout={_SQLITE_WAIT_S}"
    parts = urlsplit(given)
    if parts.scheme not in _DRIVERS:
        raise FlussError(
            f"the Iceberg catalog of table {options.path} is a database that is not known:"
            f" {parts.scheme!r} (known: sqlite, {', '.join(_DRIVERS)}); {options!r}",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    try:
        port = parts.port
    except ValueError:
        # its message may show a part of a password
        raise FlussError(
            f"the Iceberg catalog of table {options.path} has an address without a number as its"
            f" port: {options!r} (characters such as / of a password are written as %2F)",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        ) from None
    import sqlalchemy

    parameters = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    login = (user, parameters.get("user"), parts.username and unquote(parts.username))
    secret = (password, parameters.get("password"), parts.password and unquote(parts.password))
    made = sqlalchemy.URL.create(
        _DRIVERS[parts.scheme][0],
        username=next(filter(None, login), None),
        password=next(filter(None, secret), None),
        host=parts.hostname,
        port=port,
        database=parts.path.lstrip("/"),
        # sslmode has the same name in PostgreSQL's library as in the JDBC driver
        query={name: value for name, value in parameters.items() if name == "sslmode"},
    )
    return made.render_as_string(hide_password=False)


def _in_folders(options: LakeOptions) -> Table:
    """Return a table of a Hadoop catalog: its newest metadata, by the file that says which."""
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.io import load_file_io
    from pyiceberg.table import StaticTable

    warehouse = options.properties.get("warehouse")
    if not warehouse:
        raise FlussError(
            f"the Hadoop catalog of table {options.path} has no 'warehouse': {options!r}",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    folder = f"{warehouse.rstrip('/')}/{options.path.database_name}/{options.path.table_name}"
    metadata = f"{folder}/metadata"
    properties = _for_python(options.properties)
    local = folder.removeprefix("file://") if folder.startswith(("/", "file:")) else None
    if local is not None:
        # the hint may be older than the newest file: the writer was killed between the two
        versions = {
            int(found[1] or found[3]): file.name
            for file in (Path(local.removeprefix("file:")) / "metadata").glob("*.metadata.json")
            if (found := _VERSION_FILE.fullmatch(file.name))
        }
        if not versions:
            raise NoSuchTableError(f"no metadata in {metadata}")
        return StaticTable.from_metadata(f"{metadata}/{versions[max(versions)]}", properties)
    hint = load_file_io(properties, metadata).new_input(f"{metadata}/version-hint.text")
    if not hint.exists():
        raise NoSuchTableError(f"no {metadata}/version-hint.text")
    with hint.open() as stream:
        version = stream.read().decode().strip()
    return StaticTable.from_metadata(f"{metadata}/v{version}.metadata.json", properties)
