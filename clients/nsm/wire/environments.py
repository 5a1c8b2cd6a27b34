"""The answer to `envs`: what there is to run in. `nsm ps` does without."""

from typing import NamedTuple

from nsm.wire.operation import operation


class SlowImport(NamedTuple):
    """A module that sessions often wait for: worth preloading, as they say themselves.

    Attributes:
        seconds: median of the times that its import took.
        sessions: number of sessions that imported it, among the last `of`.
    """

    module: str
    seconds: float
    sessions: int
    of: int


class TemplateRow(NamedTuple):
    """A template: a process of which sessions are forks.

    Attributes:
        pid: process id on the host.
        project: project that its sessions see; None for none.
        memory_bytes: its proportional share of memory (PSS), since sessions share its pages; None
            if unknown.
        imported: modules that it has preloaded, and the seconds that each import took.
        sessions: number of sessions forked so far.
    """

    pid: int
    project: str | None
    memory_bytes: int | None
    imported: dict[str, float]
    sessions: int


class EnvironmentRow(NamedTuple):
    """One environment, or a reason why one is missing.

    Attributes:
        name: empty where something is the matter with all of a source.
        interpreter: empty where it is not known.
        problem: why it cannot be used, for people; None when `available`.
        source: where it comes from, e.g. ``preset``.
        program: the interpreter's path in the jail; empty when unavailable.
        timeout_s: default and upper limit of one run, seconds.
        memory_mb: memory limit of a session, MiB.
        preload: Python modules that its sessions find imported already.
        not_preloaded: those that could not be imported, each with the reason.
        keeps_state: it has sessions.
        cold_start: why its last session was not forked from a template; None if it was.
        aliases: other names that it answers to.
        only_for: for whom it is, for people; None if for everyone.
        hides: where others of that name come from, which it stands in place of.
        slow_imports: modules that are worth preloading, the slowest first.
        templates: its templates that run now; environments that show the same share them.
        devices: devices that its user gave it, as configured; `device_nodes`: paths of those that
            its sessions see.
    """

    name: str
    interpreter: str
    description: str
    available: bool
    problem: str | None
    source: str
    program: str
    timeout_s: float
    memory_mb: int
    preload: tuple[str, ...]
    keeps_state: bool
    cold_start: str | None
    aliases: tuple[str, ...]
    only_for: str | None
    hides: tuple[str, ...]
    not_preloaded: tuple[str, ...] = ()
    slow_imports: tuple[SlowImport, ...] = ()
    templates: tuple[TemplateRow, ...] = ()
    devices: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()


@operation("read", own=True, key="environments")
def envs(*, preload: bool = False) -> list[EnvironmentRow]: ...
