"""Rights: given, listed and taken away through the admin and the command, at both servers."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import fluss_df as fluss
from fluss_df import (
    AccessControlEntry,
    AccessControlEntryFilter,
    AclBinding,
    AclBindingFilter,
    ErrorCode,
    FlussError,
    FlussPrincipal,
    OperationType,
    PermissionType,
    Resource,
    ResourceFilter,
    ResourceType,
)
from fluss_df.aio import FlussConnection
from fluss_df.cli import app
from fluss_df.embedded import EmbeddedFluss, Security
from tests.cli.files.commands import ok

PASSWORDS = {"root": "of root", "alice": "of alice", "bob": "of bob"}
SCHEMA = fluss.Schema(pa.schema([("a", pa.int64())]))


@pytest.fixture(
    scope="module", params=[pytest.param("real", marks=pytest.mark.real_cluster), "embedded"]
)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a server with an authorizer."""
    if request.param == "real":
        factory = request.getfixturevalue("fluss_cluster_factory")
        with factory(sasl=PASSWORDS, super_users=["root"]) as cluster:
            yield cluster.bootstrap_servers
        return
    security = Security(authorizer_enabled=True, super_users="User:root")
    folder = tmp_path_factory.mktemp("acls")
    with EmbeddedFluss(folder, port=0, sasl=PASSWORDS, security=security) as engine:
        assert engine.address is not None
        yield engine.address


def settings(address: str, user: str) -> dict[str, str]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "sasl",
        "security.sasl.username": user,
        "security.sasl.password": PASSWORDS[user],
    }


@pytest.fixture
def root(guarded: str) -> Iterator[fluss.FlussAdmin]:
    with fluss.connect(settings(guarded, "root")) as connection:
        admin = connection.get_admin()
        yield admin
        admin.drop_acls([AclBindingFilter()])


@pytest.fixture
def alice(guarded: str) -> Iterator[fluss.FlussConnection]:
    with fluss.connect(settings(guarded, "alice")) as connection:
        yield connection


@pytest.fixture
def path(root: fluss.FlussAdmin) -> fluss.TablePath:
    database = f"acl_{uuid.uuid4().hex[:8]}"
    root.create_database(database)
    path = fluss.TablePath(database, "orders")
    root.create_table(path, fluss.TableDescriptor(SCHEMA, bucket_count=1))
    return path


def eventually(what: Callable[[], object]) -> Any:
    """Return what is not refused any more: tablet servers take note of rights a moment later."""
    until = time.monotonic() + 30
    while True:
        try:
            return what()
        except FlussError as error:
            if error.error_code != ErrorCode.AUTHORIZATION_EXCEPTION or time.monotonic() > until:
                raise


def test_rights_are_given_listed_and_taken_away(root: fluss.FlussAdmin) -> None:
    sales = Resource.database("sales")
    bindings = [
        AclBinding.allow("alice", OperationType.READ, sales),
        AclBinding.allow("alice", OperationType.WRITE, Resource.table("sales", "orders")),
        AclBinding.allow("bob", OperationType.ALL, Resource.cluster(), "127.0.0.1"),
        AclBinding.allow("*", OperationType.DESCRIBE, Resource(ResourceType.TABLE, "*")),
    ]
    # one that is given twice, in one call or in two, is there once
    root.create_acls([*bindings, bindings[0]])
    root.create_acls(bindings[:1])
    assert list(root.list_acls()) == sorted(bindings)
    filters = {
        AclBindingFilter(ResourceFilter(ResourceType.DATABASE)): [bindings[0]],
        AclBindingFilter(ResourceFilter(ResourceType.TABLE, "sales.orders")): [bindings[1]],
        AclBindingFilter(ResourceFilter(ResourceType.ANY, "said in vain")): sorted(bindings),
        AclBindingFilter(entry_filter=AccessControlEntryFilter(FlussPrincipal("alice"))): sorted(
            bindings[:2]
        ),
        AclBindingFilter(
            entry_filter=AccessControlEntryFilter(FlussPrincipal.WILD_CARD_PRINCIPAL)
        ): [bindings[3]],
        AclBindingFilter(entry_filter=AccessControlEntryFilter(host="127.0.0.1")): [bindings[2]],
        AclBindingFilter(
            entry_filter=AccessControlEntryFilter(operation_type=OperationType.READ)
        ): [bindings[0]],
        AclBindingFilter(
            entry_filter=AccessControlEntryFilter(permission_type=PermissionType.ALLOW)
        ): sorted(bindings),
        AclBindingFilter.of(bindings[0]): [bindings[0]],
        AclBindingFilter(ResourceFilter(ResourceType.CLUSTER, "other")): [],
    }
    for wanted, expected in filters.items():
        assert list(root.list_acls(wanted)) == expected, wanted
        assert [each for each in bindings if wanted.matches(each)] != [] or expected == []
    assert root.drop_acls([AclBindingFilter.of(bindings[1])]) == [bindings[1]]
    assert root.drop_acls([AclBindingFilter.of(bindings[1])]) == []
    assert root.drop_acls([AclBindingFilter()]) == sorted([bindings[0], *bindings[2:]])
    assert list(root.list_acls()) == []
    root.create_acls([])


def test_what_is_no_right_is_not_asked_for(root: fluss.FlussAdmin) -> None:
    who, cluster = FlussPrincipal("alice"), Resource.cluster()
    for broken in (
        AclBinding(cluster, AccessControlEntry(who, "*", OperationType.ANY)),
        AclBinding(cluster, AccessControlEntry(who, "*", OperationType.READ, PermissionType.ANY)),
        AclBinding.allow(who, OperationType.READ, Resource(ResourceType.ANY, "any")),
    ):
        with pytest.raises(FlussError, match="ANY is for filters") as raised:
            root.create_acls([AclBinding.allow(who, OperationType.READ, cluster), broken])
        assert raised.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION
    assert list(root.list_acls()) == []


RIGHT = AclBinding.allow("alice", OperationType.READ, Resource.cluster())
# argument of create_acls, list_acls and drop_acls, and what is said of it
WRONG: list[tuple[str, Any, str]] = [
    ("create_acls", RIGHT, r"invalid acl_bindings AclBinding\(.*list of AclBinding; put it"),
    ("create_acls", "x", "invalid acl_bindings 'x': expected a list of AclBinding"),
    ("create_acls", 3, "invalid acl_bindings 3: expected a list of AclBinding"),
    ("create_acls", ["x"], "value in acl_bindings 'x': expected an AclBinding"),
    ("create_acls", [AclBindingFilter()], r"AclBindingFilter\(.*expected an AclBinding \["),
    ("create_acls", [AclBinding.allow("a", "READ", Resource.cluster())], "'READ'.*OperationType"),  # type: ignore[arg-type]
    ("create_acls", [AclBinding.allow("a", OperationType.READ, "db")], "'db': expected Resource"),  # type: ignore[arg-type]
    ("list_acls", "x", "invalid acl_binding_filter 'x': expected an AclBindingFilter"),
    ("list_acls", RIGHT, r"AclBindingFilter\.of\(binding\)"),
    ("drop_acls", AclBindingFilter(), r"expected a list of AclBindingFilter; put it"),
    ("drop_acls", RIGHT, r"expected a list of AclBindingFilter; AclBindingFilter\.of\(binding\)"),
    ("drop_acls", [RIGHT], r"an AclBindingFilter; AclBindingFilter\.of\(binding\)"),
    (
        "drop_acls",
        [AclBindingFilter(entry_filter=AccessControlEntryFilter("alice"))],  # type: ignore[arg-type]
        "entry_filter.principal of .* 'alice': expected .*FlussPrincipal",
    ),
]


@pytest.mark.parametrize(("method", "argument", "message"), WRONG)
def test_what_is_no_list_of_rights_is_named(
    root: fluss.FlussAdmin, method: str, argument: Any, message: str
) -> None:
    with pytest.raises(FlussError, match=message) as raised:
        getattr(root, method)(argument)
    assert raised.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION
    assert list(root.list_acls()) == []


def test_who_has_rights_reads_and_writes(
    root: fluss.FlussAdmin, alice: fluss.FlussConnection, path: fluss.TablePath
) -> None:
    with pytest.raises(FlussError, match=r"alice.*DESCRIBE.*orders") as raised:
        alice.get_table(path)
    assert raised.value.error_code == ErrorCode.AUTHORIZATION_EXCEPTION
    where = Resource.table(path.database_name, path.table_name)
    root.create_acls([AclBinding.allow("alice", OperationType.READ, where)])
    table = eventually(lambda: alice.get_table(path))

    def write(value: int) -> None:
        with table.new_append().create_writer() as writer:
            writer.append({"a": value})

    with pytest.raises(FlussError, match="WRITE") as raised:
        write(1)
    assert raised.value.error_code == ErrorCode.AUTHORIZATION_EXCEPTION
    root.create_acls([AclBinding.allow("alice", OperationType.WRITE, where)])
    eventually(lambda: write(2))
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    assert scanner.to_arrow().to_pylist() == [{"a": 2}]


def test_who_may_not_give_rights(
    root: fluss.FlussAdmin, alice: fluss.FlussConnection, path: fluss.TablePath
) -> None:
    where = Resource.database(path.database_name)
    admin = alice.get_admin()
    given = [AclBinding.allow("bob", OperationType.READ, where)]
    asked: list[Callable[[], object]] = [
        lambda: admin.create_acls(given),
        lambda: admin.drop_acls([AclBindingFilter.of(given[0])]),
    ]
    root.create_acls(given)
    for ask in asked:
        with pytest.raises(FlussError, match="alice") as raised:
            ask()
        assert raised.value.error_code == ErrorCode.AUTHORIZATION_EXCEPTION
    # nor see them
    assert list(admin.list_acls()) == []
    root.create_acls([AclBinding.allow("alice", OperationType.ALL, where)])
    for ask in asked:
        ask()
    assert [str(each) for each in admin.list_acls()] == [f"User:alice may ALL {where}"]


async def test_coroutines(guarded: str, root: fluss.FlussAdmin) -> None:
    binding = AclBinding.allow("alice", OperationType.READ, Resource.cluster())

    async with await FlussConnection.create(settings(guarded, "root")) as connection:
        admin = connection.get_admin()
        await admin.create_acls([binding])
        assert await admin.list_acls(AclBindingFilter()) == [binding]
        assert await admin.drop_acls([AclBindingFilter()]) == [binding]
        for method, argument, message in WRONG:
            with pytest.raises(FlussError, match=message):
                await getattr(admin, method)(argument)


# ---- the command


def acl(address: str, *arguments: str) -> Result:
    connection = f"fluss://root:of%20root@{address}"
    return CliRunner().invoke(app, ["acl", *arguments, "--connection", connection])


def test_the_command(guarded: str, root: fluss.FlussAdmin) -> None:
    created = acl(
        guarded, "create", "--principal", "alice", "--operation", "read",
        "--operation", "WRITE", "--resource", "table:sales.orders",
    )  # fmt: skip
    assert ok(created) == (
        "User:alice may READ table:sales.orders\nUser:alice may WRITE table:sales.orders\n"
    )
    ok(acl(guarded, "create", "--principal", "*", "--operation", "describe", "--resource",
           "cluster", "--host", "127.0.0.1"))  # fmt: skip
    rows = [json.loads(line) for line in ok(acl(guarded, "list", "--json")).splitlines()]
    assert list(rows[0]) == ["principal", "operation", "resource", "host"]
    assert [tuple(row.values()) for row in rows] == [
        ("*:*", "DESCRIBE", "cluster", "127.0.0.1"),
        ("User:alice", "READ", "table:sales.orders", "*"),
        ("User:alice", "WRITE", "table:sales.orders", "*"),
    ]
    for options, count in [
        (["--resource", "table"], 2),
        (["--resource", "cluster"], 1),
        (["--principal", "*"], 1),
        (["--operation", "read"], 1),
        (["--host", "10.0.0.1"], 0),
    ]:
        assert len(ok(acl(guarded, "list", "--json", *options)).splitlines()) == count, options
    assert "table:sales.orders" in ok(acl(guarded, "list"))
    nothing = acl(guarded, "drop")
    assert nothing.exit_code == 1
    assert "--all" in nothing.stderr
    dropped = ok(acl(guarded, "drop", "--principal", "alice", "--operation", "write"))
    assert dropped == "dropped: User:alice may WRITE table:sales.orders\n"
    assert len(ok(acl(guarded, "drop", "--all")).splitlines()) == 2
    assert "no such rights" in ok(acl(guarded, "drop", "--all"))
    assert "no rights" in ok(acl(guarded, "list"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--operation", "any", "--resource", "cluster"], "ANY is for filters"),
        (["--operation", "peek", "--resource", "cluster"], "'peek' is no OperationType"),
        (["--operation", "read", "--resource", "sales"], "'sales' is no ResourceType"),
        (["--operation", "read", "--resource", "table:orders"], "table:DATABASE.NAME"),
        (["--operation", "read", "--resource", "database:"], "database:NAME"),
        (["--operation", "read", "--resource", "any:x"], "is no resource"),
        (["--operation", "read", "--resource", "cluster:x"], "is no resource"),
    ],
)
def test_what_the_command_refuses(tmp_path: Path, arguments: list[str], message: str) -> None:
    with fluss.connect(tmp_path):
        pass
    result = CliRunner().invoke(
        app, ["acl", "create", "--principal", "alice", *arguments, "--connection", str(tmp_path)]
    )
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize("text", ["", ":", "User:", ":alice"])
def test_principals_that_cannot_be(text: str) -> None:
    with pytest.raises(FlussError, match="no principal"):
        FlussPrincipal.parse(text)
