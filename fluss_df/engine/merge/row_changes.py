"""The changes that a batch of upserts and deletes makes, and their changelog."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss_df.engine.merge.merge_engines import Chains, Replace
from fluss_df.engine.merge.values_pool import Places, ValuePool
from fluss_df.record.layout.headers import APPEND_ONLY, CRC_START, HEADER_SIZE, OVERHEAD
from fluss_df.record.layout.unaligned import Bools, Int64s
from fluss_df.record.log.log_batch import Compression, encode_log_batch
from fluss_df.record.log.row_log import encode_row_log_batch

UInt8s = npt.NDArray[np.uint8]

INSERT: Final = 1
UPDATE_BEFORE: Final = 2
UPDATE_AFTER: Final = 3
DELETE: Final = 4
_NOTHING: Final = 0
_ATTRIBUTES_AT: Final = 27
_LENGTH: Final = struct.Struct("<i")
_WRITER: Final = struct.Struct("<qi")
_WRITER_AT: Final = 32
_CRC: Final = struct.Struct("<I")
_CRC_AT: Final = 21


@dataclass(frozen=True, slots=True)
class RowChanges:
    """The change that each record of a batch makes.

    ``before`` and ``after`` are the value of its key before and after it; -1 for none. ``kind`` is
    0 for nothing, else :data:`INSERT`, :data:`UPDATE_AFTER` or :data:`DELETE`.
    """

    before: Places
    after: Places
    kind: UInt8s

    @property
    def row_count(self) -> int:
        """By how many rows the table grew."""
        return int((self.kind == INSERT).sum()) - int((self.kind == DELETE).sum())


def replaced(old: Places, new: Places, ids: Int64s | None) -> RowChanges:
    """Return what records do where the newest always counts.

    ``old`` has the value that is stored for the key of each record (of each key where there are
    ids). ``new`` has the value of each record; none for a delete. ``ids`` has the number of each
    record's key among the keys of the batch; None where all keys differ.
    """
    before = old
    if ids is not None:
        before = old[ids].copy()
        order = np.argsort(ids, kind="stable")
        again = np.flatnonzero(ids[order][1:] == ids[order][:-1]) + 1
        before.put(order[again], new[order[again - 1]])
    was, is_ = before.present, new.present
    kind = np.zeros(len(new), np.uint8)
    kind[is_ & ~was] = INSERT
    kind[is_ & was] = UPDATE_AFTER
    kind[~is_ & was] = DELETE
    return RowChanges(before, new, kind)


def folded(
    pool: ValuePool, engine: Replace, old: Places, new: Places, ids: Int64s | None
) -> RowChanges:
    """Return what records do under a merge engine; parameters are those of :func:`replaced`."""
    count = len(new)
    of_key = np.arange(count) if ids is None else ids
    order = np.argsort(of_key, kind="stable")
    at = np.arange(count) + of_key[order] + 1
    values = Places.none(len(old) + count)
    is_head = np.ones(len(values), np.bool_)
    is_head[at] = False
    heads = np.flatnonzero(is_head)
    values.put(heads, old)
    values.put(at, new[order])
    state = engine.fold(pool, Chains(values, heads, np.cumsum(is_head) - 1))
    was, now = state[at - 1], state[at]
    kinds = np.zeros(count, np.uint8)
    kinds[was.present & (now.starts != was.starts)] = UPDATE_AFTER
    kinds[was.present & ~now.present] = DELETE
    kinds[~was.present & now.present] = INSERT
    before, after = Places.none(count), Places.none(count)
    kind = np.empty(count, np.uint8)
    before.put(order, was)
    after.put(order, now)
    kind[order] = kinds
    return RowChanges(before, after, kind)


def in_keys(ids: Int64s | None, count: int) -> tuple[Int64s, Int64s]:
    """Return the order of records by key, and for each place in it where its key begins."""
    if ids is None:
        return np.arange(count), np.arange(count)
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    first = np.concatenate([[True], sorted_ids[1:] != sorted_ids[:-1]])
    return order, np.maximum.accumulate(np.where(first, np.arange(count), 0))


def change_rows(changes: RowChanges, full_image: bool) -> tuple[UInt8s, Places]:
    """Return the changelog: the type of each change, and the value that stands there."""
    kind = changes.kind
    pairs: Bools = kind == UPDATE_AFTER if full_image else np.zeros(len(kind), np.bool_)
    counts = (kind != _NOTHING).astype(np.int64) + pairs
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    types = np.empty(total, np.uint8)
    places = Places(np.empty(total, np.int64), np.empty(total, np.int64))
    some = np.flatnonzero(counts)
    last = ends[some] - 1
    types[last] = kind[some]
    deleted = (kind[some] == DELETE)[:, None]
    shown = np.where(
        deleted,
        np.stack([changes.before.starts[some], changes.before.ends[some]], axis=1),
        np.stack([changes.after.starts[some], changes.after.ends[some]], axis=1),
    )
    places.put(last, Places(shown[:, 0], shown[:, 1]))
    double = np.flatnonzero(pairs)
    types[ends[double] - 2] = UPDATE_BEFORE
    places.put(ends[double] - 2, changes.before[double])
    return types, places


def change_batch(
    pool: ValuePool,
    types: UInt8s,
    places: Places,
    compression: Compression,
    writer_id: int,
    sequence: int,
) -> bytes:
    """Return changes as a log batch; one without changes takes an offset all the same."""
    codec = pool.codec
    kinds = b""
    body = memoryview(b"")
    if not len(types):
        header = bytearray(HEADER_SIZE)
        if codec.log_encoder is None:
            empty = pa.RecordBatch.from_pylist([], codec.arrow_schema).serialize()
            body = memoryview(empty)
        header[CRC_START : CRC_START + 2] = codec.schema_id.to_bytes(2, "little")
    else:
        rows = pool.rows(places).combine_chunks().to_batches()[0]
        schema_id = codec.schema_id
        if codec.log_encoder is None:
            encoded = encode_log_batch(rows, schema_id=schema_id, compression=compression)
            kinds = types.tobytes()
        else:
            # the types stand with the rows
            encoded = encode_row_log_batch(
                rows, schema_id=schema_id, rows=codec.log_encoder, change_types=types
            )
        head, body = encoded.buffers
        header = bytearray(head)
        header[_ATTRIBUTES_AT] &= ~APPEND_ONLY & 0xFF
    _WRITER.pack_into(header, _WRITER_AT, writer_id, sequence)
    length = HEADER_SIZE + len(kinds) + len(body) - OVERHEAD
    _LENGTH.pack_into(header, 8, length)
    crc = google_crc32c.value(bytes(header[CRC_START:]) + kinds)
    # as a view of NumPy: of other buffers, google_crc32c takes only bytes
    crc = google_crc32c.extend(crc, np.frombuffer(body, np.uint8)) if len(body) else crc
    _CRC.pack_into(header, _CRC_AT, crc)
    return b"".join((header, kinds, body))
