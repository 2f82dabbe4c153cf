"""Positions of deleted rows, as Paimon has them beside a data file."""

from __future__ import annotations

import struct
import zlib
from typing import Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.paimon.manifests import DeletionVector
from fluss_df.lake.paimon.storage import TableFiles

_MAGIC: Final = 1_581_511_376
_WORD: Final = 4


def deleted_positions(table: TableFiles, vector: DeletionVector) -> npt.NDArray[np.uint32]:
    """Return the positions that a vector has, from 0 on.

    Raises FlussError where its file is gone or damaged, or the vector is of another kind.
    """
    content = table.read(vector.file)[vector.offset :]
    try:
        length, magic = struct.unpack_from(">iI", content)
        if magic != _MAGIC:
            raise FlussError(
                f"lake table {table.path}: the deletion vectors in {table.at(vector.file)} are not"
                " of 32 bits, and others are not read (option 'deletion-vectors.bitmap64' of the"
                " lake table); lake=False reads what Fluss itself has",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        body = content[_WORD : _WORD + length]
        (checksum,) = struct.unpack_from(">I", content, _WORD + length)
        if zlib.crc32(body) != checksum:
            raise ValueError("a checksum is wrong")
        return np.array(BitMap.deserialize(body[_WORD:]).to_array(), dtype=np.uint32)
    except (struct.error, ValueError) as error:
        raise table.damaged(vector.file, error) from error
