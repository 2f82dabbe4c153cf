"""What clients ask by the messages of Flight SQL, where drivers do not ask it."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from fluss_df.backend import Backend
from fluss_df.flight import FlightSqlServer
from fluss_df.flight import flight_messages_pb2 as pb
from fluss_df.flight.metadata.sql_info import _INFO
from fluss_df.flight.wire import packed, parse, unpacked
from tests.flight.peers import REFUSED, peer

Fresh = Callable[[], str]
_Options = pb.CommandStatementIngest.TableDefinitionOptions


def test_lists_of_catalogs_schemas_and_types(server: FlightSqlServer, con: Backend) -> None:
    with peer(server) as asking:
        assert asking.ask(pb.CommandGetCatalogs()) == [{"catalog_name": "fluss"}]
        assert asking.ask(pb.CommandGetTableTypes()) == [{"table_type": "TABLE"}]
        database = con.current_database
        wanted = {"catalog_name": "fluss", "db_schema_name": database}
        assert wanted in asking.ask(pb.CommandGetDbSchemas())
        narrow = pb.CommandGetDbSchemas(db_schema_filter_pattern=f"{database[:-1]}_")
        assert asking.ask(narrow) == [wanted]
        assert asking.ask(pb.CommandGetDbSchemas(catalog="other")) == []


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("{}%", "{}_a_c {}_abc"),
        ("{}_a_c", "{}_a_c {}_abc"),
        ("{}_a\\_c", "{}_a_c"),
        ("%{}\\_\\a%c", "{}_a_c {}_abc"),
        ("{}_a", ""),
        ("{}.a.c", ""),
        ("", ""),
        ("%" * 20 + "!", ""),
        ("%_" * 150, "{}_a_c {}_abc"),
        ("_%" * 499 + "\\", ""),
    ],
)
def test_tables_by_patterns(
    server: FlightSqlServer, con: Backend, fresh: Fresh, pattern: str, wanted: str
) -> None:
    stem = fresh().replace("_", "-").ljust(150, "x")
    there = []
    for end in ("_a_c", "_abc"):
        con.raw_sql(f'CREATE TABLE "{stem}{end}" (a INT)')
        there.append(f"{stem}{end}")
    with peer(server) as asking:
        asked = pb.CommandGetTables(table_name_filter_pattern=pattern.replace("{}", stem))
        found = [row["table_name"] for row in asking.ask(asked)]
    assert [name for name in found if name in there] == wanted.replace("{}", stem).split()


def test_a_pattern_is_bounded(server: FlightSqlServer) -> None:
    with peer(server) as asking:
        for asked in (
            pb.CommandGetTables(table_name_filter_pattern="%" * 1001),
            pb.CommandGetDbSchemas(db_schema_filter_pattern="a" * 1001),
        ):
            with pytest.raises(REFUSED, match="has 1,001 characters: a pattern has at most 1,000"):
                asking.ask(asked)


def test_tables_with_their_columns_and_keys(
    server: FlightSqlServer, con: Backend, fresh: Fresh
) -> None:
    name = fresh()
    con.raw_sql(f"CREATE TABLE {name} (a INT COMMENT 'an a', b STRING, PRIMARY KEY (b, a))")
    database = con.current_database
    with peer(server) as asking:
        named = pb.CommandGetTables(table_name_filter_pattern=name, include_schema=True)
        (table,) = asking.ask(named)
        schema = pa.ipc.read_schema(pa.py_buffer(table["table_schema"]))
        assert schema.names == ["a", "b"]
        about = schema.field("a").metadata
        assert about[b"ARROW:FLIGHT:SQL:TYPE_NAME"] == b"INT"
        assert about[b"ARROW:FLIGHT:SQL:REMARKS"] == b"an a"
        views = pb.CommandGetTables(table_name_filter_pattern=name, table_types=["VIEW"])
        assert asking.ask(views) == []
        keys = asking.ask(pb.CommandGetPrimaryKeys(table=name, db_schema=database))
        assert [(key["column_name"], key["key_sequence"]) for key in keys] == [("b", 1), ("a", 2)]
        for question in (pb.CommandGetExportedKeys, pb.CommandGetImportedKeys):
            assert asking.ask(question(table=name)) == []
        assert asking.ask(pb.CommandGetCrossReference(pk_table=name, fk_table=name)) == []
        for place, no_table in ((database, "nowhere"), (database, "a b"), ("a b", name)):
            assert asking.ask(pb.CommandGetPrimaryKeys(table=no_table, db_schema=place)) == []
        assert asking.ask(pb.CommandGetPrimaryKeys(db_schema=database)) == []
        assert asking.ask(pb.CommandGetTables(db_schema_filter_pattern="a b")) == []


def test_types_and_what_the_sql_can_do(server: FlightSqlServer) -> None:
    with peer(server) as asking:
        types = asking.ask(pb.CommandGetXdbcTypeInfo())
        assert {row["type_name"] for row in types} >= {"INT", "STRING", "DECIMAL", "TIMESTAMP_LTZ"}
        (decimal,) = asking.ask(pb.CommandGetXdbcTypeInfo(data_type=3))
        assert decimal["create_params"] == ["precision", "scale"]
        everything = asking.ask(pb.CommandGetSqlInfo())
        assert [row["info_name"] for row in everything] == list(_INFO)
        some = asking.ask(pb.CommandGetSqlInfo(info=[8, 563, 504, 99_999]))
        assert [(row["info_name"], row["value"]) for row in some] == [
            (8, 0),
            (563, False),
            (504, '"'),
        ]


def test_the_schema_of_a_query_alone(server: FlightSqlServer) -> None:
    with peer(server) as asking:
        command = packed(pb.CommandStatementQuery(query="SELECT 1 AS a, 'x' AS b"))
        descriptor = fl.FlightDescriptor.for_command(command)
        found = asking.client.get_schema(descriptor, asking.options).schema
        assert found.names == ["a", "b"]
        command = packed(pb.CommandStatementQuery(query="CREATE TABLE never (a INT)"))
        descriptor = fl.FlightDescriptor.for_command(command)
        with pytest.raises(REFUSED, match="show when it runs"):
            asking.client.get_schema(descriptor, asking.options)


def test_updates_say_how_many_rows(server: FlightSqlServer, con: Backend, fresh: Fresh) -> None:
    name = fresh()
    con.raw_sql(f"CREATE TABLE {name} (a INT, PRIMARY KEY (a))")
    empty = pa.table({})
    with peer(server) as asking:
        command = pb.CommandStatementUpdate(query=f"INSERT INTO {name} VALUES (1), (2), (3)")
        assert parse(pb.DoPutUpdateResult, asking.put(command, empty)).record_count == 3
        command = pb.CommandStatementUpdate(query=f"DELETE FROM {name} WHERE a > 1")
        assert parse(pb.DoPutUpdateResult, asking.put(command, empty)).record_count == 2
        dropped = pb.CommandStatementUpdate(query=f"DROP TABLE {name}")
        assert parse(pb.DoPutUpdateResult, asking.put(dropped, empty)).record_count == 0


@pytest.mark.parametrize("action", ["CancelFlightInfo", "CancelQuery"])
def test_a_statement_is_cancelled_before_it_is_fetched(
    server: FlightSqlServer, action: str
) -> None:
    with peer(server) as asking:
        info = asking.info(pb.CommandStatementQuery(query="SELECT 1 AS a"))
        data = info.serialize()
        if action == "CancelQuery":
            body = packed(pb.ActionCancelQueryRequest(info=data))
        else:
            asked = pb.CancelFlightInfoRequest(info=pb.FlightInfo.FromString(data))
            body = asked.SerializeToString()
        statuses = []
        for _ in range(2):
            (answer,) = asking.act(action, body)
            if action == "CancelQuery":
                result = unpacked(answer)
                assert isinstance(result, pb.ActionCancelQueryResult)
                statuses.append(result.result)
            else:
                statuses.append(parse(pb.CancelFlightInfoResult, answer).status)
        assert statuses == [pb.CANCEL_STATUS_CANCELLED, pb.CANCEL_STATUS_NOT_CANCELLABLE]
        with pytest.raises(REFUSED, match="no such result to fetch"):
            asking.get(info.endpoints[0].ticket)


@pytest.mark.parametrize(
    "name", ["BeginTransaction", "EndTransaction", "BeginSavepoint", "EndSavepoint"]
)
def test_transactions_and_savepoints_are_refused_by_name(
    server: FlightSqlServer, name: str
) -> None:
    with peer(server) as asking:
        with pytest.raises(REFUSED, match=f"{name}: Fluss has no transactions"):
            asking.act(name, b"")
        with pytest.raises(REFUSED, match="a statement in a transaction: Fluss has no"):
            asking.ask(pb.CommandStatementQuery(query="SELECT 1", transaction_id=b"x"))


def test_what_there_is_not_is_refused(server: FlightSqlServer) -> None:
    with peer(server) as asking:
        with pytest.raises(REFUSED, match="no action 'Dance'"):
            asking.act("Dance", b"")
        with pytest.raises(REFUSED, match="no paths"):
            asking.client.get_flight_info(fl.FlightDescriptor.for_path("a"), asking.options)
        assert list(asking.client.list_flights(options=asking.options)) == []
        names = [action.type for action in asking.client.list_actions(asking.options)]
        assert "CreatePreparedStatement" in names
        with pytest.raises(REFUSED, match="there are no temporary tables"):
            asking.put(pb.CommandStatementIngest(table="t", temporary=True), pa.table({"a": [1]}))
        options = pb.CommandStatementIngest(table="t", options={"colour": "red"})
        options.table_definition_options.if_not_exist = _Options.NOT_EXIST_CREATE
        with pytest.raises(REFUSED, match="no option 'colour'; there are primary_key"):
            asking.put(options, pa.table({"a": [1]}))


def test_a_key_table_is_made_by_ingestion(server: FlightSqlServer, fresh: Fresh) -> None:
    name = fresh()
    command = pb.CommandStatementIngest(
        table=name, options={"primary_key": "a", "bucket_by": "a", "buckets": "2"}
    )
    command.table_definition_options.if_not_exist = _Options.NOT_EXIST_CREATE
    with peer(server) as asking:
        rows = pa.table({"a": [1, 2, 1], "b": ["x", "y", "z"]})
        assert parse(pb.DoPutUpdateResult, asking.put(command, rows)).record_count == 3
        assert asking.query(f"SELECT * FROM {name} ORDER BY a") == [
            {"a": 1, "b": "z"},
            {"a": 2, "b": "y"},
        ]


def test_no_rows_make_a_table_too(server: FlightSqlServer, fresh: Fresh) -> None:
    """The driver of ADBC sends nothing at all for them, not even the command."""
    name = fresh()
    command = pb.CommandStatementIngest(table=name)
    command.table_definition_options.if_not_exist = _Options.NOT_EXIST_CREATE
    with peer(server) as asking:
        result = asking.put(command, pa.schema([("a", pa.int32())]).empty_table())
        assert parse(pb.DoPutUpdateResult, result).record_count == 0
        assert asking.query(f"SELECT * FROM {name}") == []
