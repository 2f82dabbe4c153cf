"""File systems of remote log segments, with the credentials that the cluster hands out."""

from __future__ import annotations

import json
import threading
import time
import weakref
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from pyarrow import fs

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import GET_FILESYSTEM_SECURITY_TOKEN

if TYPE_CHECKING:
    from fluss_df.client.connection import FlussConnection

# a token is renewed when this part of its life is over
_RENEW_AT = 0.75


class RemoteFileSystems:
    """The file systems of one connection, by scheme and bucket; for any number of threads."""

    _instances: ClassVar[weakref.WeakKeyDictionary[FlussConnection, RemoteFileSystems]] = (
        weakref.WeakKeyDictionary()
    )
    _instances_lock = threading.Lock()

    def __init__(self, connection: FlussConnection) -> None:
        self._connection = weakref.ref(connection)
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str], tuple[fs.FileSystem, float]] = {}

    @classmethod
    def of(cls, connection: FlussConnection) -> RemoteFileSystems:
        """Return the file systems of a connection."""
        with cls._instances_lock:
            made = cls._instances.get(connection)
            if made is None:
                made = cls._instances[connection] = cls(connection)
            return made

    def open(self, path: str) -> tuple[fs.FileSystem, str]:
        """Return the file system of a path or URI, and the path in it."""
        parts = urlsplit(path)
        scheme = parts.scheme.lower()
        if scheme in ("", "file"):
            return fs.LocalFileSystem(), parts.path or path
        key = (scheme, parts.netloc)
        with self._lock:
            known = self._open.get(key)
            if known is None or known[1] <= time.time():
                known = self._open[key] = self._connect(scheme, parts.netloc)
        if scheme in ("hdfs", "viewfs"):
            return known[0], parts.path
        container = parts.netloc.split("@")[0]
        return known[0], f"{container}{parts.path}"

    def _connect(self, scheme: str, authority: str) -> tuple[fs.FileSystem, float]:
        if scheme in ("hdfs", "viewfs"):
            return fs.HadoopFileSystem.from_uri(f"{scheme}://{authority}/"), float("inf")
        token, options, renew_at = self._token()
        if scheme in ("s3", "s3a", "s3n"):
            return _s3(token, options), renew_at
        if scheme in ("gs", "gcs"):
            return _gcs(token, renew_at), renew_at
        if scheme in ("abfs", "abfss", "wasb", "wasbs"):
            return _azure(authority, token), renew_at
        raise FlussError(
            f"remote log segments are at '{scheme}://...', which this client cannot read;"
            " it reads local files, S3, GCS, ABFS and HDFS",
            ErrorCode.STORAGE_EXCEPTION,
        )

    def _token(self) -> tuple[dict[str, str], dict[str, str], float]:
        """Ask the cluster for credentials."""
        connection = self._connection()
        if connection is None:
            raise FlussError("the connection is closed: open a new one")
        response = connection.io.run(
            connection.cluster.request_any(
                GET_FILESYSTEM_SECURITY_TOKEN, pb.GetFileSystemSecurityTokenRequest()
            )
        )
        options = {pair.key: pair.value for pair in response.addition_info}
        token: dict[str, str] = {}
        if response.token:
            try:
                token = json.loads(response.token)
            except ValueError:
                raise FlussError(
                    "the cluster sent a security token that is not JSON",
                    ErrorCode.SECURITY_TOKEN_EXCEPTION,
                ) from None
        renew_at = float("inf")
        if response.HasField("expiration_time"):
            now = time.time()
            renew_at = now + (response.expiration_time / 1000 - now) * _RENEW_AT
        return token, options, renew_at


def _s3(token: dict[str, str], options: dict[str, str]) -> fs.FileSystem:
    def option(*names: str) -> str | None:
        for name in names:
            for prefix in ("fs.s3a.", "fs.s3.", "s3.", ""):
                value = options.get(prefix + name)
                if value:
                    return value
        return None

    endpoint = option("endpoint")
    scheme, override = None, None
    if endpoint:
        parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
        scheme, override = parts.scheme, parts.netloc
    path_style = str(option("path.style.access", "path-style-access") or "").lower() == "true"
    return fs.S3FileSystem(
        access_key=token.get("access_key_id"),
        secret_key=token.get("access_key_secret") or token.get("secret_access_key"),
        session_token=token.get("security_token") or token.get("session_token") or None,
        region=option("region", "endpoint.region"),
        endpoint_override=override,
        scheme=scheme,
        force_virtual_addressing=bool(override) and not path_style,
    )


def _gcs(token: dict[str, str], renew_at: float) -> fs.FileSystem:
    import datetime

    access = token.get("access_token") or token.get("security_token")
    if not access:
        return fs.GcsFileSystem()
    end = datetime.datetime.fromtimestamp(min(renew_at, time.time() + 3600), datetime.UTC)
    return fs.GcsFileSystem(access_token=access, credential_token_expiration=end)


def _azure(authority: str, token: dict[str, str]) -> fs.FileSystem:
    account = authority.rpartition("@")[2].split(".")[0]
    sas = token.get("sas_token") or token.get("security_token")
    return fs.AzureFileSystem(account_name=account, **({"sas_token": sas} if sas else {}))
