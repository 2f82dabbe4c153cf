"""The engine answers as a real server did when it was asked the same; without Java."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fluss_df.embedded import EmbeddedFluss
from tests.embedded import recorded
from tests.embedded.peers import Peer

REAL = recorded.recorded()
NAMES = [name for name, _, _ in recorded.questions()]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, recorded.Answer]]:
    with EmbeddedFluss(tmp_path_factory.mktemp("recorded") / "d", port=0) as engine:
        peer = Peer(engine.address)
        yield recorded.asked(peer)
        peer.close()


@pytest.mark.parametrize("name", NAMES)
def test_it_answers_as_a_real_server(here: dict[str, recorded.Answer], name: str) -> None:
    assert here[name] == REAL[name]


def test_every_question_was_recorded() -> None:
    assert list(REAL) == NAMES
    assert sum(code != 0 for code, _, _ in REAL.values()) > 80
