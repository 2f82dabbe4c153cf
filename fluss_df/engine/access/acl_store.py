"""The access control lists of a folder: one JSON file, kept twice, replaced with each change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from fluss_df.engine.files.files import damage_in
from fluss_df.engine.files.kept_json import KeptJson
from fluss_df.engine.files.workers import paced
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol.acl import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    FlussPrincipal,
    OperationType,
    PermissionType,
    Resource,
    ResourceType,
)

# the most bindings of all resources together: each change writes them all
MOST_ACLS: Final = 20_000
# the most characters of a name; names of databases and tables are shorter
_MOST_NAME: Final = 512
# pairs of a filter and a binding that one request to drop may compare
_MOST_COMPARED: Final = 20_000_000

Entries = frozenset[AccessControlEntry]
Acls = Mapping[Resource, Entries]


def read_acls(value: Mapping[str, Any]) -> dict[Resource, Entries]:
    """Return what is stored in the file."""
    acls: dict[Resource, Entries] = {}
    for type, name, entries in value["acls"]:
        acls[Resource(ResourceType[type], str(name))] = frozenset(
            AccessControlEntry(
                FlussPrincipal(str(principal), str(principal_type)),
                str(host),
                OperationType[operation],
                PermissionType[permission],
            )
            for principal_type, principal, host, operation, permission in entries
        )
    return acls


def _to_json(acls: Acls) -> dict[str, Any]:
    def entry_to_json(entry: AccessControlEntry) -> list[str]:
        who = entry.principal
        operation, permission = entry.operation_type.name, entry.permission_type.name
        return [who.type, who.name, entry.host, operation, permission]

    return {
        "acls": [
            [resource.type.name, resource.name, [entry_to_json(each) for each in sorted(entries)]]
            for resource, entries in acls.items()
        ]
    }


class AclStore:
    """The bindings of a folder; thread safe, durable before a change is answered.

    Raises :class:`~fluss_df.engine.files.files.DamagedError` for a file that cannot be read.
    """

    def __init__(self, kept: KeptJson) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        # replaced as a whole and never changed: other threads read it without the lock
        self._acls: dict[Resource, Entries] = {}
        value = kept.load()
        if value is not None:
            with damage_in(kept.first):
                self._acls = read_acls(value)

    @property
    def acls(self) -> Acls:
        """The bindings by resource, as they are now; what is returned stays as it is."""
        return self._acls

    def entries(self, resource: Resource) -> Entries:
        """Return the entries of a resource."""
        return self._acls.get(resource, frozenset())

    def add(
        self, bindings: Sequence[AclBinding], authorize: Callable[[Iterable[Resource]], None]
    ) -> None:
        """Add bindings: all of them, or none.

        A binding that is there already stays. ``authorize`` is called with the resources before
        anything is changed; it raises for a user who may not change them.

        Raises what ``authorize`` raises; ``RECORD_TOO_LARGE_EXCEPTION`` where there would be too
        many, ``INVALID_CONFIG_EXCEPTION`` for a name that is too long or empty,
        ``STORAGE_EXCEPTION`` where the disk refuses.
        """
        for binding in paced(bindings):
            _check_names(binding)
        with self._lock:
            authorize({binding.resource for binding in bindings})
            added: dict[Resource, set[AccessControlEntry]] = {}
            for binding in bindings:
                added.setdefault(binding.resource, set()).add(binding.access_control_entry)
            acls = {**self._acls}
            for resource, entries in added.items():
                acls[resource] = self.entries(resource) | entries
            self._replace(acls)

    def drop(
        self, filters: Sequence[AclBindingFilter], authorize: Callable[[Iterable[Resource]], None]
    ) -> list[list[AclBinding]]:
        """Drop the bindings that filters match: all of them, or none.

        Returns, for each filter, the bindings that it was the first to match. ``authorize`` is that
        of :meth:`add`, called with the resources of matched bindings.

        Raises FlussError as :meth:`add`.
        """
        with self._lock:
            count = sum(len(entries) for entries in self._acls.values())
            if count * len(filters) > _MOST_COMPARED:
                raise FlussError(
                    f"{len(filters):,} filters on {count:,} access control lists: drop with fewer"
                    " filters in one request",
                    ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
                )
            matching = {
                resource: [
                    (number, each.entry_filter)
                    for number, each in enumerate(filters)
                    if each.resource_filter.matches(resource)
                ]
                for resource in paced(self._acls)
            }
            matching = {resource: each for resource, each in matching.items() if each}
            authorize(matching)
            dropped: list[list[AclBinding]] = [[] for _ in filters]
            acls = {**self._acls}
            for resource, candidates in matching.items():
                left = set()
                for entry in paced(acls[resource]):
                    first = next((n for n, each in candidates if each.matches(entry)), None)
                    if first is None:
                        left.add(entry)
                    else:
                        dropped[first].append(AclBinding(resource, entry))
                acls[resource] = frozenset(left)
            self._replace({resource: entries for resource, entries in acls.items() if entries})
            return dropped

    def _replace(self, acls: dict[Resource, Entries]) -> None:
        if acls == self._acls:
            return
        count = sum(len(entries) for entries in acls.values())
        before = sum(len(entries) for entries in self._acls.values())
        if count > max(MOST_ACLS, before):
            raise FlussError(
                f"there would be {count:,} access control lists, where {MOST_ACLS:,} may be: give"
                " rights on databases or the cluster, and drop those of users who are gone",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        self._kept.save(_to_json(acls))
        self._acls = acls


def _check_names(binding: AclBinding) -> None:
    entry = binding.access_control_entry
    names = {
        "resource": binding.resource.name,
        "principal": entry.principal.name,
        "principal type": entry.principal.type,
        "host": entry.host,
    }
    for what, name in names.items():
        if not name or len(name) > _MOST_NAME:
            problem = f"{len(name):,} characters, where 1 to {_MOST_NAME} may be"
            raise FlussError(
                f"the name of the {what} of an access control list has {problem}",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
