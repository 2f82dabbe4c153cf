"""Opens a snapshot of a Paimon table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss_df.errors import FlussError
from fluss_df.lake.options import LakeOptions
from fluss_df.lake.paimon.storage import TableFiles

if TYPE_CHECKING:
    from fluss_df.lake.paimon.snapshot import PaimonSnapshot


def open_paimon(options: LakeOptions, snapshot_id: int) -> PaimonSnapshot:
    """Return the files of a snapshot of a Paimon table.

    Raises FlussError where the extra ``paimon`` is not installed, the catalog is not one of files,
    cannot be reached, lacks the table or the snapshot, or the table has what is not read.
    """
    try:
        from fluss_df.lake.paimon.manifests import read_snapshot
        from fluss_df.lake.paimon.snapshot import PaimonSnapshot
    except ImportError as error:
        raise FlussError(
            f"table {options.path} is tiered into Paimon: pip install 'fluss-df[paimon]' to read"
            f" it, or pass lake=False for what Fluss itself has ({error})"
        ) from error
    table = TableFiles(options)
    return PaimonSnapshot(table, read_snapshot(table, snapshot_id))
