"""Which offsets a lake snapshot has: what decides how far a table is tiered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from fluss_df.errors import FlussError
from fluss_df.lake.rounds.split import Offsets

# who commits, in every lake
COMMIT_USER = "__fluss_lake_tiering"
# The offsets themselves: Fluss deletes the file of a snapshot when it learns of a later one, and
# the lake has to say alone how far it is.
OFFSETS_PROPERTY = "fluss-df.offsets"


@dataclass(frozen=True, slots=True)
class TieredSnapshot:
    """The newest snapshot of a lake table that a tiering service made.

    Parameters
    ----------
    snapshot_id
        Its id.
    offsets_path
        The file with its offsets.
    offsets
        The offsets, where a service of fluss_df made it; None where Flink's did.
    committed_ms
        When it was committed, in milliseconds since 1970, by the clock of the service.
    """

    snapshot_id: int
    offsets_path: str | None
    offsets: Offsets | None
    committed_ms: int


def offsets_to_text(offsets: Mapping[tuple[int | None, int], int]) -> str:
    """Return offsets as text, as in ``{"": {"0": 17}}``: partition id, bucket, offset."""
    nested: dict[str, dict[str, int]] = {}
    for (partition, bucket), offset in sorted(
        offsets.items(), key=lambda item: (item[0][0] is not None, item[0][0] or 0, item[0][1])
    ):
        name = "" if partition is None else str(partition)
        nested.setdefault(name, {})[str(bucket)] = offset
    return json.dumps(nested, separators=(",", ":"))


def offsets_from_text(text: str) -> Offsets:
    """Return the offsets that :func:`offsets_to_text` wrote."""
    try:
        return {
            (int(partition) if partition else None, int(bucket)): int(offset)
            for partition, buckets in json.loads(text).items()
            for bucket, offset in buckets.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise FlussError(
            f"a lake snapshot's property {OFFSETS_PROPERTY} is not what fluss_df writes: {text!r}"
        ) from error
