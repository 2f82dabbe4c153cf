"""A position: its cursor, and when it is asked for again; the clock is the test's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fluss_df.client.fetch.position import Position, RetryState
from fluss_df.metadata import TableBucket


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    # of these modules alone: other threads of the process go by the real ones
    clock = SimpleNamespace(monotonic=made.monotonic)
    monkeypatch.setattr("fluss_df.client.fetch.position.time", clock)
    monkeypatch.setattr("fluss_df.client.runtime.retry.time", clock)
    # no jitter
    jitter = SimpleNamespace(uniform=lambda low, high: 1.0)
    monkeypatch.setattr("fluss_df.client.runtime.retry.random", jitter)
    return made


def position(offset: int = 5, stop: int | None = None) -> Position:
    return Position(TableBucket(1, 0, None), None, offset, stop)


def test_it_is_done_at_its_stop() -> None:
    assert not position(5, 6).done
    assert position(6, 6).done
    assert position(7, 6).done
    assert not position(1 << 60).done


def test_it_goes_on_behind_what_came_and_never_back() -> None:
    here = position(5)
    here.advance(9)
    here.advance(7)
    # what is decoded is the scanner's to say
    assert (here.offset, here.decoded_to) == (9, 5)
    here.move(2)
    assert (here.offset, here.decoded_to) == (2, 2)


def test_pauses_grow_until_the_time_is_over(clock: Clock) -> None:
    retry = RetryState()
    pauses = []
    while retry.postpone(100):
        pauses.append(retry.not_before - clock.now)
        clock.now = retry.not_before
    assert pauses == pytest.approx([0.01, 0.02, 0.04, 0.03])


def test_progress_begins_pauses_and_time_again(clock: Clock) -> None:
    here = position()
    while here.retry.postpone(100):
        clock.now = here.retry.not_before
    here.advance(6)
    assert here.retry.postpone(100)
    assert here.retry.not_before - clock.now == pytest.approx(0.01)


def test_an_offset_is_out_of_range_when_it_stays_so(clock: Clock) -> None:
    retry = RetryState()
    began, asked = clock.now, 0
    while retry.out_of_range():
        asked += 1
        assert retry.not_before == pytest.approx(clock.now + 0.02)
        clock.now = retry.not_before
    assert clock.now - began == pytest.approx(0.5, abs=0.02)
    assert 20 < asked < 30
    # who asks for it again later waits again
    assert retry.out_of_range()


def test_rows_in_between_make_it_a_new_case(clock: Clock) -> None:
    here = position()
    assert here.retry.out_of_range()
    clock.now += 0.4
    here.advance(6)
    clock.now += 0.4
    assert here.retry.out_of_range()


def test_two_broken_answers_in_a_row_are_asked_for_again() -> None:
    retry = RetryState()
    assert [retry.unreadable() for _ in range(4)] == [True, True, False, False]
    retry.readable()
    assert retry.unreadable()


def test_progress_does_not_forget_broken_answers() -> None:
    retry = RetryState()
    retry.unreadable()
    retry.unreadable()
    retry.progressed()
    assert not retry.unreadable()


def test_failures_that_a_server_does_not_name_are_asked_again_for_a_while() -> None:
    retry = RetryState()
    assert [retry.unknown() for _ in range(9)] == [True] * 8 + [False]
    retry.progressed()
    assert retry.unknown()


def test_remote_storage_is_given_a_second_chance_at_an_offset() -> None:
    retry = RetryState()
    assert retry.remote_failed(5)
    assert not retry.remote_failed(5)
    assert retry.remote_failed(6)
    retry.remote_progressed()
    assert retry.remote_failed(6)
