"""Every request that clients may send is sent through the client, to a cluster and to the engine.

Both give equal answers. A request that is added to the protocol needs a function of its name in
:mod:`tests.client.request_calls`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError
from fluss_df.client.transport import blocking, multiplexed
from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss
from fluss_df.protocol import api
from fluss_df.protocol.frames import encode_request
from tests.client import request_calls
from tests.client.request_world import CURRENT, Answer, World

# each has tests of its own: who may do what is another subject
ELSEWHERE = {"CREATE_ACLS", "LIST_ACLS", "DROP_ACLS"}
ALL = {value.name: value for value in vars(api).values() if isinstance(value, api.Api)}
HERE = sorted(ALL.keys() - ELSEWHERE)

# What servers of 0.9.1 do not offer: there is nobody to be compared with, so it is said here what
# the engine answers, in the words of 1.0.
SINCE_1_0: dict[str, Answer] = {
    "ALTER_DATABASE": {"owner": "me"},
    "GET_CLUSTER_HEALTH": fluss.ClusterHealthStatus.GREEN,
    "LIST_KV_SNAPSHOTS": ({}, {}),
    "LIST_REMOTE_LOG_MANIFESTS": ([], []),
    "SCAN_KV": CURRENT.to_pylist(),
}


@pytest.fixture(scope="module")
def worlds(
    fluss_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[World, World]]:
    with (
        EmbeddedFluss(tmp_path_factory.mktemp("every"), port=0) as engine,
        fluss.connect(fluss_cluster.bootstrap_servers) as real,
        fluss.connect(engine.address) as embedded,
    ):
        made = World(fluss_cluster.bootstrap_servers, real), World(engine.address, embedded)
        yield made
        for world in made:
            world.admin.drop_database(world.database)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the requests that are sent."""
    names: list[str] = []

    def noting(kind: api.Api[Any, Any], *rest: Any) -> Any:
        names.append(kind.name)
        return encode_request(kind, *rest)

    for module in (multiplexed, blocking):
        monkeypatch.setattr(module, "encode_request", noting)
    return names


class UnknownRequestError(Exception):
    """The server does not know a request."""


def unless_unknown(name: str, call: Callable[[], Answer]) -> Answer:
    try:
        return call()
    except FlussError as error:
        if error.error_code == ErrorCode.UNSUPPORTED_VERSION and name in error.message:
            raise UnknownRequestError from error
        raise


def test_every_request_is_here() -> None:
    assert [name for name in HERE if not hasattr(request_calls, name.lower())] == []
    assert ALL.keys() >= ELSEWHERE


@pytest.mark.parametrize("name", HERE)
def test_answers_are_equal(name: str, worlds: tuple[World, World], sent: list[str]) -> None:
    call: Callable[[World], Answer] = getattr(request_calls, name.lower())
    here = worlds[1]
    # the engine offers all: what it kept to itself would not be asked
    assert ALL[name].key in here.known
    answers: list[Answer] = []
    for world in worlds:
        sent.clear()
        if ALL[name].key in world.known:
            answers.append(call(world))
            assert name in sent
            continue
        # a server of 0.9.1: what can be done otherwise is, and the rest is refused
        with contextlib.suppress(UnknownRequestError):
            answers.append(unless_unknown(name, lambda: call(world)))  # noqa: B023
        assert name not in sent
    if name in SINCE_1_0:
        answers.append(SINCE_1_0[name])
    assert len(answers) > 1
    assert all(answer == answers[-1] for answer in answers)
