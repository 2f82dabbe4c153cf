"""The security settings of an engine that listens on TCP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from fluss_df.engine.access.authorizer import super_users_of
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol.acl import FlussPrincipal


@dataclass(frozen=True, slots=True)
class Security:
    """How an engine is guarded where peers come in by TCP.

    This process, and others of its user on the machine, may do everything by the folder.

    Parameters
    ----------
    authorizer_enabled
        Whether users may do only what access control lists allow them (``authorizer.enabled``):
        see :meth:`~fluss_df.client.admin.FlussAdmin.create_acls`. The lists are in the folder, and
        stay there while this is off.
    super_users
        Who may do everything, as in ``"User:admin;User:bob"``, or a list of them (``super.users``).
    acl_principal_ignore_case
        Whether names of users are compared without regard to capitals
        (``security.acl.principal.ignore-case``).
    tls_cert, tls_key
        Files of the server's certificate, with those between it and its authority, and of its
        private key, in PEM; where they are given, peers come in by TLS alone.
    tls_client_ca
        A file of authorities, in PEM: peers need a certificate of one of them (mutual TLS).

    Raises
    ------
    FlussError
        ``INVALID_CONFIG_EXCEPTION`` for a superuser without a type, and where only one of
        certificate and key is given.
    """

    authorizer_enabled: bool = False
    super_users: str | Sequence[str] = ()
    acl_principal_ignore_case: bool = False
    tls_cert: str | os.PathLike[str] | None = None
    tls_key: str | os.PathLike[str] | None = None
    tls_client_ca: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        principals_of(self.super_users)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise FlussError(
                "tls_cert and tls_key belong together: a certificate is of no use without its key",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise FlussError(
                "tls_client_ca asks peers for certificates, which takes TLS: give tls_cert and"
                " tls_key, too",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )


def principals_of(super_users: str | Sequence[str]) -> tuple[FlussPrincipal, ...]:
    """Return superusers.

    Raises FlussError as :class:`Security`.
    """
    return super_users_of(super_users if isinstance(super_users, str) else ";".join(super_users))
