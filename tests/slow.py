"""The tests that ``make test`` leaves to ``make test-all``: few, and half of the time.

A few hundred tests take as long as all others together. Those that are repetitions stand here: of
each a shorter test of the same behaviour, or the same with another front end, another lake or the
embedded engine, runs in ``make test``. Before a change lands all run (``.ci/run``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

#: Patterns of the names of slow tests, by why they are left out.
SLOW: Final[Mapping[str, tuple[str, ...]]] = {
    "programs and servers are killed, again and again": (
        r"tests/faults/test_killed_servers",
        r"tests/spark/test_jvm_kills\.py",
        r"tests/spark/test_exactly_once\.py::test_killed_and_repeated",
        r"tests/cli/files/test_kills\.py",
        r"tests/lake/tiering/test_tiering_failures\.py",
        r"tests/lake/tiering/test_paimon_tiering\.py",
        r"tests/client/test_interrupts\.py::test_(a_storm|an_interrupted_poll)",
        r"tests/embedded/test_durability\.py::test_killed_engines",
        r"tests/cluster/test_(local_cluster|cluster_command)\.py::test_(sasl_users|what_a_program"
        r"|three_tablet|start_status)",
        r"tests/cluster/test_pytest_plugin\.py::test_(failures_show|tests_on_a_real)",
        r"tests/cluster/test_pytest_plugin\.py::test_without_java\w*\[workers",
        r"tests/lake/test_folder_lake(_faults)?\.py::test_(owners_that|an_owner_that)_\w*killed",
        r"tests/io/test_run_(tables|kills)\.py::.*killed_at_any_moment",
    ),
    "Flink tiers tables into a lake; those that we tier, and those of a folder, stay": (
        r"tests/lake/(test_paimon|test_added_columns|test_lake_partition_choice|test_lance)\.py",
        r"tests/lake/test_(union|random_unions)\.py::.*\[(paimon|iceberg)",
        r"tests/lake/test_lake_types\.py::.*\[(paimon|flink)",
        r"tests/cluster/test_lake_cluster\.py",
    ),
    "the same on Spark's other kind of session, or of a lake": (
        r"tests/spark/.*\[(\w+-)?connect\b",
        r"tests/spark/test_lake\.py::.*\[classic-(iceberg|paimon)",
        r"tests/spark/test_(expiry|random_queries|random_conditions|tiering)\.py",
    ),
    "the same on a real server, too": (
        r"tests/backend/test_(conditions|random_merges)\.py::test_(named|random|statements_change)"
        r".*\[cluster",
        r"tests/client/test_kv_scan\.py::test_random_scans",
        r"tests/embedded/test_random_tables_beside_a_cluster\.py",
        r"tests/flight/test_adbc\.py::test_queries_have.*\[cluster",
        r"tests/cli/files/test_fields\.py::test_rows_longer.*\[cluster",
    ),
    "damage at every place, large data, many peers": (
        r"tests/embedded/test_(damage|attacks)\.py",
        r"tests/embedded/test_old_values\.py::test_memory_of_a_delete",
        r"tests/embedded/test_hostile_archives\.py::test_mutated",
        r"tests/embedded/test_acl_matrix\.py::test_who_says_no_name",
        r"tests/embedded/test_open_files\.py::test_many_threads",
        r"tests/lake/test_random_folders\.py",
        r"tests/lake/test_random_types\.py",
        r"tests/lake/test_paimon_compaction\.py::test_a_model\[[2-5]",
        r"tests/lake/tiering/test_tiering_service\.py::test_many_rounds",
        r"tests/lake/test_check_lake\.py::test_a_catalog_that_is_lost.*\[False",
        r"tests/embedded/test_catalog_damage\.py::test_one_small_file.*\[(appended|cut|digit"
        r"|exchanged|replaced|zeroed)",
        r"tests/embedded/test_check\.py::test_memory",
        r"tests/arrow/test_memory\.py",
        r"tests/io/both/test_wide_tables\.py::test_a_wide_table_takes_linear_time",
        r"tests/lake/test_lake_backups\.py::test_backups_while",
        r"tests/io/test_memory\.py",
        r"tests/remote/test_remote_read\.py::test_ctrl_c_ends",
        r"tests/ui/test_guard\.py::test_a_few_hundred_attacks",
    ),
    "pages and notebooks with many programs": (
        r"tests/test_documentation\.py::.*\[command-line\.md\]",
        r"tests/test_documentation\.py::test_the_page_of_clusters",
        r"tests/test_notebooks\.py",
        r"tests/test_site\.py",
        r"tests/cli/test_init\.py::test_the_readme_runs",
        r"tests/ui/test_pages\.py::.*\[cluster",
    ),
    "what others test: Ibis's own tests, and those of the official client": (
        r"tests/backend/test_ibis_suite\.py",
        r"tests/aio/test_official_tests\.py",
    ),
}

_PATTERN: Final = re.compile("|".join(pattern for some in SLOW.values() for pattern in some))


def is_slow(nodeid: str) -> bool:
    """Return whether a test is left to ``make test-all``."""
    return _PATTERN.match(nodeid) is not None
