"""Settings of a connection: :class:`Config`, one table of options.

Keys are those of the Fluss clients; each is accepted with and without the prefix ``client.``, and
with dots, dashes or underscores between its words.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from fluss_df.addresses import parse_address
from fluss_df.config.options import (
    FOREVER_MS,
    LONGEST_WAIT_MS,
    MIB,
    SECRETS,
    Option,
    acks,
    boolean,
    integer,
    one_of,
    path,
    pem,
    protocols,
    servers,
    text_of,
)
from fluss_df.errors import ErrorCode, FlussError


class Config:
    """Settings of a connection.

    Parameters
    ----------
    properties
        Keys and values, the values as strings or of their own type. An unknown key is refused.

    Raises
    ------
    FlussError
        ``INVALID_CONFIG_EXCEPTION`` for an unknown key (the nearest known one is named) or a value
        that does not fit.

    Examples
    --------
    >>> config = Config({"bootstrap.servers": "127.0.0.1:9123", "writer.acks": "all"})
    >>> config.writer_batch_size
    2097152
    """

    # with slots, setting a misspelt property is an error
    __slots__ = ("_values",)
    _values: dict[str, Any]

    bootstrap_servers = Option(
        "bootstrap.servers",
        "127.0.0.1:9123",
        servers,
        "Addresses of the cluster, ``host:port[,host:port]``; or a folder, for an embedded Fluss.",
    )
    connect_timeout_ms = Option(
        "connect-timeout",
        15_000,
        integer(1, LONGEST_WAIT_MS),
        "How long a TCP connect with its handshake may take, in ms.",
        ("connect-timeout-ms",),
    )
    request_timeout_ms = Option(
        "request-timeout",
        30_000,
        integer(1, LONGEST_WAIT_MS),
        "How long a server may take to answer one request, in ms.",
        ("request-timeout-ms",),
    )
    retry_timeout_ms = Option(
        "retry-timeout",
        60_000,
        integer(0),
        "How long metadata requests and reads are retried on retriable errors, in ms.",
        ("retry-timeout-ms",),
    )
    writer_request_max_size = Option(
        "writer.request-max-size",
        10 * MIB,
        integer(1024),
        "The largest produce request, in bytes.",
        ("request.max.size",),
    )
    writer_acks = Option(
        "writer.acks", "all", acks, "Who must have a batch before it counts as written."
    )
    writer_retries = Option(
        "writer.retries", 2**31 - 1, integer(0), "How often a batch is sent again."
    )
    writer_delivery_timeout_ms = Option(
        "writer.delivery-timeout",
        120_000,
        integer(1),
        "How long a batch is retried before it is reported as not written, in ms.",
        ("writer.delivery-timeout-ms",),
    )
    writer_batch_size = Option(
        "writer.batch-size", 2 * MIB, integer(1024), "The size of a batch, in bytes of Arrow data."
    )
    writer_batch_rows = Option(
        "writer.batch-rows",
        32_768,
        integer(1),
        "The most rows in a batch of a primary-key table: a server notes the changes of a batch,"
        " two for each row that it updates, on one page (server.buffer.page-size there).",
    )
    writer_batch_timeout_ms = Option(
        "writer.batch-timeout",
        100,
        integer(0),
        "How long rows wait for more rows before their batch is sent, in ms.",
        ("writer.batch-timeout-ms",),
    )
    writer_dynamic_batch_size_enabled = Option(
        "writer.dynamic-batch-size.enabled",
        True,
        boolean,
        "Whether batches of rows shrink while few rows come.",
    )
    writer_dynamic_batch_size_min = Option(
        "writer.dynamic-batch-size-min",
        256 * 1024,
        integer(1024),
        "The smallest size that they shrink to, in bytes.",
    )
    writer_bucket_no_key_assigner = Option(
        "writer.bucket.no-key-assigner",
        "sticky",
        one_of("sticky", "round_robin"),
        "How rows without a bucket key are spread over buckets.",
    )
    writer_enable_idempotence = Option(
        "writer.enable-idempotence",
        True,
        boolean,
        "Whether the server drops batches that a retry sends twice.",
    )
    writer_max_inflight_requests_per_bucket = Option(
        "writer.max-inflight-requests-per-bucket",
        5,
        integer(1),
        "How many batches of a bucket are on their way at once.",
    )
    writer_buffer_memory_size = Option(
        "writer.buffer.memory-size",
        64 * MIB,
        integer(MIB),
        "How many bytes wait in a writer before the caller waits.",
    )
    writer_buffer_wait_timeout_ms = Option(
        "writer.buffer.wait-timeout",
        FOREVER_MS,
        integer(0),
        "How long the caller waits for room in that buffer, in ms.",
        ("writer.buffer.wait-timeout-ms",),
    )
    writer_kv_backpressure_max_throttle_ms = Option(
        "writer.kv-backpressure.max-throttle",
        3_000,
        integer(0),
        "The longest pause that a server under pressure may ask for, in ms.",
        ("writer.kv-backpressure.max-throttle-ms",),
    )
    scanner_log_max_poll_records = Option(
        "scanner.log.max-poll-records", 500, integer(1), "How many records one poll returns."
    )
    scanner_log_fetch_max_bytes = Option(
        "scanner.log.fetch.max-bytes",
        16 * MIB,
        integer(1, 2**31 - 1),
        "The largest fetch, in bytes.",
    )
    scanner_log_fetch_max_bytes_for_bucket = Option(
        "scanner.log.fetch.max-bytes-for-bucket",
        8 * MIB,
        integer(1, 2**31 - 1),
        "The largest part of a bucket in a fetch, in bytes (8 MB measured best; official: 1 MB).",
    )
    scanner_log_fetch_min_bytes = Option(
        "scanner.log.fetch.min-bytes",
        1,
        integer(0, 2**31 - 1),
        "How many bytes a fetch waits for at the end of the log.",
    )
    scanner_log_fetch_wait_max_time_ms = Option(
        "scanner.log.fetch.wait-max-time",
        # servers answer a held fetch at the end of its time, not when data comes: what is held
        # longer is seen later (official: 500 ms, which is how late its polls are)
        30,
        integer(0, 2**31 - 1),
        "How long it waits for them, in ms; at the most two thirds of request-timeout.",
        ("scanner.log.fetch.wait-max-time-ms",),
    )
    scanner_log_check_crc = Option(
        "scanner.log.check-crc",
        True,
        boolean,
        "Whether checksums are verified where they are valid (batches that were not projected).",
    )
    scanner_fetch_connections = Option(
        "scanner.fetch.connections",
        2,
        integer(1, 64),
        "How many connections (and threads) a bounded scan reads a tablet server with.",
    )
    scanner_remote_log_prefetch_num = Option(
        "scanner.remote-log.prefetch-num",
        4,
        integer(1, 1024),
        "How many remote log segments are fetched ahead.",
    )
    remote_file_download_thread_num = Option(
        "remote-file.download-thread-num",
        3,
        integer(1, 1024),
        "How many threads read remote log segments.",
    )
    scanner_remote_log_read_concurrency = Option(
        "scanner.remote-log.read-concurrency",
        4,
        integer(1, 1024),
        "How many ranges of one remote log segment are read at once.",
    )
    security_protocol = Option(
        "security.protocol", "PLAINTEXT", one_of("PLAINTEXT", "sasl"), "PLAINTEXT or sasl."
    )
    security_sasl_mechanism = Option(
        "security.sasl.mechanism", "PLAIN", one_of("PLAIN"), "The SASL mechanism."
    )
    security_sasl_username = Option("security.sasl.username", "", text_of, "The SASL user name.")
    security_sasl_password = Option(
        "security.sasl.password", "", text_of, "The SASL password; never shown."
    )
    security_ssl_enabled = Option(
        "security.ssl.enabled",
        False,
        boolean,
        "Whether connections are encrypted (TLS); SASL passwords are, too, then.",
    )
    security_ssl_enabled_protocols = Option(
        "security.ssl.enabled.protocols",
        "TLSv1.2,TLSv1.3",
        protocols,
        "The versions of TLS that are spoken.",
    )
    security_ssl_cipher_suites = Option(
        "security.ssl.cipher.suites",
        "",
        text_of,
        "Cipher suites of TLS 1.2, by OpenSSL's names, with ':' or ',' between; OpenSSL's own"
        " choice by default.",
    )
    security_ssl_truststore_path = Option(
        "security.ssl.truststore.path",
        "",
        path,
        "A file of the authorities (PEM) that servers' certificates are held against; those of the"
        " operating system by default.",
    )
    security_ssl_truststore_password = Option(
        "security.ssl.truststore.password", "", text_of, "Of no use: a PEM file of them has none."
    )
    security_ssl_truststore_type = Option(
        "security.ssl.truststore.type", "PEM", pem, "The form of that file: PEM."
    )
    security_ssl_keystore_path = Option(
        "security.ssl.keystore.path",
        "",
        path,
        "A file of the client's certificate and private key (PEM), where servers ask for one.",
    )
    security_ssl_keystore_password = Option(
        "security.ssl.keystore.password", "", text_of, "The password of that key; never shown."
    )
    security_ssl_keystore_type = Option(
        "security.ssl.keystore.type", "PEM", pem, "The form of that file: PEM."
    )
    security_ssl_key_password = Option(
        "security.ssl.key.password",
        "",
        text_of,
        "The password of the key, where it is another one; never shown.",
    )
    security_ssl_endpoint_identification_algorithm = Option(
        "security.ssl.endpoint.identification.algorithm",
        "https",
        one_of("https", ""),
        "'https': a server's certificate has to be for the host that is connected to; '' not to"
        " look at that, which lets anyone with a certificate of the authority read along.",
    )

    def __init__(self, properties: Mapping[str, Any] | None = None) -> None:
        self._values = {}
        if not isinstance(properties, Mapping | None):
            raise _no_config(
                "settings are given as a dict of key to value, not as a"
                f" {type(properties).__name__}; an address is for connect()"
            )
        for key, value in (properties or {}).items():
            if not isinstance(key, str):
                raise _no_config(f"unknown property {key!r}: the names of properties are strings")
            option = _option_for(key)
            self._values[option.key] = option.parse(option.key, value)

    @classmethod
    def from_url(cls, url: str) -> tuple[Config, str | None]:
        """Read ``fluss://[user:password@]host:port[,host:port][/database][?key=value&...]``.

        Returns
        -------
        tuple[Config, str | None]
            The settings, and the database where the URL names one.
        """
        if not isinstance(url, str) or "://" not in url:
            # the text is not shown, because it may have a password in it
            raise _no_config("invalid Fluss URL: expected 'fluss://host:port/database'")
        rest = url.split("://", 1)[1]
        authority = re.split(r"[/?]", rest, maxsplit=1)[0]
        try:
            return cls._from_url_parts(authority, rest[len(authority) :])
        except FlussError as error:
            if "@" not in rest[len(authority) :]:
                raise
            # a '/' or '?' in a password cuts the URL in the wrong place: nothing of it is shown
            raise FlussError(
                "invalid Fluss URL: expected 'fluss://user:password@host:port/database', with '@',"
                " '/', '?' and ':' in user and password percent-encoded",
                error.error_code,
            ) from None

    @classmethod
    def _from_url_parts(cls, authority: str, tail: str) -> tuple[Config, str | None]:
        path, _, query = tail.partition("?")
        path = path.strip("/")
        user, at, servers = authority.rpartition("@")
        properties: dict[str, Any] = {"bootstrap.servers": servers}
        if at:
            name, _, password = user.partition(":")
            properties |= {
                "security.protocol": "sasl",
                "security.sasl.username": unquote(name),
                "security.sasl.password": unquote(password),
            }
        for pair in filter(None, query.split("&")):
            key, equals, value = pair.partition("=")
            if not equals:
                raise FlussError(
                    f"invalid option {key!r} in the Fluss URL: expected key=value",
                    ErrorCode.INVALID_CONFIG_EXCEPTION,
                )
            properties[unquote(key)] = unquote(value)
        if "/" in path:
            raise FlussError(
                f"invalid path {path!r} in the Fluss URL: expected 'fluss://host:port/database'",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
        return cls(properties), unquote(path) or None

    @property
    def uses_sasl(self) -> bool:
        """Whether connections authenticate."""
        return self.security_protocol == "sasl"

    def addresses(self) -> list[tuple[str, int]]:
        """Return the bootstrap servers as (host, port)."""
        return [parse_address(part) for part in self.bootstrap_servers.split(",")]

    def copy(self, **changes: object) -> Config:
        """Return a copy with some properties changed, by their Python names."""
        copied = Config()
        copied._values = dict(self._values)
        for name, value in changes.items():
            option = _option_for(name)
            copied._values[option.key] = option.parse(option.key, value)
        return copied

    def without_secrets(self) -> Config:
        """Return a copy without the passwords, fit to be pickled or shown."""
        copied = Config()
        copied._values = self.to_dict()
        return copied

    def with_secrets_of(self, other: Config) -> Config:
        """Return a copy with the passwords that another one has."""
        copied = self.copy()
        copied._values |= {key: value for key, value in other._values.items() if key in SECRETS}
        return copied

    def is_set(self, key: str) -> bool:
        """Whether an option was set, by its key without the prefix ``client.``."""
        return key in self._values

    def to_dict(self) -> dict[str, Any]:
        """Return the options that were set, without the passwords."""
        return {key: value for key, value in self._values.items() if key not in SECRETS}

    def __copy__(self) -> Config:
        # copied here, because a pickle has no passwords
        return self.copy()

    def __deepcopy__(self, memo: object) -> Config:
        return self.copy()

    def __getstate__(self) -> dict[str, Any]:
        return {"_values": self.to_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._values = state["_values"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._values == other._values

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._values.items())))

    def __repr__(self) -> str:
        shown = {key: "***" if key in SECRETS else value for key, value in self._values.items()}
        return f"Config({shown!r})"


# the module that it is imported from, by which it was also pickled before
Config.__module__ = "fluss_df.config"


def _normal(key: str) -> str:
    return re.sub(r"[-_.]+", ".", key.strip().lower()).removeprefix("client.")


def _options() -> Iterator[Option[Any]]:
    return (value for value in vars(Config).values() if isinstance(value, Option))


_BY_KEY: dict[str, Option[Any]] = {
    _normal(key): option for option in _options() for key in (option.key, *option.aliases)
}


def _option_for(key: str) -> Option[Any]:
    option = _BY_KEY.get(_normal(key))
    if option is None:
        near = difflib.get_close_matches(_normal(key), _BY_KEY, n=1, cutoff=0.0)[0]
        raise FlussError(
            f"unknown property '{key}'; did you mean '{_BY_KEY[near].key}'?",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    return option


def _no_config(message: str) -> FlussError:
    return FlussError(message, ErrorCode.INVALID_CONFIG_EXCEPTION)
