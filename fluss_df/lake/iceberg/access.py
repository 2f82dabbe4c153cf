"""How Polars reaches the files of a lake table: credentials, renewed where they are temporary."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyiceberg.table import Table

# where a table has several names of one setting, the later one wins, as in pyiceberg
_STORAGE: Final = {
    "client.access-key-id": "aws_access_key_id",
    "client.secret-access-key": "aws_secret_access_key",
    "client.session-token": "aws_session_token",
    "client.region": "aws_region",
    "s3.endpoint": "aws_endpoint_url",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.region": "aws_region",
    "s3.force-virtual-addressing": "aws_virtual_hosted_style_request",
}
_TOKEN: Final = "s3.session-token"
_SECRET: Final = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
# catalogs say when a token ends, in milliseconds since 1970
_EXPIRES: Final = "expires-at-ms"
# seconds before its end at which a token is renewed
_EARLY_S: Final = 60.0
# seconds after which a token without an end is renewed: less than the shortest life in AWS
_UNKNOWN_S: Final = 300.0


class StorageAccess:
    """What Polars needs to read the files of a table where they are not local.

    A catalog may hand out credentials that end after minutes (REST catalogs do). Polars asks for
    them again when they end, also in the middle of a query: ``reopen`` then opens the table with
    new credentials. It is None where the table cannot be opened again.
    """

    def __init__(self, table: Table, reopen: Callable[[], Table] | None = None) -> None:
        self._reopen = reopen
        self._lock = threading.Lock()
        self._take(table)

    def _take(self, table: Table) -> None:
        self._properties: Mapping[str, Any] = table.io.properties
        given = self._properties.items()
        ends = [float(value) / 1000 for key, value in given if _EXPIRES in key and value]
        self._ends = min(ends) if ends else time.time() + _UNKNOWN_S

    def scan_options(self) -> dict[str, Any]:
        """Return the arguments of ``scan_parquet`` by which it reaches the files."""
        options = self._options()
        if self._reopen is None or _TOKEN not in self._properties:
            return {"storage_options": options or None}
        plain = {key: value for key, value in options.items() if key not in _SECRET}
        return {"storage_options": plain or None, "credential_provider": self}

    def __call__(self) -> tuple[dict[str, str | None], int | None]:
        """Return credentials, and when they end (seconds since 1970), as Polars asks for them."""
        with self._lock:
            if self._reopen is not None and time.time() > self._ends - _EARLY_S:
                self._take(self._reopen())
            options = self._options()
            return {key: options.get(key) for key in _SECRET}, int(self._ends)

    def _options(self) -> dict[str, str]:
        given = self._properties
        made = {name: str(given[key]) for key, name in _STORAGE.items() if key in given}
        if str(made.get("aws_endpoint_url", "")).startswith("http://"):
            made["aws_allow_http"] = "true"
        return made
