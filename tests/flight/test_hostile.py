"""Peers that mean harm, or break: refused within bounds, and the server lives on."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator

import grpc
import polars as pl
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import fluss_df
from fluss_df.embedded import EmbeddedFluss
from fluss_df.flight import FlightLimits, FlightSqlServer, FolderAccess
from fluss_df.flight import flight_messages_pb2 as pb
from fluss_df.flight.service import SERVICE
from fluss_df.flight.wire import flight_data, is_compressed, packed, parse
from tests.flight.peers import REFUSED, peer
from tests.memory import anonymous_memory
from tests.waiting import wait_until

Statement = pb.CommandStatementQuery
_Options = pb.CommandStatementIngest.TableDefinitionOptions
LIMITS = FlightLimits(
    connections=20,
    calls=12,
    statements=3,
    prepared=3,
    tickets=3,
    message_bytes=1 << 20,
    silent_s=1.0,
)
# what a client may be told that sends nonsense: that the server failed is not among it
ALLOWED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED,
}
METHODS = ["Handshake", "ListFlights", "GetFlightInfo", "GetSchema", "DoGet", "DoPut", "DoAction"]


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedFluss]:
    with EmbeddedFluss(None) as made:
        with made.connection() as connection:
            rows = pl.DataFrame({"n": range(3_000_000)}).with_columns(t=pl.format("text {}", "n"))
            fluss_df.write_fluss(rows, "big", connection=connection, create_if_not_exists=True)
        yield made


@pytest.fixture
def server(engine: EmbeddedFluss) -> Iterator[FlightSqlServer]:
    with FlightSqlServer(FolderAccess(engine), limits=LIMITS) as made:
        yield made


@pytest.fixture
def channel(server: FlightSqlServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as made:
        yield made


def lives(server: FlightSqlServer) -> None:
    """Check that the server answers others, soon."""
    deadline = time.monotonic() + 20
    while True:
        try:
            with peer(server) as good:
                assert good.query("SELECT 1 AS a") == [{"a": 1}]
            return
        except REFUSED:
            if time.monotonic() > deadline:
                raise


def call(
    channel: grpc.Channel, method: str, messages: list[bytes], answers: list[bytes] | None = None
) -> grpc.StatusCode:
    """Send messages, and return how it ended; what is answered is added to the answers."""
    stub = channel.stream_stream(f"/{SERVICE}/{method}")
    try:
        for answer in stub(iter(messages), timeout=20):
            if answers is not None:
                answers.append(answer)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def written(answer: bytes) -> int:
    """Return how many rows an answer says were written."""
    result = pb.PutResult.FromString(answer)
    count: int = parse(pb.DoPutUpdateResult, result.app_metadata).record_count
    return count


def bytewise(left: int, right: int) -> int:
    """Return in how many bytes two numbers differ."""
    pair = zip(*(struct.pack("<q", number) for number in (left, right)), strict=True)
    return sum(one != other for one, other in pair)


def test_bytes_that_are_no_messages_are_refused(
    server: FlightSqlServer, channel: grpc.Channel
) -> None:
    chance = random.Random(7)
    good = [
        pb.FlightDescriptor(
            type=pb.FlightDescriptor.CMD, cmd=packed(Statement(query="SELECT 1"))
        ).SerializeToString(),
        pb.Ticket(
            ticket=packed(pb.TicketStatementQuery(statement_handle=b"x"))
        ).SerializeToString(),
        pb.Action(type="CreatePreparedStatement", body=b"\x0a\xff").SerializeToString(),
        pb.Action(type="CancelFlightInfo", body=b"\x0a\xff\x01").SerializeToString(),
    ]
    codes: dict[str, set[grpc.StatusCode]] = {method: set() for method in METHODS}
    for number in range(600):
        method = METHODS[number % len(METHODS)]
        seed = bytearray(chance.choice(good))
        for _ in range(chance.randrange(4)):
            seed[chance.randrange(len(seed))] = chance.randrange(256)
        data = bytes(seed) if number % 3 else chance.randbytes(chance.randrange(200))
        code = call(channel, method, [data] * chance.randrange(3))
        assert code in ALLOWED, (method, data)
        codes[method].add(code)
    assert codes["Handshake"] == {grpc.StatusCode.UNAUTHENTICATED}
    # this one looks at nothing that it is sent
    assert codes["ListFlights"] == {grpc.StatusCode.OK}
    for method in METHODS[2:]:
        assert grpc.StatusCode.INVALID_ARGUMENT in codes[method], method
    lives(server)


def test_a_message_that_is_too_large_is_refused(server: FlightSqlServer) -> None:
    with peer(server) as large:
        with pytest.raises(REFUSED, match="larger than max"):
            large.query(f"SELECT '{'x' * (2 << 20)}' AS a")
        with pytest.raises(REFUSED, match="larger than max"):
            large.get(b"x" * (2 << 20))
    lives(server)


def test_rows_that_are_no_arrow_are_refused(
    engine: EmbeddedFluss, server: FlightSqlServer, channel: grpc.Channel
) -> None:
    chance = random.Random(11)
    command = pb.CommandStatementIngest(table="hostile")
    command.table_definition_options.if_not_exist = _Options.NOT_EXIST_CREATE
    command.table_definition_options.if_exists = _Options.EXISTS_APPEND
    descriptor = pb.FlightDescriptor(type=pb.FlightDescriptor.CMD, cmd=packed(command))
    batch = pa.record_batch({"a": [1, 2], "s": ["x", None]})
    schema, rows = batch.schema.serialize(), batch.serialize()
    first = pb.FlightData.FromString(flight_data(schema))
    first.flight_descriptor.CopyFrom(descriptor)
    codes: Counter[grpc.StatusCode] = Counter()
    told = 0
    for _ in range(400):
        damaged = bytearray(flight_data(rows))
        for _ in range(chance.randrange(1, 5)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        answers: list[bytes] = []
        sent = [first.SerializeToString(), bytes(damaged)]
        codes[call(channel, "DoPut", sent, answers)] += 1
        told += sum(map(written, answers))
    # some damage is to numbers, which are other ones then; all other rows are refused
    assert codes.keys() == {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}
    lives(server)
    with engine.connection() as connection:
        found = fluss_df.read_fluss("hostile", connection=connection)
    assert found.height == told == batch.num_rows * codes[grpc.StatusCode.OK]
    assert found.schema == {"a": pl.Int64, "s": pl.String}
    for a, s in found.rows():
        changes = (bytewise(a, sent) for sent in (1, 2))
        assert min(changes) <= 4, a
        assert s is None or len(s) == 1


def test_what_a_few_bytes_claim_is_refused(server: FlightSqlServer) -> None:
    command = pb.CommandStatementIngest(table="claims")
    command.table_definition_options.if_exists = _Options.EXISTS_APPEND
    with peer(server) as claiming:
        claiming.query("CREATE TABLE claims (a INT)")
        nothing = pa.table({"a": pa.nulls(1 << 30)})
        with pytest.raises(REFUSED, match=r"a batch has 1,073,741,824 rows: send at most"):
            claiming.put(command, nothing)
        text = "x" * 100_000
        shared = pa.array([0] * 5000, pa.int32())
        names = pa.DictionaryArray.from_arrays(shared, pa.array([text]))
        for column in (names, pa.StructArray.from_arrays([names], ["of"])):
            with pytest.raises(REFUSED, match="500,000,000 bytes when its values are written out"):
                claiming.put(command, pa.table({"a": column}))
        view = struct.pack("<i4sii", len(text), text[:4].encode(), 0, 0) * 5000
        buffers = [None, pa.py_buffer(view), pa.py_buffer(text.encode())]
        views = pa.Array.from_buffers(pa.string_view(), 5000, buffers)
        with pytest.raises(REFUSED, match="500,000,000 bytes when its values are written out"):
            claiming.put(command, pa.table({"a": views}))
        for kind, column in (
            ("list_view", pa.ListViewArray.from_arrays([0, 0], [2, 2], pa.array([1, 2]))),
            ("run_end_encoded", pa.RunEndEncodedArray.from_arrays([2, 4], [1, 2])),
        ):
            for sent in (column, pa.StructArray.from_arrays([column], ["of"])):
                with pytest.raises(REFUSED, match=f"column 'a' is .*{kind}.*, which is not taken"):
                    claiming.put(command, pa.table({"a": sent}))
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("a", pa.int64())]), options=options) as writer:
        writer.write_batch(pa.record_batch({"a": pa.array([0] * 100_000)}))
    data = sink.getvalue().to_pybytes()
    # behind the schema
    at = 8 + struct.unpack_from("<i", data, 4)[0]
    length = struct.unpack_from("<i", data, at + 4)[0]
    assert is_compressed(data[at + 8 : at + 8 + length])
    plain = pa.record_batch({"a": [1]}).serialize().to_pybytes()
    assert not is_compressed(plain[8 : 8 + struct.unpack_from("<i", plain, 4)[0]])
    lives(server)


def test_calls_that_say_nothing_are_ended(
    server: FlightSqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fluss_df.flight.service._FIRST_S", 1.0)
    gate = threading.Event()

    def silent() -> Iterator[bytes]:
        gate.wait(30)
        yield from ()

    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stubs = [channel.stream_stream(f"/{SERVICE}/{method}") for method in METHODS[2:]]
        calls = [stub(silent()) for stub in stubs * 5]
        began = time.monotonic()
        codes = []
        for waiting in calls:
            with pytest.raises(grpc.RpcError) as caught:
                next(waiting)
            codes.append(caught.value.code())
        assert time.monotonic() - began < 15
        gate.set()
    refused = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
    assert set(codes) <= {grpc.StatusCode.CANCELLED, *refused}
    assert grpc.StatusCode.CANCELLED in codes
    lives(server)


def test_a_thousand_connections_leave_room(server: FlightSqlServer) -> None:
    before = anonymous_memory()
    opened = []
    try:
        for number in range(1000):
            made = socket.create_connection(("127.0.0.1", server.port), timeout=5)
            if number % 2:
                made.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            opened.append(made)
        assert anonymous_memory() - before < 100 << 20
    finally:
        for made in opened:
            made.close()
    lives(server)


def test_statements_at_once_are_bounded(server: FlightSqlServer) -> None:
    with peer(server) as one:
        streams = []
        for _ in range(LIMITS.statements):
            info = one.info(Statement(query="SELECT * FROM big"))
            stream = one.client.do_get(info.endpoints[0].ticket, one.options)
            stream.read_chunk()
            streams.append(stream)
        with pytest.raises(REFUSED, match="3 statements run at once here: try again later"):
            one.query("SELECT * FROM big")
        for stream in streams:
            stream.cancel()
        lives(server)


def test_what_a_statement_wrote_is_told_however_many_run(server: FlightSqlServer) -> None:
    with peer(server) as one:
        one.query("CREATE TABLE IF NOT EXISTS told (a INT)")
        insert = one.info(Statement(query="INSERT INTO told VALUES (1)"))
        waiting = one.info(Statement(query="SELECT 1 AS a"))
        streams = []
        for _ in range(LIMITS.statements):
            info = one.info(Statement(query="SELECT * FROM big"))
            stream = one.client.do_get(info.endpoints[0].ticket, one.options)
            stream.read_chunk()
            streams.append(stream)
        # who was refused here would write its rows once more
        assert one.get(insert.endpoints[0].ticket).column("rows").to_pylist() == [1]
        for _ in range(2):
            with pytest.raises(REFUSED, match="3 statements run at once here: try again later"):
                one.get(waiting.endpoints[0].ticket)
        for stream in streams:
            stream.cancel()
        lives(server)
        assert one.get(waiting.endpoints[0].ticket).to_pylist() == [{"a": 1}]


def test_results_that_nobody_fetches_are_given_up(server: FlightSqlServer) -> None:
    with peer(server) as one:
        infos = [one.info(Statement(query=f"SELECT {n} AS a")) for n in range(5)]
        tickets = [info.endpoints[0].ticket for info in infos]
        for ticket in tickets[:2]:
            with pytest.raises(REFUSED, match="waited for too long"):
                one.get(ticket)
        assert [one.get(ticket).column(0)[0].as_py() for ticket in tickets[2:]] == [2, 3, 4]


def test_a_client_that_goes_away_ends_its_query(server: FlightSqlServer) -> None:
    one = fl.connect(server.url)
    descriptor = fl.FlightDescriptor.for_command(packed(Statement(query="SELECT * FROM big")))
    info = one.get_flight_info(descriptor)
    stream = one.do_get(info.endpoints[0].ticket)
    stream.read_chunk()
    turns = server._statements._turns
    assert len(turns._running) == 1
    (run,) = turns._running
    del stream
    one.close()
    run._flow.join(10)
    assert not run.is_running
    lives(server)


def test_slow_readers_wait_alone(engine: EmbeddedFluss) -> None:
    limits = FlightLimits(statements=5)
    with FlightSqlServer(FolderAccess(engine), limits=limits) as server:
        descriptor = fl.FlightDescriptor.for_command(packed(Statement(query="SELECT * FROM big")))
        clients = [fl.connect(server.url) for _ in range(4)]
        streams = []
        for client in clients:
            info = client.get_flight_info(descriptor)
            streams.append(client.do_get(info.endpoints[0].ticket))
        first = [stream.read_chunk().data.num_rows for stream in streams]
        runs = list(server._statements._turns._running)
        assert len(runs) == 4
        # others are answered meanwhile
        for _ in range(5):
            lives(server)
        whole = 3_000_000
        assert all(run.rows < whole / 2 for run in runs)
        # who reads on gets all the rows, while the others still wait
        rest = [sum(chunk.data.num_rows for chunk in stream) for stream in streams[:2]]
        assert [a + b for a, b in zip(first, rest, strict=False)] == [whole, whole]
        assert sorted(run.rows == whole for run in runs) == [False, False, True, True]
        del streams
        for client in clients:
            client.close()
        wait_until(lambda: not server._statements._turns._running)


@pytest.mark.parametrize("method", ["GetFlightInfo", "DoPut"])
def test_a_client_that_goes_away_ends_what_it_writes(
    server: FlightSqlServer, channel: grpc.Channel, method: str
) -> None:
    with peer(server) as one:
        one.query("CREATE TABLE IF NOT EXISTS copied (n BIGINT, t STRING)")
    many = " UNION ALL ".join(["SELECT n, t FROM big"] * 9)
    statement = f"INSERT INTO copied SELECT n, max(t) FROM ({many}) AS m GROUP BY n"
    update = pb.CommandStatementUpdate(query=statement)
    command = packed(Statement(query=statement) if method == "GetFlightInfo" else update)
    asked = pb.FlightDescriptor(type=pb.FlightDescriptor.CMD, cmd=command)
    message = asked if method == "GetFlightInfo" else pb.FlightData(flight_descriptor=asked)
    call = channel.stream_stream(f"/{SERVICE}/{method}")(iter([message.SerializeToString()]))
    running = server._statements._turns._running
    wait_until(lambda: bool(running))
    (run,) = running
    call.cancel()
    wait_until(lambda: run._flow.running.error is not None)
    # the scans end, and nothing is written
    run._flow.join(20)
    with peer(server) as one:
        assert one.query("SELECT count(*) AS n FROM copied") == [{"n": 0}]


def put_in_part(
    channel: grpc.Channel, command: bytes, batches: list[pa.RecordBatch]
) -> tuple[grpc.Call, threading.Event]:
    """Send batches and no end; return the call, and what is set when all of it was taken."""
    taken, gate = threading.Event(), threading.Event()
    asked = pb.FlightDescriptor(type=pb.FlightDescriptor.CMD, cmd=command)
    first = pb.FlightData.FromString(flight_data(batches[0].schema.serialize()))
    first.flight_descriptor.CopyFrom(asked)

    def messages() -> Iterator[bytes]:
        yield first.SerializeToString()
        for batch in batches:
            if batch.num_rows:
                yield flight_data(batch.serialize())
        taken.set()
        gate.wait(30)

    call = channel.stream_stream(f"/{SERVICE}/DoPut")(messages())
    call.add_done_callback(lambda _: gate.set())
    return call, taken


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_client_that_is_cut_off_replaces_no_table(
    server: FlightSqlServer, channel: grpc.Channel, how: str
) -> None:
    with peer(server) as one:
        one.query("CREATE TABLE IF NOT EXISTS kept (a INT)")
        one.query("INSERT OVERWRITE kept VALUES (7)")
        command = pb.CommandStatementIngest(table="kept")
        command.table_definition_options.if_not_exist = _Options.NOT_EXIST_CREATE
        command.table_definition_options.if_exists = _Options.EXISTS_REPLACE
        nothing = pa.record_batch({"b": pa.array([], pa.string())})
        own = grpc.insecure_channel(f"127.0.0.1:{server.port}")
        for begun in range(5):
            call, taken = put_in_part(
                channel if how == "cancel" else own, packed(command), [nothing]
            )
            assert taken.wait(20)
            time.sleep(0.05 * begun)
            if how == "cancel":
                call.cancel()
            else:
                own.close()
                own = grpc.insecure_channel(f"127.0.0.1:{server.port}")
            wait_until(lambda: len(server._calls._open) == 0)
        own.close()
        assert one.query("SELECT * FROM kept") == [{"a": 7}]


def test_a_client_that_is_cut_off_writes_no_part_of_its_values(
    server: FlightSqlServer, channel: grpc.Channel
) -> None:
    with peer(server) as one:
        one.query("CREATE TABLE IF NOT EXISTS parted (a INT)")
        request = pb.ActionCreatePreparedStatementRequest(query="INSERT INTO parted VALUES (?)")
        (answer,) = one.act("CreatePreparedStatement", packed(request))
        made = pb.ActionCreatePreparedStatementResult.FromString(pb.Packed.FromString(answer).value)
        handle = made.prepared_statement_handle
        command = packed(pb.CommandPreparedStatementUpdate(prepared_statement_handle=handle))
        some = pa.record_batch({"a": pa.array([1, 2], pa.int32())})
        for begun in range(5):
            call, taken = put_in_part(channel, command, [some])
            assert taken.wait(20)
            time.sleep(0.05 * begun)
            call.cancel()
            wait_until(lambda: len(server._calls._open) == 0)
        assert one.query("SELECT count(*) AS n FROM parted") == [{"n": 0}]


def test_a_write_that_is_slow_is_no_silence_of_the_client(
    server: FlightSqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def slow(table: pa.Table, *args: object, **options: object) -> None:
        time.sleep(2 * LIMITS.silent_s)
        written.append(table.num_rows)

    monkeypatch.setattr("fluss_df.flight.ingest.write_fluss", slow)
    monkeypatch.setattr("fluss_df.flight.ingest._WRITTEN_BYTES", 1)
    command = pb.CommandStatementIngest(table="slowly")
    command.table_definition_options.if_not_exist = _Options.NOT_EXIST_CREATE
    with peer(server) as one:
        rows = pa.concat_tables([pa.table({"a": [1, 2]}), pa.table({"a": [3]})])
        result = pb.DoPutUpdateResult.FromString(one.put(command, rows))
    assert result.record_count == 3
    assert written == [2, 1]


def test_a_query_has_its_time(engine: EmbeddedFluss) -> None:
    limits = FlightLimits(statement_s=1.0)
    with FlightSqlServer(FolderAccess(engine), limits=limits) as server, peer(server) as slow:
        info = slow.info(Statement(query="SELECT * FROM big"))
        stream = slow.client.do_get(info.endpoints[0].ticket, slow.options)
        stream.read_chunk()
        time.sleep(2)
        with pytest.raises(REFUSED, match="took longer than 1 seconds"):
            stream.read_all()
        lives(server)


def test_clients_that_ask_at_once_get_their_own_rows(server: FlightSqlServer) -> None:
    errors: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            with peer(server) as one:
                for turn in range(10):
                    value = number * 100 + turn
                    while True:
                        try:
                            assert one.query(f"SELECT {value} AS a") == [{"a": value}]
                            break
                        except REFUSED as refused:
                            # those who gave no name share their results, and their limits
                            again = ("try again later", "run the statement again")
                            if not any(text in str(refused) for text in again):
                                raise
        except BaseException as error:
            errors.append(error)

    threads: list[threading.Thread] = []
    for number in range(5):
        threads.append(threading.Thread(target=ask, args=(number,), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(60)
    # one that still waits has no error, either
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


def test_closing_ends_what_runs(engine: EmbeddedFluss) -> None:
    server = FlightSqlServer(FolderAccess(engine))
    with peer(server) as one:
        info = one.info(Statement(query="SELECT * FROM big"))
        stream = one.client.do_get(info.endpoints[0].ticket, one.options)
        stream.read_chunk()
        (run,) = server._statements._turns._running
        server.close()
        server.close()
        run._flow.join(10)
        assert not run.is_running
        with pytest.raises((*REFUSED, OSError)):
            stream.read_all()
