"""Each request by users with each right: a real server with its authorizer decides as the engine.

What servers of 0.9 decide otherwise than those of 1.0, which the engine follows, is named below,
and so are the requests that servers let everyone ask.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.embedded import EmbeddedFluss, Security
from fluss_df.engine.engine import Engine
from fluss_df.engine.requests.dispatch import Dispatcher
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.acl import (
    AclBinding,
    FlussPrincipal,
    OperationType,
    Resource,
    binding_message,
)
from tests.embedded.acl_requests import (
    DATABASE,
    OF_THE_ENGINE,
    OPEN,
    STARRED,
    STEPS,
    Ids,
    Step,
    User,
    for_everyone,
    rights,
)
from tests.embedded.peers import path, spec, table_json
from tests.embedded.test_key_requests_beside_a_cluster import schema

USERS = ["root", *rights()]
Steps = Mapping[str, Callable[[Ids], Step]]
PASSWORDS = {user: f"of {user}" for user in USERS}


def prepare(root: User) -> Ids:
    """Make what the requests are about."""
    for name in (DATABASE, OPEN, STARRED):
        root.call(
            api.CREATE_DATABASE,
            pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=False),
        )
    tables: dict[str, dict[str, object]] = {
        "log": {},
        "keyed": {"schema": schema()},
        "parted": {"partition_key": ["b"]},
    }
    for name, changes in tables.items():
        root.call(
            api.CREATE_TABLE,
            pb.CreateTableRequest(
                table_path=path(name, DATABASE),
                table_json=table_json(**changes),
                ignore_if_exists=False,
            ),
        )
    root.call(
        api.CREATE_PARTITION,
        pb.CreatePartitionRequest(
            table_path=path("parted", DATABASE), partition_spec=spec(b="x"), ignore_if_exists=True
        ),
    )
    return root.ids()


def settle(user: User, ids: Ids) -> None:
    """Wait until tablet servers know the tables, and the rights that the coordinator has."""
    every = pb.ListAclsRequest(
        acl_filter=pb.AclFilter(resource_type=1, operation_type=1, permission_type=1)
    )
    until = time.monotonic() + 60
    while True:
        known = []
        for client in (user.coordinator, user.tablet):
            # a server that takes note of rights at this moment fails to list them
            answer = client.ask(api.LIST_ACLS, every)
            listed = answer.type == 0
            known.append(len(pb.ListAclsResponse.FromString(answer.body).acl) if listed else -1)
        asked = pb.LimitScanRequest(bucket_id=0, limit=1)
        errors = []
        for asked.table_id in (ids.log, ids.keyed):
            answer = user.tablet.ask(api.LIMIT_SCAN, asked)
            errors.append(
                answer.error[0] or pb.LimitScanResponse.FromString(answer.body).error_code
            )
        if known[0] == known[1] > 0 and not any(errors):
            return
        assert time.monotonic() < until, (known, errors)


Decisions = dict[str, dict[str, str]]


def decisions(address: str, steps: Steps) -> Decisions:
    """Return what became of each request of each user."""
    with closing(User(address, "root", PASSWORDS["root"])) as root:
        ids = prepare(root)
        granted = [*itertools.chain(*rights().values()), *for_everyone()]
        # also such as the client refuses, and that allow nothing
        asked = pb.CreateAclsRequest(acl=map(binding_message, granted))
        assert not any(each.error_code for each in root.call(api.CREATE_ACLS, asked).results)
        settle(root, ids)
        found = {}
        for name in USERS:
            with closing(User(address, name, PASSWORDS[name])) as user:
                found[name] = asked_by(user, ids, root, steps)
    return found


def asked_by(user: User, ids: Ids, root: User, steps: Steps) -> dict[str, str]:
    """Return what became of each request of a user."""
    found = {}
    for name, make in steps.items():
        kind, request = make(ids)
        if kind.key not in user.known:
            continue
        if kind in (api.GET_PRODUCER_OFFSETS, api.DELETE_PRODUCER_OFFSETS):
            root.call(*STEPS["register producer"](ids))
        if kind in (api.LIST_ACLS, api.DROP_ACLS):
            root.call(*STEPS["create acl on table"](ids))
            root.call(*STEPS["create acl on cluster"](ids))
        found[name] = user.decision(kind, request)
        if kind is api.CREATE_ACLS and found[name] == "allowed":
            root.call(*STEPS["drop acls"](ids))
    return found


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Decisions:
    with EmbeddedFluss(
        tmp_path_factory.mktemp("engine"),
        port=0,
        sasl=PASSWORDS,
        security=Security(authorizer_enabled=True, super_users="User:root"),
    ) as engine:
        assert engine.address is not None
        return decisions(engine.address, STEPS | OF_THE_ENGINE)


@dataclass(frozen=True)
class Real:
    """What a real server decided."""

    since_1_0: bool
    decisions: Decisions


@pytest.fixture(scope="module")
def real(fluss_cluster_factory: ClusterFactory) -> Real:
    with fluss_cluster_factory(sasl=PASSWORDS, super_users=["root"]) as cluster:
        since_1_0 = int(cluster.server_version.partition(".")[0]) >= 1
        return Real(since_1_0, decisions(cluster.bootstrap_servers, STEPS))


def before_1_0(user: str, step: str, since: str) -> str:
    """Return what servers of 0.9 decide, where those of 1.0 decide something."""
    if step in ("database exists", "table exists"):
        # they tell everyone
        return "sees True"
    if step == "offsets":
        return "allowed"
    # the right to give rights was ALTER
    gives = {
        "alter_on_cluster": ("on table", "on database", "on cluster"),
        "alter_on_database": ("on table", "on database"),
    }
    if step.startswith("create acl") and step.removeprefix("create acl ") in gives.get(user, ()):
        return "allowed"
    return since


@pytest.mark.parametrize("user", USERS)
def test_a_real_server_decides_as_the_engine(real: Real, embedded: Decisions, user: str) -> None:
    here, there = embedded[user], real.decisions[user]
    assert len(there) >= 50
    if not real.since_1_0:
        here = {step: before_1_0(user, step, found) for step, found in here.items()}
    assert there == {step: here[step] for step in there}


# what they need at the engine: 0.9 does not know them, servers check them less, or not at all
NEEDED = {
    "alter database": (OperationType.ALTER, "database"),
    "scan rows": (OperationType.READ, "table"),
    "snapshots": (OperationType.DESCRIBE, "table"),
    "manifests": (OperationType.DESCRIBE, "table"),
    "health": (OperationType.DESCRIBE, "cluster"),
    "lookup with insert": (OperationType.WRITE, "table"),
    "heartbeat of tiering": (OperationType.WRITE, "cluster"),
    "prepare lake snapshot": (OperationType.WRITE, "table"),
    "commit lake snapshot": (OperationType.WRITE, "table"),
}
PLACES = ("cluster", "database", "table")


@pytest.mark.parametrize("step", NEEDED)
def test_what_servers_of_0_9_cannot_be_asked(embedded: Decisions, step: str) -> None:
    operation, where = NEEDED[step]
    including = {operation, OperationType.ALL}
    if operation == OperationType.DESCRIBE:
        including |= set(OperationType) - {OperationType.ANY}
    above = PLACES[: PLACES.index(where) + 1]
    may = {f"{each.name}_on_{place}".lower() for each in including for place in above}
    users = {f"{each.name}_on_{place}".lower() for each in OperationType for place in PLACES}
    assert {user for user in users if embedded[user][step] == "allowed"} == may
    assert embedded["root"][step] == "allowed"
    assert embedded["nobody"][step] == "refused"


def test_each_request_has_a_rule_and_is_in_the_matrix(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    try:
        dispatcher = Dispatcher(engine)
        answered = set(dispatcher.versions())
        ruled = set(dispatcher._rules)
    finally:
        engine.close()
    assert ruled == answered
    ids = Ids(0, 1, 2, 3)
    asked = {make(ids)[0].key for make in (STEPS | OF_THE_ENGINE).values()}
    assert asked | {api.AUTHENTICATE.key} == answered


@pytest.mark.parametrize("user", ["root", "all_on_database"])
def test_a_request_without_a_rule_is_refused(tmp_path: Path, user: str) -> None:
    with EmbeddedFluss(
        tmp_path,
        port=0,
        sasl=PASSWORDS,
        security=Security(authorizer_enabled=True, super_users="User:root"),
    ) as engine:
        assert engine.address is not None
        rules = engine._connections.dispatcher._rules
        assert isinstance(rules, dict)
        del rules[api.LIST_DATABASES.key]
        with closing(User(engine.address, user, PASSWORDS[user])) as asking:
            found = asking.decision(api.LIST_DATABASES, pb.ListDatabasesRequest())
    assert found == "refused"


def test_the_page_has_the_rule_of_each_request(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    try:
        dispatcher = Dispatcher(engine)
        kinds = {key: kind.name for key, (kind, _) in dispatcher._handlers.items()}
        rules = dispatcher._rules
    finally:
        engine.close()
    lines = [f"| {name} | {rules[key].text} |" for key, name in sorted(kinds.items())]
    page = (Path(__file__).parents[2] / "docs" / "access.md").read_text()
    assert "\n".join(lines) in page


# ---- who says no name


ANONYMOUS = [
    AclBinding.allow(FlussPrincipal.ANONYMOUS, OperationType.READ, Resource.table(DATABASE, name))
    for name in ("log", "keyed")
]
# for these somebody else has to do something meanwhile
ALONE = {
    name: make
    for name, make in STEPS.items()
    if make(Ids(0, 1, 2, 3))[0]
    not in (api.LIST_ACLS, api.DROP_ACLS, api.GET_PRODUCER_OFFSETS, api.DELETE_PRODUCER_OFFSETS)
}


def anonymous_decisions(address: str, ids: Ids) -> dict[str, str]:
    with closing(User(address, None)) as user:
        return asked_by(user, ids, user, ALONE)


def grant_anonymous(root: User) -> Ids:
    ids = prepare(root)
    root.call(api.CREATE_ACLS, pb.CreateAclsRequest(acl=map(binding_message, ANONYMOUS)))
    settle(root, ids)
    return ids


def test_who_says_no_name(fluss_cluster_factory: ClusterFactory, tmp_path: Path) -> None:
    with EmbeddedFluss(tmp_path, port=0, security=Security(True, "User:ANONYMOUS")) as engine:
        assert engine.address is not None
        with closing(User(engine.address, None)) as root:
            ids = grant_anonymous(root)
    # what was granted is there after a restart
    with EmbeddedFluss(tmp_path, port=0, security=Security(True)) as engine:
        assert engine.address is not None
        here = anonymous_decisions(engine.address, ids)
    with fluss_cluster_factory(super_users=[]) as cluster:
        # what servers ask each other is not checked
        internal = cluster._known().ports["coordinator"].internal
        with closing(User(f"127.0.0.1:{internal}", None)) as root:
            ids = grant_anonymous(root)
        there = anonymous_decisions(cluster.bootstrap_servers, ids)
        since_1_0 = int(cluster.server_version.partition(".")[0]) >= 1
    assert here["describe table"] == here["fetch"] == "allowed"
    assert here["produce"] == here["describe database"] == here["create acl on table"] == "refused"
    if not since_1_0:
        here = {step: before_1_0("ANONYMOUS", step, found) for step, found in here.items()}
    assert there == {step: here[step] for step in there}
