"""Virtual tables of a changelog: schemas, values, updates in one piece however they are cut."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from fluss_df.errors import FlussError, ProtocolError
from fluss_df.record.change_tables import (
    BinlogMaker,
    ChangeTable,
    binlog_schema,
    changelog_schema,
    split_name,
    split_virtual,
    to_changelog,
)

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])
METADATA = ["_change_type", "_log_offset", "_commit_timestamp"]


def changes_of(rows: list[tuple[str, int, Any]], first: int = 0) -> pa.Table:
    """Return changes as scanners do, two commits of half of them each."""
    kinds = pa.array([kind for kind, _, _ in rows], pa.string()).dictionary_encode()
    times = [1_000 + (i * 2 >= len(rows)) for i in range(len(rows))]
    return pa.table(
        [
            pa.array([key for _, key, _ in rows], pa.int64()),
            pa.array([value for _, _, value in rows], pa.string()),
            pa.array([[value] if value else None for _, _, value in rows], COLUMNS.field(2).type),
            kinds,
            pa.array(range(first, first + len(rows))),
            pa.array(times, pa.timestamp("ms", "UTC")),
        ],
        [*COLUMNS.names, *METADATA],
    )


CHANGES = [("+I", 1, "a"), ("-U", 1, "a"), ("+U", 1, None), ("+I", 2, "c"), ("-D", 1, None)]


def test_names() -> None:
    assert split_name("db.t$changelog") == ("db.t", ChangeTable.CHANGELOG)
    assert split_name("t$binlog") == ("t", ChangeTable.BINLOG)
    assert split_name("t") == ("t", None)
    assert split_virtual("db.t$lake") == ("db.t", "$lake")
    assert split_virtual("db.t$binlog") == ("db.t", "$binlog")
    assert split_virtual("t") == ("t", "")
    for split in (split_name, split_virtual):
        for name in ("t$", "t$changelog$binlog", "t$lake$"):
            with pytest.raises(FlussError, match=r"t\$changelog, t\$binlog and t\$lake"):
                split(name)
    with pytest.raises(FlussError, match="read by scan_fluss, Ibis and SQL"):
        split_name("t$lake")


def test_changelog() -> None:
    made = to_changelog(changes_of(CHANGES, first=10))
    made.validate(full=True)
    assert made.schema.equals(changelog_schema(COLUMNS))
    assert made.schema.names == [*METADATA, *COLUMNS.names]
    kinds = ["insert", "update_before", "update_after", "insert", "delete"]
    assert made.column("_change_type").to_pylist() == kinds
    assert made.column("_log_offset").to_pylist() == [10, 11, 12, 13, 14]
    assert made.column("name").to_pylist() == ["a", "a", None, "c", None]


def test_appends_are_inserts() -> None:
    made = to_changelog(changes_of([("+A", 1, "a")]))
    assert made.column("_change_type").to_pylist() == ["insert"]


def test_binlog() -> None:
    made = BinlogMaker(COLUMNS).add(changes_of(CHANGES, first=10))
    made.validate(full=True)
    assert made.schema.equals(binlog_schema(COLUMNS))
    assert made.column("_change_type").to_pylist() == ["insert", "update", "insert", "delete"]
    # an update has the offset and the time of the row before it
    assert made.column("_log_offset").to_pylist() == [10, 11, 13, 14]
    a = {"id": 1, "name": "a", "tags": ["a"]}
    none = {"id": 1, "name": None, "tags": None}
    c = {"id": 2, "name": "c", "tags": ["c"]}
    assert made.column("before").to_pylist() == [None, a, None, none]
    assert made.column("after").to_pylist() == [a, none, c, None]


@pytest.mark.parametrize("seed", range(5))
def test_updates_survive_any_cut(seed: int) -> None:
    chance = random.Random(seed)
    rows: list[tuple[str, int, Any]] = []
    for i in range(200):
        kind = chance.choice(["+I", "-D", "U"])
        rows += [("-U", i, "old"), ("+U", i, "new")] if kind == "U" else [(kind, i, "x")]
    changes = changes_of(rows)
    whole = BinlogMaker(COLUMNS).add(changes)
    maker = BinlogMaker(COLUMNS)
    pieces: dict[str, list[pa.Table]] = {"b0": [], "b1": []}
    at = dict.fromkeys(pieces, 0)
    while any(place < len(rows) for place in at.values()):
        # two buckets by turns, the same changes in both
        for bucket in pieces:
            length = chance.randrange(0, 4)
            pieces[bucket].append(maker.add(changes.slice(at[bucket], length), bucket))
            at[bucket] += length
    for parts in pieces.values():
        assert pa.concat_tables(parts).combine_chunks().equals(whole.combine_chunks())


def test_updates_that_are_torn() -> None:
    with pytest.raises(FlussError, match=r"offset 7 .*'table.changelog.image' is WAL"):
        BinlogMaker(COLUMNS).add(changes_of([("+U", 1, "a")], first=7))
    with pytest.raises(ProtocolError, match="offset 0 has no row after"):
        BinlogMaker(COLUMNS).add(changes_of([("-U", 1, "a"), ("+I", 2, "b")]))
    with pytest.raises(FlussError, match=r"\+A, \+I, -U, \+U, -D"):
        to_changelog(changes_of([("?", 1, "a")]))


def test_nothing() -> None:
    empty = changes_of([])
    assert to_changelog(empty).num_rows == 0
    assert BinlogMaker(COLUMNS).add(empty).schema.equals(binlog_schema(COLUMNS))


def test_change_types_may_be_plain_texts() -> None:
    changes = changes_of(CHANGES)
    kinds = changes.schema.get_field_index("_change_type")
    plain = changes.set_column(kinds, "_change_type", changes.column(kinds).cast(pa.string()))
    assert to_changelog(plain).equals(to_changelog(changes))
    nulls = changes.set_column(kinds, "_change_type", pa.nulls(len(CHANGES), pa.string()))
    with pytest.raises(FlussError, match=r"change types are \+A"):
        to_changelog(nulls)


def test_a_copy_goes_on_by_itself() -> None:
    update = changes_of([("-U", 1, "a"), ("+U", 1, "b")])
    maker = BinlogMaker(COLUMNS)
    assert not maker.is_pending("b0")
    assert maker.add(update.slice(0, 1), "b0").num_rows == 0
    assert maker.is_pending("b0")
    assert not maker.is_pending("b1")
    copied = maker.copy()
    assert copied.add(update.slice(1), "b0").column("_change_type").to_pylist() == ["update"]
    assert not copied.is_pending("b0")
    assert maker.is_pending("b0")
    # what is added to the copy is not added to the first, and the other way round
    maker.copy().add(update.slice(0, 1), "b1")
    assert not maker.is_pending("b1")
    assert maker.add(update.slice(1), "b0").num_rows == 1


def test_virtual_tables_know_their_columns() -> None:
    assert ChangeTable.CHANGELOG.schema(COLUMNS).equals(changelog_schema(COLUMNS))
    assert ChangeTable.BINLOG.schema(COLUMNS).equals(binlog_schema(COLUMNS))
