import datetime as dt
import pickle
from collections.abc import Mapping

import pytest

from fluss_df.errors import FlussError
from fluss_df.spark.boundary import called_by_spark
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
        (
            {"path": "a.b", "connection": "x:1", "bootstrap.servers": "y:1"},
            "'connection' and 'bootstrap.servers' both say where",
        ),
        (
            {"path": "a.b", "connection": "x:1", "client.bootstrap-servers": "y:1"},
            "'connection' and 'client.bootstrap-servers' both say where",
        ),
        ({"path": "a.b", "table": "c.d"}, "'path' and 'table' are the same option, 'table'"),
        (
            {"path": "a.b", "startingTimestamp": "latest", "start": "earliest"},
            "'startingTimestamp' and 'start' are the same option, 'starting.offsets'",
        ),
        ({"path": "a.b", "starting.offsets": '{"0": 1.9}'}, "no JSON object of offsets"),
        ({"path": "a.b", "starting.offsets": '{"0": true}'}, "no JSON object of offsets"),
        ({"path": "a.b", "starting.offsets": '{"0": -1}'}, "no JSON object of offsets"),
        ({"path": "a.b", "starting.offsets": '{"0": 1, "0": 2}'}, "bucket 0 is named twice"),
        ({"path": "a.b", "starting.offsets": '{"0": 1, "00": 2}'}, "bucket 00 is named twice"),
        (
            {"path": "a.b", "startingTimestamp": '{"0": 17}'},
            "'startingTimestamp' is a time for all",
        ),
        ({"path": "a.b", "startingTimestamp": "9" * 20}, "is after the year 9999"),
        ({"path": "a.b", "endingTimestamp": "2024-01-31"}, "a time with its zone"),
        ({"path": "a.b", "filter.timezone": "Mars/X"}, "'Mars/X' is no time zone"),
        ({"path": "a.b", "filter.timezone": "Europe"}, "'Europe' is no time zone"),
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
    assert ReadOptions.parse({"path": "a.b", "stop": '{"0": "3"}'}).stop == {0: 3}


@pytest.mark.parametrize("key", ["startingTimestamp", "endingtimestamp", "starting_timestamp"])
def test_a_timestamp_that_is_a_number_is_in_milliseconds(key: str) -> None:
    """It was taken for an offset that no log has, and no rows were found."""
    parsed = ReadOptions.parse({"path": "a.b", key: "1700000000123"})
    moment = parsed.stop if key.startswith("end") else parsed.start
    assert moment == dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, dt.UTC)
    parsed = ReadOptions.parse({"path": "a.b", key: "2024-01-31T12:00:00+00:00"})
    assert dt.datetime(2024, 1, 31, 12, tzinfo=dt.UTC) in (parsed.start, parsed.stop)
    parsed = ReadOptions.parse({"path": "a.b", "startingOffsets": "1700000000123"})
    assert parsed.start == 1_700_000_000_123


def test_an_option_of_reads_is_refused_by_a_write() -> None:
    with pytest.raises(FlussError, match="an option of reads"):
        WriteOptions.parse({"path": "a.b", "columns": "x"})


def test_errors_speak_of_options() -> None:
    """What the way out is called for who calls Python is no word of Spark's users."""

    @called_by_spark
    def fail(text: str) -> None:
        raise FlussError(text)

    for text, told in (
        ("create_partitions=True creates it", "option 'create.partitions' with 'true' creates it"),
        ("change_type_column='op': changes", "operation.column='op': changes"),
        ("use mode='append'", "use write.mode='append'"),
        ("by (mode='partial_update', new_upsert([columns]))", "by (write.mode='partial-update')"),
        ("start: offset 5; start='earliest' reads", "offset 5; starting.offsets='earliest' reads"),
        ("partitions=('x',): table a.b has", "option 'partitions' with ('x',): table a.b has"),
        ("buckets: table a.b has no bucket 9", "option 'buckets': table a.b has no bucket 9"),
        ("schema_mode='merge'", "schema_mode='merge'"),
    ):
        with pytest.raises(FlussError) as found:
            fail(text)
        assert found.value.message.endswith(told)


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
