"""Messages of the control protocol, and the state machine of each end of a connection."""

from __future__ import annotations

import itertools
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samples
from nsm.wire import transcripts
from nsm.wire.code import RunResult
from nsm.wire.environments import EnvironmentRow
from nsm.wire.errors import BadRequestError, NsmError, OverloadedError
from nsm.wire.frames import LocalProtocolError, RemoteProtocolError, encode_frame
from nsm.wire.messages import (
    MAX_HELLO_BYTES,
    MAX_IN_FLIGHT,
    Cancel,
    ClientConnection,
    ClientMessage,
    Event,
    Failure,
    Hello,
    Invalid,
    Request,
    Result,
    ServerConnection,
    ServerMessage,
    from_client,
    from_server,
    read,
    to_wire,
)
from nsm.wire.sessions import KillReport, SessionRow
from nsm.wire.status import Status

CLIENT_HELLO = Hello(name="nsm", program_version="0.1.0", scope="cli")
SERVER_HELLO = Hello(
    name="nsm-supervisor", program_version="0.1.0", pid=7, rights=("read", "run", "manage")
)

HELLO_WIRE: dict[str, Any] = {
    "version": 1,
    "capabilities": [],
    "name": "nsm",
    "program_version": "0.1.0",
    "scope": "cli",
}

CLIENT_CASES: list[tuple[ClientMessage, dict[str, Any]]] = [
    (CLIENT_HELLO, {"hello": HELLO_WIRE}),
    (
        CLIENT_HELLO._replace(capabilities=("x", "y")),
        {"hello": {**HELLO_WIRE, "capabilities": ["x", "y"]}},
    ),
    (Request(1, "ping", {}), {"id": 1, "op": "ping", "args": {}}),
    (Request(2**63 - 1, "run", {"a": [1]}), {"id": 2**63 - 1, "op": "run", "args": {"a": [1]}}),
    (Cancel(5), {"cancel": 5}),
]

SERVER_CASES: list[tuple[ServerMessage, dict[str, Any]]] = [
    (
        SERVER_HELLO._replace(inherit=("TOKEN",)),
        {
            "hello": {
                **HELLO_WIRE,
                "name": "nsm-supervisor",
                "scope": "",
                "pid": 7,
                "rights": ["read", "run", "manage"],
                "inherit": ["TOKEN"],
            }
        },
    ),
    (Result(1, {"a": 1}), {"id": 1, "result": {"a": 1}}),
    (
        Event(1, "output", {"stream": "stdout", "text": "x"}),
        {"id": 1, "event": "output", "data": {"stream": "stdout", "text": "x"}},
    ),
]


@pytest.mark.parametrize(("message", "wire"), CLIENT_CASES)
def test_client_messages_in_both_directions(message: ClientMessage, wire: dict[str, Any]) -> None:
    assert to_wire(message) == wire
    assert from_client(wire) == message


@pytest.mark.parametrize(("message", "wire"), SERVER_CASES)
def test_server_messages_in_both_directions(message: ServerMessage, wire: dict[str, Any]) -> None:
    assert to_wire(message) == wire
    assert from_server(wire) == message


def test_unknown_fields_of_messages_are_ignored() -> None:
    hello: dict[str, Any] = {"hello": {**HELLO_WIRE, "colour": "blue"}, "more": 1}
    assert from_client(hello) == CLIENT_HELLO
    assert from_client({"id": 1, "op": "x", "args": {}, "more": 1}) == Request(1, "x", {})
    assert from_server({"id": 1, "result": {}, "more": 1}) == Result(1, {})
    assert from_server({"id": 1, "weather": "fine"}) is None
    assert from_server({}) is None


@pytest.mark.parametrize(
    ("frame", "id_"),
    [
        ({}, 0),
        ({"id": 1}, 1),
        ({"op": "ping"}, 0),
        ({"id": 1, "op": ""}, 1),
        ({"id": 1, "op": "ping", "args": []}, 1),
        ({"id": 0, "op": "ping"}, 0),
        ({"id": True, "op": "ping"}, 0),
        ({"id": "1", "op": "ping"}, 0),
        ({"id": 2**63, "op": "ping"}, 0),
        ({"cancel": "1"}, 0),
        ({"cancel": None, "id": 3}, 3),
        ({"id": 1, "result": {}}, 1),
    ],
)
def test_a_malformed_request_is_answered_and_not_fatal(frame: dict[str, Any], id_: int) -> None:
    server = introduced_server()
    server.receive_data(encode_frame(frame))
    message = server.next_message()
    assert isinstance(message, Invalid)
    assert message.id == id_
    assert isinstance(message.error, BadRequestError)
    server.send(Failure(message.id, message.error))
    server.receive_data(encode_frame({"id": 1, "op": "ping", "args": {}}))
    assert server.next_message() == Request(1, "ping", {})


@pytest.mark.parametrize(
    "frame",
    [
        {"id": 1, "result": []},
        {"id": 1, "result": None},
        {"id": 0, "result": {}},
        {"id": "1", "result": {}},
        {"result": {}},
        {"id": 1, "event": 5, "data": {}},
        {"id": 1, "event": "output"},
        {"id": 1, "event": "output", "data": []},
        {"id": 0, "event": "output", "data": {}},
        {"error": {}},
        {"id": None, "error": {}},
        {"id": 2, "result": {}},
        {"id": 2, "event": "output", "data": {}},
        {"hello": HELLO_WIRE},
    ],
)
def test_a_malformed_answer_is_fatal(frame: dict[str, Any]) -> None:
    client = introduced_client()
    client.send(Request(1, "ping", {}))
    client.receive_data(encode_frame(frame))
    with pytest.raises(RemoteProtocolError):
        client.next_message()


@pytest.mark.parametrize("error", [None, 1, "x", {}, {"code": 5, "message": [], "data": 3}])
def test_an_odd_error_is_an_error_still(error: object) -> None:
    client = introduced_client()
    client.send(Request(1, "ping", {}))
    client.receive_data(encode_frame({"id": 1, "error": error}))
    message = client.next_message()
    assert isinstance(message, Failure)
    assert isinstance(message.error, NsmError)


@pytest.mark.parametrize(
    "hello",
    [
        None,
        [],
        {},
        {"version": "1"},
        {**HELLO_WIRE, "version": 2},
        {**HELLO_WIRE, "name": 5},
        {**HELLO_WIRE, "capabilities": [1]},
        {**HELLO_WIRE, "pid": "1"},
    ],
)
def test_a_hello_that_is_none_is_fatal(hello: object) -> None:
    for connection in (ServerConnection(), ClientConnection()):
        connection.receive_data(encode_frame({"hello": hello}))
        with pytest.raises(RemoteProtocolError):
            connection.next_message()


def test_hello_comes_first_and_once() -> None:
    for frame in ({"id": 1, "op": "ping"}, {"cancel": 1}, {}):
        server = ServerConnection()
        server.receive_data(encode_frame(frame))
        with pytest.raises(RemoteProtocolError, match="hello"):
            server.next_message()
    server = introduced_server()
    server.receive_data(encode_frame({"hello": HELLO_WIRE}))
    with pytest.raises(RemoteProtocolError, match="second"):
        server.next_message()
    client = ClientConnection()
    client.receive_data(encode_frame({"id": 1, "result": {}}))
    with pytest.raises(RemoteProtocolError, match="hello"):
        client.next_message()


def test_a_stranger_can_announce_little() -> None:
    server = ServerConnection()
    server.receive_data((MAX_HELLO_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError):
        server.next_message()
    server = introduced_server()
    server.receive_data((MAX_HELLO_BYTES + 1).to_bytes(4, "big"))
    assert server.next_message() is None


def test_an_id_is_in_flight_until_its_one_answer() -> None:
    server, client = pair()
    id_ = client.new_id()
    server.receive_data(client.send(Request(id_, "run", {})))
    assert server.next_message() == Request(id_, "run", {})
    assert server.in_flight == client.in_flight == {id_}

    with pytest.raises(LocalProtocolError):
        client.send(Request(id_, "run", {}))
    client.receive_data(server.send(Event(id_, "output", {})))
    assert client.next_message() == Event(id_, "output", {})
    server.receive_data(client.send(Cancel(id_)))
    assert server.next_message() == Cancel(id_)
    client.receive_data(server.send(Result(id_, {})))
    assert client.next_message() == Result(id_, {})
    assert server.in_flight == client.in_flight == frozenset()

    for message in (Result(id_, {}), Event(id_, "output", {}), Failure(id_, NsmError("x"))):
        with pytest.raises(LocalProtocolError):
            server.send(message)
    with pytest.raises(LocalProtocolError):
        client.send(Cancel(id_))
    server.receive_data(client.send(Request(id_, "run", {})))  # free again
    assert server.next_message() == Request(id_, "run", {})


def test_a_cancel_that_crossed_the_answer_is_dropped() -> None:
    server, client = pair()
    server.receive_data(client.send(Request(1, "run", {})))
    server.next_message()
    server.send(Result(1, {}))
    server.receive_data(client.send(Cancel(1)) + client.send(Request(2, "ping", {})))
    assert server.next_message() == Request(2, "ping", {})


def test_a_duplicate_id_in_flight_is_fatal() -> None:
    server = introduced_server()
    frame = encode_frame({"id": 1, "op": "ping"})
    server.receive_data(frame + frame)
    assert server.next_message() == Request(1, "ping", {})
    with pytest.raises(RemoteProtocolError, match="in flight"):
        server.next_message()


def test_too_many_requests_are_refused_one_by_one() -> None:
    server = introduced_server()
    for id_ in range(1, MAX_IN_FLIGHT + 1):
        server.receive_data(encode_frame({"id": id_, "op": "ping"}))
        assert isinstance(server.next_message(), Request)
    for id_ in range(MAX_IN_FLIGHT + 1, MAX_IN_FLIGHT + 4):
        server.receive_data(encode_frame({"id": id_, "op": "ping"}))
        message = server.next_message()
        assert isinstance(message, Invalid)
        assert isinstance(message.error, OverloadedError)
        server.send(Failure(message.id, message.error))
    server.send(Result(1, {}))
    server.receive_data(encode_frame({"id": 5000, "op": "ping"}))
    assert server.next_message() == Request(5000, "ping", {})


def test_a_failure_is_final_but_may_be_told() -> None:
    server, client = pair()
    server.receive_data(client.send(Request(1, "run", {})))
    server.next_message()
    server.receive_data(b"\xff" * 8)
    with pytest.raises(RemoteProtocolError) as caught:
        server.next_message()
    server.receive_data(encode_frame({"id": 2, "op": "ping"}))
    with pytest.raises(RemoteProtocolError):
        server.next_message()
    with pytest.raises(LocalProtocolError):
        server.send(Result(1, {}))
    client.receive_data(server.send(Failure(0, caught.value)))
    assert isinstance(client.next_message(), Failure)


def test_end_of_file_between_frames_is_fine_and_in_a_frame_is_not() -> None:
    server = introduced_server()
    server.receive_data(b"")
    assert server.next_message() is None
    server = introduced_server()
    server.receive_data(encode_frame({"id": 1, "op": "ping"}) + b"\0\0")
    server.receive_data(b"")
    assert server.next_message() == Request(1, "ping", {})
    with pytest.raises(RemoteProtocolError, match="middle"):
        server.next_message()


Frames: TypeAlias = list[dict[str, Any]]

SCRIPT: Frames = [
    {"hello": HELLO_WIRE},
    {"id": 1, "op": "run", "args": {"code": "print('ü')" * 20}},
    {"id": 2},
    {"id": 3, "op": "ping"},
    {"cancel": 1},
    {"cancel": 99},
    {"id": 4, "op": "kill", "args": {"targets": ["a", "b"]}},
]


def messages_of(connection: ServerConnection, chunks: list[bytes]) -> list[str]:
    messages: list[str] = []
    for chunk in chunks:
        if chunk:
            connection.receive_data(chunk)
        while (message := connection.next_message()) is not None:
            messages.append(repr(message))
    return messages


@given(st.data())
def test_any_split_of_the_bytes_gives_the_same_messages(data: st.DataObject) -> None:
    stream = b"".join(encode_frame(frame) for frame in SCRIPT)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    edges = [0, *cuts, len(stream)]
    chunks = [stream[start:end] for start, end in itertools.pairwise(edges)]
    whole = messages_of(ServerConnection(), [stream])
    assert len(whole) == len(SCRIPT) - 1
    assert messages_of(ServerConnection(), chunks) == whole


KEYS = ["hello", "id", "op", "args", "cancel", "result", "error", "event", "data"]
Values: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.text(max_size=3)
    | st.lists(st.integers(-2, 3), max_size=2)
    | st.just(HELLO_WIRE)
    | st.dictionaries(st.text(max_size=4), st.integers(-2, 3), max_size=2)
)
Parts: st.SearchStrategy[dict[str, Any] | bytes] = st.dictionaries(
    st.sampled_from(KEYS), Values, max_size=4
) | st.binary(max_size=40)


@settings(max_examples=100)
@given(st.lists(Parts, max_size=6), st.booleans())
def test_garbage_gives_messages_or_the_remote_protocol_error(
    parts: list[dict[str, Any] | bytes], introduced: bool
) -> None:
    server = introduced_server() if introduced else ServerConnection()
    client = introduced_client() if introduced else ClientConnection()
    if introduced:
        client.send(Request(1, "run", {}))
    for connection in (server, client):
        try:
            for part in parts:
                connection.receive_data(part if isinstance(part, bytes) else encode_frame(part))
                while connection.next_message() is not None:
                    pass
            connection.receive_data(b"")
            connection.next_message()
        except RemoteProtocolError:
            pass


def introduced_server() -> ServerConnection:
    server = ServerConnection()
    server.receive_data(encode_frame(to_wire(CLIENT_HELLO)))
    assert server.next_message() == CLIENT_HELLO
    server.send(SERVER_HELLO)
    return server


def introduced_client() -> ClientConnection:
    client = ClientConnection()
    client.send(CLIENT_HELLO)
    client.receive_data(encode_frame(to_wire(SERVER_HELLO)))
    assert client.next_message() == SERVER_HELLO
    return client


def pair() -> tuple[ServerConnection, ClientConnection]:
    return introduced_server(), introduced_client()


ALL: list[tuple[type[object], dict[str, Any], set[str]]] = [
    (RunResult, samples.run_result(), {"clamped_from_s", "notes"}),
    (
        SessionRow,
        samples.session_row(),
        {"name", "project", "memory_bytes", "cpu_s", "limited_by"}
        | {"processes", "running_s", "queued", "taken_up", "outdated", "checkpoints"}
        | {"ports", "labels", "gpu_memory_bytes", "gpu_percent"},
    ),
    (
        EnvironmentRow,
        samples.environment_row(),
        {"problem", "cold_start", "only_for", "not_preloaded", "slow_imports", "templates"}
        | {"devices", "device_nodes"},
    ),
    (Status, samples.status(), {"draining", "ports", "upstream"}),
    (KillReport, samples.kill_report(), set()),
]


@pytest.mark.parametrize(("kind", "wire", "optional"), ALL)
def test_each_missing_or_mistyped_field_is_named(
    kind: type[object], wire: dict[str, Any], optional: set[str]
) -> None:
    for key in wire:
        with pytest.raises(RemoteProtocolError, match=f"`{key}`"):
            read(kind, {**wire, key: b"wrong"})
        missing = {name: value for name, value in wire.items() if name != key}
        if key in optional:
            read(kind, missing)
        else:
            with pytest.raises(RemoteProtocolError, match=f"nothing for `{key}`"):
                read(kind, missing)


# Answers of `logs` and of the operations on one session, checked.


OUTPUT = {"execution_id": "x-1", "stream": "stderr", "text": "hm"}


@pytest.mark.parametrize(
    ("event", "data"),
    [
        ("session", samples.session_start(started_at="now")),
        ("output", OUTPUT | {"stream": "stdin"}),
        ("finished", samples.execution_end(displays=[5])),
        ("finished", samples.execution_end(displays=[{"data": {"a": 1}, "omitted": {}}])),
        ("finished", samples.execution_end(truncated={"stdout": 5})),
        ("finished", samples.execution_end(error="no")),
    ],
)
def test_entries_of_the_wrong_shape(event: str, data: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        transcripts.entry(event, data)
