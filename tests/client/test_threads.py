"""Writers and scanners of one connection in ten threads; ``tests.campaigns.threads`` is longer."""

from __future__ import annotations

import fluss_df as fluss
from tests.campaigns.threads import THREADS, campaign
from tests.client.support import Tables


def test_threads_share_a_connection(connection: fluss.FlussConnection, tables: Tables) -> None:
    assert campaign(connection, tables.path(), 2.0) >= THREADS
