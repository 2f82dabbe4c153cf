"""Parts of a log that are decoded at once: kilobytes of it may be gigabytes of rows.

How much rows take is known before they are decoded: a compressed message says of each of its
buffers how large it is, and a column of a fixed size takes as much where it is null.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fluss_df.engine.merge.values_pool import TableCodec
from fluss_df.record.layout.headers import Bytes, LogHeaders, byte_view
from fluss_df.record.log.cut import decompressed_size, read_message

# what rows take that are decoded at once, unless one batch takes more
_MOST_BYTES: Final = 16 << 20


def parts_of(data: Bytes, headers: LogHeaders, codec: TableCodec) -> Iterator[tuple[int, int]]:
    """Iterate over ranges of batches that may be decoded at once: the first, and behind the last.

    Raises ProtocolError for bytes that are no batches.
    """
    view = byte_view(data)
    ends = (headers.position + headers.size).tolist()
    starts = headers.messages.tolist()
    first = size = 0
    for i, rows in enumerate(headers.record_count.tolist()):
        of_batch = rows * codec.row_width
        if codec.log_encoder is None and rows:
            of_batch += decompressed_size(view, read_message(view, starts[i], ends[i]))
        else:
            size_of_batch = int(headers.size[i])
            of_batch += size_of_batch + codec.wide_lists.most_bytes(size_of_batch)
        if i > first and size + of_batch > _MOST_BYTES:
            yield first, i
            first, size = i, 0
        size += of_batch
    yield first, len(headers)
