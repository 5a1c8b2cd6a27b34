"""Sessions in real jails for tests, without the supervisor around them."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

from nsmd.agent_link.frames import ErrorFrame, ResultFrame, RunnerFrame
from nsmd.agent_link.link import AgentLink
from nsmd.environments.host_presets import find_environments
from nsmd.jail import BwrapLauncher, Jail, Launcher, find_bwrap
from nsmd.model.settings import DEFAULT_JAIL_UID, Settings
from nsmd.model.values import (
    Environment,
    Interpreter,
    JailSizes,
    JailSpec,
    Outcome,
    ProjectMode,
    ProjectMount,
    SessionLimits,
)

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Interpreters that every user may run; those of the tests' own environment may be closed."""

SIZES = JailSizes(workspace_mb=24, tmp_mb=12, shm_mb=6)

ANSWER_TIMEOUT_S = 60.0
"""Time limit for one execution, on a machine that runs everything at once."""

BWRAP = find_bwrap(SYSTEM_PATH)

needs_bwrap = pytest.mark.skipif(
    BWRAP is None, reason="bubblewrap is missing: `make setup` installs it"
)


def new_launcher(limits: SessionLimits | None = None) -> BwrapLauncher:
    """The launcher as the supervisor has it."""
    return BwrapLauncher(BWRAP, DEFAULT_JAIL_UID, limits=limits)


@asynccontextmanager
async def open_cold(home: str = "/homeless") -> AsyncGenerator[BwrapLauncher]:
    """The launcher as the supervisor has it, with environments that Nix built."""
    launcher = new_launcher()
    async with launcher.open_artifacts(home):
        yield launcher


def environments() -> dict[str, Environment]:
    """The host's environments by name."""
    return {e.name: e for e in find_environments(Settings(), SYSTEM_PATH)}


def jail_spec(environment: Environment, project: ProjectMount | None = None) -> JailSpec:
    """A small jail."""
    assert environment.problem is None, environment.problem
    return JailSpec(environment=environment, project=project, sizes=SIZES)


@contextmanager
def open_directory(parent: str = "/tmp") -> Generator[Path, None, None]:
    """A directory that the jails' user may enter even where pytest's own is root's alone."""
    with tempfile.TemporaryDirectory(prefix="nsm-test-", dir=parent) as name:
        os.chmod(name, 0o755)
        yield Path(name)


def mount_of(
    directory: Path, mount_point: str = "/project", mode: ProjectMode = "readonly"
) -> ProjectMount:
    """A directory as a project, unchecked."""
    found = directory.stat()
    return ProjectMount(
        path=str(directory),
        mount_point=mount_point,
        device=found.st_dev,
        inode=found.st_ino,
        mode=mode,
    )


def is_fork(jail: Jail) -> bool:
    """Return whether a session is a fork of a template: nothing but that has made its PID 1."""
    return not jail.starter_pid


class LiveSession:
    """A jail with an agent that answers."""

    def __init__(self, jail: Jail, link: AgentLink, interpreter: Interpreter) -> None:
        self.jail = jail
        self._link = link
        self._interpreter: Interpreter = interpreter
        self._executions = 0

    async def run(
        self,
        code: str,
        interpreter: Interpreter | None = None,
        *,
        undo: int = 0,
        timeout_s: float = ANSWER_TIMEOUT_S / 2,
    ) -> Outcome:
        """Run code to its end, or undo so many calls."""
        self._executions += 1
        request = {
            "type": "execute",
            "id": str(self._executions),
            "interpreter": interpreter or self._interpreter,
            "code": code,
            "timeout_s": timeout_s,
            "grace_s": 2.0,
            **({"undo": undo} if undo else {}),
        }
        self._link.post(request)
        with trio.fail_after(ANSWER_TIMEOUT_S):
            while True:
                frame = await self._link.receive()
                if isinstance(frame, ResultFrame) and frame.id == request["id"]:
                    return frame.outcome
                assert not isinstance(frame, ErrorFrame), frame

    @asynccontextmanager
    async def runner(self) -> AsyncGenerator[LiveSession, None]:
        """Start a runner, which gives each piece of code a fresh interpreter."""
        self._link.post({"type": "runner", "id": "runner", "interpreter": self._interpreter})
        with trio.fail_after(ANSWER_TIMEOUT_S):
            while not isinstance(frame := await self._link.receive(), RunnerFrame):
                assert not isinstance(frame, ErrorFrame), frame
        descriptor = self._link.claim_descriptor("runner")
        assert descriptor is not None
        with socket.socket(fileno=descriptor) as channel:
            channel.setblocking(False)
            async with trio.open_nursery() as nursery:
                link = AgentLink(channel, nursery)
                yield LiveSession(self.jail, link, self._interpreter)
                link.close()


@asynccontextmanager
async def talking_to(
    jail: Jail, interpreter: Interpreter, limits: Mapping[str, int] | None = None
) -> AsyncGenerator[LiveSession, None]:
    """Shake hands with the agent of a jail; the jail itself is the caller's."""
    async with trio.open_nursery() as nursery:
        link = AgentLink(jail.socket, nursery)
        with trio.fail_after(ANSWER_TIMEOUT_S):
            await link.handshake(limits or {})
        yield LiveSession(jail, link, interpreter)
        link.close()


@asynccontextmanager
async def launched(launcher: Launcher, spec: JailSpec) -> AsyncGenerator[Jail, None]:
    """A jail that is gone at the end of the block."""
    jail = await launcher.launch(spec)
    try:
        yield jail
    finally:
        jail.kill()
        with trio.CancelScope(shield=True):
            await jail.wait()
        jail.release()


@asynccontextmanager
async def open_session(
    environment: Environment,
    project: ProjectMount | None = None,
    *,
    launcher: Launcher | None = None,
) -> AsyncGenerator[LiveSession, None]:
    """A session in a jail of its own, gone at the end of the block."""
    spec = jail_spec(environment, project)
    async with (
        launched(launcher or new_launcher(), spec) as jail,
        talking_to(jail, environment.interpreter) as session,
    ):
        yield session


STAY = """
import socket, sys
sys.stdout.flush()
with socket.socket(fileno=0) as channel:
    channel.shutdown(socket.SHUT_WR)
    channel.recv(1)
"""
"""The end of a program in the agent's place: it has written everything, and stays until its jail is
ended. One that ends at once may be gone before the launcher has taken hold of it."""


async def read_all(jail: Jail) -> str:
    """Read the output of the program in the agent's place until it ends or reaches `STAY`."""
    text = b""
    with trio.fail_after(ANSWER_TIMEOUT_S):
        while True:
            await trio.lowlevel.wait_readable(jail.socket)
            try:
                piece = jail.socket.recv(65536)
            except ConnectionResetError:
                piece = b""
            if not piece:
                return text.decode(errors="replace")
            text += piece
