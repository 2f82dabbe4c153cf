"""Which connection is used where none is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError
from fluss_df.client.connection import resolve_connection
from tests.client.support import free_address


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("FLUSS_BOOTSTRAP_SERVERS", raising=False)
    fluss.set_default_connection(None)
    yield
    fluss.set_default_connection(None)


def test_neither_names_the_ways_out() -> None:
    for ask in (fluss.connect, resolve_connection):
        with pytest.raises(FlussError) as raised:
            ask()
        assert raised.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION
        for way in ("connection='host:port'", "set_default_connection", "FLUSS_BOOTSTRAP_SERVERS"):
            assert way in raised.value.message


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUSS_BOOTSTRAP_SERVERS", "")
    with pytest.raises(FlussError, match="no connection given"):
        resolve_connection()


@pytest.mark.parametrize("form", ["{}", "fluss://{}/db"])
def test_environment(address: str, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv("FLUSS_BOOTSTRAP_SERVERS", form.format(address))
    with fluss.connect() as connection:
        assert connection.config.bootstrap_servers == address
    assert resolve_connection() is resolve_connection()
    resolve_connection().close()


def test_set_wins_over_the_environment(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUSS_BOOTSTRAP_SERVERS", free_address())
    fluss.set_default_connection(address)
    assert resolve_connection().config.bootstrap_servers == address
    resolve_connection().close()


def test_given_wins_over_set(address: str, connection: fluss.FlussConnection) -> None:
    fluss.set_default_connection(address)
    default = resolve_connection()
    assert resolve_connection(connection) is connection
    assert resolve_connection({"bootstrap.servers": address, "writer.acks": "1"}) is not default
    default.close()


def test_an_open_connection_as_default(connection: fluss.FlussConnection) -> None:
    fluss.set_default_connection(connection)
    assert resolve_connection() is connection
    fluss.set_default_connection(None)
    with pytest.raises(FlussError, match="no connection given"):
        resolve_connection()


def test_a_default_that_cannot_be_reached_is_refused() -> None:
    with pytest.raises(FlussError, match="no Fluss server can be reached"):
        fluss.set_default_connection(free_address())
    with pytest.raises(FlussError, match="no connection given"):
        resolve_connection()


def test_the_same_settings_give_the_same_connection(address: str) -> None:
    first = resolve_connection(address)
    assert resolve_connection({"bootstrap.servers": address}) is first
    assert resolve_connection(f"fluss://{address}/db") is not first
    first.close()
    again = resolve_connection(address)
    assert again is not first
    assert again.get_admin().database_exists("fluss")
    again.close()


def test_connect_opens_another_connection_to_the_default(address: str) -> None:
    fluss.set_default_connection(f"fluss://{address}/db")
    default = resolve_connection()
    with fluss.connect() as opened:
        assert opened is not default
        assert opened.config == default.config
        assert opened.default_database == "db"
    assert default.get_admin().database_exists("fluss")
    default.close()


def test_connect_opens_the_folder_that_is_the_default(tmp_path: Path) -> None:
    fluss.set_default_connection(tmp_path / "data")
    with fluss.connect() as opened:
        opened.get_admin().create_database("there")
    assert resolve_connection().get_admin().database_exists("there")
    resolve_connection().close()


def test_settings_without_an_address_are_for_where_the_default_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"writer.batch-size": 1 << 20}
    with pytest.raises(FlussError, match="no connection given"):
        fluss.connect(settings)
    for name, default in (("variable", None), ("default", str(tmp_path / "default"))):
        monkeypatch.setenv("FLUSS_BOOTSTRAP_SERVERS", str(tmp_path / "variable"))
        fluss.set_default_connection(default)
        with fluss.connect(settings) as connection:
            assert connection.config.writer_batch_size == 1 << 20
            connection.get_admin().create_database(name)
        with fluss.connect(tmp_path / name) as connection:
            assert name in connection.get_admin().list_databases()
