"""Produce requests framed by hand equal those that protobuf serialises."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.produce import ProduceLog, PutKv

buckets = st.lists(
    st.tuples(
        st.none() | st.integers(0, 2**63 - 1),
        st.integers(0, 2**31 - 1),
        st.lists(st.binary(max_size=300), max_size=3),
    ),
    max_size=4,
)


@given(st.sampled_from([-1, 0, 1]), st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1), buckets)
def test_equals_protobuf(
    acks: int, table_id: int, timeout_ms: int, buckets: list[tuple[int | None, int, list[bytes]]]
) -> None:
    body = ProduceLog(table_id).body(acks=acks, timeout_ms=timeout_ms, buckets=buckets)
    message = pb.ProduceLogRequest(
        acks=acks,
        table_id=table_id,
        timeout_ms=timeout_ms,
        buckets_req=[
            pb.ProduceLogRequestForBucket(
                partition_id=partition, bucket_id=bucket, records=b"".join(records)
            )
            for partition, bucket, records in buckets
        ],
    )
    assert b"".join(bytes(part) for part in body) == message.SerializeToString()


@given(st.sampled_from([-1, 0, 1]), st.lists(st.integers(0, 300)), buckets)
def test_puts_equal_protobuf(
    acks: int, targets: list[int], buckets: list[tuple[int | None, int, list[bytes]]]
) -> None:
    body = PutKv(7, targets).body(acks=acks, timeout_ms=9, buckets=buckets)
    message = pb.PutKvRequest(
        acks=acks,
        table_id=7,
        timeout_ms=9,
        target_columns=targets,
        buckets_req=[
            pb.PutKvRequestForBucket(
                partition_id=partition, bucket_id=bucket, records=b"".join(records)
            )
            for partition, bucket, records in buckets
        ],
    )
    assert b"".join(bytes(part) for part in body) == message.SerializeToString()


def test_batches_are_passed_on_as_they_are() -> None:
    records = bytearray(b"batch")
    body = ProduceLog(1).body(acks=-1, timeout_ms=1, buckets=[(None, 0, [records])])
    assert any(part is records for part in body)
