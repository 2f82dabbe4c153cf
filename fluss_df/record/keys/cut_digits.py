"""Keys that are equal as bytes and not as values: encodings cut digits that Arrow's values have.

A TIME is milliseconds in every key, and Iceberg's keys hold microseconds of a timestamp. A lookup
of such a key is answered with the row of another one.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.types import Column, TypeRoot, to_arrow

Mask = npt.NDArray[np.bool_]

_MILLIS = pa.time32("ms")


class CutDigits:
    """Finds the keys whose digits the encoding of keys does not tell apart.

    ``columns`` are those of a key as users give it, with those that name the partition. ``encoded``
    are those of them that are encoded as the key, in the encoding of ``lake_format`` (None for
    Fluss's own).

    ``of_answers`` are the columns in which a row that was found may have another value than was
    asked for.
    """

    def __init__(
        self, columns: Sequence[Column], encoded: Sequence[Column], lake_format: str | None
    ) -> None:
        self._times = [column.name for column in columns if _has_finer_times(column)]
        iceberg = (lake_format or "").lower() == "iceberg"
        self.of_answers = [c.name for c in encoded if iceberg and _in_nanoseconds(c)]

    def impossible(self, keys: pa.Table | pa.RecordBatch) -> Mask | None:
        """Return which keys no row can have; None where there is none.

        A TIME of a row has no digits below the millisecond: writers refuse them.
        """
        found: Mask | None = None
        for name in self._times:
            times = keys.column(name)
            cut = times.cast(_MILLIS, safe=False).cast(times.type)
            # nulls are left to the encoder of keys, which refuses them
            finer = pc.not_equal(times, cut).fill_null(False).to_numpy(zero_copy_only=False)
            found = finer if found is None else found | finer
        return found if found is not None and found.any() else None

    def others(self, keys: pa.Table, rows: pa.Table) -> Mask:
        """Return which rows have another key than the one that they were found by."""
        differ = [
            pc.not_equal(keys.column(name), rows.column(name)).to_numpy()
            for name in self.of_answers
        ]
        return functools.reduce(operator.or_, differ, np.zeros(keys.num_rows, np.bool_))


def _has_finer_times(column: Column) -> bool:
    kind = to_arrow(column.type)
    return bool(pa.types.is_time(kind)) and kind.unit in ("us", "ns")


def _in_nanoseconds(column: Column) -> bool:
    root = column.type.root
    return root is TypeRoot.TIMESTAMP_WITHOUT_TIME_ZONE and to_arrow(column.type).unit == "ns"
