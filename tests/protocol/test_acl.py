"""Rights: their texts, the filters on them, and their messages."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.acl import (
    AccessControlEntryFilter,
    AclBinding,
    AclBindingFilter,
    FlussPrincipal,
    OperationType,
    PermissionType,
    Resource,
    ResourceFilter,
    ResourceType,
    binding_message,
    binding_of,
    filter_message,
    filter_of,
)
from fluss_df.protocol.address import local_host, local_path

BINDING = AclBinding.allow(
    "alice", OperationType.READ, Resource.table("sales", "orders"), "10.0.0.7"
)


@pytest.mark.parametrize(
    ("text", "principal"),
    [
        ("alice", FlussPrincipal("alice")),
        ("User:alice", FlussPrincipal("alice")),
        ("Group:a:b", FlussPrincipal("a:b", "Group")),
        ("*", FlussPrincipal.WILD_CARD_PRINCIPAL),
        ("*:*", FlussPrincipal.WILD_CARD_PRINCIPAL),
    ],
)
def test_principals_are_read(text: str, principal: FlussPrincipal) -> None:
    assert FlussPrincipal.parse(text) == principal
    assert FlussPrincipal.parse(str(principal)) == principal


@pytest.mark.parametrize("text", ["", ":alice", "User:", ":"])
def test_what_is_no_principal_is_refused(text: str) -> None:
    with pytest.raises(FlussError, match="is no principal") as caught:
        FlussPrincipal.parse(text)
    assert caught.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION


@pytest.mark.parametrize(
    ("text", "resource"),
    [
        ("cluster", Resource.cluster()),
        ("CLUSTER:fluss-cluster", Resource.cluster()),
        ("cluster:*", Resource(ResourceType.CLUSTER, "*")),
        ("database:sales", Resource.database("sales")),
        ("database:*", Resource.database("*")),
        (" table :sales.orders", Resource.table("sales", "orders")),
        ("table:*", Resource(ResourceType.TABLE, "*")),
    ],
)
def test_resources_are_read(text: str, resource: Resource) -> None:
    assert Resource.parse(text) == resource
    assert Resource.parse(str(resource)) == resource


@pytest.mark.parametrize(
    "text", ["", "cluster:mine", "database", "database:", "table:", "table:orders", "any:x", "any"]
)
def test_what_is_no_resource_is_refused(text: str) -> None:
    with pytest.raises(FlussError, match=r"is no resource|is no ResourceType") as caught:
        Resource.parse(text)
    assert caught.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION


def test_names_of_operations_are_told_where_one_is_unknown() -> None:
    assert OperationType.parse(" read ") is OperationType.READ
    with pytest.raises(FlussError, match="'reed' is no OperationType: there are ANY, ALL, READ"):
        OperationType.parse("reed")


def test_a_binding_says_who_may_do_what_from_where() -> None:
    assert str(BINDING) == "User:alice may READ table:sales.orders from 10.0.0.7"
    anywhere = AclBinding.allow(FlussPrincipal("b"), OperationType.ALL, Resource.cluster())
    assert str(anywhere) == "User:b may ALL cluster"


ALTERNATIVES = [
    replace(BINDING, resource=Resource.database("sales.orders")),
    replace(BINDING, resource=Resource.table("sales", "other")),
    *(
        replace(BINDING, access_control_entry=replace(BINDING.access_control_entry, **change))
        for change in (
            {"principal": FlussPrincipal("bob")},
            {"principal": FlussPrincipal("alice", "Group")},
            {"host": "*"},
            {"operation_type": OperationType.ALL},
        )
    ),
]


def test_the_filter_of_a_binding_matches_it_alone() -> None:
    only = AclBindingFilter.of(BINDING)
    assert only.matches(BINDING)
    for other in ALTERNATIVES:
        assert not only.matches(other)
        assert AclBindingFilter().matches(other)


def test_each_part_of_a_filter_may_be_left_open() -> None:
    entry = BINDING.access_control_entry
    parts = {
        "principal": entry.principal,
        "host": entry.host,
        "operation_type": entry.operation_type,
        "permission_type": entry.permission_type,
    }
    for names in itertools.chain.from_iterable(
        itertools.combinations(parts, n) for n in range(len(parts) + 1)
    ):
        found = AccessControlEntryFilter(**{name: parts[name] for name in names})  # type: ignore[arg-type]
        assert found.matches(entry)
    other = AccessControlEntryFilter(permission_type=PermissionType.ALLOW, host="10.0.0.8")
    assert not other.matches(entry)
    # without a type, a name says nothing
    assert ResourceFilter(name="x").matches(BINDING.resource)
    assert ResourceFilter(ResourceType.TABLE).matches(BINDING.resource)
    assert not ResourceFilter(ResourceType.TABLE, "x").matches(BINDING.resource)
    assert not ResourceFilter(ResourceType.DATABASE, "sales.orders").matches(BINDING.resource)


def test_messages_say_the_same() -> None:
    for binding in (BINDING, *ALTERNATIVES):
        again = pb.Acl.FromString(binding_message(binding).SerializeToString())
        assert binding_of(again) == binding
    for found in (
        AclBindingFilter(),
        AclBindingFilter.of(BINDING),
        AclBindingFilter(ResourceFilter(ResourceType.TABLE)),
        AclBindingFilter(entry_filter=AccessControlEntryFilter(FlussPrincipal(""), "")),
    ):
        message = pb.AclFilter.FromString(filter_message(found).SerializeToString())
        assert filter_of(message) == found


def test_half_of_a_principal_filters_nothing() -> None:
    message = filter_message(AclBindingFilter.of(BINDING))
    for half in ("principal_name", "principal_type"):
        cut = pb.AclFilter()
        cut.CopyFrom(message)
        cut.ClearField(half)
        assert filter_of(cut).entry_filter.principal is None


@pytest.mark.parametrize("field", ["resource_type", "operation_type", "permission_type"])
@pytest.mark.parametrize("code", [0, 99, -1])
def test_numbers_that_stand_for_nothing_are_refused(field: str, code: int) -> None:
    binding, found = binding_message(BINDING), filter_message(AclBindingFilter())
    setattr(binding, field, code)
    setattr(found, field, code)
    with pytest.raises(FlussError, match=f"Unknown .*Type code {code}") as caught:
        binding_of(binding)
    assert caught.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    with pytest.raises(FlussError, match=f"Unknown .*Type code {code}"):
        filter_of(found)


@pytest.mark.parametrize("path", ["/tmp/s", "/tmp/a folder/ü", "/tmp/\udcff", ""])
def test_a_socket_is_a_host(path: str) -> None:
    host, port = local_host(path)
    assert host.isascii()
    assert port > 0
    assert local_path(host) == path


@pytest.mark.parametrize("host", ["localhost", "unix", "unix-zz", "unix-f", "unix-ff", ""])
def test_other_hosts_are_no_sockets(host: str) -> None:
    assert local_path(host) is None
