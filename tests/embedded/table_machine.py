"""Tables against a model, through the client: one machine for every kind of server."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import fluss_df as fluss

KEYS = st.integers(0, 12)
NUMBERS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
TEXTS = st.one_of(st.none(), st.text(max_size=12))
_MOST_COLUMNS = 5


class TableMachine(RuleBasedStateMachine):
    """A log table and a primary-key table; the model is a list and a dict.

    A subclass says where the server is, and how it is restarted.
    """

    can_restart: ClassVar[bool] = False

    def connect(self) -> fluss.FlussConnection:
        """Return a connection to the server."""
        raise NotImplementedError

    def restart_server(self) -> None:
        """Restart the server."""
        raise NotImplementedError

    @initialize(buckets=st.integers(1, 2), compression=st.sampled_from(["NONE", "ZSTD"]))
    def create(self, buckets: int, compression: str) -> None:
        self.connection = self.connect()
        self.database = f"machine_{uuid.uuid4().hex[:12]}"
        admin = self.connection.get_admin()
        admin.create_database(self.database)
        schema = pa.schema([("id", pa.int32()), ("a", pa.int64()), ("b", pa.string())])
        properties = {"table.log.arrow.compression.type": compression}
        self.log_path = fluss.TablePath(self.database, "log")
        self.rows_path = fluss.TablePath(self.database, "rows")
        admin.create_table(
            self.log_path,
            fluss.TableDescriptor(fluss.Schema(schema), bucket_count=1, properties=properties),
        )
        admin.create_table(
            self.rows_path,
            fluss.TableDescriptor(
                fluss.Schema(schema, ["id"]), bucket_count=buckets, properties=properties
            ),
        )
        self.columns = ["id", "a", "b"]
        self.appended: list[dict[str, Any]] = []
        self.rows: dict[int, dict[str, Any]] = {}

    def row(self, key: int, number: int | None, text: str | None) -> dict[str, Any]:
        values = {"id": key, "a": number, "b": text}
        return {name: values.get(name, number) for name in self.columns}

    def table(self, path: fluss.TablePath) -> fluss.FlussTable:
        return self.connection.get_table(path)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=6), number=NUMBERS, text=TEXTS)
    def append(self, keys: list[int], number: int | None, text: str | None) -> None:
        rows = [self.row(key, number, text) for key in keys]
        with self.table(self.log_path).new_append().create_writer() as writer:
            for row in rows:
                writer.append(row)
        self.appended += rows

    @rule(keys=st.lists(KEYS, min_size=1, max_size=8), number=NUMBERS, text=TEXTS)
    def upsert(self, keys: list[int], number: int | None, text: str | None) -> None:
        with self.table(self.rows_path).new_upsert().create_writer() as writer:
            for i, key in enumerate(keys):
                row = self.row(key, number, None if text is None else f"{text}{i}")
                writer.upsert(row)
                self.rows[key] = row

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4))
    def delete(self, keys: list[int]) -> None:
        with self.table(self.rows_path).new_upsert().create_writer() as writer:
            for key in keys:
                writer.delete([key])
                self.rows.pop(key, None)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=5), text=TEXTS, remove=st.booleans())
    def update_in_part(self, keys: list[int], text: str | None, remove: bool) -> None:
        builder = self.table(self.rows_path).new_upsert().partial_update_by_name(["id", "b"])
        with builder.create_writer() as writer:
            for key in keys:
                if remove:
                    writer.delete([key])
                    if key in self.rows:
                        row = self.rows[key] = {**self.rows[key], "b": None}
                        if all(row[name] is None for name in self.columns if name != "id"):
                            del self.rows[key]
                else:
                    writer.upsert({"id": key, "b": text})
                    empty = dict.fromkeys(self.columns)
                    old = self.rows.get(key, empty)
                    self.rows[key] = {**old, "id": key, "b": text}

    @precondition(lambda self: len(self.columns) < _MOST_COLUMNS)
    @rule()
    def add_a_column(self) -> None:
        name = f"c{len(self.columns)}"
        added = pa.schema([(name, pa.int64())])
        for path in (self.log_path, self.rows_path):
            self.connection.get_admin().alter_table(path, add_columns=added)
        self.columns.append(name)
        for row in (*self.appended, *self.rows.values()):
            row[name] = None

    @precondition(lambda self: self.can_restart)
    @rule()
    def restart(self) -> None:
        self.connection.close()
        self.restart_server()
        self.connection = self.connect()

    @rule()
    def scan_the_log(self) -> None:
        scanner = self.table(self.log_path).new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, 0)
        assert scanner.to_arrow().to_pylist() == self.appended

    @rule()
    def scan_the_rows(self) -> None:
        found = self.table(self.rows_path).new_scan().create_snapshot_scanner().to_arrow()
        assert sorted(found.to_pylist(), key=lambda row: row["id"]) == sorted(
            self.rows.values(), key=lambda row: row["id"]
        )

    @rule(keys=st.lists(KEYS, min_size=1, max_size=5, unique=True))
    def look_up(self, keys: list[int]) -> None:
        lookuper = self.table(self.rows_path).new_lookup().create_lookuper()
        for key in keys:
            found = lookuper.lookup({"id": key})
            assert (found and dict(found)) == self.rows.get(key)

    @rule()
    def fold_the_changelog(self) -> None:
        table = self.table(self.rows_path)
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(table.get_table_info().num_buckets), 0))
        folded: dict[int, dict[str, Any]] = {}
        for change in scanner.to_arrow().to_pylist():
            kind = change["_change_type"]
            row = {name: change[name] for name in self.columns}
            if kind in ("-U", "-D"):
                assert folded[row["id"]] == row
            if kind == "-D":
                del folded[row["id"]]
            elif kind != "-U":
                assert (row["id"] in folded) == (kind == "+U")
                folded[row["id"]] = row
        assert folded == self.rows

    def teardown(self) -> None:
        if hasattr(self, "connection"):
            self.connection.get_admin().drop_database(self.database, cascade=True)
            self.connection.close()
