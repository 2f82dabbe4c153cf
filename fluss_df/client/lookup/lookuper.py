"""Looking up rows of primary-key tables: :class:`Lookuper` and :class:`PrefixLookuper`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fluss_df.client.lookup.keyed_requests import Asker
from fluss_df.client.runtime.awaitable import Ready, ReadyDict, ready
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.errors import FlussError
from fluss_df.metadata import require_columns
from fluss_df.record.kv.primary_key import check_primary_key, key_columns
from fluss_df.record.layout.taking import take_rows
from fluss_df.record.python.row_collector import Row
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext


class Lookuper(Ready):
    """Looks up rows by their primary key, for any number of threads.

    A lookup goes out at once; those that come while a server is busy with one go together. What
    a lookup finds is what was acknowledged before it began, or newer.

    Obtain one from ``table.new_lookup().create_lookuper()``.

    Parameters
    ----------
    connection, info
        The table.

    Examples
    --------
    >>> lookuper = table.new_lookup().create_lookuper()  # doctest: +SKIP
    >>> lookuper.lookup({"id": 1})  # doctest: +SKIP
    {'id': 1, 'name': 'Ada'}
    """

    def __init__(self, connection: ClientContext, info: TableInfo) -> None:
        check_primary_key(info)
        self._connection = connection
        self._info = info
        by_name = {column.name: column for column in info.schema.columns}
        self._asker = Asker(
            connection,
            info,
            [by_name[name] for name in info.get_primary_keys()],
            key_columns(info),
            prefix=False,
        )
        self._prefix: PrefixLookuper | None = None

    def lookup(self, pk: Row) -> dict[str, Any] | None:
        """Return the row that has a key, or None.

        Parameters
        ----------
        pk
            A dict of key column to value, or a list or tuple of values in the order of the key.

        Returns
        -------
        dict or None
            The row. It can also be awaited; where an event loop runs in the calling thread, so
            can a None, which is then false and equal to None but is not None itself.

        Raises
        ------
        FlussError
            When the key does not fit, or no server answered within ``retry-timeout``.
        """
        value = self._asker.ask_one(pk)
        if not value:
            # a None that can be awaited, where that is likely
            return ready(None) if _in_event_loop() else None
        return ReadyDict(self._asker.values.rows([value])[0])

    def lookup_arrow(
        self, keys: Any, *, found_column: str | None = None, metrics: Metrics | None = None
    ) -> pa.Table:
        """Return the rows of many keys, row for row.

        Parameters
        ----------
        keys
            An Arrow table or record batch, or anything that exports ``__arrow_c_stream__``: the
            key columns, in any order, and no others. Keys may repeat.
        found_column
            The name of a boolean column to append, which says whether there is such a row.
        metrics
            Where requests, rows and their bytes are counted.

        Returns
        -------
        pa.Table
            As many rows as ``keys``, in the same order, with the table's columns; all of them are
            null, those of the key too, where there is no such row.
        """
        schema = self._asker.values.schema
        if found_column is not None and found_column in schema.names:
            raise FlussError(
                f"table {self._info.table_path} has a column '{found_column}': choose another"
                " found_column"
            )
        values = self._asker.ask_many(keys, metrics)
        found = np.fromiter(map(bool, values), np.bool_, len(values))
        rows = self._asker.decode(list(filter(None, values)), metrics)
        if not found.all():
            index = np.cumsum(found) - 1
            rows = take_rows(rows, pa.array(index, mask=~found))
        if found_column is not None:
            rows = rows.append_column(found_column, pa.array(found))
        return rows

    def prefix_lookup(self, prefix: Row) -> list[dict[str, Any]]:
        """Return all rows whose key begins with a prefix; see :class:`PrefixLookuper`."""
        return self._prefix_lookuper().lookup(prefix)

    def prefix_lookup_arrow(self, prefixes: Any, *, index_column: str | None = None) -> pa.Table:
        """Return all rows whose keys begin with prefixes; see :class:`PrefixLookuper`."""
        return self._prefix_lookuper().lookup_arrow(prefixes, index_column=index_column)

    def _prefix_lookuper(self) -> PrefixLookuper:
        if self._prefix is None:
            self._prefix = PrefixLookuper(self._connection, self._info)
        return self._prefix

    def __repr__(self) -> str:
        return f"Lookuper({str(self._info.table_path)!r})"


class PrefixLookuper(Ready):
    """Looks up all rows whose primary key begins with given values, for any number of threads.

    The prefix is the bucket key of a table whose bucket key is a true prefix of its primary key,
    and its partition columns.

    Obtain one from ``table.new_lookup().lookup_by(columns).create_lookuper()``.

    Parameters
    ----------
    connection, info
        The table.
    columns
        The columns of the prefix; None for the partition columns and then those of the bucket key.
    """

    def __init__(
        self, connection: ClientContext, info: TableInfo, columns: Sequence[str] | None = None
    ) -> None:
        check_primary_key(info)
        self._info = info
        names = _prefix_columns(info, columns)
        by_name = {column.name: column for column in info.schema.columns}
        bucket_keys = [by_name[name] for name in info.get_bucket_keys()]
        wanted = [by_name[name] for name in names]
        self._asker = Asker(connection, info, wanted, bucket_keys, prefix=True)

    def lookup(self, prefix: Row) -> list[dict[str, Any]]:
        """Return the rows whose key begins with a prefix, in no particular order.

        Parameters
        ----------
        prefix
            A dict of column to value, or a list or tuple of values in the order of the columns.
        """
        values = self._asker.ask_one(prefix)
        rows: list[dict[str, Any]] = []
        if values:
            rows = self._asker.values.rows(values)
        return ready(rows)

    def lookup_arrow(
        self, prefixes: Any, *, index_column: str | None = None, metrics: Metrics | None = None
    ) -> pa.Table:
        """Return the rows of many prefixes, those of the first prefix first.

        Parameters
        ----------
        prefixes
            An Arrow table or record batch, or anything that exports ``__arrow_c_stream__``.
        index_column
            The name of an int64 column to append: which row of ``prefixes`` a row belongs to.
        metrics
            Where requests, rows and their bytes are counted.
        """
        schema = self._asker.values.schema
        if index_column is not None and index_column in schema.names:
            raise FlussError(
                f"table {self._info.table_path} has a column '{index_column}': choose another"
                " index_column"
            )
        lists = [values or () for values in self._asker.ask_many(prefixes, metrics)]
        rows = self._asker.decode(list(itertools.chain.from_iterable(lists)), metrics)
        if index_column is not None:
            counts = np.fromiter(map(len, lists), np.int64, len(lists))
            index = np.repeat(np.arange(len(lists)), counts)
            rows = rows.append_column(index_column, pa.array(index))
        return rows

    def __repr__(self) -> str:
        return f"PrefixLookuper({str(self._info.table_path)!r})"


class TableLookup:
    """Builds lookupers; may also be used as one itself.

    Obtain one from ``table.new_lookup()``.
    """

    def __init__(self, connection: ClientContext, info: TableInfo) -> None:
        check_primary_key(info)
        self._connection = connection
        self._info = info
        self._lookuper: Lookuper | None = None

    def create_lookuper(self) -> Lookuper:
        """Return a lookuper by primary key."""
        return Lookuper(self._connection, self._info)

    def lookup_by(self, column_names: Sequence[str]) -> TablePrefixLookup:
        """Return a builder of lookupers by a prefix of the key.

        Parameters
        ----------
        column_names
            The partition columns, if any, and those of the bucket key, in this order.

        Raises
        ------
        FlussError
            When these columns are no prefix that the server can look up.
        """
        return TablePrefixLookup(self._connection, self._info, column_names)

    def lookup(self, pk: Row) -> dict[str, Any] | None:
        """As :meth:`Lookuper.lookup`."""
        return self._own().lookup(pk)

    def lookup_arrow(self, keys: Any, *, found_column: str | None = None) -> pa.Table:
        """As :meth:`Lookuper.lookup_arrow`."""
        return self._own().lookup_arrow(keys, found_column=found_column)

    def prefix_lookup(self, prefix: Row) -> list[dict[str, Any]]:
        """As :meth:`Lookuper.prefix_lookup`."""
        return self._own().prefix_lookup(prefix)

    def prefix_lookup_arrow(self, prefixes: Any, *, index_column: str | None = None) -> pa.Table:
        """As :meth:`Lookuper.prefix_lookup_arrow`."""
        return self._own().prefix_lookup_arrow(prefixes, index_column=index_column)

    def _own(self) -> Lookuper:
        if self._lookuper is None:
            self._lookuper = self.create_lookuper()
        return self._lookuper

    def __repr__(self) -> str:
        return f"TableLookup({str(self._info.table_path)!r})"


class TablePrefixLookup:
    """Builds lookupers by a prefix of the key; obtained from :meth:`TableLookup.lookup_by`."""

    def __init__(self, connection: ClientContext, info: TableInfo, columns: Sequence[str]) -> None:
        self._connection = connection
        self._info = info
        self._columns = _prefix_columns(info, columns)

    def create_lookuper(self) -> PrefixLookuper:
        """Return a lookuper by prefix."""
        return PrefixLookuper(self._connection, self._info, self._columns)

    def __repr__(self) -> str:
        return f"TablePrefixLookup({str(self._info.table_path)!r}, {self._columns})"


def _prefix_columns(info: TableInfo, columns: Sequence[str] | None) -> list[str]:
    """Return the columns of a prefix, in the order in which users give them."""
    where = f"table {info.table_path}"
    partition, bucket = info.get_partition_keys(), info.get_bucket_keys()
    key = [column.name for column in key_columns(info)]
    if bucket == key or bucket != key[: len(bucket)]:
        raise FlussError(
            f"{where} has no prefix lookup: its bucket key ({', '.join(bucket)}) would have to be"
            f" a true prefix of its primary key ({', '.join(key)}); look up by primary key, or"
            " create the table with such bucket_keys"
        )
    expected = [*partition, *bucket]
    if columns is None:
        return expected
    if isinstance(columns, str):
        raise FlussError(f"expected a list of column names, not the string {columns!r}")
    require_columns(columns, info.get_column_names(), f"{where}:")
    rest = [name for name in columns if name not in partition]
    if len(set(columns)) != len(columns) or sorted(columns) != sorted(expected) or rest != bucket:
        raise FlussError(
            f"{where}: a prefix lookup is by {', '.join(expected)}, not by {', '.join(columns)}"
        )
    return list(columns)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
