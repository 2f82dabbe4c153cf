"""Writers that a program did not close: they share the time at its end, and one spoils no other."""

from __future__ import annotations

import logging
import weakref
from types import SimpleNamespace

import pytest

from fluss_df.client.write import writer as module
from fluss_df.config import Config
from fluss_df.errors import FlussError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class PlayedWriter:
    """A writer whose rows are acknowledged some seconds after it began to send, or never."""

    def __init__(self, clock: Clock, name: str, takes_s: float = 0.0) -> None:
        self._clock = clock
        self._takes_s = takes_s
        self._sent_at: float | None = None
        self.info = SimpleNamespace(table_path=name)
        self.unflushed_rows, self.failed_rows = 7, 0
        self.failure: FlussError | Exception | None = None

    def wait_acknowledged(self, timeout_ms: float) -> FlussError | None:
        if self._sent_at is None:
            self._sent_at = self._clock.now
        left_s = self._sent_at + self._takes_s - self._clock.now
        self._clock.now += max(0.0, min(left_s, timeout_ms / 1000))
        if isinstance(self.failure, FlussError):
            return self.failure
        if self.failure is not None:
            raise self.failure
        if left_s > timeout_ms / 1000:
            raise TimeoutError
        self.unflushed_rows = 0
        return None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=made.monotonic))
    monkeypatch.setattr(module, "_open_writers", weakref.WeakKeyDictionary())
    return made


def at_end(caplog: pytest.LogCaptureFixture, *writers: PlayedWriter) -> list[str]:
    """End the program; return what it says."""
    config = Config({"bootstrap.servers": "127.0.0.1:9"})
    for writer in writers:
        module._open_writers[writer] = config  # type: ignore[index]
    with caplog.at_level(logging.ERROR):
        module._flush_all()
    return [record.getMessage() for record in caplog.records]


def test_many_writers_of_a_silent_cluster_take_the_time_of_one(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    writers = [PlayedWriter(clock, f"db.t{i}", takes_s=1e9) for i in range(20)]
    said = at_end(caplog, *writers)
    assert clock.now - 100 == pytest.approx(3)
    assert len(said) == 20
    assert "7 rows of table db.t0 were not acknowledged (no ackn" in said[0]


def test_writers_send_while_others_are_waited_for(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    writers = [PlayedWriter(clock, f"db.t{i}", takes_s=2.5) for i in range(20)]
    assert at_end(caplog, *writers) == []
    assert clock.now - 100 == pytest.approx(2.5)


def test_a_writer_that_fails_leaves_the_others_their_chance(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    bad, worse, good = (PlayedWriter(clock, name) for name in ("db.bad", "db.worse", "db.good"))
    bad.failure = FlussError("the table is gone")
    worse.failure = RuntimeError("no more threads")
    said = at_end(caplog, bad, worse, good)
    assert good.unflushed_rows == 0
    assert "db.bad were not acknowledged (the table is gone)" in said[0]
    assert "db.worse were not acknowledged (RuntimeError('no more threads'))" in said[1]


def test_a_writer_that_was_closed_or_collected_is_not_flushed(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    closed, collected = (PlayedWriter(clock, name, takes_s=1e9) for name in ("db.a", "db.b"))
    module._open_writers[closed] = Config()  # type: ignore[index]
    module._open_writers[collected] = Config()  # type: ignore[index]
    module.TableWriter._end(closed)  # type: ignore[arg-type]
    del collected
    assert at_end(caplog) == []
