"""One bucket against a model: random appends, duplicates, gaps, syncs, reads, crashes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fluss_df.engine.log.tablet import Tablet
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.log.log_batch import Compression, encode_log_batch

NAME = "TableBucket{tableId=1, bucket=0}"
WRITERS = st.integers(0, 2)


def batch(rows: int, writer: int, sequence: int) -> memoryview:
    data = pa.record_batch({"a": pa.array([sequence] * rows, pa.int32())})
    encoded = encode_log_batch(data, schema_id=1, compression=Compression("none"))
    encoded.stamp(writer, sequence)
    return memoryview(encoded.to_bytes())


class Bucket(RuleBasedStateMachine):
    """The model: (writer, sequence, base offset, rows) of every batch, and how many are synced."""

    @initialize()
    def begin(self) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name) / "log"
        self.log: list[tuple[int, int, int, int]] = []
        self.synced = 0
        self.open()

    def open(self) -> None:
        self.tablet = Tablet(self.folder, NAME, segment_bytes=600)

    @property
    def end(self) -> int:
        return self.log[-1][2] + self.log[-1][3] if self.log else 0

    def last(self, writer: int) -> int:
        return max((entry[1] for entry in self.log if entry[0] == writer), default=-1)

    @rule(writer=WRITERS, rows=st.integers(1, 4))
    def append(self, writer: int, rows: int) -> None:
        sequence = self.last(writer) + 1
        result = self.tablet.append(batch(rows, writer, sequence), {1: None})
        assert (result.base_offset, result.durable_at) == (self.end, self.end + rows)
        self.log.append((writer, sequence, self.end, rows))

    @rule(writer=WRITERS, back=st.integers(0, 7))
    def append_again(self, writer: int, back: int) -> None:
        sequence = self.last(writer) - back
        if sequence < 0:
            return
        known = next(entry for entry in self.log if entry[:2] == (writer, sequence))
        if back < 5:
            assert self.tablet.append(batch(1, writer, sequence), {1: None}).base_offset == known[2]
        else:
            self.refused(writer, sequence)

    @rule(writer=WRITERS, gap=st.integers(2, 4))
    def append_with_a_gap(self, writer: int, gap: int) -> None:
        self.refused(writer, self.last(writer) + gap)

    def refused(self, writer: int, sequence: int) -> None:
        code = None
        try:
            self.tablet.append(batch(1, writer, sequence), {1: None})
        except FlussError as error:
            code = error.error_code
        assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION

    @rule()
    def sync(self) -> None:
        self.tablet.sync()
        self.synced = len(self.log)

    @rule()
    def reopen(self) -> None:
        self.tablet.close()
        self.open()
        self.synced = len(self.log)

    @rule(lost=st.integers(0, 2000))
    def crash(self, lost: int) -> None:
        """The process ends; of what was not synced, a tail may be missing."""
        self.synced = max(
            self.synced, sum(e[2] + e[3] <= self.tablet.synced_offset for e in self.log)
        )
        self.tablet.abandon()
        file = max(self.folder.glob("*.log"))
        base = int(file.stem)
        sizes = [len(batch(e[3], e[0], e[1])) for e in self.log if e[2] >= base]
        safe = len([e for e in self.log[: self.synced] if e[2] >= base])
        keep = max(sum(sizes[:safe]), sum(sizes) - lost)
        os.truncate(file, keep)
        kept = len(self.log) - len(sizes)
        while sizes and keep >= sizes[0]:
            keep -= sizes.pop(0)
            kept += 1
        self.log = self.log[:kept]
        self.open()
        self.synced = len(self.log)

    @rule(data=st.data(), size=st.integers(1, 2000))
    def read(self, data: st.DataObject, size: int) -> None:
        high = self.tablet.high_watermark
        if not high:
            return
        offset = data.draw(st.integers(0, high - 1))
        piece = self.tablet.read(offset, size, at_least_one=True)
        assert piece is not None
        found = list(
            zip(
                piece.headers.writer_id.tolist(),
                piece.headers.sequence.tolist(),
                piece.headers.base_offset.tolist(),
                piece.headers.record_count.tolist(),
                strict=True,
            )
        )
        first = next(i for i, e in enumerate(self.log) if e[2] + e[3] > offset)
        assert found == self.log[first : first + len(found)]
        assert len(found) == 1 or len(piece.data) <= size

    @invariant()
    def ends_agree(self) -> None:
        if hasattr(self, "tablet"):
            assert self.tablet.end_offset == self.end
            assert self.tablet.high_watermark <= self.end

    def teardown(self) -> None:
        if hasattr(self, "tablet"):
            self.tablet.abandon()
            self.temporary.cleanup()


TestBucket = Bucket.TestCase
TestBucket.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
