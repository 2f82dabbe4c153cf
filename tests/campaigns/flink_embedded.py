"""Flink SQL on the embedded engine and on a real cluster: definitions, writes, lookups, streams.

Flink 1.20 runs with Fluss's connector, from Maven Central. Both must answer the same.
"""

from __future__ import annotations

import re
from typing import Final

from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss
from tests.campaigns.flink_sql import sql

_VALUES: Final = (
    "(1, 'x', 1.5, TIMESTAMP '2024-01-01 00:00:00', ARRAY[1, 2], MAP['k', 1], ROW(1, 'y')),"
    " (2, CAST(NULL AS STRING), 2.25, TIMESTAMP '2024-01-02 00:00:00.123', ARRAY[3],"
    " MAP['k', 2], ROW(2, 'z'))"
)
STATEMENTS: Final = [
    "CREATE DATABASE f",
    "CREATE TABLE f.logged (a INT, b STRING, c DECIMAL(10, 2), d TIMESTAMP(3), e ARRAY<INT>,"
    " g MAP<STRING, INT>, h ROW<x INT, y STRING>) WITH ('bucket.num' = '2')",
    "CREATE TABLE f.keyed (id BIGINT, name STRING, v INT, PRIMARY KEY (id) NOT ENFORCED)"
    " WITH ('bucket.num' = '2')",
    "CREATE TABLE f.parted (id BIGINT, dt STRING, v INT, PRIMARY KEY (id, dt) NOT ENFORCED)"
    " PARTITIONED BY (dt) WITH ('bucket.num' = '2')",
    "CREATE TABLE f.summed (id BIGINT, s INT, PRIMARY KEY (id) NOT ENFORCED)"
    " WITH ('bucket.num' = '1', 'table.merge-engine' = 'aggregation', 'fields.s.agg' = 'sum')",
    "ALTER TABLE f.parted ADD PARTITION (dt = 'x')",
    "SHOW PARTITIONS f.parted",
    "SHOW TABLES IN f",
    "DESCRIBE f.logged",
    "SHOW CREATE TABLE f.keyed",
    f"INSERT INTO f.logged VALUES {_VALUES}",
    "INSERT INTO f.keyed VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)",
    "INSERT INTO f.keyed VALUES (2, 'bb', 22)",
    "INSERT INTO f.keyed (id, v) VALUES (3, 33), (4, 44)",
    "INSERT INTO f.parted VALUES (1, 'x', 1), (2, 'x', 2), (1, 'y', 3)",
    "INSERT INTO f.summed VALUES (1, 1), (1, 2), (2, 5)",
    "DELETE FROM f.keyed WHERE id = 1",
    "UPDATE f.keyed SET name = 'zz' WHERE id = 2",
    "SHOW PARTITIONS f.parted",
    "SELECT * FROM f.keyed WHERE id = 2",
    "SELECT * FROM f.keyed LIMIT 10",
    "SELECT * FROM f.logged LIMIT 10",
    "SELECT * FROM f.summed LIMIT 10",
    "SELECT COUNT(*) FROM f.keyed",
    "SELECT COUNT(*) FROM f.logged",
    "SELECT * FROM f.parted WHERE id = 1 AND dt = 'x'",
    "STREAM SELECT * FROM f.logged",
    "STREAM SELECT a, b FROM f.logged /*+ OPTIONS('scan.startup.mode' = 'earliest') */ WHERE a > 1",
    "STREAM SELECT * FROM f.keyed",
    "STREAM SELECT * FROM f.parted WHERE dt = 'y'",
    "STREAM SELECT id, name, v, _change_type, _log_offset FROM f.`keyed$changelog`",
    "STREAM SELECT o.a, p.name FROM (SELECT a, PROCTIME() AS now FROM f.logged) o"
    " JOIN f.keyed FOR SYSTEM_TIME AS OF o.now AS p ON o.a = p.id",
    "ALTER TABLE f.logged SET ('my.own' = '1')",
    "ALTER TABLE f.logged SET ('table.log.format' = 'INDEXED')",
    "ALTER TABLE f.logged ADD (z INT)",
    "ALTER TABLE f.logged DROP z",
    "DESCRIBE f.logged",
    "STREAM SELECT * FROM f.logged",
    "ALTER TABLE f.parted DROP PARTITION (dt = 'x')",
    "SELECT * FROM f.missing LIMIT 1",
    "DROP TABLE f.logged",
    "DROP DATABASE f RESTRICT",
    "DROP DATABASE f CASCADE",
    "SHOW DATABASES",
]


def plain(answer: list[str] | str) -> list[str] | str:
    """An answer without the address of its server."""
    if isinstance(answer, str):
        return re.sub(r"(java|org)[\w.]*Exception: ", "", answer)
    return [re.sub(r"127\.0\.0\.1:\d+", "", row) for row in answer]


def main() -> None:
    """Ask both, and compare."""
    with LocalCluster() as cluster:
        real = sql(cluster.bootstrap_servers, STATEMENTS)
    with EmbeddedFluss(port=0) as engine:
        assert engine.address is not None
        ours = sql(engine.address, STATEMENTS)
    differ = 0
    for number, statement in enumerate(STATEMENTS):
        expected, found = plain(real[number]), plain(ours[number])
        same = expected == found
        differ += not same
        print("equal" if same else "DIFFERS", statement)
        if isinstance(expected, str) or not same:
            print(f"   real: {expected}\n   ours: {found}")
    print(f"{len(STATEMENTS) - differ} of {len(STATEMENTS)} statements of Flink are equal")
    assert not differ


if __name__ == "__main__":
    main()
