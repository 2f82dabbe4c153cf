"""A real server that tiers into S3: its tokens, and a store that refuses or is slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.fetch.remote_fs import RemoteFileSystems, Token
from fluss_df.cluster import LocalCluster
from fluss_df.errors import ErrorCode
from tests.remote.s3_store import ACCESS_KEY, BUCKET, SECRET_KEY, S3Store
from tests.remote.support import LonelyConnection, Segments, options, take_all, token
from tests.remote.tiered import Tiered, plain, poll_arrow, read_all_ways

Shared = tuple[fluss.FlussTable, pa.Table]
Connect = Callable[..., fluss.FlussConnection]


@pytest.fixture(scope="module")
def shared(s3_tiered: Tiered) -> Shared:
    """A table that nobody changes: its first segments are in S3, its newest are local."""
    return s3_tiered.filled(8)


@pytest.fixture
def connect(s3_cluster: LocalCluster) -> Connect:
    """Opens connections that have no file system yet."""

    def make(**properties: object) -> fluss.FlussConnection:
        config = fluss.Config({"bootstrap.servers": s3_cluster.bootstrap_servers})
        return fluss.connect(config.copy(**properties))

    return make


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> list[Token]:
    """The tokens that the cluster handed out."""
    seen: list[Token] = []
    ask = RemoteFileSystems._token

    def record(self: RemoteFileSystems, scheme: str) -> Token:
        seen.append(ask(self, scheme))
        return seen[-1]

    monkeypatch.setattr(RemoteFileSystems, "_token", record)
    return seen


def test_all_ways(s3: S3Store, s3_tiered: Tiered, shared: Shared) -> None:
    table, data = shared
    start = 1_234
    expected = plain(data.slice(start))
    for way, (found, metrics) in read_all_ways(
        s3_tiered, table, start, None, len(expected)
    ).items():
        assert plain(found) == expected, way
        assert metrics is None or metrics.remote_segments >= 6, way
    projected = plain(data.select(["value"]))
    for way, (found, _) in read_all_ways(s3_tiered, table, 0, ["value"], len(projected)).items():
        assert plain(found) == projected, way


def test_the_session_of_the_token_is_used(
    s3: S3Store, s3_tiered: Tiered, shared: Shared, connect: Connect, tokens: list[Token]
) -> None:
    table, data = shared
    with connect() as connection:
        found = s3_tiered.scanner(table, connection=connection).to_arrow()
        again = s3_tiered.scanner(table, connection=connection).to_arrow()
    assert found.num_rows == again.num_rows == data.num_rows
    assert len(tokens) == 1
    values = tokens[0].values
    assert values["access_key_id"] not in ("", ACCESS_KEY)
    assert {request.access_key for request in s3.requests} == {values["access_key_id"]}
    assert {request.session for request in s3.requests} == {values["security_token"]}
    # a size and a range for each segment and read
    assert len(s3.requests) <= 2 * 2 * 8


def test_tokens_are_renewed(
    s3: S3Store, s3_tiered: Tiered, shared: Shared, connect: Connect, tokens: list[Token]
) -> None:
    table, data = shared
    with connect() as connection, pytest.MonkeyPatch.context() as patch:
        scanner = s3_tiered.scanner(table, connection=connection)
        assert scanner.to_arrow().num_rows == data.num_rows
        later = tokens[0].renew_at + 1

        class Later:
            @staticmethod
            def time() -> float:
                return later

        patch.setattr("fluss_df.client.fetch.remote_fs.time", Later)
        scanner = s3_tiered.scanner(table, connection=connection)
        assert scanner.to_arrow().num_rows == data.num_rows
    assert len(tokens) >= 2
    left = tokens[0].renew_at - time.time()
    assert 0.7 * 43_200 < left < 0.8 * 43_200


def test_a_token_that_is_refused_is_replaced(
    s3: S3Store, s3_tiered: Tiered, shared: Shared, connect: Connect, tokens: list[Token]
) -> None:
    table, data = shared
    s3.refuse = 1
    with connect(remote_file_download_thread_num=1) as connection:
        scanner = s3_tiered.scanner(table, connection=connection)
        assert plain(scanner.to_arrow()) == plain(data)
        assert scanner.metrics.retries == 1
    assert len(tokens) == 2


def test_wrong_credentials(
    s3: S3Store, s3_tiered: Tiered, shared: Shared, connect: Connect, tokens: list[Token]
) -> None:
    table, data = shared
    s3.refuse = -1
    with connect() as connection:
        scanner = s3_tiered.scanner(table, connection=connection)
        with pytest.raises(
            fluss.FlussError, match=rf"segment s3://{BUCKET}/.*log cannot be read: .*AWS Error"
        ) as caught:
            scanner.to_arrow()
        assert caught.value.error_code == ErrorCode.STORAGE_EXCEPTION
        assert not any(secret in str(caught.value) for secret in tokens[0].values.values())
        with s3_tiered.scanner(table, connection=connection) as polled:
            with pytest.raises(fluss.FlussError, match="cannot be read"):
                poll_arrow(polled, 1)
            s3.refuse = 0
            assert plain(poll_arrow(polled, data.num_rows)) == plain(data)


@pytest.mark.parametrize("threads", [1, 6])
def test_as_many_segments_are_read_at_once_as_there_are_threads(
    s3: S3Store, s3_tiered: Tiered, shared: Shared, connect: Connect, threads: int
) -> None:
    table, data = shared
    s3.calm()
    s3.latency_s = 0.2
    with connect(
        remote_file_download_thread_num=threads, scanner_remote_log_prefetch_num=6
    ) as connection:
        scanner = s3_tiered.scanner(table, connection=connection)
        assert scanner.to_arrow().num_rows == data.num_rows
    assert s3.most_at_once == 1 if threads == 1 else 3 <= s3.most_at_once <= threads


# ---- without the cluster: what it says leads nowhere


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(f"s3://{BUCKET}/nowhere", id="file"),
        pytest.param("s3://no-such-bucket/log", id="bucket"),
    ],
)
def test_missing_places(s3: S3Store, tmp_path: Path, place: str) -> None:
    segments = Segments(tmp_path)
    segments.add(1)
    segments.info.remote_log_tablet_dir = place
    connection = LonelyConnection()
    answer = options(
        token(60, access_key_id=ACCESS_KEY, access_key_secret=SECRET_KEY),
        endpoint=f"http://{s3.address}",
        region="us-east-1",
    )
    connection.cluster.tokens = iter([answer, answer])
    position = segments.position()
    first, _ = segments.read(position, connection)
    assert take_all(first) == []
    second, _ = segments.read(position, connection)
    with pytest.raises(fluss.FlussError, match=f"{place}.* cannot be read") as caught:
        take_all(second)
    assert caught.value.error_code == ErrorCode.STORAGE_EXCEPTION
    assert SECRET_KEY not in str(caught.value)
    assert "does not exist" in caught.value.message
