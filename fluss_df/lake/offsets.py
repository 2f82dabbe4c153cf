"""How far the buckets of a table are in a lake snapshot, as the snapshot itself says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from fluss_df.errors import FlussError

# (partition id, bucket) -> the offset behind the last one that is tiered
Offsets = dict[tuple[int | None, int], int]

# The offsets themselves: Fluss deletes the file of a snapshot when it learns of a later one, and
# the lake has to say alone how far it is.
OFFSETS_PROPERTY: Final = "fluss-df.offsets"


def offsets_to_text(offsets: Mapping[tuple[int | None, int], int]) -> str:
    """Return offsets as text, as in ``{"": {"0": 17}}``: partition id, bucket, offset."""
    nested: dict[str, dict[str, int]] = {}
    for (partition, bucket), offset in sorted(
        offsets.items(), key=lambda item: (item[0][0] is not None, item[0][0] or 0, item[0][1])
    ):
        name = "" if partition is None else str(partition)
        nested.setdefault(name, {})[str(bucket)] = offset
    return json.dumps(nested, separators=(",", ":"))


def offsets_in(properties: Mapping[str, str]) -> Offsets | None:
    """Return the offsets that a snapshot says of itself; None where it was not committed by us."""
    text = properties.get(OFFSETS_PROPERTY)
    if text is None:
        return None
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
