"""An S3 store with STS on the loopback that watches its requests, slows or refuses them."""

from __future__ import annotations

import datetime as dt
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from pyarrow import fs
from werkzeug.serving import make_server

ACCESS_KEY = "admin"
SECRET_KEY = "admin-secret"
BUCKET = "tier"

_Start = Callable[..., Any]


@dataclass(frozen=True)
class Request:
    """A request for a log segment, as the store saw it."""

    method: str
    path: str
    access_key: str
    session: str
    begin: float


class S3Store:
    """``moto`` behind a small WSGI layer.

    Attributes
    ----------
    requests
        Requests of clients for ``.log`` files: those signed with a session's credentials.
    most_at_once
        How many of them were answered at the same time at most.
    latency_s
        How long each of them takes at least.
    refuse
        How many of the next ones to answer with 403; -1 for all.
    token_lives_s
        How long tokens last that STS hands out, as it says; None for its default.
    """

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._lock = threading.Lock()
        self.address = f"127.0.0.1:{self._server.port}"
        self.requests: list[Request] = []
        self.most_at_once = self._at_once = 0
        self.latency_s = 0.0
        self.refuse = 0
        self.token_lives_s: float | None = None

    def __enter__(self) -> S3Store:
        self._thread.start()
        self.files().create_dir(BUCKET)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def calm(self) -> None:
        """Forget what was seen, and answer at once again."""
        self.latency_s, self.refuse, self.token_lives_s = 0.0, 0, None
        self.requests.clear()
        self.most_at_once = 0

    def files(self) -> fs.S3FileSystem:
        """Return the store as a file system."""
        return fs.S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            region="us-east-1",
            scheme="http",
            endpoint_override=self.address,
            allow_bucket_creation=True,
        )

    def server_options(self) -> dict[str, str]:
        """Return what a cluster needs to tier into the store."""
        return {
            "remote.data.dir": f"s3://{BUCKET}/fluss",
            "s3.endpoint": f"http://{self.address}",
            "s3.region": "us-east-1",
            "s3.path.style.access": "true",
            "s3.access-key": ACCESS_KEY,
            "s3.secret-key": SECRET_KEY,
            "s3.assumed.role.sts.endpoint": f"http://{self.address}",
        }

    def _answer(self, environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        session = environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "")
        path = environ["PATH_INFO"]
        if session and path.endswith(".log"):
            signer = re.search("Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
            key = signer[1] if signer else ""
            with self._lock:
                self.requests.append(
                    Request(environ["REQUEST_METHOD"], path, key, session, time.monotonic())
                )
                refused = self.refuse != 0
                if self.refuse > 0:
                    self.refuse -= 1
                self._at_once += 1
                self.most_at_once = max(self.most_at_once, self._at_once)
            time.sleep(self.latency_s)
            with self._lock:
                self._at_once -= 1
            if refused:
                return self._refuse(environ, start)
        body = self._moto(environ, start)
        if path == "/" and self.token_lives_s is not None:
            return [self._with_life(b"".join(body))]
        return body  # type: ignore[no-any-return]

    @staticmethod
    def _refuse(environ: dict[str, Any], start: _Start) -> list[bytes]:
        body = b"<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>"
        start("403 Forbidden", [("Content-Type", "text/xml"), ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _with_life(self, body: bytes) -> bytes:
        end = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=self.token_lives_s or 0)
        text = end.strftime("%Y-%m-%dT%H:%M:%S.000Z").encode()
        found = re.search(rb"<Expiration>([^<]*)</Expiration>", body)
        if found is None:
            return body
        # of the same length, for the header that was sent already
        return body.replace(
            found[1], text[: len(found[1]) - 1].ljust(len(found[1]) - 1, b"0") + b"Z"
        )
