"""Live forks of which a process is killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_clients import Task
from e2e_support import supervisor
from live_forks import (
    IN_BASH,
    IN_PYTHON,
    LIMITS,
    NONE,
    Code,
    children_of,
    command_of,
    helpers,
    needs_scopes,
    printed,
    wait_for_helpers,
)
from nsm.wire.errors import ForkRefusedError, NsmError, SessionEndedError
from soak.load import scaled

if TYPE_CHECKING:
    from e2e_support import Supervisor
    from nsm import Client

pytestmark = needs_scopes

LANGUAGES = pytest.mark.parametrize(
    "code",
    [
        pytest.param(IN_PYTHON, id="python"),
        pytest.param(IN_BASH, id="bash", marks=pytest.mark.slow),
    ],
)


def fork(it: Supervisor, target: str) -> list[str]:
    """Fork a session over another connection."""
    with it.client() as client:
        return [each.name for each in client.fork(target).forks]


@pytest.mark.slow
def test_nothing_is_left_of_a_helper(client: Client, shared: Supervisor) -> None:
    printed(client, "clean", "x = 1")
    client.fork("clean", "and-fork")
    wait_for_helpers(shared)
    client.kill_all()
    while any(
        b"forking.helper" in command_of(pid) for pid in shared.descendants() - helpers(shared)
    ):
        time.sleep(0.01)


def test_a_fork_server_that_ended_is_replaced(client: Client, shared: Supervisor) -> None:
    printed(client, "again", "x = 5")
    client.fork("again", "before")
    for pid in wait_for_helpers(shared):
        with contextlib.suppress(ProcessLookupError):  # those that wait end with the fork server
            os.kill(pid, signal.SIGKILL)
    client.fork("again", "after")
    for name in ("again", "before", "after"):
        assert printed(client, name, "print(x)") == "5\n"


@pytest.mark.parametrize("kills", [3, pytest.param(scaled(200), marks=pytest.mark.slow)])
@LANGUAGES
def test_helpers_that_are_killed(
    client: Client, shared: Supervisor, kills: int, code: Code
) -> None:
    """At some moment; the original goes on, and nothing is left over."""
    delays = random.Random(7)
    for number in range(kills):
        target = f"target-{number // 10}"  # as the kernel refuses the 16th fork of a session
        printed(client, target, code.sets, code.env)
        wait_for_helpers(shared)
        server = children_of(shared.pid)
        forking = Task(partial(fork, shared, target))
        time.sleep(delays.random() / 30)
        for pid in helpers(shared) - server:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        made: list[str] | Exception = forking.outcome()
        assert isinstance(made, list | ForkRefusedError), made
        assert printed(client, target, code.shows, code.env) == "5\n"
        assert printed(client, target, code.limits, code.env) == code.no_limits
        for each in made if isinstance(made, list) else ():
            assert printed(client, each, code.shows, code.env) == "5\n"
            client.kill(each)
        if number % 10 == 9:
            client.kill(target)
    assert len(client.sessions()) == (1 if kills % 10 else 0)


@pytest.mark.parametrize("victim", ["agent", "worker"])
@pytest.mark.parametrize("kills", [3, pytest.param(scaled(200), marks=pytest.mark.slow)])
@LANGUAGES
def test_originals_that_are_killed_while_they_are_forked(
    client: Client, shared: Supervisor, victim: str, kills: int, code: Code
) -> None:
    """At some moment; nothing is left over, the next session is as any, and others go on."""
    delays = random.Random(7)
    printed(client, "bystander", code.sets, code.env)
    for number in range(kills):
        target = f"victim-{number}"
        printed(client, target, code.sets, code.env)
        (agent,) = [row.pid for row in client.sessions() if row.name == target]
        assert agent, "it runs"
        (worker,) = children_of(agent)
        forking = Task(partial(fork, shared, target))
        time.sleep(delays.random() / 30)
        os.kill(agent if victim == "agent" else worker, signal.SIGKILL)
        assert isinstance(forking.outcome(), list | NsmError), forking.result
        wait_for_helpers(shared)
        with contextlib.suppress(SessionEndedError):  # if its end is not known yet
            printed(client, target, code.sets, code.env)
        printed(client, target, code.sets, code.env)
        for row in client.sessions():
            if row.name != "bystander":
                client.kill(row.id)
    assert [row.name for row in client.sessions()] == ["bystander"]
    assert printed(client, "bystander", code.shows, code.env) == "5\n"
    printed(client, "sound", code.sets, code.env)
    client.fork("sound", "copy")
    assert printed(client, "copy", code.shows, code.env) == "5\n"


def test_a_template_that_is_killed_while_its_session_is_forked(
    client: Client, shared: Supervisor
) -> None:
    """The original and its forks go on, and it can be forked again."""
    printed(client, "orphan", "x = 5")
    (agent,) = [row.pid for row in client.sessions()]
    status = Path(f"/proc/{agent}/status").read_text(encoding="utf-8")
    template = int(status.partition("PPid:")[2].split()[0])
    forking = Task(lambda: [name for _ in range(3) for name in fork(shared, "orphan")])
    os.kill(template, signal.SIGKILL)
    made: list[str] | Exception = forking.outcome()
    assert isinstance(made, list), made
    for name in ("orphan", *made):
        assert printed(client, name, "print(x)") == "5\n"


@pytest.mark.parametrize("kills", [1, pytest.param(scaled(40), marks=pytest.mark.slow)])
def test_supervisors_that_are_killed_while_they_fork(short_dir: Path, kills: int) -> None:
    """The original goes on; its forks that are there end with it, and are told why."""
    delays = random.Random(7)
    for number in range(kills):
        with supervisor(short_dir, keep=True) as it:
            with it.client() as client:
                printed(client, "target", "x = 5" if number == 0 else "print(x)")
                if number == 0:
                    client.fork("target", "leaf")
            # It is to start no supervisor in place of the one that is killed.
            other = nsm.Client(
                socket_path=it.socket, scope="test", autostart=False, reconnect=False
            )
            forking = Task(partial(other.fork, "target"))
            time.sleep(delays.random() / 30)
            it.kill()
            outcome = forking.outcome()
            assert isinstance(outcome, NsmError) or not isinstance(outcome, Exception), outcome
            other.close()
    with supervisor(short_dir) as it, it.client() as client:
        for name in ("target", "leaf"):
            assert printed(client, name, "print(x)") == "5\n"
            assert printed(client, name, LIMITS) == NONE
        client.kill("target")
        again = client.run("1", env="python", session="leaf")
        assert "of which it is a fork, ended (killed" in str(again.session.replaced)
