# Everything a contributor runs; each target works in a clean clone without an earlier step.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PROTO_DIRS := fluss_df/protocol fluss_df/flight
PYTEST_ARGS ?=
# workers of the tests: each waits for servers about half of its time
WORKERS ?= 4
PIPELINE_ARGS ?=
IBIS_ARGS ?=
MUTATION_ARGS ?=
COVERAGE_ARGS ?=
EXTRAS ?=
MATRIX_ARGS ?=

# pip 23 reads the first for build environments too, newer releases the second.
PIP_ENV := PIP_CONSTRAINT="$(CURDIR)/constraints.txt" PIP_BUILD_CONSTRAINT="$(CURDIR)/constraints.txt" \
	PIP_DISABLE_PIP_VERSION_CHECK=1

# fluss_df is imported by hundreds of processes here, Spark's workers among them: compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv demo pipeline test test-all quick coverage mutation matrix test-ui test-ibis extras campaigns bench site api lint proto proto-check clean

help:
	@echo "make venv         create $(VENV) with everything pinned in constraints.txt"
	@echo "make demo         a tour of fluss_df in the terminal"
	@echo "make pipeline     flights through Fluss and Spark, held against Polars (Java 17+; PIPELINE_ARGS)"
	@echo "make test         the tests, but for the slow ones; those on a real Fluss server need Java 11+, and Maven once"
	@echo "make test-all     every test, by WORKERS=4 side by side, as CI runs them (much longer)"
	@echo "make quick        the tests of a minute, without Java: records, protocol, pushdown, writers, the house"
	@echo "make matrix       each Python of this machine, with the oldest and the newest dependencies (MATRIX_ARGS)"
	@echo "make test-ui      tests of the console, those in a real browser too; needs Chromium"
	@echo "make coverage     which lines and branches tests of records, protocol, pushdown and engine reach (no Java)"
	@echo "make mutation     changes records and pushdown one thing at a time: what no test notices (MUTATION_ARGS)"
	@echo "make test-ibis    Ibis's own backend tests on Polars, on Fluss embedded, and on a real server"
	@echo "make extras       each extra installed by itself in a clean environment, and tried (minutes)"
	@echo "make bench        the benchmarks"
	@echo "make campaigns    long trials: servers killed under load, hostile bytes, scans beside writers (an hour)"
	@echo "make site         the documentation site into build/site, without a network; a warning is an error"
	@echo "make api          docs/public_api.txt, the list of public names"
	@echo "make lint         ruff, mypy --strict, spelling, the order of imports, generated code up to date"
	@echo "make dist-check   builds wheel and source archive, and tries both in clean environments"
	@echo "make release      the same for VERSION=x.y.z, with changelog, version and a local tag"
	@echo "make proto        generate the protobuf code again"
	@echo "make clean        remove $(VENV), caches and build output"

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null 2>&1 || { \
	    echo "error: $(PYTHON) not found; install Python 3.11 or newer, or run: make venv PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: fluss-df needs Python 3.11 or newer, this is $$("$(PYTHON)" --version 2>&1); run: make venv PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "error: $(PYTHON) has no venv module; install it (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@test -x "$(BIN)/python" || { echo "creating $(VENV)"; "$(PYTHON)" -m venv "$(VENV)"; }
	@echo "installing fluss-df and the development tools into $(VENV) (a minute or two)"
	@$(PIP_ENV) "$(BIN)/python" -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch "$@"

demo: $(STAMP)
	@"$(BIN)/fluss-df" demo

pipeline: $(STAMP)
	@"$(BIN)/python" -m examples.flights_pipeline $(PIPELINE_ARGS)

# all but the slow ones (tests/slow.py), which TESTS=all and PYTEST_ARGS=tests/... have, too
FAST = $(if $(filter all,$(TESTS)),,$(if $(findstring tests/,$(PYTEST_ARGS)),,-m "not slow"))

test: $(STAMP)
	@"$(BIN)/python" -m pytest -n $(WORKERS) $(FAST) $(PYTEST_ARGS)

test-all:
	@$(MAKE) --no-print-directory test TESTS=all

# for the inner loop: what needs no server of another process, no notebook and no built site
QUICK := tests/record tests/protocol tests/pushdown tests/client/send tests/client/write \
	tests/client/runtime tests/client/transport tests/client/fetch tests/embedded/test_group_commit.py \
	tests/lake/test_frames.py \
	$(filter-out %_documentation.py %_notebooks.py %_site.py,$(wildcard tests/test_*.py))

quick: $(STAMP)
	@"$(BIN)/python" -m pytest -q -n 2 -m "not real_cluster" $(QUICK) $(PYTEST_ARGS)

# each supported Python that is on this machine, with the oldest and the newest dependencies
matrix: $(STAMP)
	@"$(BIN)/python" -m tests.matrix $(MATRIX_ARGS)

# the console in a real browser: needs Chromium (Debian: apt-get install chromium)
test-ui: $(STAMP)
	@"$(BIN)/python" -m pytest $(PYTEST_ARGS) tests/ui tests/ui/browser_tests.py

# what the tests of some rooms reach, room by room; fails where that is less than it should be
coverage: $(STAMP)
	@"$(BIN)/python" -m tests.coverage_by_room --workers $(WORKERS) $(COVERAGE_ARGS) -- $(PYTEST_ARGS)

# half an hour: what no test notices
mutation: $(STAMP)
	@"$(BIN)/python" -m tests.campaigns.mutation $(MUTATION_ARGS)

# needs FLUSS_IBIS_TESTING_DATA, a folder of https://github.com/ibis-project/testing-data
test-ibis: $(STAMP)
	@"$(BIN)/python" -m tests.backend.ibis_suite $(IBIS_ARGS)

# each extra by itself in a clean environment; EXTRAS names some
extras: $(STAMP)
	@"$(BIN)/python" -m tests.extras $(EXTRAS)

# long trials: servers killed under load, processes that exit without close(), Ctrl-C at any moment,
# mutated responses, scans beside a writer
campaigns: $(STAMP)
	@"$(BIN)/python" -m tests.campaigns.failover
	@"$(BIN)/python" -m tests.campaigns.exits
	@"$(BIN)/python" -m tests.campaigns.interrupts
	@"$(BIN)/python" -m tests.campaigns.follow_memory
	@"$(BIN)/python" -m tests.campaigns.hostile
	@"$(BIN)/python" -m tests.campaigns.flight_stream
	@"$(BIN)/python" -m tests.campaigns.kv_scan
	@"$(BIN)/python" -m tests.campaigns.console_attacks
	@"$(BIN)/python" -m tests.campaigns.console_live
	@"$(BIN)/python" -m tests.campaigns.console_pages
	@"$(BIN)/python" -m tests.campaigns.embedded_kill
	@"$(BIN)/python" -m tests.campaigns.embedded_power
	@"$(BIN)/python" -m tests.campaigns.embedded_fuzz
	@"$(BIN)/python" -m tests.campaigns.ddl_beside
	@"$(BIN)/python" -m tests.campaigns.embedded_damage
	@"$(BIN)/python" -m tests.campaigns.scan_fuzz
	@"$(BIN)/python" -m tests.campaigns.sql_fuzz
	@"$(BIN)/python" -m tests.campaigns.ibis_fuzz
	@"$(BIN)/python" -m tests.campaigns.files_fuzz
	@"$(BIN)/python" -m tests.campaigns.spark_fuzz
	@"$(BIN)/python" -m tests.campaigns.spark_conditions
	@"$(BIN)/python" -m tests.campaigns.spark_writes
	@"$(BIN)/python" -m tests.campaigns.spark_streams
	@"$(BIN)/python" -m tests.campaigns.embedded_large
	@"$(BIN)/python" -m tests.campaigns.embedded_owners
	@"$(BIN)/python" -m tests.campaigns.embedded_attacks
	@"$(BIN)/python" -m tests.campaigns.statements_killed
	@"$(BIN)/python" -m tests.campaigns.statements_killed --engine cluster
	@FLUSS_TEST_SPARK_FULL=1 "$(BIN)/python" -m pytest -o timeout=1200 tests/spark
	@FLUSS_TEST_SPARK_FULL=1 FLUSS_TEST_SPARK=connect "$(BIN)/python" -m pytest -o timeout=1200 tests/spark
	@"$(BIN)/python" -m tests.campaigns.spark_pipeline
	@"$(BIN)/python" -m tests.campaigns.spark_pipeline --remote "local[2]"
	@"$(BIN)/python" -m tests.campaigns.spark_standalone
	@FLUSS_TEST_EVERY=1 "$(BIN)/python" -m pytest -o timeout=1200 tests/embedded/test_catalog_damage.py
	@FLUSS_TEST_CASES=100 "$(BIN)/python" -m pytest -o timeout=1200 tests/embedded/test_machine.py -k embedded
	@FLUSS_TEST_SIZES=1 "$(BIN)/python" -m pytest -o timeout=1200 tests/client/test_batch_rows.py -k cluster
	@FLUSS_TEST_CASES=5000 "$(BIN)/python" -m pytest -o timeout=7200 tests/io/test_equality_of_tables.py
	@FLUSS_TEST_SQL_CASES=2000 "$(BIN)/python" -m pytest -o timeout=14400 tests/spark/test_random_queries.py
	@FLUSS_TEST_SQL_CASES=200 "$(BIN)/python" -m pytest -o timeout=7200 tests/spark/test_random_conditions.py
	@FLUSS_TEST_CASES=2000 "$(BIN)/python" -m pytest -o timeout=7200 tests/backend/test_conditions.py
	@FLUSS_TEST_CASES=500 "$(BIN)/python" -m pytest -o timeout=7200 tests/backend/test_random_merges.py
	@FLUSS_TEST_KILLS=100 "$(BIN)/python" -m pytest -o timeout=1200 tests/io/test_run.py tests/io/test_run_tables.py tests/io/test_run_kills.py -k killed
	@FLUSS_TEST_KILLS=20 "$(BIN)/python" -m pytest -o timeout=1200 tests/cli/files -k killed
	@FLUSS_TIERING_KILLS=100 FLUSS_TIERING_HAND_OVERS=20 "$(BIN)/python" -m pytest -o timeout=7200 tests/lake/tiering/test_tiering_failures.py -k "killed or hand_overs"
	@FLUSS_TEST_KILLS=100 "$(BIN)/python" -m pytest -o timeout=1200 tests/lake/test_paimon_compaction.py -k kill
	@"$(BIN)/python" -m tests.campaigns.lake_reads
	@"$(BIN)/python" -m tests.campaigns.java_client --programs 100
	@"$(BIN)/python" -m tests.campaigns.java_client --programs 50 --client 1.0.0
	@"$(BIN)/python" -m tests.campaigns.flink_embedded
	@"$(BIN)/python" -m tests.campaigns.flink_folder_lake
	@"$(BIN)/python" -m tests.campaigns.flink_sql
	@"$(BIN)/python" -m tests.campaigns.flink_sql --lake paimon
	@"$(BIN)/python" -m tests.campaigns.flink_sql --lake paimon --merged
	@"$(BIN)/python" -m tests.campaigns.paimon_tiering

bench: $(STAMP)
	@"$(BIN)/python" -m benchmarks

# the variable silences a notice of the theme about its successor
site: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 "$(BIN)/mkdocs" build --quiet
	@echo "the site is in build/site; open build/site/index.html, or, with search:"
	@echo "  $(BIN)/python -m http.server --directory build/site --bind 127.0.0.1"

api: $(STAMP)
	@"$(BIN)/python" -m tests.public_api

lint: $(STAMP) proto-check
	@"$(BIN)/ruff" check .
	@"$(BIN)/ruff" format --check .
	@"$(BIN)/mypy" fluss_df tests benchmarks examples docs
	@"$(BIN)/codespell"
	@"$(BIN)/lint-imports" --no-cache

# Generated code runs with the protobuf that made it and newer ones: so it is made with the oldest
# that pyproject.toml allows (6.31, which is what this release of the tool brings), in a place of
# its own.
PROTO_TOOL := grpcio-tools==1.76.0
PROTO_VENV := $(VENV)/proto
PROTOC := "$(CURDIR)/$(PROTO_VENV)/bin/python" -m grpc_tools.protoc

$(PROTO_VENV)/.installed: $(STAMP) Makefile
	@"$(PYTHON)" -m venv "$(PROTO_VENV)"
	@PIP_DISABLE_PIP_VERSION_CHECK=1 "$(PROTO_VENV)/bin/python" -m pip install --quiet "$(PROTO_TOOL)" setuptools
	@touch "$@"

proto: $(PROTO_VENV)/.installed
	@for dir in $(PROTO_DIRS); do \
	    (cd "$$dir" && $(PROTOC) -I. --python_out=. --pyi_out=. *.proto) || exit 1; \
	done

proto-check: $(PROTO_VENV)/.installed
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && for dir in $(PROTO_DIRS); do \
	    rm -f "$$out"/*; \
	    (cd "$$dir" && $(PROTOC) -I. --python_out="$$out" --pyi_out="$$out" *.proto) || exit 1; \
	    for new in "$$out"/*; do \
	        cmp -s "$$new" "$$dir/$$(basename "$$new")" || { \
	            echo "error: $$dir/$$(basename "$$new") is not what its .proto gives; run: make proto" >&2; exit 1; }; \
	    done; \
	done

clean:
	@rm -rf "$(VENV)" flights_pipeline_data build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis benchmarks/results
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- releases: what they need is not part of a contributor's environment

RELEASE_TOOLS := build==1.6.1 twine==7.0.0 cyclonedx-bom==7.5.0 pip-licenses==5.5.5
RELEASE_VENV := $(VENV)/release

.PHONY: dist-check release

$(RELEASE_VENV)/.installed: $(STAMP) Makefile
	@"$(PYTHON)" -m venv "$(RELEASE_VENV)"
	@PIP_DISABLE_PIP_VERSION_CHECK=1 "$(RELEASE_VENV)/bin/python" -m pip install --quiet $(RELEASE_TOOLS)
	@touch "$@"

dist-check: $(RELEASE_VENV)/.installed
	@"$(BIN)/python" -m tests.release --tools "$(CURDIR)/$(RELEASE_VENV)/bin/python"

release: $(RELEASE_VENV)/.installed
	@test -n "$(VERSION)" || { echo "error: name the version: make release VERSION=1.2.3" >&2; exit 1; }
	@"$(BIN)/python" -m tests.release --tools "$(CURDIR)/$(RELEASE_VENV)/bin/python" --version "$(VERSION)"
