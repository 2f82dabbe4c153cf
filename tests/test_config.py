"""Settings: every option, keys in all spellings, URLs, and that the password never shows."""

from __future__ import annotations

import copy
import json
import pickle
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fluss_df as fluss
from fluss_df import Config, ErrorCode, FlussError
from fluss_df.addresses import embedded_folder, parse_address
from fluss_df.config import Option
from fluss_df.texts.secret_texts import is_secret, without_secrets
from tests.peer import official

OPTIONS: dict[str, Option[Any]] = {
    name: value for name, value in vars(Config).items() if isinstance(value, Option)
}
each_option = pytest.mark.parametrize("name", OPTIONS)

OTHER_VALUES = {
    "bootstrap_servers": "other:1",
    "writer_acks": "1",
    "writer_bucket_no_key_assigner": "round_robin",
    "security_protocol": "sasl",
    "security_sasl_mechanism": "PLAIN",
    "security_sasl_username": "alice",
    "security_sasl_password": "wonder-land",
    "scanner_fetch_connections": 7,
    "security_ssl_enabled_protocols": "TLSv1.3",
    "security_ssl_cipher_suites": "ECDHE-RSA-AES128-GCM-SHA256",
    "security_ssl_truststore_path": "/a/b.pem",
    "security_ssl_truststore_password": "wonder-land",
    "security_ssl_truststore_type": "PEM",
    "security_ssl_keystore_path": "/a/c.pem",
    "security_ssl_keystore_password": "wonder-land",
    "security_ssl_keystore_type": "PEM",
    "security_ssl_key_password": "wonder-land",
    "security_ssl_endpoint_identification_algorithm": "",
}


def other_value(name: str) -> Any:
    default = OPTIONS[name].default
    if name in OTHER_VALUES:
        return OTHER_VALUES[name]
    return not default if isinstance(default, bool) else 4_000_000


def other_text(name: str) -> str:
    value = other_value(name)
    return str(value).lower() if isinstance(value, bool) else str(value)


INTEGERS = [n for n in OPTIONS if type(OPTIONS[n].default) is int]
INTEGERS.remove("scanner_fetch_connections")
SMALL = {
    "remote_file_download_thread_num",
    "scanner_remote_log_read_concurrency",
    "scanner_remote_log_prefetch_num",
}


@pytest.fixture(autouse=True)
def _small_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SMALL:
        monkeypatch.setitem(OTHER_VALUES, name, 9)


@each_option
def test_default_set_and_get(name: str) -> None:
    config = Config()
    assert getattr(config, name) == OPTIONS[name].default
    setattr(config, name, other_value(name))
    assert getattr(config, name) == other_value(name)
    untouched = {n: getattr(config, n) for n in OPTIONS if n != name}
    assert untouched == {n: OPTIONS[n].default for n in OPTIONS if n != name}


@each_option
def test_keys_in_all_spellings(name: str) -> None:
    option = OPTIONS[name]
    for key in (option.key, *option.aliases):
        for spelling in (
            key,
            f"client.{key}",
            key.replace("-", "."),
            key.replace("-", "_").replace(".", "_"),
            key.upper(),
        ):
            config = Config({spelling: other_text(name)})
            assert getattr(config, name) == other_value(name), spelling
            assert config == Config({option.key: other_value(name)})


@each_option
def test_property_name_is_a_key(name: str) -> None:
    assert getattr(Config({name: other_value(name)}), name) == other_value(name)


@each_option
def test_option_is_described(name: str) -> None:
    assert (OPTIONS[name].__doc__ or "").endswith(".")


def test_the_official_clients_properties_are_known() -> None:
    theirs = {n for n in dir(official.Config) if not n.startswith("_")}
    assert theirs <= set(OPTIONS)


def test_keys_of_the_official_client() -> None:
    for key in (
        "bootstrap.servers",
        "writer.request-max-size",
        "writer.acks",
        "writer.retries",
        "writer.batch-size",
        "writer.batch-timeout-ms",
        "writer.bucket.no-key-assigner",
        "scanner.remote-log.prefetch-num",
        "remote-file.download-thread-num",
        "scanner.remote-log.read-concurrency",
        "scanner.log.max-poll-records",
        "scanner.log.fetch.max-bytes",
        "scanner.log.fetch.min-bytes",
        "scanner.log.fetch.wait-max-time-ms",
        "scanner.log.fetch.max-bytes-for-bucket",
        "writer.enable-idempotence",
        "writer.max-inflight-requests-per-bucket",
        "writer.buffer.memory-size",
        "writer.buffer.wait-timeout-ms",
        "writer.dynamic-batch-size.enabled",
        "writer.dynamic-batch-size-min",
        "connect-timeout",
        "security.protocol",
        "security.sasl.mechanism",
        "security.sasl.username",
        "security.sasl.password",
    ):
        official.Config({key: official_value(key)})
        Config({key: official_value(key)})


def official_value(key: str) -> str:
    option = next(o for o in OPTIONS.values() if key in (o.key, *o.aliases))
    default = option.default
    return str(default).lower() if isinstance(default, bool) else str(default) or "x"


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("bootstrap.server", "bootstrap.servers"),
        ("writer.ack", "writer.acks"),
        ("client.writer.batchsize", "writer.batch-size"),
        ("security.sasl.user", "security.sasl.username"),
        ("", ""),
    ],
)
def test_unknown_key(key: str, near: str) -> None:
    with pytest.raises(FlussError) as raised:
        Config({key: "1"})
    assert raised.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION
    assert f"unknown property '{key}'" in raised.value.message
    assert f"did you mean '{near}" in raised.value.message


def test_a_misspelt_password_is_not_shown() -> None:
    with pytest.raises(FlussError) as raised:
        Config({"security.sasl.pasword": "wonder-land"})
    assert "security.sasl.password" in str(raised.value)
    assert "wonder-land" not in str(raised.value)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", ["", "x", "1.5", 1.5, True, None, -1, 2**64, "-1", [1]])
def test_bad_integers(name: str, value: object) -> None:
    with pytest.raises(FlussError, match="whole number") as raised:
        Config({name: value})
    assert raised.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION
    assert OPTIONS[name].key in raised.value.message


@pytest.mark.parametrize("name", ["connect_timeout_ms", "request_timeout_ms"])
def test_a_wait_is_no_longer_than_requests_and_sockets_can_say(name: str) -> None:
    assert getattr(Config({name: 2**31 - 1}), name) == 2**31 - 1
    with pytest.raises(FlussError, match="from 1 to 2147483647"):
        Config({name: 2**31})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("writer_acks", "2"),
        ("writer_acks", ""),
        ("writer_bucket_no_key_assigner", "random"),
        ("writer_enable_idempotence", "yes"),
        ("security_protocol", "ssl"),
        ("security_sasl_mechanism", "SCRAM"),
        ("security_sasl_username", 5),
        ("bootstrap_servers", ""),
        ("bootstrap_servers", " , "),
        ("bootstrap_servers", "localhost"),
        ("bootstrap_servers", "localhost:"),
        ("bootstrap_servers", "localhost:0"),
        ("bootstrap_servers", "localhost:65536"),
        ("bootstrap_servers", "http://localhost:9123"),
        ("bootstrap_servers", "a:1,b"),
        ("bootstrap_servers", "::1:9123"),
        ("bootstrap_servers", None),
        ("bootstrap_servers", 9123),
    ],
)
def test_bad_values(name: str, value: object) -> None:
    with pytest.raises(FlussError) as raised:
        Config({name: value})
    assert raised.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION
    with pytest.raises(FlussError):
        setattr(Config(), name, value)


def test_good_values() -> None:
    assert Config({"writer.acks": "-1"}).writer_acks == "all"
    assert Config({"writer.acks": -1}).writer_acks == "all"
    assert Config({"writer.acks": 1}).writer_acks == "1"
    assert Config({"security.protocol": "SASL"}).uses_sasl
    assert not Config({"security.protocol": "plaintext"}).uses_sasl
    assert Config({"writer.enable-idempotence": " True "}).writer_enable_idempotence is True
    forever = 2**64 - 1
    assert Config({"writer.buffer.wait-timeout": forever}).writer_buffer_wait_timeout_ms == forever


def test_servers() -> None:
    config = Config({"bootstrap.servers": " one:1 , two:2,[::1]:3 "})
    assert config.bootstrap_servers == "one:1,two:2,[::1]:3"
    assert config.addresses() == [("one", 1), ("two", 2), ("::1", 3)]
    assert Config({"bootstrap.servers": ["one:1", "two:2"]}).addresses() == [("one", 1), ("two", 2)]


@given(st.text(max_size=30))
def test_any_address_is_read_or_refused(text: str) -> None:
    try:
        host, port = parse_address(text)
    except FlussError:
        return
    assert host
    assert 0 < port < 65536


# ---- URLs


@pytest.mark.parametrize(
    ("url", "properties", "database"),
    [
        ("fluss://h:1", {"bootstrap.servers": "h:1"}, None),
        ("fluss://h:1/", {"bootstrap.servers": "h:1"}, None),
        ("fluss://h:1/db", {"bootstrap.servers": "h:1"}, "db"),
        ("fluss://a:1,b:2/db", {"bootstrap.servers": "a:1,b:2"}, "db"),
        ("fluss://[::1]:9123/db", {"bootstrap.servers": "[::1]:9123"}, "db"),
        ("fluss://h:1?writer.acks=1", {"bootstrap.servers": "h:1", "writer.acks": "1"}, None),
        (
            "fluss://h:1/db?writer.acks=1&client.writer.batch-size=4096",
            {"bootstrap.servers": "h:1", "writer.acks": "1", "writer.batch-size": 4096},
            "db",
        ),
        (
            "fluss://alice:p%40ss%2Fword%3F@h:1/db",
            {
                "bootstrap.servers": "h:1",
                "security.protocol": "sasl",
                "security.sasl.username": "alice",
                "security.sasl.password": "p@ss/word?",
            },
            "db",
        ),
        (
            "fluss://al%3Aice:a:b@[fe80::1]:1,h:2",
            {
                "bootstrap.servers": "[fe80::1]:1,h:2",
                "security.protocol": "sasl",
                "security.sasl.username": "al:ice",
                "security.sasl.password": "a:b",
            },
            None,
        ),
    ],
)
def test_url(url: str, properties: dict[str, Any], database: str | None) -> None:
    config, found = Config.from_url(url)
    assert config == Config(properties)
    assert found == database


@pytest.mark.parametrize(
    "url",
    [
        "fluss://",
        "fluss:///db",
        "fluss://h",
        "fluss://h:1/a/b",
        "fluss://h:1?writer.acks",
        "fluss://h:1?colour=red",
        "fluss://alice:wonder-land@h",
        "fluss://alice:wonder-land@/db",
        "fluss://alice:wonder/land@h:1",
        "fluss://alice:wonder?land@h:1",
        "fluss://alice:wonder-land@h:1?x=wonder-land",
        "fluss://alice:wonder-land@h:1?security.sasl.pasword=wonder-land",
    ],
)
def test_bad_url(url: str) -> None:
    with pytest.raises(FlussError) as raised:
        Config.from_url(url)
    assert raised.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION
    assert "land" not in str(raised.value)
    assert "wonder" not in str(raised.value)


# ---- secrets


@pytest.fixture
def secret() -> Config:
    return Config(
        {
            "bootstrap.servers": "h:1",
            "security.protocol": "sasl",
            "security.sasl.username": "alice",
            "security.sasl.password": "wonder-land",
        }
    )


def test_password_never_shows(secret: Config) -> None:
    assert secret.security_sasl_password == "wonder-land"
    for shown in (repr(secret), str(secret), f"{secret}", json.dumps(secret.to_dict())):
        assert "alice" in shown
        assert "wonder-land" not in shown
    assert b"wonder-land" not in pickle.dumps(secret)


def test_pickle_keeps_the_rest(secret: Config) -> None:
    copied = pickle.loads(pickle.dumps(secret))
    assert copied == secret.without_secrets()
    assert copied != secret
    assert copied.security_sasl_username == "alice"
    assert copied.security_sasl_password == ""


def test_passwords_are_taken_of_another(secret: Config) -> None:
    """And nothing else; as pickles have none, a connection that was one takes them so."""
    other = secret.copy(bootstrap_servers="other:1", security_ssl_key_password="of a key")
    kept = pickle.loads(pickle.dumps(secret))
    assert kept.with_secrets_of(secret) == secret
    found = kept.with_secrets_of(other)
    assert found == secret.copy(security_ssl_key_password="of a key")
    # it is a copy
    assert kept.security_sasl_password == ""
    assert secret.with_secrets_of(Config({"bootstrap.servers": "h:1"})) == secret


def test_a_bad_password_is_not_shown() -> None:
    with pytest.raises(FlussError) as raised:
        Config({"security.sasl.password": ["wonder-land"]})
    assert "wonder-land" not in str(raised.value)
    assert "security.sasl.password" in str(raised.value)


# ---- copies


def test_copies_keep_passwords(secret: Config) -> None:
    assert copy.copy(secret) == secret
    assert copy.deepcopy({"of": secret})["of"] == secret


@pytest.mark.parametrize(
    "given",
    ["fluss://bob:s3cret@h:9123", "Fluss://bob:s3cret@h", "bob:s3cret@h:9123", "x://bob:s3cret@h"],
)
def test_addresses_that_are_none_do_not_show_passwords(given: str) -> None:
    for use in (Config, fluss.connect):
        if use is fluss.connect and given.startswith("fluss:"):
            continue
        with pytest.raises(FlussError) as told:
            use(given)  # type: ignore[arg-type]
        assert "s3cret" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("jdbc:mysql://u:p?w@h/db", "jdbc:mysql://***@h/db"),
        ("mysql://u:p/w@h/d?password=x&a=1", "mysql://***@h/d?password=***&a=1"),
        ("https://h/x#access_token=abc", "https://h/x#access_token=***"),
        ("host=x password=y", "host=x password=***"),
        ("jdbc:oracle:thin:u/pw@h:1521", "jdbc:oracle:thin:***@h:1521"),
        ("https://h/x?mail=a@b&n=1", "https://h/x?mail=a@b&n=1"),
        ("https://h.com?user=me@b.com: 404", "https://h.com?user=me@b.com: 404"),
        ("http://minio:9000?contact=ops@x.io", "http://minio:9000?contact=ops@x.io"),
        ("s3://bucket/key?versionId=3", "s3://bucket/key?versionId=3"),
    ],
)
def test_texts_without_secrets(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize("part", [":thin:/", "//", "//:", "@", "?a=", "//a:", ":thin:a/"])
def test_long_texts_without_secrets_do_not_take_long(part: str) -> None:
    """Parts without a bound would cost the square or the cube of its length: hours."""
    text = part * (100_000 // len(part))
    began = time.process_time()
    without_secrets(text)
    assert time.process_time() - began < 20


def test_names_of_secrets() -> None:
    secret = ["db.pass", "db_pass", "ssl.key", "signing.key", "oauth.bearer", "cookie", "hmac"]
    plain = ["security.ssl.key.location", "bypass.mode", "s3.path-style-access", "compass"]
    assert [is_secret(name) for name in secret + plain] == [True] * 7 + [False] * 4


def test_copies_are_independent(secret: Config) -> None:
    copied = secret.copy(writer_acks="0")
    assert (copied.writer_acks, secret.writer_acks) == ("0", "all")
    assert copied.security_sasl_password == "wonder-land"
    assert hash(secret.copy()) == hash(secret)
    assert secret.copy() == secret != copied


def test_unknown_attributes_are_refused() -> None:
    with pytest.raises(AttributeError):
        Config().writer_ack = "1"  # type: ignore[attr-defined]
    with pytest.raises(FlussError, match=r"'writer_ack'; did you mean 'writer\.acks'"):
        Config().copy(writer_ack="1")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("security.ssl.keystore.type", "JKS", "keytool"),
        ("security.ssl.truststore.type", "PKCS12", "openssl pkcs12"),
        ("security.ssl.enabled.protocols", "TLSv1", "TLSv1.2"),
        ("security.ssl.enabled.protocols", "", "TLSv1.2"),
        ("security.ssl.enabled", "yes", "'true' or 'false'"),
        ("security.ssl.endpoint.identification.algorithm", "none", "https"),
    ],
)
def test_what_tls_cannot_be(key: str, value: str, message: str) -> None:
    with pytest.raises(FlussError, match=re.escape(message)) as raised:
        Config({f"client.{key}": value})
    assert raised.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION


@pytest.mark.parametrize("name", ["truststore_password", "keystore_password", "key_password"])
def test_passwords_of_keys_are_not_shown(name: str) -> None:
    config = Config({f"security_ssl_{name}": "wonder-land", "security_ssl_enabled": True})
    for shown in (repr(config), str(config.to_dict()), str(pickle.dumps(config))):
        assert "wonder-land" not in shown
    assert getattr(config.without_secrets(), f"security_ssl_{name}") == ""
    with pytest.raises(FlussError) as raised:
        Config({f"security.ssl.{name.replace('_', '.')}": 7})
    assert "7" not in raised.value.message


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ("file:data", "data"),
        ("file:my data", "my data"),
        ("file:a%20b", "a%20b"),
        ("file:/tmp/a%20b", "/tmp/a%20b"),
        ("file:///tmp/a%20b", "/tmp/a b"),
        ("file://localhost/tmp/d", "/tmp/d"),
        (Path("/tmp/a b%20c").as_uri(), "/tmp/a b%20c"),
        ("//tmp/d", "//tmp/d"),
        (":memory:", ":memory:"),
        ("data", None),
        ("host:9123", None),
    ],
)
def test_folders_of_addresses(given: str, folder: str | None) -> None:
    found = embedded_folder(given)
    assert (None if found is None else str(found)) == folder


@pytest.mark.parametrize("given", ["file:", "file://", "file://d4", "file://d4/x", "file://./data"])
def test_addresses_of_no_folder_here(given: str) -> None:
    for read in (embedded_folder, lambda value: Config({"bootstrap.servers": value})):
        with pytest.raises(FlussError, match=f"invalid folder '{given}'"):
            read(given)


@pytest.mark.parametrize("given", ["/tmp/d", "//tmp/d", "/tmp/a%20b"])
def test_a_path_as_an_address_is_that_path(given: str) -> None:
    """Two slashes at its beginning are one to Linux, and would begin a URL."""
    address = Config({"bootstrap.servers": Path(given)}).bootstrap_servers
    assert str(embedded_folder(address)) == given.replace("//", "/")
