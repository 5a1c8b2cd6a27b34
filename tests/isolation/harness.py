"""How a probe is run: in the jail as it is, and in a throw-away one with a layer taken away.

A weakened jail keeps user, PID and IPC namespaces of its own and runs as the same unprivileged
host user, so that a probe that succeeds there reaches nothing but what the stage put there for it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import sandbox_agent
from nsmd.jail import BwrapLauncher, programcode
from nsmd.jail.arguments import JailContent
from nsmd.jail.launcher import Plan
from nsmd.settings import DEFAULT_JAIL_UID
from nsmd.values import Environment, Interpreter, ProjectMount
from realjail import (
    BWRAP,
    SIZES,
    jail_spec,
    launched,
    mount_of,
    open_directory,
    read_all,
    talking_to,
)

CANARY_VARIABLE = "NSM_TEST_CANARY"
CANARY = "canary-5f1c0ad7"

Arguments = list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What is on the host for probes to reach.

    Attributes:
        directory: a host directory that no jail is to show; `secret` lies in it.
        status: a file that looks like the status of a process that may gain privileges.
        project: shown at /project; the jails' user may write to it, on the host.
        socket_path, abstract_name, tcp_port: of listeners on the host.
        host_pid: a process whose arguments hold the canary.
    """

    directory: str
    secret: str
    status: str
    project: ProjectMount
    socket_path: str
    abstract_name: str
    tcp_port: int
    host_pid: int

    def facts(self) -> dict[str, object]:
        """What probes are told."""
        return {
            **dataclasses.asdict(self),
            "canary": CANARY,
            "sizes": {
                "/workspace": SIZES.workspace_mb << 20,
                "/tmp": SIZES.tmp_mb << 20,
                "/dev/shm": SIZES.shm_mb << 20,
            },
            "namespaces": {
                name: os.readlink(f"/proc/self/ns/{name}")
                for name in ("user", "pid", "ipc", "net", "mnt", "uts")
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakness:
    """One layer taken away from a throw-away jail.

    Attributes:
        arguments: bwrap's arguments without it.
        environment: given to bwrap, which should get none.
        on_command_line: bwrap's arguments are passed there.
        agent: makes of the agent's program one without it.
        inherits: a host path of which bwrap inherits a descriptor.
    """

    arguments: Callable[[Arguments, Stage], Arguments] = lambda words, _: words
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    on_command_line: bool = False
    agent: Callable[[bytes], bytes] | None = None
    inherits: Callable[[Stage], str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """An attempt to do what code in a jail must not be able to do.

    Attributes:
        finding: its number in the list of findings that decided the design; None for others.
        source: where the attack is described.
        place: `code` runs in a session like any code; `agent` takes the agent's place as PID 1.
        code: prints `HELD`, or `BROKEN: ` and what it could do. It finds `STAGE` defined.
        weakness: with which it must succeed.
    """

    name: str
    finding: int | None = None
    source: str
    interpreter: Interpreter = "python"
    place: Literal["code", "agent"] = "code"
    code: str
    weakness: Weakness


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


def program_of(probe: Probe, stage: Stage) -> str:
    """A probe's code with what it needs before it."""
    facts = json.dumps(stage.facts())
    match probe.interpreter:
        case "python":
            prelude = PYTHON_PRELUDE.format(facts=facts)
        case "node":
            prelude = NODE_PRELUDE.format(facts=facts)
        case "bash":
            prelude = BASH_PRELUDE.format(secret=stage.secret, port=stage.tcp_port)
    return prelude + probe.code


class WeakLauncher(BwrapLauncher):
    """The real launcher with one layer taken away."""

    def __init__(self, weakness: Weakness, stage: Stage, agent: bytes | None = None) -> None:
        if agent is None and weakness.agent is not None:
            agent = weakness.agent(programcode.source_of(sandbox_agent))
        super().__init__(BWRAP, DEFAULT_JAIL_UID, agent_source=agent)
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


async def run_probe(
    probe: Probe, stage: Stage, environment: Environment, weakness: Weakness | None = None
) -> str:
    """Run a probe in a jail of its own: the real one, or one with a weakness.

    Returns:
        Its verdict: `HELD`, or `BROKEN: ` and what it could do.
    """
    program = program_of(probe, stage)
    agent = program.encode() if probe.place == "agent" else None
    if weakness is None:
        launcher = BwrapLauncher(BWRAP, DEFAULT_JAIL_UID, agent_source=agent)
    else:
        launcher = WeakLauncher(weakness, stage, agent)
    async with launched(launcher, jail_spec(environment, stage.project)) as jail:
        if probe.place == "agent":
            output, errors = await read_all(jail), jail.stderr_text()
        else:
            async with talking_to(jail, environment.interpreter) as session:
                outcome = await session.run(program)
            output, errors = outcome.stdout, outcome.stderr
    words = output.strip()
    assert words == "HELD" or words.startswith("BROKEN: "), f"no verdict: {output!r} {errors}"
    return words


@contextmanager
def open_stage() -> Generator[Stage, None, None]:
    """Put on the host what probes try to reach."""
    with ExitStack() as stack:
        outside = stack.enter_context(open_directory())
        (outside / "secret").write_text(CANARY)
        (outside / "status").write_text("Name:\tpython3\nNoNewPrivs:\t0\n")
        project = outside / "project"
        project.mkdir()
        (project / "data").write_text("data")
        # The mount, and nothing else, is what keeps the jail from writing.
        project.chmod(0o777)
        (project / "data").chmod(0o666)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        path_socket = stack.enter_context(socket.socket(socket.AF_UNIX))
        path_socket.bind(str(outside / "socket"))
        path_socket.listen()
        os.chmod(outside / "socket", 0o777)
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract_name = f"nsm-test-{os.getpid()}"
        abstract.bind(f"\0{abstract_name}")
        abstract.listen()
        process = stack.enter_context(
            subprocess.Popen(
                ["/bin/sh", "-c", "read -r _", CANARY],
                stdin=subprocess.PIPE,
                env={CANARY_VARIABLE: CANARY},
            )
        )
        yield Stage(
            directory=str(outside),
            secret=str(outside / "secret"),
            status=str(outside / "status"),
            project=mount_of(project),
            socket_path=str(outside / "socket"),
            abstract_name=abstract_name,
            tcp_port=tcp.getsockname()[1],
            host_pid=process.pid,
        )


def without(*options: str) -> Callable[[Arguments, Stage], Arguments]:
    """Leave out options together with their values."""

    def change(words: Arguments, _: Stage) -> Arguments:
        kept: Arguments = []
        dropping = False
        for word in words:
            if word.startswith("--"):
                dropping = word in options
            if not dropping:
                kept.append(word)
        assert len(kept) < len(words), f"{options} were not there to be left out"
        return kept

    return change


def with_more(make: Callable[[Stage], Arguments]) -> Callable[[Arguments, Stage], Arguments]:
    """Add mounts, before the root is closed."""

    def change(words: Arguments, stage: Stage) -> Arguments:
        place = words.index("--remount-ro")
        return [*words[:place], *make(stage), *words[place:]]

    return change


def both(
    *changes: Callable[[Arguments, Stage], Arguments],
) -> Callable[[Arguments, Stage], Arguments]:
    """One change after the other."""

    def change(words: Arguments, stage: Stage) -> Arguments:
        for one in changes:
            words = one(words, stage)
        return words

    return change
