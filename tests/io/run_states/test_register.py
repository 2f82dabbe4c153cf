"""Runs whose register is gone, or that two ask at once."""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.io import scan_fluss
from fluss_df.io.runs.micro_batches import MicroBatches
from fluss_df.io.runs.run_register import Link, RunNames, RunRegister
from fluss_df.metadata import TablePath
from tests.io.run_states.pipelines import BEHIND, STEPS, Pipeline, refused, whole

# ---- the notes beside tables


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", ["deleted", "emptied"])
@pytest.mark.parametrize("kind", ["log", "keyed"])
def test_register_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, how: str, step: str
) -> None:
    pipeline = Pipeline(tmp_path / "home", kind)
    pipeline.batches(2)
    pipeline.die(step, monkeypatch)
    pipeline.feed()
    notes = TablePath("fluss_df_ledger", "runs")
    if how == "deleted":
        pipeline.connection.get_admin().drop_table(notes)
    else:
        run_id = json.loads((pipeline.checkpoint / "metadata.json").read_text())["run_id"]
        with pipeline.connection.get_table(notes).new_upsert().create_writer() as writer:
            writer.delete({"run_id": run_id})
    refused(pipeline, "was deleted or put back")
    pipeline.run(on_data_loss="ignore")
    pipeline.feed()
    pipeline.run()
    whole(pipeline)
    pipeline.close()


def test_without_a_register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(tmp_path / "home", "log")
    for step in STEPS:
        pipeline.feed()
        pipeline.run(ledger_database=None)
        pipeline.die(step, monkeypatch, ledger_database=None)
        pipeline.run(ledger_database=None)
    assert pipeline.connection.get_admin().list_databases() == ["fluss", "io"]
    pipeline.feed()
    pipeline.run(ledger_database="other")
    # in turns
    for database in ("other", None, "other", None, None, "other"):
        pipeline.feed()
        pipeline.run(ledger_database=database)
    whole(pipeline)
    pipeline.keep("checkpoint")
    pipeline.feed()
    pipeline.run(ledger_database="other")
    pipeline.put_back("checkpoint")
    pipeline.feed()
    refused(pipeline, BEHIND, ledger_database="other")
    pipeline.close()


def test_who_comes_second_gives_the_row_back(tmp_path: Path) -> None:
    """Also where the first one goes on between the two steps of the second."""
    with FlussConnection.create(":memory:") as connection:
        table = TablePath("io", "t")
        names = RunNames("run", table, 1, table, 2)
        first, second = (RunRegister(connection, "notes") for _ in range(2))
        links = [Link(number, f"first {number}") for number in range(4)]
        assert first.claim(names, links[0], None) is None
        assert second.find("run") == links[0]
        # it looked before the first one claimed batch 1, and writes behind it
        seen = second.find("run")
        assert first.claim(names, links[1], links[0]) is None
        second.find = lambda run_id: seen  # type: ignore[method-assign]
        put = second._put

        def meanwhile(names: RunNames, link: Link) -> None:
            second._put = put  # type: ignore[method-assign]
            put(names, link)
            thread.start()
            time.sleep(0.2)

        second._put = meanwhile  # type: ignore[method-assign]
        found: list[Link | None] = []
        thread = threading.Thread(
            target=lambda: found.append(first.claim(names, links[2], links[1]))
        )
        refused_by = second.claim(names, Link(1, "second 1"), links[0])
        thread.join()
        assert refused_by == links[1]
        assert found == [None]
        assert first.claim(names, links[3], links[2]) is None
        assert first.find("run") == links[3]
        first.close()
        second.close()


def test_a_row_that_is_given_back_hides_no_claim(tmp_path: Path) -> None:
    """A second one, slow, puts the first batch back over the next batch of a copy."""
    with FlussConnection.create(":memory:") as connection:
        table = TablePath("io", "t")
        names = RunNames("run", table, 1, table, 2)
        first, second, copy = (RunRegister(connection, "notes") for _ in range(3))
        link = Link(0, "first 0")
        claim = second._settled

        def first_meanwhile(run_id: str, expected: Link | None) -> None:
            assert claim(run_id, expected) is None
            assert first.claim(names, link, None) is None

        put = second._put

        def copy_meanwhile(names: RunNames, given: Link) -> None:
            put(names, given)
            if given == link:
                # it does not look again: it was killed
                raise InterruptedError
            # the copy of the checkpoint, which knows of the first batch, goes on
            copy._settled = lambda run_id, expected: expected  # type: ignore[method-assign]
            assert copy.claim(names, Link(1, "copy 1"), link) is None
            second._changes = lambda *_: [link]  # type: ignore[method-assign]

        second._settled = first_meanwhile  # type: ignore[method-assign]
        second._put = copy_meanwhile  # type: ignore[assignment, method-assign]
        with pytest.raises(InterruptedError):
            second.claim(names, Link(0, "second 0"), None)
        assert first.find("run") == link
        assert first.claim(names, Link(1, "first 1"), link) == Link(1, "copy 1")
        for register in (first, second, copy):
            register.close()


def test_who_stood_still_within_a_claim_does_not_go_on_behind_a_copy(tmp_path: Path) -> None:
    """A copy of a checkpoint has what was staged, and claims it under the same name."""
    with FlussConnection.create(":memory:") as connection:
        table = TablePath("io", "t")
        names = RunNames("run", table, 1, table, 2)
        first, copy = (RunRegister(connection, "notes") for _ in range(2))
        links = [Link(number, f"batch {number}") for number in range(4)]
        assert first.claim(names, links[0], None) is None
        put = first._put

        def late(names: RunNames, link: Link) -> None:
            first._put = put  # type: ignore[method-assign]
            # the process is suspended here, and somebody begins with the copy
            for before, after in itertools.pairwise(links):
                assert copy.claim(names, after, before) is None
            put(names, link)

        first._put = late  # type: ignore[method-assign]
        assert first.claim(names, links[1], links[0]) == links[3]
        # the copy goes on behind what it has written
        assert copy.find("run") == links[3]
        assert copy.claim(names, Link(4, "batch 4"), links[3]) is None
        first.close()
        copy.close()


def test_a_row_of_an_older_batch_is_waited_for(tmp_path: Path) -> None:
    """It is put back by who came second, on a slow machine later than the next batch."""
    with FlussConnection.create(":memory:") as connection:
        table = TablePath("io", "t")
        names = RunNames("run", table, 1, table, 2)
        first, second = (RunRegister(connection, "notes") for _ in range(2))
        links = [Link(number, f"first {number}") for number in range(3)]
        assert first.claim(names, links[0], None) is None
        assert first.claim(names, links[1], links[0]) is None
        second._put(names, links[0])
        settled = threading.Timer(0.2, second._put, (names, links[1]))
        settled.start()
        assert first.claim(names, links[2], links[1]) is None
        settled.join()
        first.close()
        second.close()


def test_a_claim_reads_what_came_since_it_began(tmp_path: Path) -> None:
    """Not what other runs claimed before, of which the beginning may have expired."""
    with FlussConnection.create(":memory:") as connection:
        table = TablePath("io", "t")
        idle, busy = (RunRegister(connection, "notes") for _ in range(2))
        names, others = (RunNames(name, table, 1, table, 2) for name in ("idle", "busy"))
        assert idle.claim(names, Link(0, "a"), None) is None
        before = None
        for number in range(20):
            link = Link(number, f"busy {number}")
            assert busy.claim(others, link, before) is None
            before = link
        ranges: list[int] = []
        read = idle._read

        def watched(run_id: str, start: int, stop: int) -> Any:
            ranges.append(stop - start)
            return read(run_id, start, stop)

        idle._read = watched  # type: ignore[method-assign]
        assert idle.claim(names, Link(1, "b"), Link(0, "a")) is None
        # the row before, and the row behind it
        assert ranges == [2]
        # what is asked for from before the first offset there is
        assert idle._changes("idle", -5, idle._end())[-1] == Link(1, "b")
        idle.close()
        busy.close()


@pytest.mark.parametrize("lost", ["source", "target"])
def test_a_run_that_cannot_begin_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    pipeline = Pipeline(tmp_path / "home", "log")
    pipeline.batches(1)
    opened: list[RunRegister] = []
    closed: list[RunRegister] = []
    init, close = RunRegister.__init__, RunRegister.close

    def opens(self: RunRegister, *given: Any) -> None:
        init(self, *given)
        opened.append(self)

    def closes(self: RunRegister) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(RunRegister, "__init__", opens)
    monkeypatch.setattr(RunRegister, "close", closes)
    query = scan_fluss(pipeline.source, connection=pipeline.connection)
    pipeline.connection.get_admin().drop_table(getattr(pipeline, lost))
    with pytest.raises(FlussError, match="does not exist"):
        pipeline.run(query=query)
    assert opened == closed
    pipeline.close()


def test_batches_by_hand_of_the_checkpoint_of_a_run(pipeline: Pipeline) -> None:
    pipeline.batches(1)
    pipeline.feed()
    query = scan_fluss(pipeline.source, connection=pipeline.connection)
    by_hand = MicroBatches(query, pipeline.checkpoint)
    with by_hand, pytest.raises(FlussError, match="belongs to a run into the"):
        next(iter(by_hand))
    pipeline.run()
    whole(pipeline)
