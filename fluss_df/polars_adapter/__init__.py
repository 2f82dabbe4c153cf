"""The adapter to Polars: what is private or unstable there is touched in this room alone.

``scans`` makes nodes and sources of a plan, ``expressions`` reads conditions, ``plans`` reads and
copies whole queries, ``lake_files`` scans the Parquet files of a lake table. A new release of
Polars is met here; ``tests/io/test_polars_behaviour.py`` and ``tests/pushdown/test_from_polars.py``
name what is relied on, and ``tests/test_polars_adapter.py`` keeps other rooms out.
"""
