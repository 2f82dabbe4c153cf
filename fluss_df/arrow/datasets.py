"""A Fluss table as a dataset of Arrow, with columns and filters pushed down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from fluss_df.arrow.scanners import BATCH_ROWS, Columns, FlussScanner, Node
from fluss_df.errors import FlussError
from fluss_df.io.polars_reader import FlussScan
from fluss_df.io.scan import count, scan_node
from fluss_df.io.snapshot import FlussSnapshot
from fluss_df.io.source import Offset, PartitionsArgument
from fluss_df.metadata import TablePath
from fluss_df.polars_adapter.scans import with_known_schema
from fluss_df.pushdown.plan import Explanation

# arguments of Arrow's scanners that change how files are read, and nothing here
_OF_FILES: Final = frozenset(
    {
        "batch_readahead",
        "fragment_readahead",
        "fragment_scan_options",
        "use_threads",
        "cache_metadata",
        "memory_pool",
    }
)


def dataset(
    source: str | TablePath,
    *,
    connection: object | None = None,
    mode: str = "auto",
    columns: Sequence[str] | None = None,
    partitions: PartitionsArgument | None = None,
    buckets: int | Sequence[int] | None = None,
    start: Offset = "earliest",
    stop: Offset = "latest",
    include_metadata: bool | Sequence[str] = False,
    lake: bool | None = None,
) -> FlussDataset:
    """Return a table as a dataset of Arrow, for whatever reads such datasets.

    The dataset fetches nothing by itself. Each scan of it reads the rows that are there when it
    begins; two scans, as of a join of the table with itself, may see different rows while others
    write. Of a scan, the columns and the conditions that Fluss can use are pushed down, as
    :func:`fluss_df.scan_fluss` does it; Arrow evaluates every condition again.

    Parameters
    ----------
    source, connection, mode, columns, partitions, buckets, start, stop, include_metadata, lake
        As for :func:`fluss_df.scan_fluss`.

    Returns
    -------
    FlussDataset

    Raises
    ------
    FlussError
        As of :func:`fluss_df.scan_fluss`.

    Examples
    --------
    >>> orders = fluss_df.arrow.dataset("orders", connection="127.0.0.1:9123")  # doctest: +SKIP
    >>> duckdb.sql("SELECT sum(amount) FROM orders WHERE region = 'EU'")  # doctest: +SKIP
    """
    node = scan_node(
        source,
        connection=connection,
        mode=mode,
        columns=columns,
        partitions=partitions,
        buckets=buckets,
        start=start,
        stop=stop,
        include_metadata=include_metadata,
        lake=lake,
    )
    assert isinstance(node, FlussScan | FlussSnapshot)
    return FlussDataset(node)


class FlussDataset(pads.UnionDataset):  # type: ignore[misc]
    """A table as a ``pyarrow.dataset.Dataset``; :func:`dataset` makes it.

    ``to_table``, ``to_batches``, ``head``, ``take``, ``count_rows``, ``filter`` and ``scanner`` are
    those of Arrow's datasets, with their arguments. What would need files (``get_fragments``,
    ``join``, ``sort_by`` and others) raises :class:`FlussError`, which says what to do instead.

    It can be pickled; pickles carry no password.

    Examples
    --------
    >>> orders = fluss_df.arrow.dataset("orders")  # doctest: +SKIP
    >>> orders.to_table(columns=["amount"], filter=pc.field("region") == "EU")  # doctest: +SKIP
    """

    def __init__(self, node: Node, condition: pc.Expression | None = None) -> None:
        source = node.source
        # What Arrow's C++ reads past the methods below fails, and says why: there is no such file.
        where = f"/{source.table} is a table of Fluss, read by the scanner() of its dataset alone"
        kind = pads.IpcFileFormat()
        fragment = kind.make_fragment(where, pa.fs.LocalFileSystem())
        nowhere = pads.FileSystemDataset([fragment], source.schema, kind)
        super().__init__(source.schema, [nowhere])
        self._node = node
        self._condition = condition

    def __reduce__(self) -> tuple[Any, ...]:
        return FlussDataset, (self._node, self._condition)

    def __repr__(self) -> str:
        condition = "" if self._condition is None else f", filter={self._condition}"
        return f"FlussDataset({str(self._node.source.table)!r}{condition})"

    # ---- scans

    def scanner(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,
        batch_size: int = BATCH_ROWS,
        **options: Any,
    ) -> FlussScanner:
        """Return a scanner.

        Parameters
        ----------
        columns
            Names of columns, or expressions of them by the name of the result; all by default.
        filter
            A condition on columns.
        batch_size
            The most rows in a batch.
        **options
            Other arguments of Arrow's scanners, which are about files and threads: they have no
            effect.

        Raises
        ------
        FlussError
            For a column or an argument that is not there.
        """
        unknown = sorted(options.keys() - _OF_FILES)
        if unknown:
            raise FlussError(f"scanner() has no argument {unknown[0]!r}")
        return FlussScanner(self._node, columns, self._with_own(filter), batch_size)

    def to_reader(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,
        batch_size: int = BATCH_ROWS,
    ) -> pa.RecordBatchReader:
        """Return a reader of batches, in bounded memory; arguments as for :meth:`scanner`.

        The scan ends when the reader is read to its end, or when nobody has it any more.
        """
        return self.scanner(columns, filter, batch_size).to_reader()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.scanner().__arrow_c_stream__(requested_schema)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Return the number of rows; of a log without a filter, its offsets tell it."""
        if self._with_own(filter) is None:
            return count(with_known_schema(self._node.lazy(), self.schema.names))
        return self.scanner([], filter, **options).count_rows()

    def explain(self, columns: Columns = None, filter: pc.Expression | None = None) -> Explanation:
        """Return what a scan would read of Fluss now; see :func:`fluss_df.explain`."""
        return self.scanner(columns, filter).explain()

    # ---- what other datasets are made of

    def filter(self, expression: pc.Expression) -> FlussDataset:
        """Return the dataset of the rows for which a condition, too, is true."""
        return FlussDataset(self._node, self._with_own(expression))

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Raise: the types are those of the table."""
        self._refuse("replace_schema", "cast the result, as in to_table().cast(schema)")

    def get_fragments(self, filter: pc.Expression | None = None) -> NoReturn:
        """Raise: a table of Fluss is no files."""
        self._refuse("get_fragments", "read it as a whole with scanner()")

    def join(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise: a dataset is joined as a table, or by a query engine."""
        self._refuse("join", "join the table, as in to_table().join(...)")

    def join_asof(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise: a dataset is joined as a table, or by a query engine."""
        self._refuse("join_asof", "join the table, as in to_table().join_asof(...)")

    def sort_by(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise: a dataset is sorted as a table, or by a query engine."""
        self._refuse("sort_by", "sort the table, as in to_table().sort_by(...)")

    @property
    def children(self) -> NoReturn:
        """Raise: a table of Fluss is not made of datasets."""
        self._refuse("children", "read it as a whole with scanner()")

    def _refuse(self, what: str, instead: str) -> NoReturn:
        raise FlussError(f"{what} of the dataset of table {self._node.source.table}: {instead}")

    def _with_own(self, other: pc.Expression | None) -> pc.Expression | None:
        if self._condition is None or other is None:
            return self._condition if other is None else other
        return self._condition & other
