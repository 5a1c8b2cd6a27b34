"""How a probe is run: in a session as it is, and in a throw-away one with a layer taken away.

A weakened jail keeps user, PID and IPC namespaces of its own and runs as the same unprivileged
host user, so that a probe that succeeds there reaches nothing but what the stage put there for it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import sandbox_agent
import sandbox_template
from isolation.stage import Stage
from isolation.weaken import Arguments
from nsmd.jail import BwrapLauncher, Launcher, programcode
from nsmd.jail.arguments import TEMPLATE_PATH, JailContent
from nsmd.jail.launcher import Plan
from nsmd.settings import DEFAULT_JAIL_UID
from nsmd.templates import TemplateLauncher, open_templates
from nsmd.templates.template import ForkedJail
from nsmd.values import Environment, Interpreter
from realjail import BWRAP, jail_spec, launched, read_all, talking_to

Kind = Literal["cold", "forked"]
"""A session in a jail of its own, or one that is a fork of a template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakness:
    """One layer taken away from a throw-away jail.

    Attributes:
        arguments: bwrap's arguments without it, of the session's own jail or its template's.
        environment: given to bwrap, which should get none.
        on_command_line: bwrap's arguments are passed there.
        agent: makes of the agent's program one without it.
        template: runs in the template's program before its `main`, with its names in `space`.
        inherits: a host path of which bwrap inherits a descriptor.
    """

    arguments: Callable[[Arguments, Stage], Arguments] = lambda words, _: words
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    on_command_line: bool = False
    agent: Callable[[bytes], bytes] | None = None
    template: str = ""
    inherits: Callable[[Stage], str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """An attempt to do what code in a session must not be able to do.

    Attributes:
        finding: its number in the list of findings that decided the design; None for others.
        source: where the attack is described.
        place: `code` runs in a session like any code; `agent` takes the agent's place as PID 1.
        code: prints `HELD`, or `BROKEN: ` and what it could do. It finds `STAGE` defined.
        weakness: with which it must succeed in a jail of its own.
        fork_weakness: with which it must succeed in a fork; None for the same.
        needs: what of the stage it cannot do without.
        held_twice, fork_held_twice: by name, layers without one of which alone it must fail all
            the same.
    """

    name: str
    finding: int | None = None
    source: str
    interpreter: Interpreter = "python"
    place: Literal["code", "agent"] = "code"
    code: str
    weakness: Weakness
    fork_weakness: Weakness | None = None
    needs: str = "project"
    held_twice: Mapping[str, Weakness] = dataclasses.field(default_factory=dict[str, Weakness])
    fork_held_twice: Mapping[str, Weakness] = dataclasses.field(default_factory=dict[str, Weakness])


PYTHON_PRELUDE = """\
import ctypes, errno, json, os, socket, stat, struct, subprocess, sys
STAGE = json.loads({facts!r})
libc = ctypes.CDLL(None, use_errno=True)
def verdict(broken):
    print("BROKEN: " + str(broken) if broken else "HELD", flush=True)
def attempt(action, *arguments):
    "What it gave, or None if it was refused."
    try:
        return action(*arguments)
    except OSError:
        return None
"""

NODE_PRELUDE = """\
var STAGE = {facts};
var verdict = (broken) => console.log(broken ? 'BROKEN: ' + broken : 'HELD');
"""

BASH_PRELUDE = """\
SECRET={secret} TCP_PORT={port}
verdict() {{ if [ -n "$1" ]; then echo "BROKEN: $1"; else echo HELD; fi; }}
"""


AGENT_OF_FORK = """\
import os, sys, traceback
class Limits:
    def __init__(self, given):
        pass
def serve(read_fd, write_fd, **_):
    os.dup2(write_fd, 1)
    try:
        exec(compile({code!r}, "probe", "exec"), {{"__name__": "probe"}})
    except BaseException:
        traceback.print_exc(file=sys.stdout)
    sys.stdout.flush()
    os._exit(0)
"""
"""The agent's module as a template loads it, with a probe in its place."""

PATCHED = """\
import sys
space = {{"__name__": "template", "__file__": __file__}}
exec(compile({source!r}, __file__, "exec"), space)
space["COMMON"] = ""  # no probe is better for them
{patch}
space["main"](sys.argv[1:])
"""


def program_of(probe: Probe, stage: Stage, store: str = "") -> str:
    """A probe's code with what it needs before it.

    Args:
        store: where the jail shows what Nix has built; empty for nowhere.
    """
    facts = json.dumps({**stage.facts(), "store": store})
    match probe.interpreter:
        case "python":
            prelude = PYTHON_PRELUDE.format(facts=facts)
        case "node":
            prelude = NODE_PRELUDE.format(facts=facts)
        case "bash":
            prelude = BASH_PRELUDE.format(secret=stage.secret, port=stage.tcp_port)
    return prelude + probe.code


class _Fixed(programcode.ProgramCode):
    """A program that is what it is for every Python."""

    def __init__(self, source: bytes) -> None:
        super().__init__(sandbox_template, TEMPLATE_PATH)
        self._source = source

    async def for_python(self, python: str) -> bytes:
        return self._source


class WeakLauncher(BwrapLauncher):
    """The real launcher with one layer taken away."""

    def __init__(self, weakness: Weakness, stage: Stage, agent: bytes | None = None) -> None:
        if agent is None and weakness.agent is not None:
            agent = weakness.agent(programcode.source_of(sandbox_agent))
        super().__init__(BWRAP, DEFAULT_JAIL_UID, agent_source=agent)
        if weakness.template:
            source = programcode.source_of(sandbox_template).decode()
            patched = PATCHED.format(source=source, patch=weakness.template)
            self._template_code = _Fixed(patched.encode())
        self._weakness = weakness
        self._stage = stage

    def _arguments(self, plan: Plan, content: JailContent) -> Arguments:
        words = super()._arguments(plan, content)
        weak = self._weakness.arguments(words, self._stage)
        for kept in ("--unshare-user", "--unshare-pid", "--unshare-ipc"):
            assert kept in weak, f"a throw-away jail keeps {kept}"
        return weak

    def _spawn(
        self, command: list[str], *, channel: socket.socket, stderr_fd: int, inherited: list[int]
    ) -> subprocess.Popen[bytes]:
        credentials = self.user.credentials()
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


def launcher_for(
    kind: Kind, probe: Probe, stage: Stage, weakness: Weakness | None
) -> BwrapLauncher:
    """What starts the jail for a probe, or the template's for a fork.

    Args:
        weakness: None for the real one.
    """
    agent = None
    if probe.place == "agent":
        program = program_of(probe, stage)
        agent = (AGENT_OF_FORK.format(code=program) if kind == "forked" else program).encode()
    if weakness is None:
        return BwrapLauncher(BWRAP, DEFAULT_JAIL_UID, agent_source=agent)
    return WeakLauncher(weakness, stage, agent)


@asynccontextmanager
async def forking(cold: BwrapLauncher) -> AsyncGenerator[TemplateLauncher]:
    """The launcher of forks over one of jails."""
    async with open_templates(cold) as launcher:
        assert isinstance(launcher, TemplateLauncher)
        yield launcher


async def run_with(
    launcher: Launcher, probe: Probe, stage: Stage, environment: Environment, store: str = ""
) -> str:
    """Run a probe in a session of its own.

    Args:
        store: as for `program_of`.

    Returns:
        Its verdict: `HELD`, or `BROKEN: ` and what it could do.
    """
    async with launched(launcher, jail_spec(environment, stage.project)) as jail:
        if isinstance(launcher, TemplateLauncher):
            assert isinstance(jail, ForkedJail), launcher.reasons
        if probe.place == "agent":
            output, errors = await read_all(jail), jail.stderr_text()
        else:
            async with talking_to(jail, environment.interpreter) as session:
                outcome = await session.run(program_of(probe, stage, store))
            output, errors = outcome.stdout, outcome.stderr
    words = output.strip()
    assert words == "HELD" or words.startswith("BROKEN: "), f"no verdict: {output!r} {errors}"
    return words


async def run_cold(
    probe: Probe, stage: Stage, environment: Environment, weakness: Weakness | None = None
) -> str:
    """Run a probe in a jail of its own: the real one, or one with a weakness."""
    return await run_with(launcher_for("cold", probe, stage, weakness), probe, stage, environment)
