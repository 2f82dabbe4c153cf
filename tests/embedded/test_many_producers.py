"""Offsets of producers: what a peer registers stays within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss_df.embedded import cluster_state
from fluss_df.embedded.engine import Engine
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket


def offsets(count: int) -> dict[TableBucket, int]:
    return {TableBucket(1, bucket): bucket for bucket in range(count)}


def test_offsets_of_all_producers_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_state, "_MOST_OFFSETS", 100)
    monkeypatch.setattr(cluster_state, "_MOST_PRODUCERS", 3)
    engine = Engine(tmp_path / "d")
    state = engine.cluster
    assert state.register("a", offsets(60), None)
    with pytest.raises(FlussError, match=r"2 producers with 101 offsets") as refused:
        state.register("b", offsets(41), None)
    assert refused.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert state.producer("b") is None
    assert state.register("b", offsets(1), None)
    assert state.register("c", offsets(1), -1)
    # what has expired counts no more
    assert state.register("d", offsets(1), None)
    with pytest.raises(FlussError, match="4 producers"):
        state.register("e", {}, None)
    state.forget("a")
    assert state.register("e", offsets(90), None)
    engine.close()
