"""Rows by their places, of columns whose chunks are not joined."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.scan.change_fold import ChangeFold
from fluss_df.record.change_tables import BinlogMaker
from fluss_df.record.layout import taking
from fluss_df.record.layout.taking import take_rows, take_values

ROWS = 100
PART = pa.table(
    {
        "n": range(ROWS),
        "text": [None if i % 7 == 3 else f"row {i}" * (i % 5) for i in range(ROWS)],
        "list": [[str(i)] * (i % 3) for i in range(ROWS)],
        "row": [{"s": str(i)} for i in range(ROWS)],
    }
)
TABLE = pa.concat_tables([PART, PART.slice(0, 0), PART.slice(3, 40), PART.slice(99)])


@pytest.mark.parametrize("most", [1, 300, 2_000, 1 << 30])
@pytest.mark.parametrize("nulls", [False, True])
def test_large_columns_are_taken_as_small_ones_are(
    monkeypatch: pytest.MonkeyPatch, most: int, nulls: bool
) -> None:
    monkeypatch.setattr(taking, "_MOST_BYTES", most)
    random = np.random.default_rng(7)
    order = random.permutation(TABLE.num_rows)[:120]
    places = pa.array(order, mask=random.random(120) < 0.2 if nulls else None)
    taken = take_rows(TABLE, places)
    assert taken.equals(TABLE.combine_chunks().take(places))
    assert (taken.column("text").num_chunks > 1) == (most < 1 << 30)
    for none in (pa.array([], pa.int64()), pa.array([None, None], pa.int64())):
        assert take_rows(TABLE, none).equals(TABLE.combine_chunks().take(none))


def test_strings_of_more_than_two_gib() -> None:
    part = pa.array([chr(97 + i) * (1 << 28) for i in range(3)])
    column = pa.chunked_array([part, part, part])
    with pytest.raises(pa.ArrowInvalid):
        column.take(pa.array([8, 0]))
    order = [8, 0, 4, 2, 1, 3, 5, 7, 6]
    taken = take_values(column, pa.array(order))
    firsts = [value.as_buffer().slice(0, 1).to_pybytes() for value in taken]
    assert firsts == [b"abc"[i % 3 : i % 3 + 1] for i in order]


def test_changes_are_folded_and_made_to_rows_of_binlog_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = fluss.Schema(PART.schema, primary_keys=["n"]).columns[0]
    kinds = pa.chunked_array([pa.array([0, 3, 1, 2] * 25, pa.int8())])
    changes = PART.slice(0, 4).append_column("_change_type", pa.array(["+I", "-D", "-U", "+U"]))
    changes = changes.append_column("_log_offset", pa.array(range(4)))
    times = pa.array([0] * 4, pa.timestamp("ms", "UTC"))
    changes = changes.append_column("_commit_timestamp", times)

    def made() -> list[pa.Table]:
        fold = ChangeFold([key], None, PART.schema)
        fold.add(PART, kinds)
        fold.add(PART.slice(3, 40), kinds.slice(0, 40))
        return [fold.finish()[1], BinlogMaker(PART.schema).add(changes)]

    expected = made()
    monkeypatch.setattr(taking, "_MOST_BYTES", 50)
    found = made()
    assert found == expected
    assert found[1].column("after").num_chunks > 1
