"""The tests that ``make test`` leaves to ``make test-all``: few, and half of the time.

A few hundred tests take as long as all others together. Those that are repetitions stand here: of
each a shorter test of the same behaviour, or the same with another front end, another lake or the
embedded engine, runs in ``make test``. Of tests with many like cases that take long it runs every
fifth case. Before a change lands all run (``.ci/run``).
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
        r"tests/io/test_run\.py::test_killed_at_any_moment",
        r"tests/lake/test_folder_lake_faults\.py::test_a_(catalog_that_stays_locked|process_that"
        r"|table_that_is_made_again)",
        r"tests/lake/test_moved_folders\.py::test_(a_damaged_table_stays|a_move_that_is_killed)",
        r"tests/lake/test_paimon_compaction\.py::test_a_kill_at",
        r"tests/lake/test_paimon_commits\.py::test_(a_disk|of_two)",
        r"tests/ui/test_statements\.py::test_processes_end_with",
        r"tests/cluster/test_local_cluster\.py::test_the_coordinator_comes",
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
        r"tests/spark/test_edges\.py::test_a_day_that_the_julian",
        r"tests/spark/test_batch_read\.py::test_rows_equal_those_of_polars",
        r"tests/spark/test_streaming_read\.py::test_a_stream_goes_on",
        r"tests/spark/test_created_again\.py::test_on_spark",
        r"tests/spark/test_states\.py::test_on_spark",
        r"tests/spark/test_added_columns\.py::test_on_spark\[classic-(at-least|exactly)-once\]",
    ),
    "the same on a real server, too": (
        r"tests/backend/test_(conditions|random_merges)\.py::test_(named|random|statements_change)"
        r".*\[cluster",
        r"tests/client/test_kv_scan\.py::test_random_scans",
        r"tests/embedded/test_random_tables_beside_a_cluster\.py",
        r"tests/flight/test_adbc\.py::test_queries_have.*\[cluster",
        r"tests/cli/files/test_fields\.py::test_rows_longer.*\[cluster",
    ),
    "random queries, rows and damage, of which the cases by hand stay": (
        r"tests/backend/test_random_merges\.py",
        r"tests/backend/test_conditions\.py::test_(named|random)",
        r"tests/io/test_equality(_of_tables)?\.py::test_a_query_answers",
        r"tests/pushdown/test_from_polars\.py::test_a_predicate_means",
        r"tests/record/test_properties\.py::test_looser",
        r"tests/record/test_row_codecs\.py::test_mutated",
        r"tests/flight/test_adbc\.py::test_queries_have",
    ),
    "damage at every place, large data, many peers": (
        r"tests/record/test_taking\.py::test_strings_of_more",
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
        r"tests/embedded/test_(power|machine)\.py",
        r"tests/embedded/test_folders\.py::test_every_damaged_byte",
        r"tests/embedded/test_catalog_damage\.py::test_one_small_file",
        r"tests/embedded/test_hostile_peers\.py::test_without_descriptors",
        r"tests/embedded/test_hostile_archives\.py::test_a_bomb",
        r"tests/embedded/test_memory_limits\.py::test_answers_of_many",
        r"tests/embedded/test_serving\.py::test_passwords_of_serve",
        r"tests/embedded/test_access\.py::test_no_more_rights",
        r"tests/embedded/test_cluster_requests_beside_a_cluster\.py::test_settings_are_changed_by_two",
        r"tests/io/both/test_many_buckets\.py::test_(counting|a_scan_asks|more_buckets)",
        r"tests/io/test_processes\.py::test_a_(streaming_query_keeps|program_may_end_before)",
        r"tests/client/test_batch_rows\.py::test_a_server_that_refuses",
        r"tests/client/test_admin_of_servers\.py::test_snapshots_and",
        r"tests/client/test_kv_scan\.py::test_(snapshots_are_read|a_snapshot_stays)",
        r"tests/cli/files/test_fields\.py::test_rows_longer",
        r"tests/cli/test_first_steps\.py::test_a_password_from_a_script",
        r"tests/cli/test_tables\.py::test_ctrl_c_ends_a_tail",
        r"tests/lake/test_folder_lake_faults\.py::test_every_front_end",
        r"tests/lake/test_moved_folders\.py::test_(a_copy_and|snapshots_of)",
        r"tests/lake/test_paimon_compaction\.py::test_a_model",
        r"tests/lake/test_expired_logs\.py::test_segments_that_expired",
        r"tests/lake/test_lake_types\.py::test_every_type",
        r"tests/lake/test_union\.py::test_a_catalog_that_cannot",
        r"tests/lake/test_frames\.py::test_no_file_with",
        r"tests/lake/tiering/test_upkeep\.py::test_queries_go_on",
        r"tests/remote/test_s3\.py::test_all_ways",
        r"tests/remote/test_local_tiering\.py::test_retention",
        r"tests/ui/test_statements\.py::test_it_(ends_by_its_memory|is_cancelled)",
        r"tests/ui/test_pages\.py::test_(live_rows|sql_has_rows)",
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

#: Tests of many cases that take long together: every fifth case that is not slow anyway is not.
SAMPLED: Final = (
    r"tests/arrow/test_datasets\.py::test_duckdb_gets",
    r"tests/backend/test_expression_forms\.py::test_an_expression_is",
    r"tests/backend/test_(precisions|key_lookups|tpch|windows)\.py",
    r"tests/backend/test_query_run\.py::test_only_what",
    r"tests/backend/test_sql_errors\.py::test_a_merge",
    r"tests/backend/test_sql_forms\.py::test_a_(function|query)",
    r"tests/cli/files/test_(types|wrong_files)\.py",
    r"tests/client/test_assigners\.py::test_hash",
    r"tests/client/test_batch_rows\.py::test_new",
    r"tests/client/test_(created_again|every_request|kv_engines|server_filter)\.py",
    r"tests/client/test_lifecycle\.py::test_(interrupt|exit|multiprocessing)",
    r"tests/client/test_partitions\.py::test_key_types",
    r"tests/embedded/known_files/test_unreadable_files\.py",
    r"tests/embedded/test_(acl_matrix|changes_beside_a_cluster|check|damaged_rows)\.py",
    r"tests/embedded/test_(folds|hostile_batches|key_requests_beside_a_cluster|turns)\.py",
    r"tests/embedded/test_many_producers\.py::test_one_damaged",
    r"tests/faults/test_(cases|connections)\.py",
    r"tests/flight/test_adbc\.py::test_a_value",
    r"tests/io/both/test_(changes|lookup_join|scan|whole_or_nothing)\.py",
    r"tests/io/run_states/",
    r"tests/io/test_(follow_interrupts|per_batch|run_tables|tpch)\.py",
    r"tests/io/test_processes\.py::test_a_program_may_end_right",
    r"tests/lake/test_check_lake\.py::test_(a_catalog|each_file)",
    r"tests/lake/test_folder_lake_faults\.py::test_(a_full|columns)",
    r"tests/lake/test_lake_(backups|values)\.py",
    r"tests/lake/test_moved_folders\.py::test_a_moved",
    r"tests/lake/tiering/test_tiering_service\.py::test_rounds",
    r"tests/record/test_hostile_kv\.py::test_mutations",
    r"tests/spark/test_(batch_write|created_again|lake|mistakes|queries|sql_text|states)\.py",
    r"tests/test_documentation\.py::test_(pages|each_block|examples)",
    r"tests/test_(hooks|programs)\.py",
    r"tests/ui/test_pages\.py::test_a_form",
)
# no multiple of the number of engines, so that cases of each are among them
ONE_OF: Final = 5

_PATTERN: Final = re.compile("|".join(pattern for some in SLOW.values() for pattern in some))
_SAMPLED: Final = re.compile("|".join(SAMPLED))


def is_slow(nodeid: str) -> bool:
    """Return whether a test is left to ``make test-all``, whichever of its cases it is."""
    return _PATTERN.match(nodeid) is not None


def is_left_out(nodeid: str, case: int) -> bool:
    """Return whether a test is slow because other cases of its function stand for it.

    Parameters
    ----------
    nodeid
        As pytest names it.
    case
        Which of the cases that are not slow it is, from 0.
    """
    return bool(case % ONE_OF) and _SAMPLED.match(nodeid) is not None
