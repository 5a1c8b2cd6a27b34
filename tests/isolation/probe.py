"""Probes as values, and the program that they make."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from isolation.stage import Stage
from isolation.weaken import Weakness
from nsm.jail.seccomp import syscalls
from nsmd.model.values import Interpreter
from realjail import STAY

Kind = Literal["cold", "forked"]
"""A session in a jail of its own, or one that is a fork of a template."""

Language = Literal["python", "bash", "node", "c"]
"""`c` is the C library and bare system calls, through ctypes."""

Group = Literal[
    "files",
    "project",
    "names",
    "processes",
    "agent",
    "environment",
    "descriptors",
    "supervisor",
    "network",
    "namespaces",
    "privileges",
    "kernel",
    "devices",
    "resources",
]
"""Groups of probes, as on the page of probes."""

GROUPS: tuple[Group, ...] = get_args(Group)

NUMBERS: Mapping[str, int] = {"x86_64": syscalls.X86_64, "aarch64": syscalls.AARCH64}.get(
    platform.machine(), {}
)
"""Numbers of system calls, by name; empty for a machine without a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """An attempt to do what code in a session must not be able to do.

    Attributes:
        group: of attacks, as on the page of probes.
        source: where the attack is described.
        place: `code` runs in a session like any code; `agent` takes the agent's place as PID 1.
        code: calls `verdict` with what it could do, or with nothing; `not_here` where the kernel
            has nothing to attack. It finds `STAGE` defined. Several run one after the other in one
            session, where each sees what those before it have left.
        weakness: with which it must succeed in a jail of its own.
        fork_weakness: with which it must succeed in a fork; None for the same.
        needs: what of the stage it cannot do without.
        filtered: whether nothing but the filter of system calls holds it.
        spoils: whether its session is of no use to others afterwards, so that it has its own.
        held_twice, fork_held_twice: by name, layers without one of which alone it must fail all
            the same.
    """

    name: str
    group: Group
    source: str
    language: Language = "python"
    place: Literal["code", "agent"] = "code"
    code: str
    weakness: Weakness
    fork_weakness: Weakness | None = None
    needs: str = "project"
    filtered: bool = False
    spoils: bool = False
    held_twice: Mapping[str, Weakness] = dataclasses.field(default_factory=dict[str, Weakness])
    fork_held_twice: Mapping[str, Weakness] = dataclasses.field(default_factory=dict[str, Weakness])

    @property
    def interpreter(self) -> Interpreter:
        """Interpreter that runs it."""
        return "python" if self.language == "c" else self.language

    def weakness_of(self, kind: Kind) -> Weakness:
        """Weakness with which the probe must succeed in that kind of session."""
        return self.fork_weakness or self.weakness if kind == "forked" else self.weakness

    def layers(self, kind: Kind) -> Mapping[str, Weakness]:
        """Layers without one of which alone it must fail all the same, by name."""
        return self.fork_held_twice if kind == "forked" else self.held_twice


_PYTHON = """\
import ctypes, errno, json, os, signal, socket, stat, struct, subprocess, sys
STAGE = json.loads({facts!r})
libc = ctypes.CDLL(None, use_errno=True)
def verdict(broken):
    print("BROKEN: " + str(broken) if broken else "HELD", flush=True)
def not_here(what):
    print("NOT HERE: " + what, flush=True)
def attempt(action, *arguments):
    "What it gave, or None if it was refused."
    try:
        return action(*arguments)
    except OSError:
        return None
def child(action, *arguments):
    "Whether it was not refused, to a process of its own, which nothing else has a use for."
    pid = os.fork()
    if pid == 0:
        try:
            action(*arguments)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0
"""

_C = """\
SYS = json.loads({numbers!r})
def call(name, *arguments):
    "A system call by number or name, or what the C library has of that name."
    words = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    if isinstance(name, int) or name in SYS:
        result = libc.syscall(ctypes.c_long(SYS.get(name, name)), *words)
    else:
        result = getattr(libc, name)(*words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
libc.syscall.restype = ctypes.c_long
"""

_NODE = """\
var STAGE = {facts};
var verdict = (broken) => console.log(broken ? 'BROKEN: ' + broken : 'HELD');
"""

_BASH = """\
SECRET={secret} TCP_PORT={port} PROJECT={project} SOCKET={socket} ABSTRACT={abstract}
verdict() {{ if [ -n "$1" ]; then echo "BROKEN: $1"; else echo HELD; fi; }}
not_here() {{ echo "NOT HERE: $1"; }}
"""


def program_of(probe: Probe, stage: Stage, store: str = "") -> str:
    """A probe's code with what it needs before it.

    Args:
        store: where the jail shows what Nix has built; empty for nowhere.
    """
    facts = json.dumps({**stage.facts(), "store": store})
    match probe.language:
        case "python":
            prelude = _PYTHON.format(facts=facts)
        case "c":
            prelude = _PYTHON.format(facts=facts) + _C.format(numbers=json.dumps(NUMBERS))
        case "node":
            prelude = _NODE.format(facts=facts)
        case "bash":
            prelude = _BASH.format(
                secret=stage.secret,
                port=stage.tcp_port,
                project=stage.project.path,
                socket=stage.socket_path,
                abstract=stage.abstract_name,
            )
    if probe.interpreter == "python":
        # In a namespace that is gone afterwards, and with it the files and sockets in it.
        return f"{prelude}exec(compile({probe.code!r}, {probe.name!r}, 'exec'), {{**globals()}})\n"
    return prelude + probe.code


def verdict_of(output: str, errors: str = "") -> str:
    """Read the verdict that a probe printed.

    Args:
        errors: for people, if it printed something else.

    Returns:
        `HELD`; `BROKEN: ` and what it could do; or `NOT HERE: ` and why it is no attack.
    """
    words = output.strip()
    assert words == "HELD" or words.startswith(("BROKEN: ", "NOT HERE: ")), (
        f"no verdict: {output!r} {errors}"
    )
    return words


_AGENTS = """\
import contextlib, io, json, traceback
def probe_all():
    told = {{}}
    for name, code in {programs!r}.items():
        with io.StringIO() as output:
            with contextlib.redirect_stdout(output):
                try:
                    exec(compile(code, name, "exec"), {{"__name__": "probe"}})
                except BaseException:
                    traceback.print_exc(file=output)
            told[name] = output.getvalue()
    return json.dumps(told)
"""

_PRINTED = """\
print(probe_all(), flush=True)
"""

_IN_FORK = """\
import os
def prepare(**_):
    return None
Limits = PythonWorker = lambda _: None
def serve(_agent, _read_fd, write_fd, **_):
    os.dup2(write_fd, 1)
    os.write(1, probe_all().encode())
    os._exit(0)
"""
"""The agent's module as a template loads it, with probes in its place."""


def agent_program(probes: Sequence[Probe], kind: Kind, stage: Stage, store: str = "") -> str:
    """Program that takes the agent's place and prints the probes' output, as JSON by name."""
    if kind == "forked":
        return _defined(probes, stage, store) + _IN_FORK
    return program_of_all(probes, stage, store) + STAY


def program_of_all(probes: Sequence[Probe], stage: Stage, store: str = "") -> str:
    """Program that runs Python probes one after the other and prints their output, as JSON by name.

    Args:
        store: as for `program_of`.
    """
    return _defined(probes, stage, store) + _PRINTED


def _defined(probes: Sequence[Probe], stage: Stage, store: str) -> str:
    programs = {probe.name: program_of(probe, stage, store) for probe in probes}
    return _AGENTS.format(programs=programs)
