"""Which file systems are opened with which credentials, and when these are renewed."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

import fluss_df as fluss
from fluss_df.client.fetch import remote_fs
from fluss_df.client.fetch.remote_fs import RemoteFileSystems, split_uri
from fluss_df.errors import ErrorCode
from fluss_df.protocol import messages_pb2 as pb
from tests.remote.support import LonelyConnection, Segments, options, take_all, token

KEYS = {"access_key_id": "KEY", "access_key_secret": "SECRET", "security_token": "SESSION"}
Systems = Callable[..., tuple[RemoteFileSystems, LonelyConnection]]


@pytest.fixture
def systems() -> Systems:
    """File systems of a cluster that answers with these tokens."""

    def make(
        *answers: pb.GetFileSystemSecurityTokenResponse | fluss.FlussError,
    ) -> tuple[RemoteFileSystems, LonelyConnection]:
        connection = LonelyConnection()
        connection.cluster.tokens = iter(answers)
        return RemoteFileSystems.of(connection.real()), connection

    return make


@pytest.fixture
def s3_arguments(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What S3 file systems are made with."""
    made: list[dict[str, Any]] = []

    def record(**arguments: Any) -> object:
        made.append({name: value for name, value in arguments.items() if value})
        return object()

    monkeypatch.setattr(fs, "S3FileSystem", record)
    return made


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("/data/remote", ("", "", "/data/remote")),
        ("file:/data/remote", ("file", "", "/data/remote")),
        ("file:///data/re%20mote", ("file", "", "/data/re%20mote")),
        ("S3://bucket/a#b?c", ("s3", "bucket", "/a#b?c")),
        (
            "abfss://box@account.dfs.core.windows.net/a",
            ("abfss", "box@account.dfs.core.windows.net", "/a"),
        ),
        ("s3://bucket", ("s3", "bucket", "")),
    ],
)
def test_uris(uri: str, parts: tuple[str, str, str]) -> None:
    assert split_uri(uri) == parts


def test_local_files_need_nothing(systems: Systems, tmp_path: Path) -> None:
    files, connection = systems()
    for uri in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}"):
        place = files.locate(uri)
        assert isinstance(place.filesystem, fs.LocalFileSystem)
        assert place.path == str(tmp_path)
        assert place.fresh
    assert connection.cluster.asked == 0


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_s3(systems: Systems, s3_arguments: list[dict[str, Any]], scheme: str) -> None:
    files, _ = systems(options(token(60, **KEYS), region="eu-west-1"))
    assert files.locate(f"{scheme}://bucket/a/b").path == "bucket/a/b"
    assert s3_arguments == [
        {
            "access_key": "KEY",
            "secret_key": "SECRET",
            "session_token": "SESSION",
            "region": "eu-west-1",
        }
    ]


@pytest.mark.parametrize(
    ("endpoint", "path_style", "scheme", "address", "virtual"),
    [
        ("http://127.0.0.1:9000", None, "http", "127.0.0.1:9000", False),
        ("http://localhost:9000", None, "http", "localhost:9000", False),
        ("https://minio.example", "true", "https", "minio.example", False),
        ("s3.eu-west-1.amazonaws.com", None, "https", "s3.eu-west-1.amazonaws.com", True),
        ("https://oss.example/", "false", "https", "oss.example", True),
    ],
)
def test_endpoints(
    systems: Systems,
    s3_arguments: list[dict[str, Any]],
    endpoint: str,
    path_style: str | None,
    scheme: str,
    address: str,
    virtual: bool,
) -> None:
    answer = options(token(60, **KEYS), endpoint=endpoint, endpoint_region="r1")
    if path_style is not None:
        options(answer, path_style_access=path_style)
    files, _ = systems(answer)
    files.locate("s3://bucket/a")
    arguments = s3_arguments[0]
    assert (arguments["scheme"], arguments["endpoint_override"]) == (scheme, address)
    assert arguments.get("force_virtual_addressing", False) is virtual
    assert arguments["region"] == "r1"


def test_oss_goes_through_its_s3_interface(
    systems: Systems, s3_arguments: list[dict[str, Any]]
) -> None:
    answer = token(60, "oss", **KEYS)
    answer.addition_info.add(key="fs.oss.endpoint", value="oss-cn-hangzhou.aliyuncs.com")
    answer.addition_info.add(key="fs.oss.region", value="cn-hangzhou")
    files, _ = systems(answer)
    assert files.locate("oss://bucket/a").path == "bucket/a"
    assert s3_arguments[0]["force_virtual_addressing"]
    assert s3_arguments[0]["region"] == "cn-hangzhou"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(token(), id="no token"),
        pytest.param(token(60, "file", **KEYS), id="for another scheme"),
        pytest.param(token(60, version="1"), id="no key"),
    ],
)
def test_without_a_token_the_environment_decides(
    systems: Systems,
    s3_arguments: list[dict[str, Any]],
    answer: pb.GetFileSystemSecurityTokenResponse,
) -> None:
    files, _ = systems(answer)
    files.locate("s3://bucket/a")
    assert s3_arguments == [{}]


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.SECURITY_TOKEN_EXCEPTION]
)
def test_a_refused_token_is_remembered_for_the_error(
    systems: Systems, caplog: pytest.LogCaptureFixture, code: int, tmp_path: Path
) -> None:
    refusal = fluss.FlussError("the role may not be assumed\n\tat java", code)
    connection = LonelyConnection()
    connection.cluster.tokens = iter([refusal, refusal])
    segments = Segments(tmp_path)
    segments.add(1)
    # nobody listens there
    segments.info.remote_log_tablet_dir = "s3://bucket/log"
    environment = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        position = segments.position()
        first, _ = segments.read(position, connection)
        with caplog.at_level(logging.WARNING):
            assert take_all(first) == []
        second, _ = segments.read(position, connection)
        with pytest.raises(fluss.FlussError, match="role may not be assumed") as caught:
            take_all(second)
    assert caught.value.error_code == ErrorCode.STORAGE_EXCEPTION
    assert "environment are used: the role" in caplog.text
    assert connection.cluster.asked == 2


def test_network_errors_are_no_refusal(systems: Systems) -> None:
    files, _ = systems(fluss.FlussError("gone", ErrorCode.NETWORK_EXCEPTION))
    with pytest.raises(fluss.FlussError, match="gone"):
        files.locate("s3://bucket/a")


@pytest.mark.parametrize("data", [b"KEY SECRET", b"[1]", b"\xff\xfe", b"[" * 100_000, b'"KEY"'])
def test_tokens_that_make_no_sense(systems: Systems, data: bytes) -> None:
    files, _ = systems(pb.GetFileSystemSecurityTokenResponse(schema="s3", token=data))
    with pytest.raises(fluss.FlussError, match="not a JSON object") as caught:
        files.locate("s3://bucket/a")
    assert caught.value.error_code == ErrorCode.SECURITY_TOKEN_EXCEPTION
    assert "KEY" not in str(caught.value)
    assert caught.value.__cause__ is None


# ---- the life of a token


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000_000.0]

    class Clock:
        @staticmethod
        def time() -> float:
            return now[0]

    monkeypatch.setattr(remote_fs, "time", Clock)
    return now


def test_tokens_are_renewed_at_four_fifths_of_their_life(
    systems: Systems, s3_arguments: list[dict[str, Any]], clock: list[float]
) -> None:
    def at(now: float, name: str) -> pb.GetFileSystemSecurityTokenResponse:
        answer = token(60, "s3", **{**KEYS, "access_key_id": name})
        answer.expiration_time = int((now + 100) * 1000)
        return answer

    start = clock[0]
    files, connection = systems(at(start, "A"), at(start + 80, "B"))
    first = files.locate("s3://bucket/a")
    clock[0] = start + 79
    assert files.locate("s3://bucket/b").filesystem is first.filesystem
    assert first.fresh
    clock[0] = start + 80
    assert not first.fresh
    second = files.locate("s3://bucket/a")
    assert second.filesystem is not first.filesystem
    assert second.fresh
    assert [made["access_key"] for made in s3_arguments] == ["A", "B"]
    assert connection.cluster.asked == 2


def test_an_expired_token_is_not_asked_for_all_the_time(
    systems: Systems, s3_arguments: list[dict[str, Any]], clock: list[float]
) -> None:
    old = token(60, "s3", **KEYS)
    old.expiration_time = int((clock[0] - 50) * 1000)
    files, connection = systems(old, old)
    for _ in range(10):
        files.locate("s3://bucket/a")
    assert connection.cluster.asked == 1
    clock[0] += 1.1
    files.locate("s3://bucket/a")
    assert connection.cluster.asked == 2


def test_tokens_that_failed_are_not_used_again(
    systems: Systems, s3_arguments: list[dict[str, Any]]
) -> None:
    files, connection = systems(token(60, **KEYS), token(60, **KEYS))
    place = files.locate("s3://bucket/a")
    files.forget(place)
    assert files.locate("s3://bucket/a").filesystem is not place.filesystem
    files.forget(place)  # the new one is somebody else's
    files.locate("s3://bucket/a")
    assert connection.cluster.asked == 2


def test_secrets_are_not_shown(systems: Systems, s3_arguments: list[dict[str, Any]]) -> None:
    files, _ = systems(options(token(60, **KEYS), region="r"))
    place = files.locate("s3://bucket/a")
    for shown in (repr(place), repr(place.token), str(place), repr(files)):
        assert not any(secret in shown for secret in KEYS.values())
    assert place.token.redact("the key KEY with SECRET") == "the key *** with ***"


# ---- the others


def test_an_unknown_scheme_names_the_way_out(systems: Systems) -> None:
    files, _ = systems()
    with pytest.raises(fluss.FlussError, match=r"cosn://b.*tiered\.local-segments") as caught:
        files.locate("cosn://b/a")
    assert caught.value.error_code == ErrorCode.STORAGE_EXCEPTION


def test_gcs_and_azure_take_the_credentials_of_the_environment(
    systems: Systems, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(fs, "GcsFileSystem", lambda *given: made.append(("gcs", *given)))
    monkeypatch.setattr(fs, "AzureFileSystem", lambda *given: made.append(("azure", *given)))
    files, connection = systems()
    assert files.locate("gs://bucket/a").path == "bucket/a"
    assert files.locate("abfss://box@account.dfs.core.windows.net/a").path == "box/a"
    assert made == [("gcs",), ("azure", "account")]
    assert connection.cluster.asked == 0


def test_hdfs_says_what_it_needs(systems: Systems, monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        @staticmethod
        def from_uri(uri: str) -> None:
            raise OSError("Unable to load libjvm\nmany\nlines")

    monkeypatch.setattr(fs, "HadoopFileSystem", Missing)
    files, _ = systems()
    with pytest.raises(fluss.FlussError, match="libjvm; reading HDFS needs Java") as caught:
        files.locate("hdfs://name:8020/a")
    assert caught.value.error_code == ErrorCode.STORAGE_EXCEPTION


def test_file_systems_end_with_their_connection(systems: Systems) -> None:
    files, connection = systems()
    with contextlib.suppress(fluss.FlussError):
        files.locate("cosn://b/a")
    del connection
    gc.collect()
    with pytest.raises(fluss.FlussError, match="closed"):
        files.locate("s3://bucket/a")
