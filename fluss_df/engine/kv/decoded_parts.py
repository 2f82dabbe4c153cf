"""Parts of a log that are decoded at once: kilobytes of it may be gigabytes of rows.

How much rows take is known before they are decoded: a compressed message says of each of its
buffers how large it is, and a column of a fixed size takes as much where it is null.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from fluss_df.engine.merge.values_pool import TableCodec
from fluss_df.record.layout.headers import Bytes, LogHeaders, byte_view
from fluss_df.record.log.cut import read_message

# what rows take that are decoded at once, unless one batch takes more
_MOST_BYTES: Final = 16 << 20
_LENGTH: Final = struct.Struct("<q")


def parts_of(data: Bytes, headers: LogHeaders, codec: TableCodec) -> Iterator[tuple[int, int]]:
    """Iterate over ranges of batches that may be decoded at once: the first, and behind the last.

    Raises ProtocolError for bytes that are no batches.
    """
    view = byte_view(data)
    ends = (headers.position + headers.size).tolist()
    starts = (headers.payload + np.where(headers.append_only, 0, headers.record_count)).tolist()
    first = size = 0
    for i, rows in enumerate(headers.record_count.tolist()):
        of_batch = rows * codec.row_width
        if codec.log_encoder is None and rows:
            of_batch += _message_bytes(view, starts[i], ends[i])
        else:
            size_of_batch = int(headers.size[i])
            of_batch += size_of_batch + codec.wide_lists.most_bytes(size_of_batch)
        if i > first and size + of_batch > _MOST_BYTES:
            yield first, i
            first, size = i, 0
        size += of_batch
    yield first, len(headers)


def _message_bytes(view: memoryview, start: int, end: int) -> int:
    """Return what the buffers of an Arrow message take once they are decompressed."""
    message = read_message(view, start, end)
    found = 0
    for offset, length in message.buffers:
        if message.compression is not None and length >= _LENGTH.size:
            # -1 where it did not become smaller
            raw = _LENGTH.unpack_from(view, message.body + offset)[0]
            found += length if raw < 0 else raw
        else:
            found += length
    return found
