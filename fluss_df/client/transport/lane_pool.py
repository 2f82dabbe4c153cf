"""The idle lanes of the process (blocking connections for bulk fetches), by server."""

from __future__ import annotations

import threading
from typing import Final, Protocol

from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.transport.blocking import Lane
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.client.transport.in_process_lane import direct_lane
from fluss_df.config import Config
from fluss_df.hooks import ForkStep, after_fork

_IDLE_LANES_PER_ENDPOINT: Final = 4


class LaneUser(Protocol):
    """Something that uses lanes: a client's view of a cluster."""

    @property
    def config(self) -> Config:
        """Timeouts."""

    @property
    def metrics(self) -> Metrics:
        """Where connections are counted."""


class LanePool:
    """Idle lanes of the process by endpoint; thread safe.

    A lane is kept for the next user as long as some user of its endpoint is not released.
    """

    def __init__(self) -> None:
        # reentrant: a collection of garbage while it is held may release a cluster, in this thread
        self._lock = threading.RLock()
        self._idle: dict[Endpoint, list[Lane]] = {}
        self._users: dict[Endpoint, set[int]] = {}

    def take(self, user: LaneUser, endpoint: Endpoint) -> Lane:
        """Return an idle lane to a server, or connect a new one."""
        with self._lock:
            self._users.setdefault(endpoint, set()).add(id(user))
            idle = self._idle.get(endpoint, [])
            while idle:
                lane = idle.pop()
                # nothing was asked on an idle lane: if it is readable, its server closed it
                if not lane.failed and not lane.readable(0):
                    return lane
                lane.close()
        config = user.config
        lane = direct_lane(endpoint, config.request_timeout_ms) or Lane(
            endpoint, config.connect_timeout_ms, config.request_timeout_ms
        )
        user.metrics.add(connections=1)
        return lane

    def give_back(self, lane: Lane) -> None:
        """Keep a lane for its next user, or close it.

        It is closed when it failed, when four lanes to its server are idle already, and when it is
        busy: to receive a response that nobody wants could take longer than to connect again.
        """
        with self._lock:
            keep = (
                not lane.failed
                and not lane.busy
                and len(self._idle.get(lane.endpoint, ())) < _IDLE_LANES_PER_ENDPOINT
                and bool(self._users.get(lane.endpoint))
            )
            if keep:
                self._idle.setdefault(lane.endpoint, []).append(lane)
        if not keep:
            lane.close()

    def release(self, user: LaneUser) -> None:
        """Forget a user that was closed; close the idle lanes that nobody uses any more."""
        closing: list[Lane] = []
        with self._lock:
            for endpoint, users in list(self._users.items()):
                users.discard(id(user))
                if not users:
                    self._users.pop(endpoint, None)
                    closing += self._idle.pop(endpoint, [])
        for lane in closing:
            lane.close()


_pool = LanePool()


def lane_pool() -> LanePool:
    """Return the lanes of this process."""
    return _pool


def _after_fork_in_child() -> None:
    # The parent's sockets stay the parent's. The old pool is kept from being collected, so that
    # its sockets are not shut down under the parent by a finalizer here.
    global _pool
    _inherited.append(_pool)
    _pool = LanePool()


_inherited: list[LanePool] = []
after_fork(ForkStep.CONNECTIONS, _after_fork_in_child)
