"""Layers that more than one module of probes takes away: who shares one shares its jails."""

from __future__ import annotations

from isolation.stage import CANARY, CANARY_VARIABLE, HIDDEN, HIDDEN_VARIABLE, Stage
from isolation.weaken import (
    MOUNTS_AS_THEY_COME,
    Arguments,
    Weakness,
    both,
    with_more,
    without,
    without_mounts,
)

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
