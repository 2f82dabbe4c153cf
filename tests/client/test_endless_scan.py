"""A server that always has more rows, and never sends one."""

from __future__ import annotations

import polars as pl
import pytest

import fluss_df as fluss
from fluss_df.client.scan import snapshot_scanner
from fluss_df.engine.requests.kv_scans import Scans
from fluss_df.errors import ProtocolError
from fluss_df.io import read_fluss, write_fluss
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.record.kv.values import encode_value_batch


@pytest.mark.parametrize("records", [b"", encode_value_batch([])])
def test_a_scan_without_rows_ends(monkeypatch: pytest.MonkeyPatch, records: bytes) -> None:
    with fluss.connect(":memory:") as connection:
        write_fluss(
            pl.DataFrame({"id": [1]}),
            "keys",
            connection=connection,
            create_if_not_exists=True,
            primary_keys="id",
        )
        asked: list[bool] = []

        def answer(_: Scans, request: pb.ScanKvRequest) -> pb.ScanKvResponse:
            asked.append(request.close_scanner)
            return pb.ScanKvResponse(
                scanner_id=b"one", has_more_results=not request.close_scanner, records=records
            )

        with monkeypatch.context() as patched:
            patched.setattr(Scans, "_answer", answer)
            with pytest.raises(ProtocolError, match="answers without a row"):
                read_fluss("keys", connection=connection)
        assert asked.count(False) <= snapshot_scanner._MOST_WITHOUT_ROWS + 1
        # the server is told that nobody goes on
        assert asked[-1]
        assert read_fluss("keys", connection=connection)["id"].to_list() == [1]
