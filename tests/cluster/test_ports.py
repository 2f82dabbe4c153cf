from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from fluss_df.cluster.processes.ports import HOST, PortChooser, is_free, is_open


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as server:
        yield int(server.getsockname()[1])


def test_a_port_with_a_listener_is_not_free(listener: int) -> None:
    assert not is_free(listener)
    assert is_open(listener)


def test_chosen_ports_are_distinct_and_free() -> None:
    chooser = PortChooser()
    ports = {chooser.choose() for _ in range(50)}
    assert len(ports) == 50
    assert all(10_000 <= port < 32_000 for port in ports)
    port = ports.pop()
    assert is_free(port)
    assert not is_open(port)


def test_the_preferred_port_is_chosen_where_it_is_free(listener: int) -> None:
    preferred = PortChooser().choose()
    chooser = PortChooser()
    assert chooser.choose(preferred) == preferred
    assert chooser.choose(preferred) != preferred
    assert chooser.choose(listener) != listener
