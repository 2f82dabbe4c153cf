"""The changelog of a primary-key table back into keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.engine.kv.decoded_parts import parts_of
from fluss_df.engine.kv.kv_store import KvState
from fluss_df.engine.merge.row_changes import DELETE, INSERT, UPDATE_BEFORE
from fluss_df.engine.merge.values_pool import TableCodec
from fluss_df.engine.tables.tables import Table
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.record.kv.primary_key import key_columns, key_lake_format
from fluss_df.record.layout.bytes_columns import EncodedRows
from fluss_df.record.layout.headers import Bytes, LogHeaders
from fluss_df.record.log.log_decode import DecodedBatch
from fluss_df.record.log.row_log import decoder_of_log

NOT_COUNTED: Final = -1
# of rows in Arrow, whose changes are made at once
_STEP_BYTES: Final = 16 << 20

Kinds = npt.NDArray[np.int8]
Booleans = npt.NDArray[np.bool_]
Changes = dict[bytes, bytes | None]


def _kept(rows: pa.RecordBatch, change_types: pa.Array) -> tuple[pa.Table, Kinds]:
    """Return the rows that say what there is after a change, and their change types."""
    kinds = change_types.to_numpy(zero_copy_only=False)
    kept = kinds != UPDATE_BEFORE
    return pa.Table.from_batches([rows]).filter(pa.array(kept)), kinds[kept]


class ChangeReplay:
    """Reads changes of one table."""

    def __init__(self, table: Table, codec: TableCodec, block: int) -> None:
        self._codec = codec
        self._block = block
        info = table.info()
        self._keys = KvEncoder(
            codec.schema_id,
            codec.columns,
            [column.name for column in key_columns(info)],
            kv_format=codec.kv_format,
            lake_format=key_lake_format(info),
        )
        columns = {key: schema.columns for key, schema in table.schemas.items()}
        self._decoder = decoder_of_log(columns, codec.arrow_schema, table.log_format)

    def decode(self, data: Bytes, headers: LogHeaders, start: int) -> Iterator[DecodedBatch]:
        """Decode batches of the changelog, from an offset on, a part of them at a time."""
        for first, last in parts_of(data, headers, self._codec):
            yield from self._decoder.decode(data, headers, first, last, start_offset=start)

    def columns(self, batch: DecodedBatch) -> tuple[EncodedRows, EncodedRows, Booleans] | None:
        """Return keys, values, and which are deleted, of the changes of a batch; None for none."""
        if batch.change_types is None:
            return None
        rows, kinds = _kept(batch.batch, batch.change_types)
        return self._keys.keys(rows), self._codec.encode(rows), kinds == DELETE

    def add(self, batch: DecodedBatch, changes: Changes, state: KvState) -> KvState:
        """Add the changes of a batch to others; return the state of a store behind it."""
        if batch.change_types is None:
            return state
        rows, types = batch.batch, batch.change_types
        # a part of a large batch at a time: what is made of rows takes as much as these
        step = max(1, _STEP_BYTES * rows.num_rows // max(1, rows.nbytes))
        for at in range(0, rows.num_rows, step):
            part = rows.slice(at, step), types.slice(at, step)
            state = self._add(*_kept(*part), changes, state)
        return state

    def _add(self, rows: pa.Table, kinds: Kinds, changes: Changes, state: KvState) -> KvState:
        encoded = self._keys.keys(rows)
        key_bytes, at = encoded.data.tobytes(), encoded.offsets.tolist()
        values = self._codec.encode(rows)
        value_bytes, edges = values.data.tobytes(), values.offsets.tolist()
        for i, kind in enumerate(kinds.tolist()):
            key = key_bytes[at[i] : at[i + 1]]
            changes[key] = None if kind == DELETE else value_bytes[edges[i] : edges[i + 1]]
        if state.rows != NOT_COUNTED:
            grown = int((kinds == INSERT).sum()) - int((kinds == DELETE).sum())
            state = replace(state, rows=state.rows + grown)
        numbered = self._codec.schema.auto_increment
        highest = pc.max(rows.column(numbered[0])).as_py() if numbered else None
        if highest is not None and highest >= state.sequence_next:
            # numbers are reserved in blocks of one size, and this one was in the bucket's last
            end = ((highest - 1) // self._block + 1) * self._block + 1
            state = replace(state, sequence_next=highest + 1, sequence_end=end)
        return state
