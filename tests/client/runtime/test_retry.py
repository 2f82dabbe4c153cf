"""When something is tried again, and after which pauses; the clock is the test's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from fluss_df.client.runtime.retry import Backoff, is_transient, retrying
from fluss_df.errors import ErrorCode, FlussError, NetworkError


class Clock:
    """A clock that only pauses move on."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    # of this module alone: other threads of the process go by the real ones
    where = "fluss_df.client.runtime.retry"
    monkeypatch.setattr(f"{where}.time", SimpleNamespace(monotonic=made.monotonic))
    monkeypatch.setattr(f"{where}.asyncio", SimpleNamespace(sleep=made.sleep))
    # no jitter
    monkeypatch.setattr(f"{where}.random", SimpleNamespace(uniform=lambda low, high: 1.0))
    return made


MOVED = FlussError("moved", ErrorCode.NOT_LEADER_OR_FOLLOWER)
GONE = FlussError("gone", ErrorCode.TABLE_NOT_EXIST)
BROKEN = NetworkError("broken")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MOVED, True),
        (BROKEN, True),
        (GONE, False),
        (FlussError("", ErrorCode.REQUEST_TIME_OUT), True),
        (FlussError("", ErrorCode.FENCED_LEADER_EPOCH_EXCEPTION), True),
        # the bytes are at fault, whatever the code says
        (FlussError("", ErrorCode.CORRUPT_MESSAGE), False),
        (FlussError("", ErrorCode.CORRUPT_RECORD_EXCEPTION), False),
        # a coordinator that has just started
        (FlussError("coordinator is not initialized", ErrorCode.UNKNOWN_SERVER_ERROR), True),
        (FlussError("a null pointer", ErrorCode.UNKNOWN_SERVER_ERROR), False),
    ],
)
def test_what_may_succeed_soon(error: FlussError, expected: bool) -> None:
    assert is_transient(error) is expected


def test_pauses_double_up_to_a_second(clock: Clock) -> None:
    backoff = Backoff(60_000)
    assert not backoff.used
    pauses = [backoff.next_pause() for _ in range(9)]
    assert pauses == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    assert backoff.used


def test_no_pause_reaches_beyond_the_deadline(clock: Clock) -> None:
    backoff = Backoff(25)
    assert backoff.next_pause() == pytest.approx(0.01)
    clock.now += 0.01
    assert backoff.next_pause() == pytest.approx(0.015)
    clock.now += 0.015
    assert backoff.expired
    assert backoff.next_pause() == 0.0


def test_a_success_starts_pauses_and_deadline_again(clock: Clock) -> None:
    backoff = Backoff(20)
    for _ in range(4):
        clock.now += backoff.next_pause()
    assert backoff.expired
    backoff.reset(20)
    assert not backoff.expired
    assert not backoff.used
    assert backoff.next_pause() == pytest.approx(0.01)


def test_jitter_is_a_fifth_either_way() -> None:
    firsts = [Backoff(1_000).next_pause() for _ in range(1_000)]
    assert 0.008 <= min(firsts) < 0.009
    assert 0.011 < max(firsts) <= 0.012


def attempts(errors: list[FlussError], timeout_ms: float = 1_000) -> tuple[list[int], list[str]]:
    """Fail with these errors, then succeed; return the tries, and what retries were told of."""
    tries: list[int] = []
    told: list[str] = []

    async def attempt(number: int) -> str:
        tries.append(number)
        if number < len(errors):
            raise errors[number]
        return "done"

    async def play() -> str:
        return await retrying(attempt, timeout_ms, on_retry=lambda error: told.append(str(error)))

    assert asyncio.run(play()) == "done"
    return tries, told


def test_it_is_tried_until_it_succeeds(clock: Clock) -> None:
    tries, told = attempts([MOVED, BROKEN, MOVED])
    assert tries == [0, 1, 2, 3]
    assert len(told) == 3
    assert clock.pauses == [0.01, 0.02, 0.04]


def test_the_first_retry_after_a_broken_connection_is_at_once(clock: Clock) -> None:
    attempts([BROKEN, BROKEN, MOVED])
    assert clock.pauses == [0.01, 0.02]


def test_what_is_final_is_not_tried_again(clock: Clock) -> None:
    with pytest.raises(FlussError, match="gone"):
        attempts([MOVED, GONE, MOVED])
    assert clock.pauses == [0.01]


def test_the_last_error_is_raised_when_the_time_is_over(clock: Clock) -> None:
    errors = [FlussError(f"try {n}", ErrorCode.REQUEST_TIME_OUT) for n in range(100)]
    with pytest.raises(FlussError, match="try 4"):
        attempts(errors, timeout_ms=100)
    assert clock.pauses == pytest.approx([0.01, 0.02, 0.04, 0.03])
