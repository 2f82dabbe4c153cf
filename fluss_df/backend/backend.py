"""The Ibis backend: connecting, and running expressions on Polars over Fluss scans."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import ParseResult

import ibis
import ibis.common.exceptions as com
import ibis.expr.operations as ops
import ibis.expr.types as ir
import polars as pl
import pyarrow as pa
from ibis.backends.polars.rewrites import rewrite_join
from ibis.expr.rewrites import lower_stringslice, replace_parameter
from ibis.formats.pyarrow import PyArrowData, PyArrowSchema

from fluss_df.backend.catalog.files import Files
from fluss_df.backend.catalog.leaves import bind_fluss_tables, bind_unbound_tables
from fluss_df.backend.compiler import arithmetic, relations, rules, subqueries, times, windows  # noqa: F401 - they add to the translation
from fluss_df.backend.results import counts_seconds, with_digits
from fluss_df.backend.sql.dialect import Fluss
from fluss_df.backend.sql.queries import SqlScope
from fluss_df.backend.streams.streaming import Streaming
from fluss_df.backend.translation import PolarsType, translate
from fluss_df.client.connection import FlussConnection, resolve_connection, unconnected
from fluss_df.errors import FlussError
from fluss_df.io.scans.flow import Flow
from fluss_df.io.scans.offsets import bucket_offsets
from fluss_df.lake.options import is_lake_table
from fluss_df.metadata import DEFAULT_DATABASE, VIEW_PROPERTY, TablePath, check_name
from fluss_df.polars_adapter.plans import sql_context
from fluss_df.polars_adapter.scans import polars_text
from fluss_df.record.change_tables import split_virtual
from fluss_df.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# public names that the parts of the backend use among themselves; not shown to users
_INTERNAL = frozenset(
    {
        "create_described_database",
        "create_described_table",
        "create_query_view",
        "creation_of",
        "find_view",
        "is_local",
        "path",
        "require_table",
        "reset",
        "run_parsed",
        "scan_table",
        "show",
        "table_info",
        "translated",
        "view",
        "written_info",
    }
)


class Backend(Streaming, Files):
    """Ibis over a Fluss cluster; ``ibis.fluss.connect(...)`` makes one that is connected.

    Expressions run on Polars, and read tables with :func:`fluss_df.scan_fluss`: only the columns,
    partitions, buckets and rows that a query needs are fetched. A query sees the rows that are
    there when it starts.

    Examples
    --------
    >>> con = ibis.fluss.connect("fluss://127.0.0.1:9123/shop")  # doctest: +SKIP
    >>> orders = con.table("orders")  # doctest: +SKIP
    >>> orders.filter(orders.dt == "2024-01-01").amount.sum().execute()  # doctest: +SKIP
    """

    name = "fluss"
    dialect = Fluss
    supports_temporary_tables = True

    def __dir__(self) -> list[str]:
        """Return the names for users: the parts of the backend call one another by others."""
        return sorted(set(super().__dir__()) - _INTERNAL)

    def do_connect(
        self, connection: object | None = None, /, *, database: str | None = None, **options: Any
    ) -> None:
        """Connect to a cluster.

        Parameters
        ----------
        connection
            ``"host:port[,host:port]"``, ``"fluss://[user:password@]host:port[/database]"``, a
            Config, a dict of its properties, or an open connection. By default that of
            :func:`fluss_df.set_default_connection`, else the environment's
            ``FLUSS_BOOTSTRAP_SERVERS``.
        database
            The current database; by default that of the URL, else ``fluss``.
        **options
            Further properties of the connection by name, with ``_`` for ``.`` and ``-``.

        Raises
        ------
        FlussError
            When the cluster cannot be reached, or there is no such option.
        """
        if options:
            connection = _with_options(connection, options)
        self._connection = resolve_connection(connection)
        chosen = database or self._connection.default_database or DEFAULT_DATABASE
        self._database = check_name(chosen, "database")
        self._tables.clear()
        self._unnamed, self._names = set(), weakref.WeakValueDictionary()
        self._queries = {}
        self._context = sql_context()

    def _from_url(self, url: ParseResult, **kwargs: Any) -> Backend:
        connected: Backend = self.connect(url._replace(query="").geturl(), **kwargs)
        return connected

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle holds: connections travel without their password."""
        return {
            "connection": self._connection,
            "database": self._database,
            "tables": dict(self._tables),
            "unnamed": set(self._unnamed),
            "queries": dict(self._queries),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Connect as the pickled backend was."""
        self.__init__()  # type: ignore[misc]
        self.do_connect(state["connection"], database=state["database"])
        self._tables.update(state["tables"])
        self._unnamed.update(state["unnamed"])
        self._queries.update(state["queries"])

    @property
    def connection(self) -> FlussConnection:
        """The connection to the cluster; it is shared, and stays open after ``disconnect``."""
        return self._connection

    @property
    def version(self) -> str:
        """The version of fluss_df."""
        return __version__

    def disconnect(self) -> None:
        """Forget views and temporary tables; connections are shared, and stay open."""
        self._tables.clear()
        self._unnamed.clear()
        self._names.clear()
        self._queries.clear()
        self._context = sql_context()

    @classmethod
    def has_operation(cls, operation: type[ops.Value], /) -> bool:
        """Whether an operation can be run."""
        if issubclass(operation, (ops.GeoSpatialUnOp, ops.GeoSpatialBinOp, ops.GeoUnaryUnion)):
            return False
        rule = translate.dispatch(operation)
        return rule is not translate.dispatch(ops.Node) and rule is not translate.dispatch(object)

    # ---- running expressions

    def compile(
        self,
        expr: ir.Expr,
        /,
        *,
        limit: int | str | None = None,
        params: Mapping[ir.Expr, Any] | None = None,
        running: bool = False,
        **_: Any,
    ) -> pl.LazyFrame:
        """Return an expression as a lazy frame over scans of Fluss, of ``limit`` rows at most.

        With ``running`` it is collected at once: small sides of joins are read for their keys.
        """
        self._run_pre_execute_hooks(expr)
        frame = self.translated(expr, SqlScope(self), params, running=running)
        if limit == "default":
            limit = ibis.options.sql.default_limit
        return frame if limit is None else frame.limit(int(limit))

    def translated(
        self,
        expr: ir.Expr,
        scope: SqlScope,
        params: Mapping[ir.Expr, Any] | None = None,
        *,
        running: bool = False,
    ) -> pl.LazyFrame:
        """Return an expression as a lazy frame; names it gives to tables stay in the scope."""
        values = {param.op(): value for param, value in (params or {}).items()}
        node = expr.as_table().op()
        try:
            node = node.replace(
                rewrite_join | replace_parameter | bind_unbound_tables | lower_stringslice,
                context={"params": values, "backend": self},
            )
        except (TypeError, ValueError) as error:
            if "join predicate" not in str(error):
                raise
            # Ibis's own message speaks of pandas
            raise com.UnsupportedOperationError(
                "a join of expressions is by equal columns: filter(...) its result by other"
                " conditions, or use con.sql, whose JOIN ... ON takes any"
            ) from error
        # a pass of its own, because rewriting joins compares the tables with those of their fields
        node = node.replace(bind_fluss_tables)
        frame: pl.LazyFrame = translate(node, ctx=scope, running=running)
        return frame

    def _to_dataframe(
        self,
        expr: ir.Expr,
        params: Mapping[ir.Expr, object] | None = None,
        limit: int | str | None = None,
        engine: Any = "cpu",
        **kwargs: Any,
    ) -> pl.DataFrame:
        counted = self._count_from_offsets(expr)
        if counted is not None:
            return counted.head(limit) if isinstance(limit, int) else counted
        with _naming_tables(expr):
            frame: pl.DataFrame = super()._to_dataframe(
                expr, params=params, limit=limit, engine=engine, running=True, **kwargs
            )
        return frame

    def _count_from_offsets(self, expr: ir.Expr) -> pl.DataFrame | None:
        """Answer the count of a whole log table without a row, or return None.

        This happens where a query runs, never where it is compiled: what is compiled may run later.
        """
        node = expr.as_table().op()
        if not isinstance(node, ops.Aggregate) or node.groups or not node.metrics:
            return None
        table = node.parent
        if not isinstance(table, ops.DatabaseTable) or table.namespace.database is None:
            return None
        for metric in node.metrics.values():
            if not isinstance(metric, ops.CountStar) or metric.where is not None:
                return None
        name, virtual = split_virtual(table.name)
        if virtual:
            return None
        path = TablePath(table.namespace.database, name)
        info = self._connection.get_table(path).get_table_info()
        if info.has_primary_key() or VIEW_PROPERTY in info.get_custom_properties():
            return None  # offsets of a changelog count changes, and those of a view nothing
        if is_lake_table(info):
            return None  # what expired of the log is in the lake
        rows = sum(last - first for first, last in bucket_offsets(self._connection, info).values())
        return pl.DataFrame(
            {name: [rows] for name in node.metrics}, schema=dict.fromkeys(node.metrics, pl.Int64)
        )

    def to_pyarrow_batches(
        self,
        expr: ir.Expr,
        /,
        *,
        params: Mapping[ir.Scalar, Any] | None = None,
        limit: int | str | None = None,
        chunk_size: int = 1_000_000,
        **kwargs: Any,
    ) -> pa.RecordBatchReader:
        """Run an expression as its batches are asked for, in bounded memory.

        Parameters
        ----------
        expr, params, limit
            As for ``execute``.
        chunk_size
            The most rows in a batch.

        Returns
        -------
        pyarrow.RecordBatchReader
            Nothing is fetched before its first batch is asked for.
        """
        table = expr.as_table()
        frame = self.compile(table, params=params, limit=limit, **kwargs)
        schema = table.schema()
        numbers = any(kind.is_decimal() or kind.is_nested() for kind in schema.types)
        if numbers or counts_seconds(table):
            found = frame.collect_schema().dtypes()
            schema = with_digits(table, dict(zip(schema, found, strict=True)))
        # Ibis takes some columns for NOT NULL that are not, as lag() is null in the first row
        columns = PyArrowSchema.from_ibis(schema)
        arrow_schema = pa.schema([column.with_nullable(True) for column in columns])

        def batches() -> Iterator[pa.RecordBatch]:
            with _naming_tables(expr):
                for part in Flow().batches(frame, chunk_size=chunk_size):
                    part.columns = list(schema)
                    rows = PyArrowData.convert_table(part.to_arrow(), schema).cast(arrow_schema)
                    yield from rows.to_batches(max_chunksize=chunk_size)

        return pa.RecordBatchReader.from_batches(arrow_schema, batches())

    def to_pandas_batches(
        self, expr: ir.Expr, /, *, chunk_size: int = 1_000_000, **kwargs: Any
    ) -> Iterator[Any]:
        """Run an expression as its batches are asked for, as ``to_pyarrow_batches`` does.

        Parameters
        ----------
        expr, chunk_size, **kwargs
            As for ``to_pyarrow_batches``.

        Returns
        -------
        Iterator
            What ``execute`` returns, of the rows of each batch.
        """
        batches = self.to_pyarrow_batches(expr, chunk_size=chunk_size, **kwargs)
        found = pl.DataFrame(batches.schema.empty_table()).schema
        schema = with_digits(expr, found)
        for batch in batches:
            yield expr.__pandas_result__(batch.to_pandas(), schema=schema)

    def execute(self, expr: ir.Expr, /, **kwargs: Any) -> Any:
        """Return what an expression is as pandas data; ``**kwargs`` as for Ibis's backends."""
        frame = self._to_dataframe(expr, **kwargs)
        schema = with_digits(expr, frame.schema)
        return expr.__pandas_result__(frame.to_pandas(), schema=schema)

    def to_polars(self, expr: ir.Expr, /, **kwargs: Any) -> Any:
        """Return what an expression is as Polars data; ``**kwargs`` as for Ibis's backends."""
        kwargs.setdefault("engine", "cpu")
        frame = self._to_dataframe(expr, **kwargs)
        kinds = with_digits(expr, frame.schema).items()
        # Ibis would cast times to nanoseconds, which hold no year before 1678
        # one by one: a name given to cast may be a pattern
        frame = pl.DataFrame(
            {name: frame[name].cast(PolarsType.from_ibis(kind)) for name, kind in kinds}
        )
        if isinstance(expr, ir.Table):
            return frame
        return frame.to_series() if isinstance(expr, ir.Column) else frame.item()

    def to_pyarrow(self, expr: ir.Expr, /, **kwargs: Any) -> pa.Table | pa.Array | pa.Scalar:
        """Return what an expression is as Arrow data; ``**kwargs`` as for Ibis's backends."""
        frame = self._to_dataframe(expr, **kwargs)
        schema = with_digits(expr, frame.schema)
        rows = PyArrowData.convert_table(frame.to_arrow(), schema)
        found: pa.Table | pa.Array | pa.Scalar = expr.__pyarrow_result__(rows, schema=schema)
        if not isinstance(found, pa.Table):
            return found
        # Ibis takes some columns for NOT NULL that are not, as lag() is null in the first row
        fields = [
            field.with_nullable(field.nullable or column.null_count > 0)
            for field, column in zip(found.schema, found.columns, strict=True)
        ]
        return pa.Table.from_arrays(found.columns, schema=pa.schema(fields, found.schema.metadata))

    def to_spark(
        self,
        expr: ir.Expr,
        /,
        spark: SparkSession | None = None,
        *,
        params: Mapping[ir.Scalar, Any] | None = None,
    ) -> DataFrame:
        """Run an expression on Spark: as a dataframe, whose scans get only what it needs.

        Parameters
        ----------
        expr
            An expression over tables of the cluster and memtables.
        spark
            The session, classic or of Spark Connect; the active one by default.
        params
            Values of its parameters.

        Raises
        ------
        FlussError
            For a view, a temporary table of this connection, or what Spark has no SQL for.
        """
        for table in expr.op().find(ops.DatabaseTable):
            name, virtual = split_virtual(table.name)
            if table.namespace.database is None or virtual:
                continue  # said below
            path = TablePath(table.namespace.database, name)
            if self.find_view(path) is not None:
                raise FlussError(
                    f"{path} is a view, which Spark cannot read: build the expression of its tables"
                )
        try:
            from pyspark.sql import SparkSession as Session
        except ImportError as error:
            raise ImportError(f"{error}: pip install 'fluss-df[spark]'") from error

        from fluss_df.spark.queries.expressions import expression_to_spark

        return expression_to_spark(expr, spark or Session.active(), self._connection, params)


@contextlib.contextmanager
def _naming_tables(expr: ir.Expr) -> Iterator[None]:
    """Have errors of Polars name the tables of a query."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        found = expr.op().find(ops.DatabaseTable)
        names = sorted({f"{t.namespace.database}.{t.name}" for t in found if t.namespace.database})
        if not names:
            raise
        text = f"{polars_text(error)}\n\nThe query reads {', '.join(names)}"
        raise type(error)(text) from error


def _with_options(connection: object, options: Mapping[str, Any]) -> FlussConnection:
    """Return a connection with further properties."""
    if connection is None or isinstance(connection, FlussConnection):
        raise FlussError(
            f"options {', '.join(options)} cannot be set on an open or default connection: give"
            " its address"
        )
    described = unconnected(connection)
    made = FlussConnection.create(described.config.copy(**options))
    made.default_database = described.default_database
    return made
