"""What pickled and serialized queries name: their import paths stay, so that old ones open."""

import pickle
import re
from pathlib import Path

import polars as pl
import pyarrow as pa

import fluss_df
from fluss_df.backend.key_lookups import KeySide, narrowed
from fluss_df.client.connection import FlussConnection
from fluss_df.io import lookup_join, scan_fluss
from fluss_df.metadata import TablePath

# Users keep pickled frames in files, and a checkpoint of run() keeps a digest of the serialized
# plan, in which these paths stand. A class that moves makes the files unreadable, and the first run
# after an update warns that the query is another one. So what is named here does not move.
STABLE = {
    "fluss_df.backend.key_lookups",
    "fluss_df.client.connection",
    "fluss_df.config",
    "fluss_df.io.follow",
    "fluss_df.io.lookup_join",
    "fluss_df.io.polars_reader",
    "fluss_df.io.snapshot",
    "fluss_df.io.source",
    "fluss_df.metadata",
    "fluss_df.pushdown.plan",
    "fluss_df.record.change_tables",
}


def test_pickles_name_stable_import_paths_only(tmp_path: Path) -> None:
    connection = fluss_df.connect(str(tmp_path / "data"))
    fields = [pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())]
    for name, keys in (("log", None), ("keyed", ["k"])):
        descriptor = fluss_df.TableDescriptor(
            fluss_df.Schema(pa.schema(fields), primary_keys=keys), bucket_count=1
        )
        connection.get_admin().create_table(fluss_df.TablePath("fluss", name), descriptor)
    named: set[str] = set()
    for frame in _frames(connection):
        for data in (pickle.dumps(frame), frame.serialize()):
            named.update(name.decode() for name in re.findall(rb"fluss_df(?:\.\w+)+", data))
    # of pinned offsets, which a micro-batch's scan has
    assert named | {"fluss_df.pushdown.plan"} == STABLE
    connection.close()


def _frames(connection: FlussConnection) -> list[pl.LazyFrame]:
    log, keyed = (scan_fluss(f"fluss.{name}", connection=connection) for name in ("log", "keyed"))
    return [
        log,
        keyed,
        scan_fluss("fluss.log", connection=connection, follow=True, max_rows=5),
        scan_fluss("fluss.keyed$changelog", connection=connection),
        lookup_join(pl.LazyFrame({"k": [1]}), "fluss.keyed", connection=connection),
        # a semi-join of Ibis and SQL
        narrowed(keyed, TablePath("fluss", "keyed"), connection, KeySide(("k",), log.select("k"))),
    ]
