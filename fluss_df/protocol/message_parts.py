"""What messages of many requests have in common: buckets, table paths, errors."""

from __future__ import annotations

from typing import Any

from fluss_df.errors import FlussError
from fluss_df.metadata import TableBucket, TablePath
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import Api, RequestT
from fluss_df.protocol.wire import Buffer, parsed


def parse_request(api: Api[RequestT, Any], body: Buffer) -> RequestT:
    """Return the message of a request.

    Raises ProtocolError when the body is not the message.
    """
    return parsed(api.request, body, f"a {api.name} request")


def partition_of(message: Any) -> int | None:
    """Return the id of the partition that a message names; None where it names none."""
    found: int | None = message.partition_id if message.HasField("partition_id") else None
    return found


def bucket_of(table_id: int, message: Any) -> TableBucket:
    """Return the bucket that a part of a message is about."""
    return TableBucket(table_id, message.bucket_id, partition_of(message))


def answer_to(response: Any, part: Any) -> Any:
    """Add the answer to a part of a request to a response; return it."""
    return response.buckets_resp.add(bucket_id=part.bucket_id, partition_id=partition_of(part))


def path_of(message: Any) -> TablePath:
    """Return the table that a message names by its database and its name."""
    return TablePath(message.database_name, message.table_name)


def path_message(path: TablePath) -> pb.PathOfTable:
    """Return the message for a table path."""
    return pb.PathOfTable(database_name=path.database_name, table_name=path.table_name)


def set_error(answer: Any, error: FlussError) -> None:
    """Write an error into the part of an answer that is about one bucket or table."""
    answer.error_code, answer.error_message = error.error_code, error.message
