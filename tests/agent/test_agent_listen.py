"""A listening socket of the session's own loopback, passed to the supervisor: `listen`."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from agent_process import AgentProcess
from sandbox.linux import c_library


def listening(agent: AgentProcess) -> tuple[dict[str, Any], socket.socket]:
    """The next `listening`, and the socket that comes along."""
    frame, descriptor = agent.expect_with_descriptor("listening")
    return frame, socket.socket(fileno=descriptor)


def ask(agent: AgentProcess, **fields: Any) -> None:
    # Any free port: this agent has no loopback of its own.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    agent.send(**{"type": "listen", "id": "l", "port": port, **fields})


def test_the_socket_takes_connections_outside_of_the_agent(agent: AgentProcess) -> None:
    ask(agent)
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
        ask(agent, port=taken.getsockname()[1])
        frame, listener = listening(agent)
        with listener:
            assert frame["port"] != taken.getsockname()[1]


def test_a_listener_comes_with_its_frame_behind_much_that_waits(agent: AgentProcess) -> None:
    """More than a socket holds is on its way when the descriptor is."""
    agent.send(type="interrupt", id="x" * 1_000_000)  # nothing of that id runs, which is answered
    ask(agent, variables={"WHERE": "at {port}"})
    agent.send(type="ping")
    frame, listener = listening(agent)
    listener.close()
    assert agent.python("import os; print(os.environ['WHERE'])").stdout == f"at {frame['port']}\n"


def test_variables_are_for_shells_that_run_and_for_those_to_come(agent: AgentProcess) -> None:
    agent.bash("kept=1")
    value = "it's '$kept' \"x\"\n\\"
    ask(agent, variables={"SAID": value})
    listening(agent)[1].close()
    assert agent.bash('printf %s "$kept$SAID"').stdout == "1" + value
    reply = agent.python("import os; print(os.environ['SAID'], end='')")
    assert (reply.stdout, reply.interpreter_restarted) == (value, False)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"id": None}, "listen needs an id"),
        ({"port": 0}, "port must be a whole number, 1 to 65535"),
        ({"port": 65536}, "port"),
        ({"port": "80"}, "port"),
        ({"port": True}, "port"),
        ({"variables": []}, "variables must have names"),
        ({"variables": {"A B": "x"}}, "variables"),
        ({"variables": {"A": 1}}, "variables"),
        ({"variables": {"A": "x\0y"}}, "variables"),
        ({"variables": {"A;touch x": "x"}}, "variables"),
    ],
)
def test_wrong_requests_are_answered(
    shared: AgentProcess, fields: dict[str, Any], words: str
) -> None:
    ask(shared, **fields)
    assert words in shared.expect("error")["message"]
    assert shared.python("print(1)").stdout == "1\n"


def test_the_c_library_is_looked_up_once() -> None:
    """Each look-up makes types that stay, and takes longer than what it is used for."""
    assert c_library() is c_library()
