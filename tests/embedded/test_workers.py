"""Threads for work on the disk: others take the places of those that wait, and end again."""

from __future__ import annotations

import threading
import time

import pytest

from fluss_df.engine.files.workers import Workers


def test_jobs_that_stand_aside_leave_all_threads() -> None:
    workers = Workers(4)

    def job() -> None:
        for _ in range(5):
            with workers.aside():
                time.sleep(0.0001)

    for future in [workers.submit(job) for _ in range(400)]:
        future.result(timeout=30)
    for _ in range(3):
        found = [workers.submit(lambda n=n: n) for n in range(20)]
        assert [future.result(timeout=10) for future in found] == list(range(20))
    assert 1 <= sum("fluss-df-disk" in t.name for t in workers._threads) <= 4
    workers.close()
    assert not any(thread.is_alive() for thread in workers._threads)


def test_others_work_while_threads_wait() -> None:
    workers = Workers(2)
    go = threading.Event()

    def wait() -> None:
        with workers.aside():
            go.wait(30)

    waiting = [workers.submit(wait) for _ in range(50)]
    assert workers.submit(lambda: "done").result(timeout=10) == "done"
    assert not any(future.done() for future in waiting)
    go.set()
    for future in waiting:
        future.result(timeout=10)
    # whatever is done next, no more threads are left than there were to be
    for _ in range(100):
        workers.submit(time.sleep, 0).result(timeout=10)
    assert len(workers._threads) <= 2
    workers.close()


def test_closing_finishes_what_was_submitted() -> None:
    workers = Workers(3)

    def job(number: int) -> int:
        with workers.aside():
            time.sleep(0.001)
        return number

    futures = [workers.submit(job, n) for n in range(300)]
    workers.close()
    assert [future.result(timeout=0) for future in futures] == list(range(300))
    with pytest.raises(RuntimeError, match="closed"):
        workers.submit(time.sleep, 0)


def test_threads_that_the_process_may_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(8)
    assert workers.submit(lambda: 1).result(timeout=10) == 1

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)

    def job() -> int:
        with workers.aside():
            return 2

    futures = [workers.submit(job) for _ in range(20)]
    assert [future.result(timeout=10) for future in futures] == [2] * 20
    alone = Workers(1)
    with pytest.raises(RuntimeError, match="start"):
        alone.submit(time.sleep, 0)
    alone.close()
    workers.close()
