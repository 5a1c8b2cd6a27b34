"""Runners of programs, as a supervisor asks for them and ends them."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from agent_process import ANSWER_TIMEOUT_S

if TYPE_CHECKING:
    from agent_process import AgentProcess


def runner_of(agent: AgentProcess, name: str) -> socket.socket:
    """Start a runner, and wait until it can run programs."""
    agent.send(type="runner", id=name, interpreter="python")
    _, descriptor = agent.expect_with_descriptor("runner")
    channel = socket.socket(fileno=descriptor)
    channel.settimeout(ANSWER_TIMEOUT_S)
    assert b'"ready"' in channel.recv(65536)
    return channel


def test_a_runner_is_killed_on_demand_and_its_directory_goes(agent: AgentProcess) -> None:
    top = agent.workspace / ".fresh"
    with runner_of(agent, "first") as first:
        (top / os.listdir(top)[0] / "file").touch()
        agent.send(type="runner_end", runner="first")
        assert first.recv(1) == b""
        with runner_of(agent, "second"):
            assert [name.partition("-")[0] for name in os.listdir(top)] == ["second"]
