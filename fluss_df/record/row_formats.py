"""The row formats by the names that table properties have for them."""

from __future__ import annotations

from fluss_df.errors import FlussError
from fluss_df.record import compacted, indexed

_ENCODERS: dict[str, type[compacted.RowEncoder]] = {
    "compacted": compacted.RowEncoder,
    "indexed": indexed.RowEncoder,
}
_DECODERS: dict[str, type[compacted.RowDecoder]] = {
    "compacted": compacted.RowDecoder,
    "indexed": indexed.RowDecoder,
}


def encoder_of(row_format: str) -> type[compacted.RowEncoder]:
    """Return the encoder of a format: ``compacted`` or ``indexed``.

    Raises
    ------
    FlussError
        For another one.
    """
    try:
        return _ENCODERS[row_format.lower()]
    except KeyError:
        raise FlussError(f"unknown row format {row_format!r}: compacted or indexed") from None


def decoder_of(row_format: str) -> type[compacted.RowDecoder]:
    """Return the decoder of a format; errors are those of :func:`encoder_of`."""
    try:
        return _DECODERS[row_format.lower()]
    except KeyError:
        raise FlussError(f"unknown row format {row_format!r}: compacted or indexed") from None
