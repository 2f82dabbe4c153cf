import pickle
from collections.abc import Mapping

import pytest

from fluss_df.errors import FlussError
from fluss_df.spark.plan.options import ReadOptions, WriteOptions

PASSWORD = "s3cret-word"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no table given"),
        ({"path": "a.b", "start": "2024-01-31"}, "a time with its zone"),
        ({"path": "a.b", "rows.per.task": "0"}, "whole number from 1"),
        ({"path": "a.b", "colums": "x"}, "did you mean 'columns'"),
        ({"path": "a.b", "startingofsets": "x"}, "did you mean 'starting.offsets'"),
        ({"path": "a.b", "bootstrap.server": "x:1"}, "bootstrap.servers"),
        ({"path": "a.b", "request-timeout": "x"}, "invalid value 'x' for 'request-timeout'"),
        ({"path": "a.b", "changelog.mode": "snapshots"}, "did you mean 'snapshot'"),
        ({"path": "a.b", "starting.offsets": '{"0":'}, "no JSON object of offsets"),
        ({"path": "a.b", "fail.on.data.loss": "yes"}, "'true' or 'false'"),
        ({"path": "a.b", "buckets": "one"}, "expected numbers"),
        ({"path": "a.b", "write.mode": "append"}, "an option of writes"),
    ],
)
def test_bad_options_name_the_way_out(options: Mapping[str, str], message: str) -> None:
    with pytest.raises(FlussError, match=message):
        ReadOptions.parse(options)


def test_options_are_known_by_any_of_their_spellings() -> None:
    parsed = ReadOptions.parse(
        {
            "path": "a.b",
            "startingoffsets": '{"JFK/0": 7}',
            "maxOffsetsPerTrigger": "10",
            "metadata_columns": "_bucket, _log_offset",
            "client.request-timeout": "7",
            "checkpointlocation": "/c",
        }
    )
    assert parsed.start == {("JFK", 0): 7}
    assert parsed.max_offsets == 10
    assert parsed.metadata_columns == ("_bucket", "_log_offset")
    assert dict(parsed.connection.properties) == {"client.request-timeout": "7"}
    assert ReadOptions.parse({"path": "a.b", "stop": "0"}).stop == 0


def test_an_option_of_reads_is_refused_by_a_write() -> None:
    with pytest.raises(FlussError, match="an option of reads"):
        WriteOptions.parse({"path": "a.b", "columns": "x"})


def test_texts_of_options_show_no_password() -> None:
    given = {
        "path": "a.b",
        "connection": f"fluss://user:{PASSWORD}@host:1/db",
        "security.sasl.password": PASSWORD,
    }
    for parsed in (ReadOptions.parse(given), WriteOptions.parse(given)):
        assert PASSWORD not in repr(parsed)
        assert pickle.loads(pickle.dumps(parsed)) == parsed


@pytest.mark.parametrize("key", ["security.sasl.password", "security.ssl.key.password"])
def test_a_password_is_read_where_it_is_needed(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    given = {"path": "a.b", key: "env:FLUSS_TEST_PASSWORD"}
    connection = ReadOptions.parse(given).connection
    monkeypatch.setenv("FLUSS_TEST_PASSWORD", PASSWORD)
    assert PASSWORD.encode() not in pickle.dumps(connection)
    assert connection.resolved()[key] == PASSWORD
    monkeypatch.delenv("FLUSS_TEST_PASSWORD")
    with pytest.raises(FlussError, match="FLUSS_TEST_PASSWORD is not set"):
        connection.resolved()
