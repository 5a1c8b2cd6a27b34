"""Sessions that nobody used for 15 s and for 70 s still answer.

A parent-death signal once ended every session after ten idle seconds, and no short test saw it. The
sessions are made by the first test of a run and used by the last one, so that the time between is
spent on the other tests and not on waiting.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import trio

import nsm
from e2e_support import run, variables_for

pytestmark = pytest.mark.node

if TYPE_CHECKING:
    from collections.abc import Generator

CODE = {"python": ("x = 42", "print(x)"), "bash": ("x=42", "echo $x"), "node": ("let x = 42", "x")}


class Idle(NamedTuple):
    """A supervisor whose sessions, named like environments, were last used at `since_s`."""

    socket_path: str
    since_s: float

    def client(self) -> nsm.Client:
        return nsm.Client(socket_path=self.socket_path, autostart=False)


@pytest.fixture(scope="session")
def idle() -> Generator[Idle]:
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        variables = variables_for(Path(path))
        # Started by a program that ends, as it is for most people: it must not be a child of the
        # test run, whose other tests see to it that they leave no child.
        started = run("nsm", "envs", variables=variables)
        assert started.returncode == 0, started.stderr
        it = Idle(variables["NSM_SOCKET"], time.monotonic())
        try:
            with it.client() as client:
                for env, (first, _) in CODE.items():
                    for seconds in (15, 70):
                        client.run(first, env=env, session=f"{env}-{seconds}")
            yield it._replace(since_s=time.monotonic())
        finally:
            ended = run("nsm", "shutdown", variables=variables)
            assert ended.returncode == 0, ended.stderr


@pytest.mark.run_first
def test_sessions_are_made_and_left_alone(idle: Idle) -> None:
    with idle.client() as client:
        assert {row.state for row in client.sessions()} == {"idle"}


@pytest.mark.run_last
@pytest.mark.parametrize("seconds", [15, 70])
def test_they_answer(idle: Idle, seconds: float) -> None:
    trio.run(trio.sleep, max(0.0, idle.since_s + seconds - time.monotonic()))
    with idle.client() as client:
        for env, (_, second) in CODE.items():
            result = client.run(second, env=env, session=f"{env}-{seconds}")
            assert not result.session.created
            assert "42" in (result.stdout or str(result.displays))
