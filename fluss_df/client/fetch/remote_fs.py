"""File systems of remote storage, with the credentials that the cluster hands out.

=============================  ===================================================================
scheme                         credentials
=============================  ===================================================================
none, ``file``                 none: the servers' own disk, reached by the same path
``s3``, ``s3a``, ``s3n``       the cluster's token; without one, those that the AWS tools use
                               (environment variables, ``~/.aws``, instance metadata)
``oss``                        the same, through the S3 interface of OSS
``gs``, ``gcs``                Google's application default credentials: the cluster has no token
``abfs(s)``, ``wasb(s)``       Azure's ``DefaultAzureCredential``: the cluster's token is an OAuth
                               bearer token, which ``pyarrow.fs.AzureFileSystem`` cannot take
``hdfs``, ``viewfs``           the user of the process (libhdfs, needs a Hadoop installation)
=============================  ===================================================================
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.hooks import ForkStep, after_fork
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import GET_FILESYSTEM_SECURITY_TOKEN

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext

logger = logging.getLogger(__name__)

_S3 = ("s3", "s3a", "s3n")
_GCS = ("gs", "gcs")
_AZURE = ("abfs", "abfss", "wasb", "wasbs")
_HDFS = ("hdfs", "viewfs")

# a token is renewed when this part of its life is over, but after a second at the earliest
_RENEW_AT = 0.8
_RENEW_AFTER_S = 1.0
_FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Token:
    """Credentials for remote storage; never shown.

    Parameters
    ----------
    values
        What the cluster sent: ``access_key_id``, ``access_key_secret``, ``security_token``.
    options
        Endpoint, region and other options of the store.
    renew_at
        When to ask for the next one, in seconds since the epoch.
    refused
        Why the cluster gave none; empty where it did, or has none to give.
    """

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    renew_at: float = _FOREVER
    refused: str = ""

    def option(self, *names: str) -> str | None:
        """Return the first option there is; ``endpoint`` means ``fs.s3a.endpoint``, for example."""
        for name in names:
            for prefix in ("fs.s3a.", "fs.oss.", "s3.", ""):
                value = self.options.get(prefix + name)
                if value:
                    return value
        return None

    def redact(self, text: str) -> str:
        """Return a text without what is secret in it."""
        for value in self.values.values():
            if value:
                text = text.replace(value, "***")
        return text


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file is: a path in a file system.

    ``token`` has the credentials that the file system was opened with.
    """

    filesystem: fs.FileSystem
    path: str
    token: Token

    @property
    def fresh(self) -> bool:
        """Whether the credentials have long enough to live."""
        return time.time() < self.token.renew_at


class RemoteFileSystems:
    """The file systems of one connection, by scheme and authority; for any number of threads."""

    _instances: ClassVar[weakref.WeakKeyDictionary[ClientContext, RemoteFileSystems]] = (
        weakref.WeakKeyDictionary()
    )
    _instances_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, connection: ClientContext) -> None:
        self._connection = weakref.ref(connection)
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str], tuple[fs.FileSystem, Token]] = {}

    @classmethod
    def of(cls, connection: ClientContext) -> RemoteFileSystems:
        """Return the file systems of a connection."""
        with cls._instances_lock:
            made = cls._instances.get(connection)
            if made is None:
                made = cls._instances[connection] = cls(connection)
            return made

    @classmethod
    def after_fork(cls) -> None:
        """Start again in a forked child: the connections of these stay with the parent."""
        cls._instances_lock = threading.Lock()
        cls._instances = weakref.WeakKeyDictionary()

    def locate(self, uri: str) -> Place:
        """Return the file system and path of a URI or local path, with live credentials.

        Raises ``STORAGE_EXCEPTION`` for a scheme that this client cannot read, or what it needs to
        read it and does not find; ``SECURITY_TOKEN_EXCEPTION`` for a token that makes no sense.
        """
        scheme, authority, path = split_uri(uri)
        if scheme in ("", "file"):
            return Place(fs.LocalFileSystem(), path, Token())
        key = (scheme, authority)
        with self._lock:
            known = self._open.get(key)
            if known is None or known[1].renew_at <= time.time():
                known = self._open[key] = self._connect(scheme, authority)
        filesystem, token = known
        if scheme not in _HDFS:
            path = authority.split("@")[0] + path  # the bucket, or the container of an account
        return Place(filesystem, path, token)

    def forget(self, place: Place) -> None:
        """Have the next :meth:`locate` ask for new credentials, as storage refused these."""
        with self._lock:
            for key, (filesystem, _) in list(self._open.items()):
                if filesystem is place.filesystem:
                    del self._open[key]

    def _connect(self, scheme: str, authority: str) -> tuple[fs.FileSystem, Token]:
        try:
            if scheme in _S3 or scheme == "oss":
                token = self._token(scheme)
                return _s3(token), token
            if scheme in _GCS:
                return fs.GcsFileSystem(), Token()
            if scheme in _AZURE:
                return fs.AzureFileSystem(authority.rpartition("@")[2].split(".")[0]), Token()
            if scheme in _HDFS:
                return fs.HadoopFileSystem.from_uri(f"{scheme}://{authority}/"), Token()
        except (OSError, ValueError, pa.ArrowException, ImportError) as error:
            # the first line: libhdfs lists all the places where it looked
            reason = str(error).partition("\n")[0]
            hint = (
                "; reading HDFS needs Java and a Hadoop installation: set JAVA_HOME, HADOOP_HOME"
                " and CLASSPATH (`hadoop classpath --glob`)"
                if scheme in _HDFS
                else ""
            )
            raise FlussError(
                f"remote storage at {scheme}://{authority} cannot be opened: {reason}{hint}",
                ErrorCode.STORAGE_EXCEPTION,
            ) from None
        raise FlussError(
            f"the older part of the log is at '{scheme}://{authority}', which this client cannot"
            " read: it reads local files, s3, oss, gs, abfs and hdfs. Read from a later offset, or"
            " have the cluster keep more of the log locally (table.log.tiered.local-segments)",
            ErrorCode.STORAGE_EXCEPTION,
        )

    def _token(self, scheme: str) -> Token:
        """Ask the cluster for credentials; without any, those of the environment are used."""
        connection = self._connection()
        if connection is None:
            raise FlussError("the connection is closed: open a new one")
        try:
            response = connection.io.run(
                connection.cluster.request_any(
                    GET_FILESYSTEM_SECURITY_TOKEN, pb.GetFileSystemSecurityTokenRequest()
                )
            )
        except FlussError as error:
            if error.error_code not in (
                ErrorCode.UNKNOWN_SERVER_ERROR,
                ErrorCode.SECURITY_TOKEN_EXCEPTION,
                ErrorCode.UNSUPPORTED_VERSION,
            ):
                raise
            refused = error.message.partition("\n")[0]
            logger.warning(
                "the cluster hands out no credentials for %s storage, those of this process's"
                " environment are used: %s",
                scheme,
                refused,
            )
            return Token(refused=refused)
        options = {pair.key: pair.value for pair in response.addition_info}
        if not response.token or not _same_kind(response.schema, scheme):
            return Token(options=options if _same_kind(response.schema, scheme) else {})
        renew_at = _FOREVER
        if response.HasField("expiration_time"):
            now = time.time()
            left = max(response.expiration_time / 1000 - now, 0.0)
            renew_at = now + max(left * _RENEW_AT, _RENEW_AFTER_S)
        return Token(_parse_token(response.token), options, renew_at)


def split_uri(uri: str) -> tuple[str, str, str]:
    """Return scheme, authority and path; nothing is unquoted, as the servers quote nothing."""
    scheme, separator, rest = uri.partition("://")
    if separator:
        authority, slash, path = rest.partition("/")
        return scheme.lower(), authority, slash + path
    if uri.startswith("file:"):
        return "file", "", uri.removeprefix("file:")
    return "", "", uri


def _same_kind(token_scheme: str, scheme: str) -> bool:
    return token_scheme == scheme or (token_scheme in _S3 and scheme in _S3)


def _parse_token(data: bytes) -> dict[str, str]:
    try:
        token = json.loads(data)
    except (ValueError, RecursionError):
        token = None
    if not isinstance(token, dict):
        raise FlussError(
            "the cluster sent credentials for its remote storage that are not a JSON object",
            ErrorCode.SECURITY_TOKEN_EXCEPTION,
        )
    return {key: value for key, value in token.items() if isinstance(value, str)}


def _s3(token: Token) -> fs.FileSystem:
    scheme = address = None
    virtual_hosts = False
    endpoint = token.option("endpoint")
    if endpoint:
        parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
        scheme, address = parts.scheme, parts.netloc
        # As the servers do it: the bucket is part of the host name (virtual hosts), unless the
        # option says that it is part of the path, or the host is an IP address.
        path_style = str(token.option("path.style.access", "path-style-access")).lower()
        virtual_hosts = path_style != "true" and not _is_address(parts.hostname or "")
    access = token.values.get("access_key_id") or None
    return fs.S3FileSystem(
        access_key=access,
        secret_key=token.values.get("access_key_secret") if access else None,
        session_token=(token.values.get("security_token") or None) if access else None,
        region=token.option("region", "endpoint.region"),
        endpoint_override=address,
        scheme=scheme,
        force_virtual_addressing=virtual_hosts,
    )


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return host == "localhost"


after_fork(ForkStep.REMOTE_FILES, RemoteFileSystems.after_fork)
