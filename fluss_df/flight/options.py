"""What the peers of a Flight SQL server may use of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fluss_df.errors import ErrorCode, FlussError


@dataclass(frozen=True, slots=True)
class FlightLimits:
    """What the peers of a Flight SQL server may use of it.

    Parameters
    ----------
    connections
        The most at once; a further one is closed.
    calls
        The most calls at once; a further one is refused.
    statements
        The most statements that run at once, those that were cancelled and still run included.
    statement_s
        How many seconds a statement may take, from its beginning to its last batch.
    sessions
        The most clients that are signed in at once, and that have not been idle for
        ``session_idle_s``.
    session_idle_s
        After how many seconds without a call a client has to sign in again.
    prepared
        The most prepared statements of a client. Of those that clients share, the one that was idle
        longest is given up for a further one, and each that was idle for ``session_idle_s``.
    tickets
        The most results of a client that were not fetched yet; for a further one, the oldest is
        given up.
    ticket_s
        How many seconds a result waits to be fetched.
    message_bytes
        The largest message that a client may send: a statement, or a batch of rows.
    silent_s
        How many seconds a client may send nothing where it is to send something.

    Raises
    ------
    FlussError
        ``INVALID_CONFIG_EXCEPTION`` for one that is not above 0.
    """

    connections: int = 256
    calls: int = 64
    statements: int = 16
    statement_s: float = 3600.0
    sessions: int = 256
    session_idle_s: float = 3600.0
    prepared: int = 100
    tickets: int = 100
    ticket_s: float = 600.0
    message_bytes: int = 16 << 20
    silent_s: float = 60.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) > 0:
                raise FlussError(
                    f"FlightLimits: {field.name}={getattr(self, field.name)!r}: expected more"
                    " than 0",
                    ErrorCode.INVALID_CONFIG_EXCEPTION,
                )
