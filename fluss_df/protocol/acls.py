"""Access control lists as messages, in both directions, for client and engine."""

from __future__ import annotations

from typing import TypeVar

from fluss_df.acl import (
    AccessControlEntry,
    AccessControlEntryFilter,
    AclBinding,
    AclBindingFilter,
    FlussPrincipal,
    OperationType,
    PermissionType,
    Resource,
    ResourceFilter,
    ResourceType,
)
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import messages_pb2 as pb

T = TypeVar("T", ResourceType, OperationType, PermissionType)


def _member(kind: type[T], code: int) -> T:
    try:
        return kind(code)
    except ValueError:
        # as a server says it
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

    Raises
    ------
    FlussError
        ``UNKNOWN_SERVER_ERROR`` for a type, operation or permission that there is not.
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

    Raises
    ------
    FlussError
        As :func:`binding_of`.
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
