"""Access to an engine: rights that last, and limits of what is stored."""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

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
    Resource,
    ResourceFilter,
    ResourceType,
)
from fluss_df.embedded import EmbeddedFluss, Security
from fluss_df.engine.access import authorizer
from fluss_df.engine.access.acl_store import MOST_ACLS
from fluss_df.engine.access.authorizer import Authorizer, host_of
from fluss_df.engine.files.rate_limited_log import SeldomLogger
from fluss_df.engine.upkeep.backup import back_up
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.engine.upkeep.restore import restore
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.acl import binding_message, filter_message
from tests.embedded.golden import GOLDEN
from tests.embedded.raw import RawClient
from tests.embedded.signing_in import signing_in
from tests.peer import official

PASSWORDS = {"root": "r", "alice": "a", "bob": "b"}
SALES = Resource.database("sales")
READ = AclBinding.allow("alice", OperationType.READ, SALES)


def settings(address: str | None, user: str) -> dict[str, str]:
    return signing_in(address, user, PASSWORDS[user])


def guarded(folder: Path, **options: object) -> EmbeddedFluss:
    given = {"authorizer_enabled": True, "super_users": "User:root", **options}
    security = Security(**given)  # type: ignore[arg-type]
    return EmbeddedFluss(folder, port=0, sasl=PASSWORDS, security=security)


def acls_of(folder: Path) -> list[AclBinding]:
    with guarded(folder) as engine, fluss.connect(settings(engine.address, "root")) as connection:
        return list(connection.get_admin().list_acls())


def test_rights_are_durable_before_they_are_answered(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    with guarded(folder) as engine, fluss.connect(settings(engine.address, "root")) as connection:
        connection.get_admin().create_acls([READ])
        # as it is on the disk at this moment
        shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns("LOCK"))
    assert acls_of(tmp_path / "copy") == acls_of(folder) == [READ]


@pytest.mark.parametrize("lost", ["catalog", "data", "both"])
def test_one_damaged_file_loses_no_right(tmp_path: Path, lost: str) -> None:
    folder = tmp_path / "d"
    for binding in (READ, AclBinding.allow("bob", OperationType.ALL, Resource.cluster())):
        with guarded(folder) as engine, engine.connection() as connection:
            connection.get_admin().create_acls([binding])
    files = [folder / "catalog" / "acls.json", folder / "data" / "acls.json"]
    for file in files:
        if lost in (file.parent.name, "both"):
            file.write_bytes(file.read_bytes()[:-20] + b"x" * 20)
    if lost == "both":
        # nobody is let in by mistake
        with pytest.raises(FlussError, match=r"acls\.json"):
            guarded(folder)
        assert "acls.json" in str(check_folder(folder))
    else:
        assert len(acls_of(folder)) == 2


def test_a_backup_has_the_rights(tmp_path: Path) -> None:
    with guarded(tmp_path / "d") as engine, engine.connection() as connection:
        connection.get_admin().create_acls([READ])
        back_up(engine.engine, tmp_path / "b.tar.zst")
    restore(tmp_path / "b.tar.zst", tmp_path / "restored")
    assert acls_of(tmp_path / "restored") == [READ]


@pytest.mark.parametrize("version", GOLDEN)
def test_folders_of_earlier_versions_have_no_rights(tmp_path: Path, version: int) -> None:
    folder = tmp_path / "d"
    restore(GOLDEN[version], folder)
    with guarded(folder) as engine:
        with fluss.connect(settings(engine.address, "alice")) as connection:
            assert list(connection.get_admin().list_databases()) == []
        with fluss.connect(settings(engine.address, "root")) as connection:
            admin = connection.get_admin()
            admin.create_acls([AclBinding.allow("alice", OperationType.READ, Resource.cluster())])
        with fluss.connect(settings(engine.address, "alice")) as connection:
            assert fluss.read_fluss("log", connection=connection).height > 0
    assert check_folder(folder).findings == []


def test_an_engine_without_an_authorizer_keeps_them(tmp_path: Path) -> None:
    with guarded(tmp_path) as engine, engine.connection() as connection:
        connection.get_admin().create_acls([READ])
    with EmbeddedFluss(tmp_path, port=0) as engine, engine.connection() as connection:
        admin = connection.get_admin()
        for ask in (
            admin.list_acls,
            lambda: admin.create_acls([READ]),
            lambda: admin.drop_acls([AclBindingFilter()]),
        ):
            way_out = "No Authorizer is configured: rights need a server"
            with pytest.raises(FlussError, match=way_out) as raised:
                ask()
            assert raised.value.error_code == ErrorCode.SECURITY_DISABLED_EXCEPTION
    assert acls_of(tmp_path) == [READ]


def test_a_right_that_is_taken_away_ends_what_waits(tmp_path: Path) -> None:
    with guarded(tmp_path) as engine, fluss.connect(settings(engine.address, "root")) as connection:
        admin = connection.get_admin()
        admin.create_database("sales")
        path = fluss.TablePath("sales", "orders")
        schema = fluss.Schema(pa.schema([("a", pa.int64())]))
        admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        admin.create_acls([READ])
        table_id = admin.get_table_info(path).table_id
        assert engine.address is not None
        with closing(RawClient(engine.address)) as alice:
            assert alice.authenticate("alice", "a").type == 0
            asked = pb.FetchLogRequest(
                follower_server_id=-1, max_bytes=1000, max_wait_ms=60_000, min_bytes=1
            )
            table = asked.tables_req.add(table_id=table_id, projection_pushdown_enabled=False)
            table.buckets_req.add(bucket_id=0, fetch_offset=0, max_fetch_bytes=1000)
            alice.send(api.FETCH_LOG.key, 0, asked.SerializeToString())
            admin.drop_acls([AclBindingFilter()])
            with connection.get_table(path).new_append().create_writer() as writer:
                writer.append({"a": 1})
            answer = pb.FetchLogResponse.FromString(alice.receive().body)
    bucket = answer.tables_resp[0].buckets_resp[0]
    assert bucket.error_code == ErrorCode.AUTHORIZATION_EXCEPTION
    assert not bucket.records
    # a table's name is not told to who may not see it
    assert "orders" not in bucket.error_message


def test_the_official_client_has_the_rights_of_its_user(tmp_path: Path) -> None:
    path = fluss.TablePath("sales", "orders")
    schema = fluss.Schema(pa.schema([("a", pa.int64())]))

    async def ask(address: str | None) -> list[object]:
        """Write and read as alice; return what became of either."""
        config = official.Config(
            {
                "bootstrap.servers": str(address),
                "security.protocol": "sasl",
                "security.sasl.mechanism": "PLAIN",
                "security.sasl.username": "alice",
                "security.sasl.password": "a",
            }
        )
        found: list[object] = []
        async with asyncio.timeout(30), await official.FlussConnection.create(config) as connection:
            try:
                table = await connection.get_table(official.TablePath("sales", "orders"))
            except official.FlussError as error:
                return [str(error)]
            try:
                writer = table.new_append().create_writer()
                batch = pa.record_batch({"a": pa.array([1, 2], pa.int64())})
                await writer.write_arrow_batch(batch).wait()
                found.append("written")
            except official.FlussError as error:
                found.append(str(error))
            scanner = await table.new_scan().create_record_batch_log_scanner()
            scanner.subscribe(0, 0)
            found.append((await scanner.to_arrow()).column("a").to_pylist())
        return found

    with guarded(tmp_path) as engine, fluss.connect(settings(engine.address, "root")) as connection:
        admin = connection.get_admin()
        admin.create_database("sales")
        admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        (refused,) = asyncio.run(ask(engine.address))
        # it asks for the metadata alone, which leaves out what may not be seen
        assert "Table not found: sales.orders" in str(refused)
        where = Resource.table("sales", "orders")
        admin.create_acls([AclBinding.allow("alice", OperationType.READ, where)])
        refused, read = asyncio.run(ask(engine.address))
        assert "needs the right WRITE on one of its tables" in str(refused)
        assert read == []
        admin.create_acls([AclBinding.allow("alice", OperationType.WRITE, where)])
        assert asyncio.run(ask(engine.address)) == ["written", [1, 2]]


def test_a_scan_of_rows_goes_on_only_while_it_may_be_begun(tmp_path: Path) -> None:
    path = fluss.TablePath("sales", "rows")
    schema = fluss.Schema(pa.schema([("a", pa.int64()), ("b", pa.string())]), primary_keys=["a"])
    with guarded(tmp_path) as engine, fluss.connect(settings(engine.address, "root")) as connection:
        admin = connection.get_admin()
        admin.create_database("sales")
        admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        with connection.get_table(path).new_upsert().create_writer() as writer:
            for number in range(100):
                writer.upsert({"a": number, "b": "x" * 100})
        admin.create_acls([READ])
        asked = pb.ScanKvRequest(call_seq_id=0, batch_size_bytes=1000)
        asked.bucket_scan_req.table_id = admin.get_table_info(path).table_id
        asked.bucket_scan_req.bucket_id = 0
        assert engine.address is not None
        with closing(RawClient(engine.address)) as alice, closing(RawClient(engine.address)) as bob:
            for client, user in ((alice, "alice"), (bob, "bob")):
                assert client.authenticate(user, PASSWORDS[user]).type == 0

            def scan(client: RawClient, request: pb.ScanKvRequest) -> pb.ScanKvResponse:
                found: pb.ScanKvResponse = client.call(api.SCAN_KV, request)
                return found

            assert scan(bob, asked).error_code == ErrorCode.AUTHORIZATION_EXCEPTION
            begun = scan(alice, asked)
            assert begun.has_more_results
            more = pb.ScanKvRequest(scanner_id=begun.scanner_id, batch_size_bytes=1000)
            # the scan of another user, whose id was guessed
            more.call_seq_id = 1
            assert scan(bob, more).error_code == ErrorCode.AUTHORIZATION_EXCEPTION
            assert scan(alice, more).records
            admin.drop_acls([AclBindingFilter()])
            more.call_seq_id = 2
            refused = scan(alice, more)
            assert refused.error_code == ErrorCode.AUTHORIZATION_EXCEPTION
            assert not refused.records


def test_partitions_that_may_not_be_seen_do_not_exist(tmp_path: Path) -> None:
    path = fluss.TablePath("sales", "parted")
    schema = fluss.Schema(pa.schema([("a", pa.int64()), ("day", pa.string())]))
    with guarded(tmp_path) as engine, fluss.connect(settings(engine.address, "root")) as connection:
        admin = connection.get_admin()
        admin.create_database("sales")
        descriptor = fluss.TableDescriptor(schema, partition_keys=["day"], bucket_count=1)
        admin.create_table(path, descriptor)
        admin.create_partition(path, {"day": "x"})
        (there,) = admin.list_partition_infos(path)
        assert engine.address is not None
        with closing(RawClient(engine.address)) as alice:
            assert alice.authenticate("alice", "a").type == 0
            found = set()
            for number in (there.partition_id, 10**6):
                request = pb.MetadataRequest(partitions_id=[number])
                code, message = alice.ask(api.GET_METADATA, request).error
                found.add((code, message.replace(str(number), "N")))
            assert len(found) == 1
            admin.create_acls([READ])
            request = pb.MetadataRequest(partitions_id=[there.partition_id])
            seen = alice.call(api.GET_METADATA, request).partition_metadata
            assert [each.partition_name for each in seen] == ["x"]


def test_refusals_are_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # it says a few of a kind in ten seconds, and other tests have been refused, too
    monkeypatch.setattr(authorizer, "logger", SeldomLogger(logging.getLogger("refusals")))
    with (
        guarded(tmp_path) as engine,
        fluss.connect(settings(engine.address, "alice")) as connection,
        pytest.raises(FlussError),
    ):
        connection.get_admin().create_database("mine")
    said = "User:alice at 127.0.0.1 was refused: it lacks the right CREATE on cluster"
    assert said in caplog.text


def test_what_is_not_there_looks_as_what_may_not_be_seen(tmp_path: Path) -> None:
    with (
        guarded(tmp_path) as engine,
        fluss.connect(settings(engine.address, "root")) as connection,
        fluss.connect(settings(engine.address, "alice")) as other,
    ):
        connection.get_admin().create_database("sales")
        alice = other.get_admin()
        found = []
        for name in ("sales", "missing"):
            with pytest.raises(FlussError) as raised:
                alice.get_database_info(name)
            shown = raised.value.message.replace(name, "NAME")
            found.append((shown, alice.database_exists(name), list(alice.list_tables(name))))
        assert found[0] == found[1]
        assert list(alice.list_databases()) == []


def test_offsets_of_producers_are_kept_of_tables_with_the_right_alone(tmp_path: Path) -> None:
    """Else who has no right fills the room that all producers have, and takes their names."""
    path = fluss.TablePath("fluss", "t")
    schema = fluss.Schema(pa.schema([("n", pa.int64())]))
    with (
        guarded(tmp_path) as engine,
        fluss.connect(settings(engine.address, "root")) as connection,
        fluss.connect(settings(engine.address, "alice")) as other,
    ):
        root, alice = connection.get_admin(), other.get_admin()
        root.create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        table = root.get_table_info(path).table_id
        here, missing = {fluss.TableBucket(table, 0): 1}, {fluss.TableBucket(table + 1, 0): 1}
        unknown = ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        refusals = [
            (alice, missing, unknown),
            (root, missing, unknown),
            (alice, here | missing, ErrorCode.AUTHORIZATION_EXCEPTION),
            (alice, {}, ErrorCode.AUTHORIZATION_EXCEPTION),
        ]
        for admin, offsets, code in refusals:
            with pytest.raises(FlussError) as raised:
                admin.register_producer_offsets("job", offsets)
            assert raised.value.error_code == code
        assert root.get_producer_offsets("job") is None
        write = AclBinding.allow("alice", OperationType.WRITE, Resource.table("fluss", "t"))
        root.create_acls([write])
        for name, offsets in [("job", here), ("another", {})]:
            result = alice.register_producer_offsets(name, offsets)
            assert result == fluss.RegisterResult.CREATED


def test_two_users_at_once_lose_no_right(tmp_path: Path) -> None:
    with guarded(tmp_path) as engine:

        def grant(user: str) -> None:
            with fluss.connect(settings(engine.address, "root")) as connection:
                admin = connection.get_admin()
                for number in range(40):
                    where = Resource.database(f"{user}_{number}")
                    admin.create_acls([AclBinding.allow(user, OperationType.READ, where)])
                    if number % 2:
                        admin.drop_acls([AclBindingFilter(ResourceFilter(where.type, where.name))])

        threads = [threading.Thread(target=grant, args=(user,)) for user in ("alice", "bob")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    names = {each.resource.name for each in acls_of(tmp_path)}
    assert names == {f"{user}_{n}" for user in ("alice", "bob") for n in range(0, 40, 2)}


def test_names_without_regard_to_capitals(tmp_path: Path) -> None:
    with guarded(tmp_path, acl_principal_ignore_case=True, super_users=["user:ROOT"]) as engine:
        with fluss.connect(settings(engine.address, "root")) as connection:
            admin = connection.get_admin()
            admin.create_database("sales")
            admin.create_acls([AclBinding.allow("USER:Alice", OperationType.READ, SALES)])
        with fluss.connect(settings(engine.address, "alice")) as connection:
            assert list(connection.get_admin().list_databases()) == ["sales"]


# ---- what peers ask for too much of


def root_of(engine: EmbeddedFluss) -> RawClient:
    assert engine.address is not None
    client = RawClient(engine.address, timeout=60)
    assert client.authenticate("root", "r").type == 0
    return client


def test_a_million_rights_in_a_request_are_refused_at_once(tmp_path: Path) -> None:
    with guarded(tmp_path) as engine, closing(root_of(engine)) as root:
        one = pb.CreateAclsRequest(acl=[binding_message(READ)]).SerializeToString()
        for count in (1_000_000, 120_000, 60_000):
            began = time.monotonic()
            root.send(api.CREATE_ACLS.key, 0, one * count)
            code, message = root.receive().error
            # too large, too many, or the same one twice
            assert code != 0, count
            assert time.monotonic() - began < 10
            assert message
        assert engine.engine.acls.acls == {}


def test_no_more_rights_are_kept_than_are_quick_to_write(tmp_path: Path) -> None:
    def request(numbers: range) -> pb.CreateAclsRequest:
        return pb.CreateAclsRequest(
            acl=(
                binding_message(AclBinding.allow(f"user{n}", OperationType.READ, SALES))
                for n in numbers
            )
        )

    with guarded(tmp_path) as engine, closing(root_of(engine)) as root:
        root.call(api.CREATE_ACLS, request(range(MOST_ACLS)))
        code, message = root.ask(api.CREATE_ACLS, request(range(MOST_ACLS, MOST_ACLS + 1))).error
        assert code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert f"{MOST_ACLS + 1:,}" in message
        # one that is there already is no further one
        root.call(api.CREATE_ACLS, request(range(1)))
        # decisions do not walk them all
        alice = FlussPrincipal("alice")
        deciding = Authorizer(engine.engine.acls, engine.engine.catalog)
        deciding.allows(alice, "h", OperationType.READ, SALES)
        began = time.process_time()
        for _ in range(1000):
            assert not deciding.allows(alice, "h", OperationType.READ, SALES)
        assert time.process_time() - began < 1
        many = [filter_message(AclBindingFilter(ResourceFilter(ResourceType.TABLE)))] * 20_000
        code, message = root.ask(api.DROP_ACLS, pb.DropAclsRequest(acl_filter=many)).error
        assert code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        everything = [filter_message(AclBindingFilter())]
        answer = root.call(api.DROP_ACLS, pb.DropAclsRequest(acl_filter=everything))
        assert len(answer.filter_results[0].matching_acls) == MOST_ACLS
    assert acls_of(tmp_path) == []


@pytest.mark.parametrize(
    "change",
    [
        {"host": ""},
        {"host": "h" * 600},
        {"resource_name": ""},
        {"principal_name": "u" * 600},
        {"principal_type": ""},
        {"operation_type": 99},
        {"resource_type": 0},
        {"permission_type": -5},
    ],
)
def test_rights_that_cannot_be(tmp_path: Path, change: dict[str, object]) -> None:
    sound, broken = binding_message(READ), binding_message(READ)
    for name, value in change.items():
        setattr(broken, name, value)
    with guarded(tmp_path) as engine, closing(root_of(engine)) as root:
        answer = root.ask(api.CREATE_ACLS, pb.CreateAclsRequest(acl=[sound, broken]))
        assert answer.error[0] != 0
        # none of the request
        assert engine.engine.acls.acls == {}


def test_names_that_json_and_paths_have_a_meaning_for(tmp_path: Path) -> None:
    names = ['"', "\\", "../../etc", "a/b", "\u2028", "\U0001f600", "x" * 512, "'; drop", "*.*"]
    bindings = sorted(
        AclBinding(
            Resource(ResourceType.DATABASE, name),
            AccessControlEntry(FlussPrincipal(name, name), name, OperationType.READ),
        )
        for name in names
    )
    with guarded(tmp_path) as engine, engine.connection() as connection:
        connection.get_admin().create_acls(bindings)
    assert acls_of(tmp_path) == bindings


# ---- filters, hosts, settings


def test_dropped_rights_belong_to_the_first_filter_that_matches(tmp_path: Path) -> None:
    write = AclBinding.allow("alice", OperationType.WRITE, SALES)
    of_bob = AclBinding.allow("bob", OperationType.READ, SALES)
    with guarded(tmp_path) as engine, engine.connection() as connection:
        admin = connection.get_admin()
        admin.create_acls([READ, write, of_bob])
        alice = AclBindingFilter(entry_filter=AccessControlEntryFilter(FlussPrincipal("alice")))
        assert admin.drop_acls([AclBindingFilter.of(write), alice]) == [READ, write]
        assert list(admin.list_acls()) == [of_bob]
        assert admin.drop_acls([alice]) == []
        assert admin.drop_acls([]) == []


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("::1", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("*", "*"),
        ("host.example", "host.example"),
        ("", ""),
    ],
)
def test_addresses_have_one_form(address: str, host: str) -> None:
    assert host_of(address) == host


@pytest.mark.parametrize("given", ["admin", "User:", ":x", "User:a;b", ["User:a", "b"]])
def test_superusers_that_cannot_be(given: object) -> None:
    with pytest.raises(FlussError, match=r"super\.users|no principal") as raised:
        Security(super_users=given)  # type: ignore[arg-type]
    assert raised.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION
