from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.text import replace_malformed


def malformed(message: pb.MetadataRequest) -> pb.MetadataRequest:
    """Return a message with other bytes of the same number in its texts."""
    body = message.SerializeToString().replace(b"xyz", b"\xffa\xfe")
    return pb.MetadataRequest.FromString(body)


def test_malformed_texts_are_replaced_wherever_they_stand() -> None:
    message = pb.MetadataRequest()
    message.table_path.add(database_name="xyz", table_name="good")
    message.partitions_path.add(database_name="d", table_name="xyz", partition_name="")
    found = malformed(message)
    assert isinstance(found.table_path[0].database_name, bytes)
    replace_malformed(found)
    assert found.table_path[0].database_name == "\ufffda\ufffd"
    assert found.table_path[0].table_name == "good"
    assert found.partitions_path[0].table_name == "\ufffda\ufffd"


def test_lists_of_texts() -> None:
    listed = pb.ListDatabasesResponse(database_name=["good", "xyz"])
    body = listed.SerializeToString().replace(b"xyz", b"\xff\xff\xff")
    found = pb.ListDatabasesResponse.FromString(body)
    replace_malformed(found)
    assert list(found.database_name) == ["good", "\ufffd" * 3]


def test_bytes_stay() -> None:
    token = pb.AuthenticateRequest(protocol="PLAIN", token=b"\xff")
    replace_malformed(token)
    assert token.token == b"\xff"
