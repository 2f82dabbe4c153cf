"""Forgets queries that have ended: drops what the ledger of exactly-once writes keeps of them."""

from __future__ import annotations

from collections.abc import Iterable

from fluss_df.client.connection import FlussConnection, resolve_connection
from fluss_df.errors import FlussError
from fluss_df.spark.write.ledger import Ledger


def forget_queries(
    queries: str | Iterable[str],
    *,
    connection: str | FlussConnection | None = None,
    ledger_database: str = "fluss_df_ledger",
) -> list[str]:
    """Drop what the ledger of exactly-once writes keeps of queries that will not run again.

    A query leaves up to four partitions in the ledger's two tables, of which a cluster allows a
    table so many (``max.partition.num``, 1000 by default): then all exactly-once writes are
    refused.

    Nothing of a query that is to go on may be forgotten: its next batch is refused, as one of a
    ledger that is gone.

    Parameters
    ----------
    queries
        Ids of queries of Spark: ``query.id``, also in the file ``metadata`` of a checkpoint.
    connection
        The cluster; the environment's by default.
    ledger_database
        As the option ``ledger.database`` of the writes.

    Returns
    -------
    list of str
        Those of the ids that the ledger had something of.

    Raises
    ------
    FlussError
        For a cluster without this ledger, and for an id that is empty.

    Examples
    --------
    >>> from fluss_df.spark import forget_queries
    >>> ended = "5f0ac1de-8bfc-4f9c-9d5e-2f6d4f3f6a10"
    >>> forget_queries(ended, connection="127.0.0.1:9123")  # doctest: +SKIP
    ['5f0ac1de-8bfc-4f9c-9d5e-2f6d4f3f6a10']
    """
    wanted = list(dict.fromkeys([queries] if isinstance(queries, str) else queries))
    for query in wanted:
        if not isinstance(query, str) or not query:
            raise FlussError(
                f"forget_queries: {query!r} is no id of a query; Spark says it as query.id, and in"
                " the file 'metadata' of the query's checkpoint"
            )
    forgotten = Ledger(resolve_connection(connection), ledger_database, "").forget(
        lambda name: name in wanted
    )
    return [query for query in wanted if query in forgotten]
