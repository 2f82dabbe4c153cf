"""SASL/PLAIN against a server that demands it, and credentials at one that does not."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError
from fluss_df.cli import app
from fluss_df.client.connection import resolve_connection
from fluss_df.cluster.pytest_plugin import ClusterFactory
from tests.client.support import soon

PASSWORD = "wonder-land"


@pytest.fixture(scope="module")
def guarded(fluss_cluster_factory: ClusterFactory) -> Iterator[str]:
    """The address of a server that demands a password of alice."""
    with fluss_cluster_factory(sasl={"alice": PASSWORD}) as cluster:
        yield cluster.bootstrap_servers


def settings(address: str, user: str = "alice", password: str = PASSWORD) -> dict[str, str]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "sasl",
        "security.sasl.mechanism": "PLAIN",
        "security.sasl.username": user,
        "security.sasl.password": password,
    }


@pytest.mark.parametrize("form", ["dict", "url"])
def test_right(guarded: str, form: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"fluss://alice:{PASSWORD}@{guarded}/db"
    with fluss.connect(url if form == "url" else settings(guarded)) as connection:
        admin = connection.get_admin()
        admin.create_database("db", ignore_if_exists=True)
        path = fluss.TablePath("db", f"t_{form}")
        schema = fluss.Schema(pa.schema([("a", pa.int64())]))
        admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        table = connection.get_table(path)
        with table.new_append().create_writer() as writer:
            writer.append({"a": 1}).wait()
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        assert scanner.to_arrow().to_pylist() == [{"a": 1}]
        for shown in (repr(connection), repr(connection.config), repr(table), repr(scanner)):
            assert PASSWORD not in shown
        assert PASSWORD.encode() not in pickle.dumps(connection)
    assert caplog.records
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "guess-me"), ("nobody", PASSWORD), ("Alice", PASSWORD)]
)
def test_wrong(guarded: str, user: str, password: str) -> None:
    # nor is it tried again, as what may get better is, for a minute
    config = {**settings(guarded, user, password), "connect-timeout": 60_000}
    with pytest.raises(FlussError) as raised:
        soon(lambda: fluss.connect(config))
    assert raised.value.error_code == ErrorCode.AUTHENTICATE_EXCEPTION
    assert not raised.value.is_retriable
    assert password not in str(raised.value)
    assert guarded in raised.value.message


@pytest.mark.parametrize(("user", "password"), [("", PASSWORD), ("alice", ""), ("", "")])
def test_missing(guarded: str, user: str, password: str) -> None:
    with pytest.raises(FlussError, match=r"set security\.sasl\.username and") as raised:
        fluss.connect(settings(guarded, user, password))
    assert raised.value.error_code == ErrorCode.AUTHENTICATE_EXCEPTION


def test_no_credentials(guarded: str) -> None:
    config = {"bootstrap.servers": guarded, "connect-timeout": 60_000}
    with pytest.raises(FlussError) as raised:
        soon(lambda: fluss.connect(config))
    assert raised.value.error_code == ErrorCode.AUTHENTICATE_EXCEPTION


def test_credentials_at_a_server_without(address: str) -> None:
    config = {**settings(address), "connect-timeout": 60_000}
    with pytest.raises(FlussError) as raised:
        soon(lambda: fluss.connect(config))
    assert PASSWORD not in str(raised.value)
    assert address in raised.value.message


def test_pickled_takes_the_password_of_the_default(guarded: str) -> None:
    fluss.set_default_connection(settings(guarded))
    try:
        default = resolve_connection()
        with pickle.loads(pickle.dumps(default)) as copied:
            assert copied.get_admin().database_exists("fluss")
        default.close()
    finally:
        fluss.set_default_connection(None)


def test_pickled_without_a_default_says_what_is_missing(guarded: str) -> None:
    with fluss.connect(settings(guarded)) as connection:
        copied = pickle.loads(pickle.dumps(connection))
    with pytest.raises(FlussError, match=r"security\.sasl\.password") as raised:
        copied.get_admin().list_databases()
    assert raised.value.error_code == ErrorCode.AUTHENTICATE_EXCEPTION


def test_settings_of_the_cluster_are_shown_without_passwords(guarded: str) -> None:
    place = f"fluss://alice:{PASSWORD}@{guarded}"
    with fluss.connect(place) as connection:
        entries = connection.get_admin().describe_cluster_configs()
        secrets = [entry for entry in entries if PASSWORD in (entry.value or "")]
        assert [entry.key for entry in secrets] == ["security.sasl.plain.jaas.config"]
        assert secrets[0].shown == "***"
        assert PASSWORD not in repr(entries)
    for words in ((), ("--json",)):
        result = CliRunner().invoke(app, ["config", "list", *words, "--connection", place])
        assert result.exit_code == 0
        assert "security.sasl.plain.jaas.config" in result.output
        assert PASSWORD not in result.output
