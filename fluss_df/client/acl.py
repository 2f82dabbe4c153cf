"""Access control lists of a cluster: the methods of its administration.

The types can be imported from ``fluss_df``, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from fluss_df.client.runtime.awaitable import blocking
from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.acl import AccessControlEntry as AccessControlEntry
from fluss_df.protocol.acl import AccessControlEntryFilter as AccessControlEntryFilter
from fluss_df.protocol.acl import AclBinding as AclBinding
from fluss_df.protocol.acl import AclBindingFilter as AclBindingFilter
from fluss_df.protocol.acl import FlussPrincipal as FlussPrincipal
from fluss_df.protocol.acl import OperationType as OperationType
from fluss_df.protocol.acl import PermissionType as PermissionType
from fluss_df.protocol.acl import Resource as Resource
from fluss_df.protocol.acl import ResourceFilter as ResourceFilter
from fluss_df.protocol.acl import ResourceType as ResourceType
from fluss_df.protocol.acl import binding_message, binding_of, filter_message

_T = TypeVar("_T")

# what each part of a right and of a filter has to be; the enumerations are numbers
_BINDING: Final[Mapping[str, Any]] = {
    "resource": Resource,
    "resource.type": ResourceType,
    "resource.name": str,
    "access_control_entry": AccessControlEntry,
    "access_control_entry.principal": FlussPrincipal,
    "access_control_entry.host": str,
    "access_control_entry.operation_type": OperationType,
    "access_control_entry.permission_type": PermissionType,
}
_FILTER: Final[Mapping[str, Any]] = {
    "resource_filter": ResourceFilter,
    "resource_filter.type": ResourceType,
    "resource_filter.name": str | None,
    "entry_filter": AccessControlEntryFilter,
    "entry_filter.principal": FlussPrincipal | None,
    "entry_filter.host": str | None,
    "entry_filter.operation_type": OperationType,
    "entry_filter.permission_type": PermissionType,
}


class AclRequests(TableQuestions):
    """The part of :class:`~fluss_df.client.admin.FlussAdmin` that is about rights."""

    @blocking
    async def create_acls(self, acl_bindings: Iterable[AclBinding]) -> None:
        """Give rights; those that are there already stay.

        Servers take note within milliseconds, not in the same moment: the coordinator has them
        when this returns, a tablet server soon after.

        Parameters
        ----------
        acl_bindings
            The rights. ``ANY`` is for filters, and in none of them.

        Raises
        ------
        FlussError
            ``AUTHORIZATION_EXCEPTION`` for who may not give them: that takes ``ALL`` on the
            database or the cluster (``ALTER`` at servers of 0.9); none of them is given then.
            ``SECURITY_DISABLED_EXCEPTION`` where the server has no authorizer. The server's code
            for a right that could not be stored, with all of them in the message.

        Examples
        --------
        >>> admin.create_acls(  # doctest: +SKIP
        ...     [AclBinding.allow("alice", OperationType.READ, Resource.database("sales"))]
        ... )
        """
        # one that is given twice counts once: servers refuse it
        bindings = list(dict.fromkeys(_each(acl_bindings, "acl_bindings", AclBinding, _BINDING)))
        for binding in bindings:
            _check(binding)
        if not bindings:
            return
        request = pb.CreateAclsRequest(acl=map(binding_message, bindings))
        response = await self._cluster.request_coordinator(api.CREATE_ACLS, request)
        _raise_refused(response.results, "given")

    @blocking
    async def list_acls(
        self, acl_binding_filter: AclBindingFilter | None = None
    ) -> list[AclBinding]:
        """Return rights, sorted: of those resources that the asking user may describe.

        Parameters
        ----------
        acl_binding_filter
            Which rights; None for all.

        Raises
        ------
        FlussError
            ``SECURITY_DISABLED_EXCEPTION`` where the server has no authorizer.
        """
        asked = AclBindingFilter() if acl_binding_filter is None else acl_binding_filter
        message = filter_message(_one(asked, "acl_binding_filter", AclBindingFilter, _FILTER))
        # the coordinator's are those that create_acls has just given
        response = await self._cluster.request_coordinator(
            api.LIST_ACLS, pb.ListAclsRequest(acl_filter=message)
        )
        return sorted(map(binding_of, response.acl))

    @blocking
    async def drop_acls(self, filters: Iterable[AclBindingFilter]) -> list[AclBinding]:
        """Take rights away, and return them, sorted.

        Parameters
        ----------
        filters
            Which rights: each that one of these matches. ``AclBindingFilter.of(binding)`` is the
            filter of exactly one, ``AclBindingFilter()`` that of all.

        Raises
        ------
        FlussError
            As :meth:`create_acls`.
        """
        wanted = _each(filters, "filters", AclBindingFilter, _FILTER)
        messages = [filter_message(each) for each in wanted]
        if not messages:
            return []
        response = await self._cluster.request_coordinator(
            api.DROP_ACLS, pb.DropAclsRequest(acl_filter=messages)
        )
        for result in response.filter_results:
            if result.error_code:
                raise FlussError(result.error_message, result.error_code)
        dropped = [each for result in response.filter_results for each in result.matching_acls]
        _raise_refused(dropped, "taken away")
        return sorted({binding_of(each.acl) for each in dropped})


def _each(values: Iterable[_T], what: str, kind: type[_T], parts: Mapping[str, Any]) -> list[_T]:
    """Return the values of an argument; raise FlussError for what is no list of such values."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise _wrong(values, what, f"a list of {kind.__name__}", _way(values, kind))
    return [_one(value, f"value in {what}", kind, parts) for value in values]


def _one(value: _T, what: str, kind: type[_T], parts: Mapping[str, Any]) -> _T:
    if not isinstance(value, kind):
        raise _wrong(value, what, f"an {kind.__name__}", _way(value, kind))
    for name, of in parts.items():
        part: Any = value
        for step in name.split("."):
            part = getattr(part, step)
        if not isinstance(part, of):
            raise _wrong(part, f"{name} of {what} {value!r}", getattr(of, "__name__", str(of)))
    return value


def _way(value: object, kind: type) -> str:
    if isinstance(value, kind):
        return "; put it into a list"
    if isinstance(value, AclBinding):
        return "; AclBindingFilter.of(binding) is the filter of exactly one right"
    return ""


def _wrong(value: object, what: str, expected: str, way: str = "") -> FlussError:
    return FlussError(
        f"invalid {what} {value!r}: expected {expected}{way}", ErrorCode.INVALID_CONFIG_EXCEPTION
    )


def _check(binding: AclBinding) -> None:
    entry = binding.access_control_entry
    if (
        binding.resource.type == ResourceType.ANY
        or entry.operation_type == OperationType.ANY
        or entry.permission_type == PermissionType.ANY
    ):
        raise FlussError(
            f"{binding!r} is no right: ANY is for filters. ALL is every operation, and the"
            " resource '*' of a type is each of them",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )


def _raise_refused(results: Sequence[pb.CreatedAcl] | Sequence[pb.DroppedAcl], what: str) -> None:
    refused = [each for each in results if each.error_code]
    if refused:
        which = "; ".join(f"{binding_of(each.acl)}: {each.error_message}" for each in refused)
        raise FlussError(
            f"{len(refused)} of {len(results)} rights could not be {what}: {which}",
            refused[0].error_code,
        )
