"""Ways to take a layer away from a throw-away jail.

Changes of bwrap's arguments, and patches of our own programs, which run before their `main`. A
weakened jail keeps user, PID and IPC namespaces of its own and runs as the same unprivileged host
user, so that a probe that succeeds there reaches nothing but what the stage put there for it.
"""

from __future__ import annotations

import dataclasses
import platform
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from isolation.stage import CANARY, CANARY_VARIABLE, HIDDEN, HIDDEN_VARIABLE, Stage

Arguments = list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakness:
    """One layer taken away from a throw-away jail.

    Probes share jails with the same one, so give one layer one name and use it again.

    Attributes:
        arguments: bwrap's arguments without it, of the session's own jail or its template's.
        environment: given to bwrap, which should get none.
        on_command_line: bwrap's arguments are passed there.
        agent: makes of the agent's program one without it.
        template: runs in the template's program before its `main`, with its names in `space`.
        inherits: a host path of which bwrap inherits a descriptor.
        system_calls: makes of the filter of system calls one without it.
    """

    arguments: Callable[[Arguments, Stage], Arguments] = lambda words, _: words
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    on_command_line: bool = False
    agent: Callable[[bytes], bytes] | None = None
    template: str = ""
    inherits: Callable[[Stage], str] | None = None
    system_calls: Callable[[bytes], bytes] | None = None


NO_FILTER = """
space["Filter"].install = lambda self: None
"""
KEEPS_PRIVILEGES = """
space["drop_privileges"] = lambda *_: None
"""
"""No filter either: there would be nothing that allows to install it."""
MORE_NAMESPACES = """
space["COUNTED"].clear()
"""
ROOT_OF_ITS_NAMESPACES = """
space["become_user"] = lambda: None
"""
POWERFUL = KEEPS_PRIVILEGES + MORE_NAMESPACES + ROOT_OF_ITS_NAMESPACES
"""Every capability over the fork's own namespaces, and over nothing else."""
ONE_NETWORK = """
space["NAMESPACES"] &= ~space["CLONE_NEWNET"]
space["start_loopback"] = lambda **_: None
"""
MOUNTS_AS_THEY_COME = """
space["keep_mounts"] = lambda: space["mount"]("", "/", "", space["MS_REC"] | space["MS_PRIVATE"])
"""
"""Patch with which forks can write to everything that is writable in the template's jail.

These are patches of the template, for `Weakness.template`.
"""


def without_mounts(*targets: str) -> str:
    """A patch of the template that has forks not mount something of their own there."""
    return f"""
mount = space["mount"]
def mount_others(source, target, *rest):
    if target not in {targets!r}:
        mount(source, target, *rest)
space["mount"] = mount_others
"""


def with_mount(source: str, target: str) -> str:
    """A patch that covers something of /proc, which a template's jail must not do itself."""
    return f"""
make_file_systems = space["make_file_systems"]
def make_one_more(*arguments):
    make_file_systems(*arguments)
    {{prepare}}
    space["mount"]({source!r}, {target!r}, "", space["MS_BIND"])
space["make_file_systems"] = make_one_more
""".replace("{prepare}", f"open({source!r}, 'a').close()" if source.startswith("/tmp/") else "pass")


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


def pretending(*numbers: int) -> Callable[[bytes], bytes]:
    """A filter by which system calls succeed that do nothing.

    For what no kernel lets an unprivileged process do, and what no test should do: to set the
    clock, to load a module.
    """
    lines = [_line(_LOAD, 0), *_succeed_if(*numbers)]
    return lambda program: b"".join([*lines, program])


def pretending_ioctls(*requests: int) -> Callable[[bytes], bytes]:
    """A filter by which these requests of ioctl(2) succeed and do nothing: they load modules."""
    judged = [_line(_LOAD, _SECOND_ARGUMENT), *_succeed_if(*requests)]
    ioctl = {"x86_64": 16, "aarch64": 29}.get(platform.machine(), -1)
    lines = [_line(_LOAD, 0), _line(_JUMP_IF_EQUAL, ioctl, no=len(judged)), *judged]
    return lambda program: b"".join([*lines, program])


_LOAD, _JUMP_IF_EQUAL, _RETURN, _ERRNO = 0x20, 0x15, 0x06, 0x00050000
_SECOND_ARGUMENT = 24


def _line(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)


def _succeed_if(*values: int) -> list[bytes]:
    """Instructions: nothing is done, with success, if one of these was loaded; else go on."""
    last = len(values) - 1
    return [
        # On to the verdict, or past it after the last one.
        *(
            _line(_JUMP_IF_EQUAL, value, yes=last - place, no=int(place == last))
            for place, value in enumerate(values)
        ),
        _line(_RETURN, _ERRNO),
    ]


def as_root_of_its_namespace(words: Arguments, _: Stage) -> Arguments:
    """User 0 of a user namespace that owns all the others."""
    return ["0" if word == "1000" else word for word in words]


_POWERFUL = both(
    without("--disable-userns", "--cap-drop", "--seccomp"),
    # With another user bwrap makes a second user namespace, which owns none of the others.
    as_root_of_its_namespace,
    lambda words, _: [*words[:-2], "--cap-add", "ALL", *words[-2:]],
)

STRONG = Weakness(arguments=_POWERFUL)
STRONG_FORK = Weakness(template=POWERFUL)
"""Every capability over the jail's own namespaces, and over nothing of the host's."""
NO_NETWORK_NAMESPACE = Weakness(arguments=without("--unshare-net"), template=ONE_NETWORK)
UNFILTERED = Weakness(arguments=without("--seccomp"))
UNFILTERED_FORK = Weakness(template=NO_FILTER)
"""Weaknesses that several modules of probes share."""

HOST_DIRECTORY = Weakness(
    arguments=with_more(lambda stage: ["--ro-bind", stage.directory, stage.directory])
)
"""A directory of the host is there under its own name."""


def _writable_project(words: Arguments, stage: Stage) -> Arguments:
    if "--ro-bind-fd" in words:
        return [{"--ro-bind-fd": "--bind-fd"}.get(word, word) for word in words]
    place = words.index("/project")
    return [*words[: place - 2], "--bind", stage.project.path, *words[place:]]


WRITABLE_PROJECT = Weakness(arguments=_writable_project, template=MOUNTS_AS_THEY_COME)
"""The mount is; its files belong to the jails' user."""

NOT_CLOSED = Weakness(arguments=without("--remount-ro"), template=MOUNTS_AS_THEY_COME)
"""The root, /etc, /run and /dev stay writable."""

TALKATIVE = Weakness(environment={CANARY_VARIABLE: CANARY, HIDDEN_VARIABLE: HIDDEN})
"""bwrap gets variables of whoever starts it."""

HOST_PROC = Weakness(
    # Not read-only: a fork writes there before it covers it.
    arguments=both(without("--proc"), with_more(lambda _: ["--bind", "/proc", "/proc"])),
    template=MOUNTS_AS_THEY_COME + without_mounts("/proc", "/proc/keys"),
)
"""The host's /proc, whose processes are in other namespaces for all that."""

_WRAPPED_AGENT = b"""
import sys
source = %r
space = {"__name__": "agent", "__file__": __file__}
exec(compile(source, %r or __file__, "exec"), space)
%s
if __name__ == "__main__":
    space["main"](sys.argv[1:])
for name in ("prepare", "serve", "Limits", "PythonWorker"):  # a template loads it as a module
    globals()[name] = space[name]
"""


def wrapped_agent(source: bytes, patch: bytes, file: str = "") -> bytes:
    """The agent, with something that runs before its `main`, with its names in `space`.

    Args:
        file: what it takes for its own path.
    """
    return _WRAPPED_AGENT % (source, file, patch)


DUMPABLE = Weakness(
    agent=lambda source: wrapped_agent(source, b'space["prctl"] = lambda option, value: None')
)
"""The agent leaves itself open to its children."""

GENEROUS = Weakness(
    agent=lambda source: wrapped_agent(
        source,
        b"""
import fcntl, os
def one_more():
    return fcntl.fcntl(os.open("/usr", os.O_RDONLY), fcntl.F_DUPFD, 100)
for kind in space["INTERPRETERS"].values():
    kind.kept_fds = lambda self, kept=kind.kept_fds: (*kept(self), one_more())
bash = space["INTERPRETERS"]["bash"]  # started without a fork
bash.spawn = lambda *given, spawn=bash.spawn: one_more() and spawn(*given)
""",
    )
)
"""The agent hands a descriptor of its own on to interpreters."""

NOT_FIRST = Weakness(arguments=without("--as-pid-1"))
"""The agent is a process like any other, below bwrap."""

ONE_PIDS = Weakness(
    template=MOUNTS_AS_THEY_COME
    + 'space["NAMESPACES"] &= ~space["CLONE_NEWPID"]\n'
    + without_mounts("/proc", "/proc/keys")
)
"""A fork is in its template's PID namespace, and sees its /proc: still none of the host's."""
