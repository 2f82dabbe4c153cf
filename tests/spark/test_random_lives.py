"""Some random streams and writes of the campaigns, in this process, on an embedded engine."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from fluss_df.embedded import EmbeddedFluss, EngineOptions
from tests.campaigns.spark_streams import Stream
from tests.campaigns.spark_writes import Write

STREAMS = 6
WRITES = 12
# nothing has to be there after a power failure
QUICK = EngineOptions(durability="none")


def test_random_streams() -> None:
    """Each row is in one batch, and a batch that comes again is the same."""
    batches = 0
    with EmbeddedFluss(None, port=0, options=QUICK) as engine, engine.connection() as connection:
        connection.get_admin().create_database("streams")
        for number in range(STREAMS):
            rng = random.Random(f"lives-{number}")
            stream = Stream(rng, connection, f"s{number}", str(engine.address))
            stream.run()
            batches += sum("batch" in line for line in stream.log)
    assert batches > STREAMS


def test_random_writes(tmp_path: Path) -> None:
    """A write is refused, or each value is in the table as it was given."""
    counts: Counter[str] = Counter()
    with EmbeddedFluss(None, port=0, options=QUICK) as engine, engine.connection() as connection:
        connection.get_admin().create_database("sparks")
        for number in range(WRITES):
            rng = random.Random(f"lives-{number}")
            write = Write(rng, connection, f"t{number}", tmp_path, str(engine.address))
            word, why = write.run()
            counts[word] += 1
            assert word in ("right", "refused", "skipped"), why
    assert counts["right"] > WRITES // 4
    assert counts["refused"] > 0
