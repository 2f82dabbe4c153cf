"""Access control lists, and their messages: who may do what to which resource.

A binding allows a principal one operation on a resource. A right on the cluster holds for all
databases, one on a database for all its tables. ``ALL`` stands for every operation, and each right
but ``ANY`` includes ``DESCRIBE``. There are no bindings that deny: what no binding allows is
refused.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import ClassVar, Final, Self, TypeVar

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import messages_pb2 as pb

#: a name that stands for all: of a resource of its type, of a principal, of a host
WILDCARD: Final = "*"
_CLUSTER: Final = "fluss-cluster"

E = TypeVar("E", bound="_Named")


class _Named(enum.IntEnum):
    """An enumeration of the protocol, with the server's numbers."""

    @classmethod
    def parse(cls: type[E], name: str) -> E:
        """Return the member with a name, in capitals or not.

        Raises
        ------
        FlussError
            ``INVALID_CONFIG_EXCEPTION``, naming those that there are.
        """
        for member in cls:
            if member.name == str(name).strip().upper():
                return member
        raise FlussError(
            f"{name!r} is no {cls.__name__}: there are {', '.join(each.name for each in cls)}",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )


class ResourceType(_Named):
    """The kind of resource that a right is about; ``ANY`` is for filters alone."""

    ANY = 1
    CLUSTER = 2
    DATABASE = 3
    TABLE = 4


class OperationType(_Named):
    """The operation of a right; ``ANY`` is for filters alone, ``ALL`` stands for each operation."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DROP = 6
    ALTER = 7
    DESCRIBE = 8


class PermissionType(_Named):
    """Whether it is allowed, which it always is; ``ANY`` is for filters alone."""

    ANY = 1
    ALLOW = 2


@dataclass(frozen=True, slots=True, order=True)
class FlussPrincipal:
    """The principal: the user that sends a request, or that a right is for.

    Parameters
    ----------
    name
        The name of SASL; ``ANONYMOUS`` for a user without a login.
    type
        "User", the only type that servers give by themselves.
    """

    name: str
    type: str = "User"

    #: who said no name
    ANONYMOUS: ClassVar[FlussPrincipal]
    #: everyone, in a binding
    WILD_CARD_PRINCIPAL: ClassVar[FlussPrincipal]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``User:alice``, or ``alice`` alone; ``*`` is everyone.

        Raises
        ------
        FlussError
            ``INVALID_CONFIG_EXCEPTION`` where the name or the type is empty.
        """
        type, colon, name = text.partition(":")
        if not colon:
            type, name = (WILDCARD if text == WILDCARD else "User"), text
        if not type or not name:
            raise FlussError(
                f"{text!r} is no principal: expected a user's name, or TYPE:NAME as in User:alice",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
        return cls(name, type)

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


FlussPrincipal.ANONYMOUS = FlussPrincipal("ANONYMOUS")
FlussPrincipal.WILD_CARD_PRINCIPAL = FlussPrincipal(WILDCARD, WILDCARD)


@dataclass(frozen=True, slots=True, order=True)
class Resource:
    """The cluster, a database or a table.

    Names are literal. Only the name ``*`` stands for all resources of its type: ``sales.*`` is the
    table of that name.

    Parameters
    ----------
    type
        Which of them.
    name
        ``fluss-cluster``, a database's name, or ``database.table``.

    Examples
    --------
    >>> [str(each) for each in (Resource.cluster(), Resource.table("sales", "orders"))]
    ['cluster', 'table:sales.orders']
    """

    type: ResourceType
    name: str

    @classmethod
    def cluster(cls) -> Self:
        """Return the cluster."""
        return cls(ResourceType.CLUSTER, _CLUSTER)

    @classmethod
    def database(cls, database_name: str) -> Self:
        """Return a database."""
        return cls(ResourceType.DATABASE, database_name)

    @classmethod
    def table(cls, database_name: str, table_name: str) -> Self:
        """Return a table."""
        return cls(ResourceType.TABLE, f"{database_name}.{table_name}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``cluster``, ``database:NAME`` or ``table:DATABASE.NAME``.

        Raises
        ------
        FlussError
            ``INVALID_CONFIG_EXCEPTION`` for any other text.
        """
        kind, _, name = text.partition(":")
        type = ResourceType.parse(kind)
        dotted = type != ResourceType.TABLE or "." in name or name == WILDCARD
        if type == ResourceType.CLUSTER and name in ("", _CLUSTER, WILDCARD):
            return cls(type, name or _CLUSTER)
        if type in (ResourceType.DATABASE, ResourceType.TABLE) and name and dotted:
            return cls(type, name)
        raise FlussError(
            f"{text!r} is no resource: expected cluster, database:NAME or table:DATABASE.NAME",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )

    def __str__(self) -> str:
        if self == Resource.cluster():
            return "cluster"
        return f"{self.type.name.lower()}:{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class AccessControlEntry:
    """A right: who may do what, from where.

    Parameters
    ----------
    principal
        Who; :attr:`FlussPrincipal.WILD_CARD_PRINCIPAL` for everyone.
    host
        The address that they connect from, as in ``10.0.0.7``; ``*`` for any.
    operation_type
        What they may do.
    permission_type
        That they may.
    """

    principal: FlussPrincipal
    host: str
    operation_type: OperationType
    permission_type: PermissionType = PermissionType.ALLOW


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """A right: an entry that is bound to a resource.

    Examples
    --------
    >>> binding = AclBinding.allow("alice", OperationType.READ, Resource.database("sales"))
    >>> str(binding)
    'User:alice may READ database:sales'
    """

    resource: Resource
    access_control_entry: AccessControlEntry

    @classmethod
    def allow(
        cls,
        principal: FlussPrincipal | str,
        operation_type: OperationType,
        resource: Resource,
        host: str = WILDCARD,
    ) -> Self:
        """Return the binding that allows a user an operation on a resource."""
        who = FlussPrincipal.parse(principal) if isinstance(principal, str) else principal
        return cls(resource, AccessControlEntry(who, host, operation_type))

    def __str__(self) -> str:
        entry = self.access_control_entry
        where = "" if entry.host == WILDCARD else f" from {entry.host}"
        return f"{entry.principal} may {entry.operation_type.name} {self.resource}{where}"


@dataclass(frozen=True, slots=True)
class ResourceFilter:
    """Which resources: all by default.

    Parameters
    ----------
    type
        The type of the resource.
    name
        With exactly this name; None for any. Without a type it says nothing.
    """

    type: ResourceType = ResourceType.ANY
    name: str | None = None

    def matches(self, resource: Resource) -> bool:
        """Whether a resource is one of them."""
        if self.type == ResourceType.ANY:
            return True
        return self.type == resource.type and self.name in (None, resource.name)


@dataclass(frozen=True, slots=True)
class AccessControlEntryFilter:
    """Which entries: all by default.

    Parameters
    ----------
    principal, host
        With exactly this one; None for any.
    operation_type, permission_type
        With exactly this one; ``ANY`` for any.
    """

    principal: FlussPrincipal | None = None
    host: str | None = None
    operation_type: OperationType = OperationType.ANY
    permission_type: PermissionType = PermissionType.ANY

    def matches(self, entry: AccessControlEntry) -> bool:
        """Whether an entry is one of them."""
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation_type in (OperationType.ANY, entry.operation_type)
            and self.permission_type in (PermissionType.ANY, entry.permission_type)
        )


@dataclass(frozen=True, slots=True)
class AclBindingFilter:
    """Which bindings: all by default.

    Examples
    --------
    >>> everything_of_alice = AclBindingFilter(
    ...     entry_filter=AccessControlEntryFilter(FlussPrincipal("alice"))
    ... )
    """

    resource_filter: ResourceFilter = field(default_factory=ResourceFilter)
    entry_filter: AccessControlEntryFilter = field(default_factory=AccessControlEntryFilter)

    @classmethod
    def of(cls, binding: AclBinding) -> Self:
        """Return the filter of exactly one binding."""
        resource, entry = binding.resource, binding.access_control_entry
        return cls(
            ResourceFilter(resource.type, resource.name),
            AccessControlEntryFilter(
                entry.principal, entry.host, entry.operation_type, entry.permission_type
            ),
        )

    def matches(self, binding: AclBinding) -> bool:
        """Whether a binding is one of them."""
        return self.resource_filter.matches(binding.resource) and self.entry_filter.matches(
            binding.access_control_entry
        )


# ---- messages


def _member(kind: type[E], code: int) -> E:
    try:
        return kind(code)
    except ValueError:
        # the text is that of Fluss's servers
        raise FlussError(
            f"Unknown {kind.__name__} code {code}", ErrorCode.UNKNOWN_SERVER_ERROR
        ) from None


def binding_message(binding: AclBinding) -> pb.Acl:
    """Return the message of a binding."""
    resource, entry = binding.resource, binding.access_control_entry
    return pb.Acl(
        resource_name=resource.name,
        resource_type=resource.type,
        principal_name=entry.principal.name,
        principal_type=entry.principal.type,
        host=entry.host,
        operation_type=entry.operation_type,
        permission_type=entry.permission_type,
    )


def binding_of(message: pb.Acl) -> AclBinding:
    """Return the binding in a message.

    Raises ``UNKNOWN_SERVER_ERROR`` for a type, operation or permission that there is not.
    """
    return AclBinding(
        Resource(_member(ResourceType, message.resource_type), message.resource_name),
        AccessControlEntry(
            FlussPrincipal(message.principal_name, message.principal_type),
            message.host,
            _member(OperationType, message.operation_type),
            _member(PermissionType, message.permission_type),
        ),
    )


def filter_message(filter: AclBindingFilter) -> pb.AclFilter:
    """Return the message of a filter."""
    resource, entry = filter.resource_filter, filter.entry_filter
    message = pb.AclFilter(
        resource_type=resource.type,
        operation_type=entry.operation_type,
        permission_type=entry.permission_type,
    )
    if resource.name is not None:
        message.resource_name = resource.name
    if entry.principal is not None:
        message.principal_name = entry.principal.name
        message.principal_type = entry.principal.type
    if entry.host is not None:
        message.host = entry.host
    return message


def filter_of(message: pb.AclFilter) -> AclBindingFilter:
    """Return the filter in a message.

    Raises FlussError as :func:`binding_of`.
    """
    principal = None
    # a name without its type, or the other way round, filters nothing
    if message.HasField("principal_name") and message.HasField("principal_type"):
        principal = FlussPrincipal(message.principal_name, message.principal_type)
    return AclBindingFilter(
        ResourceFilter(
            _member(ResourceType, message.resource_type),
            message.resource_name if message.HasField("resource_name") else None,
        ),
        AccessControlEntryFilter(
            principal,
            message.host if message.HasField("host") else None,
            _member(OperationType, message.operation_type),
            _member(PermissionType, message.permission_type),
        ),
    )
