"""Launchers of throw-away jails with a layer taken away."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager

import pytest

from isolation.probe import Kind
from isolation.stage import Stage
from isolation.weaken import Arguments, Weakness
from nsmd.jail import BwrapLauncher, Launcher, program_code
from nsmd.jail.arguments import TEMPLATE_PATH, JailContent
from nsmd.jail.launcher import JailPlan
from nsmd.jail.templates import TemplateLauncher, open_templates
from nsmd.jail.user import JailUser
from nsmd.model.settings import DEFAULT_JAIL_UID
from nsmd.model.values import Interpreter, ProjectMount, ReadOnlyBind
from realjail import BWRAP, LiveSession, environments, jail_spec, launched, new_launcher, talking_to

_PATCHED = """\
import importlib.util, marshal, sys
program, magic = {program!r}, importlib.util.MAGIC_NUMBER
compiled = program[:len(magic)] == magic
space = {{"__name__": "template", "__file__": __file__}}
exec(marshal.loads(program[16:]) if compiled else compile(program, __file__, "exec"), space)
space["COMMON"] = ""  # no probe is better for them
{patch}
space["main"](sys.argv[1:])
"""


class _Patched(program_code.ProgramCode):
    """The template's program, with something that runs before its `main`."""

    def __init__(self, patch: str) -> None:
        super().__init__("sandbox_template", TEMPLATE_PATH)
        self._patch = patch

    async def for_python(self, path: str, binds: Sequence[ReadOnlyBind] = ()) -> bytes:
        program = await super().for_python(path, binds)
        return _PATCHED.format(program=program, patch=self._patch).encode()


class WeakLauncher(BwrapLauncher):
    """The real launcher with one layer taken away."""

    def __init__(self, weakness: Weakness, stage: Stage, agent: bytes | None = None) -> None:
        if agent is None and weakness.agent is not None:
            agent = weakness.agent(program_code.source_of("sandbox_agent"))
        super().__init__(BWRAP, DEFAULT_JAIL_UID, agent_source=agent)
        if weakness.template:
            self._template_code = _Patched(weakness.template)
        if weakness.system_calls is not None:
            assert self.system_calls is not None
            self.system_calls = weakness.system_calls(self.system_calls)
        self._weakness = weakness
        self._stage = stage

    def _arguments(self, plan: JailPlan, content: JailContent) -> Arguments:
        words = super()._arguments(plan, content)
        weak = self._weakness.arguments(words, self._stage)
        for kept in ("--unshare-user", "--unshare-pid", "--unshare-ipc"):
            assert kept in weak, f"a throw-away jail keeps {kept}"
        return weak

    def _spawn(
        self,
        command: list[str],
        *,
        user: JailUser | None,
        channel: socket.socket,
        stderr_fd: int,
        inherited: list[int],
    ) -> subprocess.Popen[bytes]:
        assert user is not None, "no throw-away jail copies its project"
        credentials = user.credentials()
        with ExitStack() as stack:
            if self._weakness.inherits is not None:
                extra = os.open(self._weakness.inherits(self._stage), os.O_RDONLY)
                stack.callback(os.close, extra)
                inherited = [*inherited, extra]
            if self._weakness.on_command_line:
                separator = command.index("--")
                words = os.pread(int(command[separator - 1]), 1 << 20, 0).decode().split("\0")[:-1]
                command = [command[0], *words, *command[separator:]]
            return subprocess.Popen(
                command,
                stdin=channel.fileno(),
                stdout=channel.fileno(),
                stderr=stderr_fd,
                pass_fds=inherited,
                cwd="/",
                env=dict(self._weakness.environment),
                start_new_session=True,
                user=credentials.user,
                group=credentials.group,
                extra_groups=credentials.extra_groups,
            )


@asynccontextmanager
async def forking(cold: BwrapLauncher) -> AsyncGenerator[TemplateLauncher]:
    """The launcher of forks over one of jails."""
    async with open_templates(cold) as launcher:
        assert isinstance(launcher, TemplateLauncher)
        yield launcher


BOTH_KINDS = pytest.mark.parametrize("kind", ["cold", "forked"])


@asynccontextmanager
async def launcher_of(kind: Kind) -> AsyncGenerator[Launcher]:
    """The launcher of one kind of session."""
    if kind == "cold":
        yield new_launcher()
        return
    async with forking(new_launcher()) as launcher:
        yield launcher
        assert launcher.reasons == {}


@asynccontextmanager
async def session_of(
    kind: Kind, interpreter: Interpreter, project: ProjectMount | None = None
) -> AsyncGenerator[LiveSession]:
    """A session of one kind, in the preset of an interpreter."""
    spec = jail_spec(environments()[interpreter], project)
    async with (
        launcher_of(kind) as launcher,
        launched(launcher, spec) as jail,
        talking_to(jail, interpreter) as session,
    ):
        yield session


async def said(
    kind: Kind, interpreter: Interpreter, code: str, project: ProjectMount | None = None
) -> str:
    """All that code prints in a session of one kind."""
    async with session_of(kind, interpreter, project) as session:
        outcome = await session.run(code)
    return outcome.stdout + outcome.stderr
