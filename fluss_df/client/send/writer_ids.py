"""Under which writer id, and from which sequence on, the batches of a bucket go."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.send.bucket_queue import BucketQueue
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import INIT_WRITER
from fluss_df.protocol.message_parts import path_message
from fluss_df.schema import TableInfo


class WriterIds:
    """The writer ids of one writer; on the I/O thread."""

    def __init__(self, cluster: Cluster, info: TableInfo, *, idempotent: bool) -> None:
        self._cluster = cluster
        self._info = info
        self.idempotent = idempotent
        self._asked: asyncio.Task[int] | None = None
        self._fixed: tuple[int, Mapping[TableBucket, int]] | None = None

    @property
    def fixed(self) -> bool:
        """Whether there is one writer id, whose batches are settled."""
        return self._fixed is not None

    def fix(self, writer_id: int, sequences: Mapping[TableBucket, int]) -> None:
        """Use this writer id alone, from these sequences on; before the first batch.

        What the server does not take under it fails, rather than going under another one.
        """
        self._fixed = (writer_id, sequences)

    def prepare(self, queue: BucketQueue) -> asyncio.Task[int] | None:
        """Give a bucket its writer id; return what is to be waited for before, if anything.

        Raises FlussError where the server takes no more batches of the one writer id that there is.
        """
        if not self.idempotent:
            return None
        if self._fixed is not None:
            self._prepare_fixed(queue, *self._fixed)
            return None
        if not queue.needs_writer_id:
            return None
        if queue.renew_writer:
            queue.forget_writer()
            self._asked = None
        if self._asked is None:
            self._asked = asyncio.ensure_future(self.ask())
        if self._asked.done() and self._asked.exception() is None:
            queue.start_sequences(self._asked.result(), 0)
            return None
        return self._asked

    def _prepare_fixed(
        self, queue: BucketQueue, writer_id: int, sequences: Mapping[TableBucket, int]
    ) -> None:
        if queue.renew_writer:
            raise FlussError(
                f"the server takes no more batches of writer {writer_id}",
                ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION,
            )
        if queue.writer_id != writer_id:
            queue.start_sequences(writer_id, sequences.get(queue.bucket, 0))

    async def wait(self, asked: asyncio.Task[int]) -> None:
        """Wait for a writer id; where that fails, another one is asked for next time."""
        try:
            await asyncio.shield(asked)
        except Exception:
            if self._asked is asked:
                self._asked = None
            raise

    async def ask(self) -> int:
        """Have a server give a writer id that nobody else has."""
        request = pb.InitWriterRequest(table_path=[path_message(self._info.table_path)])
        try:
            response = await self._cluster.request_tablet_server(INIT_WRITER, request)
        except FlussError as error:
            if error.error_code != ErrorCode.AUTHORIZATION_EXCEPTION:
                raise
            # it may be about any of several tables, and servers name none
            raise FlussError(
                f"table {self._info.table_path}: {error.message}", error.error_code
            ) from error
        return response.writer_id
