"""The authorizer: decides who may do what, as Fluss's own authorizer does.

A right on the cluster holds for databases and tables, one on a database for its tables. ``ALL``
stands for every operation, every right includes ``DESCRIBE``. A binding with the name ``*`` holds
for all resources of exactly its type.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fluss_df.engine.access.acl_store import Acls, AclStore
from fluss_df.engine.catalog.catalog import Catalog
from fluss_df.engine.files.rate_limited_log import SeldomLogger
from fluss_df.engine.tables.tables import Table
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol.acl import (
    WILDCARD,
    AclBinding,
    AclBindingFilter,
    FlussPrincipal,
    OperationType,
    PermissionType,
    Resource,
    ResourceType,
)

logger = SeldomLogger(logging.getLogger(__name__))

_Index = dict[tuple[Resource, FlussPrincipal], list[tuple[OperationType, str]]]

_DESCRIBING: Final = frozenset(OperationType) - {OperationType.ANY, OperationType.ALL}


def denied(message: str) -> FlussError:
    """Return the error for what somebody may not do."""
    return FlussError(message, ErrorCode.AUTHORIZATION_EXCEPTION)


def super_users_of(text: str) -> tuple[FlussPrincipal, ...]:
    """Read ``super.users``, as in ``User:admin;User:bob``.

    Raises ``INVALID_CONFIG_EXCEPTION`` where one is not of this form.
    """
    users = [part.strip() for part in text.split(";") if part.strip()]
    for user in users:
        if ":" not in user:
            raise FlussError(
                f"super.users: {user!r} lacks its type: expected TYPE:NAME, as in User:{user}",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
    return tuple(map(FlussPrincipal.parse, users))


def host_of(address: str) -> str:
    """Return an address as access control lists have it: one of IPv4, where it can be."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = getattr(known, "ipv4_mapped", None)
    return str(mapped or known)


class Authorizer:
    """Decides who may do what, by the bindings of a folder."""

    def __init__(
        self,
        store: AclStore,
        catalog: Catalog,
        super_users: Iterable[FlussPrincipal] = (),
        *,
        ignore_case: bool = False,
    ) -> None:
        self.store = store
        self.catalog = catalog
        self._ignore_case = ignore_case
        self._super_users = frozenset(map(self._folded, super_users))
        self._everyone = self._folded(FlussPrincipal.WILD_CARD_PRINCIPAL)
        self._indexed: tuple[Acls | None, _Index] = (None, {})

    def _folded(self, principal: FlussPrincipal) -> FlussPrincipal:
        if not self._ignore_case:
            return principal
        return FlussPrincipal(principal.name.casefold(), principal.type.casefold())

    def rights_of(self, principal: FlussPrincipal, address: str) -> Rights:
        """Return what a principal at an address may do."""
        return Rights(self, principal, host_of(address))

    def allows(
        self, principal: FlussPrincipal, host: str, operation: OperationType, resource: Resource
    ) -> bool:
        """Whether a principal at a host may do something to a resource."""
        who = self._folded(principal)
        if who in self._super_users:
            return True
        including = {operation, OperationType.ALL}
        if operation == OperationType.DESCRIBE:
            including |= _DESCRIBING
        index = self._index()
        return any(
            allowed in including and place in (WILDCARD, host)
            for containing in _containing(resource)
            for asking in (who, self._everyone)
            for allowed, place in index.get((containing, asking), ())
        )

    def _index(self) -> _Index:
        """Return the bindings by resource and principal: one resource may have thousands."""
        acls = self.store.acls
        known = self._indexed
        if known[0] is not acls:
            index: _Index = {}
            for resource, entries in acls.items():
                for entry in entries:
                    if entry.permission_type == PermissionType.ALLOW:
                        key = resource, self._folded(entry.principal)
                        place = host_of(entry.host)
                        index.setdefault(key, []).append((entry.operation_type, place))
            # assigned in one step, as other threads read it meanwhile
            known = self._indexed = acls, index
        return known[1]


def _containing(resource: Resource) -> set[Resource]:
    """Return the resources whose bindings hold for one."""
    found = {Resource(resource.type, WILDCARD)}
    if resource.type != ResourceType.ANY:
        found |= {resource, Resource.cluster()}
    if resource.type == ResourceType.TABLE:
        found.add(Resource.database(resource.name.split(".")[0]))
    return found


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of one principal at one address, at any moment."""

    authorizer: Authorizer
    principal: FlussPrincipal
    host: str

    def may(self, operation: OperationType, resource: Resource) -> bool:
        """Whether something may be done to a resource."""
        return self.authorizer.allows(self.principal, self.host, operation, resource)

    def require(self, operation: OperationType, resource: Resource) -> None:
        """Refuse what may not be done.

        Raises ``AUTHORIZATION_EXCEPTION``, which says which right is missing.
        """
        if not self.may(operation, resource):
            self._note(operation, resource)
            raise denied(
                f"Principal {self.principal} is not authorized: it lacks the right"
                f" {operation.name} on {resource}{_ABOVE[resource.type]}"
            )

    def _note(self, operation: OperationType, resource: Resource) -> None:
        logger.warning(
            "%s at %s was refused: it lacks the right %s on %s",
            self.principal,
            self.host,
            operation.name,
            resource,
        )

    def refusal(self, operation: OperationType, table: Table | None) -> FlussError | None:
        """Return the error for a table that is known by its id; None where it may be done.

        What a table is called is told to those alone who may describe it. One that does not exist
        is nobody's.
        """
        if table is None:
            return None
        path = table.path
        resource = Resource.table(path.database_name, path.table_name)
        if self.may(operation, resource):
            return None
        self._note(operation, resource)
        name = str(resource)
        if not self.may(OperationType.DESCRIBE, resource):
            name = f"the table with the id {table.id}"
        return denied(
            f"Principal {self.principal} is not authorized: it lacks the right {operation.name} on"
            f" {name}{_ABOVE[ResourceType.TABLE]}"
        )

    def refusal_by_id(self, operation: OperationType, table_id: int) -> FlussError | None:
        """As :meth:`refusal`, of a table by its id."""
        return self.refusal(operation, self.authorizer.catalog.table_by_id(table_id))

    def require_table(self, operation: OperationType, table_id: int) -> None:
        """Refuse what may not be done to a table that is known by its id.

        Raises FlussError as :meth:`require`.
        """
        error = self.refusal_by_id(operation, table_id)
        if error is not None:
            raise error

    # ---- access control lists

    def _require_all(self, resources: Iterable[Resource]) -> None:
        """Require ``ALL``, which giving and taking rights needs: for a table, on its database."""
        for resource in resources:
            place = resource
            if resource.type == ResourceType.TABLE:
                place = Resource.database(resource.name.split(".")[0])
            self.require(OperationType.ALL, place)

    def create_acls(self, bindings: list[AclBinding]) -> None:
        """Add bindings.

        Raises FlussError as :meth:`require`, and :meth:`AclStore.add`.
        """
        self.authorizer.store.add(bindings, self._require_all)

    def drop_acls(self, filters: list[AclBindingFilter]) -> list[list[AclBinding]]:
        """Drop bindings; return which, for each filter.

        Raises FlussError as :meth:`require`, and :meth:`AclStore.drop`.
        """
        return self.authorizer.store.drop(filters, self._require_all)

    def list_acls(self, wanted: AclBindingFilter) -> list[AclBinding]:
        """Return the bindings of the resources that may be described."""
        return [
            AclBinding(resource, entry)
            for resource, entries in self.authorizer.store.acls.items()
            if wanted.resource_filter.matches(resource)
            and self.may(OperationType.DESCRIBE, resource)
            for entry in entries
            if wanted.entry_filter.matches(entry)
        ]


_ABOVE: Final = {
    ResourceType.ANY: "",
    ResourceType.CLUSTER: "",
    ResourceType.DATABASE: ", or the cluster",
    ResourceType.TABLE: ", its database or the cluster",
}


class AllRights(Rights):
    """The rights of the user of the process that has the folder, who needs no permission."""

    __slots__ = ()

    def may(self, operation: OperationType, resource: Resource) -> bool:
        """Return True."""
        return True
