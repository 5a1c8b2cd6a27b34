"""Connections to ports of the session for a relay (`ports`), and sockets that listen (`listen`)."""

from __future__ import annotations

import errno
import select
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from agent_process import ANSWER_TIMEOUT_S, AgentProcess
from sandbox.linux import c_library

if TYPE_CHECKING:
    from collections.abc import Generator


def channel_of(agent: AgentProcess) -> socket.socket:
    """Ask for a channel, as a supervisor does for a relay."""
    agent.send(type="ports", id="p")
    frame, descriptor = agent.expect_with_descriptor("ports")
    assert frame["id"] == "p"
    channel = socket.socket(fileno=descriptor)
    channel.settimeout(ANSWER_TIMEOUT_S)
    assert (channel.family, channel.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return channel


def ask(channel: socket.socket, number: int, port: int) -> None:
    channel.send(number.to_bytes(8, "big") + port.to_bytes(2, "big"))


def answer(channel: socket.socket) -> tuple[int, int, list[socket.socket]]:
    """The next answer: number, error, connections."""
    data, fds, _, _ = socket.recv_fds(channel, 64, 8)
    assert len(data) == 12
    connections = [socket.socket(fileno=fd) for fd in fds]
    return int.from_bytes(data[:8], "big"), int.from_bytes(data[8:], "big"), connections


@pytest.fixture
def channel(agent: AgentProcess) -> Generator[socket.socket]:
    with channel_of(agent) as found:
        yield found


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_a_connection_to_either_loopback(
    channel: socket.socket, family: socket.AddressFamily, address: str
) -> None:
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        ask(channel, 7, port)
        number, error, (connection,) = answer(channel)
        accepted, _ = server.accept()
        with accepted, connection:
            assert (number, error) == (7, 0)
            assert connection.getpeername()[:2] == (address, port)
            accepted.send(b"hello")
            select.select([connection], [], [], ANSWER_TIMEOUT_S)
            assert connection.recv(9) == b"hello"


def test_nobody_listens(channel: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ask(channel, 1, port)
    assert answer(channel) == (1, errno.ECONNREFUSED, [])


def test_many_at_once_while_code_runs(agent: AgentProcess) -> None:
    busy = agent.begin("import time\nwhile True: pass", timeout_s=60, stream=True)
    with channel_of(agent) as channel, socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        for number in range(50):
            ask(channel, number, server.getsockname()[1])
        answers = [answer(channel) for _ in range(50)]
        assert {number for number, error, _ in answers if not error} == set(range(50))
        for _, _, connections in answers:
            assert len(connections) == 1
            connections[0].close()
    agent.send(type="interrupt", id=busy)
    assert agent.result(busy).interrupted


@pytest.mark.slow
def test_a_backlog_that_is_full_blocks_nobody(agent: AgentProcess) -> None:
    """A program that listens and never accepts: connections to it are given up in time."""
    with channel_of(agent) as channel, socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        made: list[socket.socket] = []
        for number in range(3):
            ask(channel, number, server.getsockname()[1])
        assert agent.python("print(1)").stdout == "1\n"
        for _ in range(3):
            _, error, connections = answer(channel)
            made += connections
            assert error in {0, errno.ETIMEDOUT}, "a program does listen"
        for connection in made:
            connection.close()


def test_several_channels_work_and_too_many_replace_the_oldest(agent: AgentProcess) -> None:
    with ExitStack() as stack:
        channels = [stack.enter_context(channel_of(agent)) for _ in range(8)]
        for channel in channels:
            ask(channel, 1, 1)
        for channel in channels:
            assert answer(channel)[:2] == (1, errno.ECONNREFUSED)
        last = stack.enter_context(channel_of(agent))
        assert channels[0].recv(1) == b""
        for channel in (channels[1], last):
            ask(channel, 2, 1)
            assert answer(channel)[:2] == (2, errno.ECONNREFUSED)


def test_a_relay_that_ends_leaves_the_agent_as_it_was(agent: AgentProcess) -> None:
    channel_of(agent).close()
    assert agent.python("print(1)").stdout == "1\n"
    with channel_of(agent) as channel:
        ask(channel, 1, 1)
        assert answer(channel)[0] == 1


# A listening socket of the session's own loopback, passed to the supervisor: `listen`.


def listening(agent: AgentProcess) -> tuple[dict[str, Any], socket.socket]:
    """The next `listening`, and the socket that comes along."""
    frame, descriptor = agent.expect_with_descriptor("listening")
    return frame, socket.socket(fileno=descriptor)


def ask_for_a_listener(agent: AgentProcess, **fields: Any) -> None:
    # Any free port: this agent has no loopback of its own.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    agent.send(**{"type": "listen", "id": "l", "port": port, **fields})


def test_the_socket_takes_connections_outside_of_the_agent(agent: AgentProcess) -> None:
    ask_for_a_listener(agent)
    frame, listener = listening(agent)
    with listener, socket.create_connection(("127.0.0.1", frame["port"])):
        assert frame["id"] == "l"
        assert listener.getsockname() == ("127.0.0.1", frame["port"])
        connection, _ = listener.accept()
        connection.close()
    # The agent has kept none: once ours is closed, nobody listens.
    agent.send(type="ping")
    agent.expect("pong")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", frame["port"]))


def test_a_port_that_is_taken_is_left(agent: AgentProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ask_for_a_listener(agent, port=taken.getsockname()[1])
        frame, listener = listening(agent)
        with listener:
            assert frame["port"] != taken.getsockname()[1]


def test_a_listener_comes_with_its_frame_behind_much_that_waits(agent: AgentProcess) -> None:
    """More than a socket holds is on its way when the descriptor is."""
    agent.send(type="interrupt", id="x" * 1_000_000)  # nothing of that id runs, which is answered
    ask_for_a_listener(agent, variables={"WHERE": "at {port}"})
    agent.send(type="ping")
    frame, listener = listening(agent)
    listener.close()
    assert agent.python("import os; print(os.environ['WHERE'])").stdout == f"at {frame['port']}\n"


def test_variables_are_for_shells_that_run_and_for_those_to_come(agent: AgentProcess) -> None:
    agent.bash("kept=1")
    value = "it's '$kept' \"x\"\n\\"
    ask_for_a_listener(agent, variables={"SAID": value})
    listening(agent)[1].close()
    assert agent.bash('printf %s "$kept$SAID"').stdout == "1" + value
    reply = agent.python("import os; print(os.environ['SAID'], end='')")
    assert (reply.stdout, reply.interpreter_restarted) == (value, False)


def test_the_c_library_is_looked_up_once() -> None:
    """Each look-up makes types that stay, and takes longer than what it is used for."""
    assert c_library() is c_library()
