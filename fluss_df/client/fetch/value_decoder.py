"""Values of primary-key tables as Arrow, whatever schema each of them was written with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.metadata import require_columns
from fluss_df.record.kv.values import ValueDecoder
from fluss_df.record.layout.headers import Bytes
from fluss_df.record.python.dicts import dicts_of
from fluss_df.record.rows.single import row_decoder
from fluss_df.schema import TableInfo
from fluss_df.types import Column

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext

# schemas that a table can gain while it is read
_MOST_NEW_SCHEMAS = 100
# up to this number, rows are decoded one by one: 2 us each, where arrays take 130 us for all
_FEW_ROWS = 16

# takes a value, and where its row begins; returns None for a row that is decoded as many are
DecodeOne: TypeAlias = Callable[[bytes, int], dict[str, Any] | None]


class ValueReader:
    """Decodes what servers send of a primary-key table; for any number of threads.

    The result has ``columns`` in their order; None stands for all. ``schema`` is its schema. Every
    column of it may be null, since older rows can lack it.
    """

    def __init__(
        self, connection: ClientContext, info: TableInfo, columns: Sequence[str] | None = None
    ) -> None:
        names = info.get_column_names() if columns is None else list(columns)
        require_columns(names, info.get_column_names(), f"table {info.table_path}:")
        self._connection = connection
        self._info = info
        arrow = info.schema.arrow_schema
        self.schema = pa.schema([arrow.field(name).with_nullable(True) for name in names])
        self._lock = threading.Lock()
        self._schemas: dict[int, Sequence[Column]] = {info.schema_id: info.schema.columns}
        self._decoder = self._made_decoder(self._schemas)
        # The quick way where all columns are wanted. A value begins with the id of its schema.
        self._decode_one: dict[bytes, DecodeOne] = {}
        self._all_columns = columns is None
        self._know_one(info.schema_id, info.schema.columns)

    def _made_decoder(self, schemas: dict[int, Sequence[Column]]) -> ValueDecoder:
        return ValueDecoder(schemas, self.schema, self._info.kv_format)

    def _know_one(self, schema_id: int, columns: Sequence[Column]) -> None:
        """Have rows of a schema decoded one by one, if its types allow that."""
        decode = row_decoder(columns, self._info.kv_format) if self._all_columns else None
        if decode is not None:
            names = self.schema.names
            same = [column.name for column in columns] == names
            key = (schema_id & 0xFFFF).to_bytes(2, "little")
            self._decode_one[key] = decode if same else _of_columns(decode, names)

    def _learn(self, schema_id: int) -> None:
        schema = self._connection.io.run(
            TableQuestions(self._connection).table_schema(self._info.table_path, schema_id)
        )
        with self._lock:
            schemas = {**self._schemas, schema_id: schema.columns}
            # in this order: another thread that finds the schema has a decoder that knows it
            self._decoder = self._made_decoder(schemas)
            self._schemas = schemas
            self._know_one(schema_id, schema.columns)

    def rows(self, values: Sequence[bytes]) -> list[dict[str, Any]]:
        """Return the rows of values, none of which is empty, as dicts."""
        if not self._decode_one or len(values) > _FEW_ROWS:
            return dicts_of(self.decode(values))
        rows: list[dict[str, Any]] = []
        for value in values:
            decode = self._decode_one.get(value[:2])
            row = None if decode is None else decode(value, 2)
            rows += dicts_of(self.decode([value])) if row is None else [row]
        return rows

    def decode(self, values: Sequence[bytes]) -> pa.Table:
        """Return the rows of values, none of which is empty, in their order."""
        array = pa.array(values, pa.large_binary())
        _, offsets, data = array.buffers()
        bounds = np.frombuffer(offsets, np.int64)[: len(array) + 1]
        content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        return self.decode_parts(content, bounds[:-1], bounds[1:])

    def decode_parts(
        self, data: Bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> pa.Table:
        """Return the rows of values that stand in ``data``."""
        if not len(starts):
            return pa.Table.from_batches([], self.schema)
        if (ends - starts < 2).any():
            raise ProtocolError(f"a value of table {self._info.table_path} has no schema id")
        content = np.frombuffer(data, np.uint8)
        ids = content[starts].astype(np.int64) | content[starts + 1].astype(np.int64) << 8
        most = int(ids[0])
        for schema_id in {most, *np.unique(ids[ids != most]).tolist()}:
            if schema_id not in self._schemas:
                self._learn(schema_id)
        return self._decoder.decode_values((content, starts, ends))

    def decode_batch(self, data: Bytes) -> pa.Table:
        """Return the rows of a value batch."""
        for _ in range(_MOST_NEW_SCHEMAS):
            decoder = self._decoder
            try:
                return decoder.decode_batch(data)
            except FlussError as error:
                if error.error_code != ErrorCode.SCHEMA_NOT_EXIST:
                    raise
                # another thread may have learnt them meanwhile
                if not self._learn_newest() and self._decoder is decoder:
                    raise
        raise ProtocolError(f"table {self._info.table_path} has too many schemas")

    def _learn_newest(self) -> bool:
        """Learn all schemas up to the newest; whether there were any that were not known."""
        path = self._info.table_path
        info = TableQuestions(self._connection).get_table_info(path)
        missing = [i for i in range(1, info.schema_id + 1) if i not in self._schemas]
        for schema_id in missing:
            self._learn(schema_id)
        return bool(missing)


def _of_columns(decode: DecodeOne, names: Sequence[str]) -> DecodeOne:
    """Return what decodes a row of another schema: columns that it lacks are null."""

    def decode_chosen(value: bytes, at: int) -> dict[str, Any] | None:
        row = decode(value, at)
        return None if row is None else {name: row.get(name) for name in names}

    return decode_chosen
