"""Trial jails, and the abilities of code in them: one for each environment, in which its
interpreter prints its version; one fork; one for each environment with modules to preload; one with
an overlay of a project. And a trial of the limits of sessions: set, and read back.
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import trio

from nsm.checks import HostCheck, fail, ok, rows, warn
from nsm.dataclass import dataclass, replace
from nsm.jail.failure import SEE_DOCTOR
from nsm.wire.errors import NsmError, StartFailedError
from nsmd.jail import BwrapLauncher
from nsmd.jail.bubblewrap import probe_bwrap
from nsmd.jail.limits import find_enforcer
from nsmd.jail.limits.enforcer import enforcement_by
from nsmd.jail.limits.group import Group, limits_of
from nsmd.jail.limits.tree import GroupTree
from nsmd.jail.process import discard
from nsmd.jail.project import NoCopyError
from nsmd.jail.templates import TemplateLauncher, open_templates
from nsmd.model.limits import session_limits
from nsmd.model.settings import Settings
from nsmd.model.values import (
    Enforcement,
    Environment,
    JailSizes,
    JailSpec,
    ProjectMount,
    SessionLimits,
)

TRIAL_TIMEOUT_S = 20.0
"""Time for one jail in which an interpreter prints its version: 100 ms, or more with a
slow disk.
"""

_NO_COPIES = (
    "Only the project mode `overlay` needs it. Forks need Linux 6.6, jails of their own bubblewrap "
    "0.11 beside that, and a supervisor that runs as root mounts of its own: see "
    "docs/how-to/project-modes.md, 'Where it works'."
)


_TRIAL = b"""
import ctypes, json, os, socket, subprocess, sys
program = sys.argv[sys.argv.index("--prestart") + 3]
try:
    told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=15)
    words, works = (told.stdout or told.stderr).strip(), told.returncode == 0
except (OSError, subprocess.SubprocessError) as error:
    words, works = str(error), False
with open("/proc/self/status") as file:
    status = dict(line.rstrip("\\n").split(":\\t", 1) for line in file)
CLONE_NEWUSER = 0x10000000
print(json.dumps({
    "version": words.partition("\\n")[0],
    "works": works,
    "uid": os.getuid(),
    "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "no_new_privs": status["NoNewPrivs"] == "1",
    "filtered": status["Seccomp"] == "2",
    "nested": ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0,
}), flush=True)
with socket.socket(fileno=os.dup(1)) as channel:
    channel.shutdown(socket.SHUT_WR)
os.read(0, 1)
"""
"""Replaces the agent in a trial jail. It waits to be killed: on a busy machine it could otherwise
end before the launcher has found its process.
"""


_REPORT = "This should not happen: do not run untrusted code, and report it."

Facts = dict[str, Any]
"""Output of `_TRIAL`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Result of one trial jail: what code saw in it, or why it did not start."""

    environment: Environment
    facts: Facts | None
    error: NsmError | None = None


def check_jails(trials: Sequence[Trial]) -> HostCheck:
    """Check whether a jail starts at all."""
    if any(trial.facts is not None for trial in trials):
        return ok("start, with namespaces of their own")
    for trial in trials:
        if trial.error is not None:
            return fail(trial.error.message, trial.error.hint)
    return fail("not tried: no environment is usable", "See the environments below.")


def check_lockdown(facts: Facts) -> HostCheck:
    """Check that code in a jail is as powerless as it should be."""
    powers = [
        words
        for words, found in (
            ("user namespaces of its own", facts["nested"]),
            ("capabilities", facts["capabilities"] != 0),
            ("programs that gain privileges", not facts["no_new_privs"]),
            ("user 0", facts["uid"] == 0),
        )
        if found
    ]
    if powers:
        return fail(f"code in a jail has {', '.join(powers)}", _REPORT)
    return ok("no capabilities, no new privileges, no nested user namespaces")


def check_filter(facts: Facts, machine: str, has_table: bool) -> HostCheck:
    """Check whether code's system calls are filtered."""
    if not has_table:
        return warn(
            f"not filtered: nsm has no table of those of {machine}. Sessions start slowly; the "
            "other measures of a jail work",
            "Use x86_64 or aarch64 for code that you don't trust.",
        )
    return (
        ok("filtered")
        if facts["filtered"]
        else fail("not filtered, though there is a filter", _REPORT)
    )


def check_forking(
    launcher: BwrapLauncher, settings: Settings, working: Sequence[Environment]
) -> HostCheck | None:
    """Check whether sessions can be forked from templates; None if no environment works."""
    if not settings.defaults.templates:
        return ok("off in config.toml: sessions start slowly")
    if not working:
        return None
    # Without modules to preload: each environment has a row of its own for these.
    spec = _trial_spec(replace(working[0], preload=()))
    reason = trio.run(_why_not_forked, launcher, spec)
    if reason is None:
        return ok("sessions are forked from running ones")
    return warn(
        f"each session starts in a jail of its own, which takes longer and more memory: {reason}",
        "Sessions work all the same. Forks need user namespaces within user namespaces, and a "
        "/proc of their own: see docs/explanation/security.md.",
    )


def check_preloading(
    launcher: BwrapLauncher, settings: Settings, working: Sequence[Environment]
) -> Iterator[HostCheck]:
    """Make a row for each environment with modules to preload."""
    if not settings.defaults.templates:
        return
    for environment in working:
        if not environment.preload or environment.image is not None:
            continue  # an image's modules are its sessions' own to import
        if failed := trio.run(_why_not_preloaded, launcher, environment):
            yield warn(
                f"not preloaded: {'; '.join(failed)}",
                f"Correct `preload` of [environments.{environment.name}] in config.toml, or the "
                "module. Until then, code has to import it itself.",
                of=environment.name,
            )
        else:
            yield ok(", ".join(environment.preload), of=environment.name)


def check_environment(environment: Environment, trials: Sequence[Trial]) -> HostCheck:
    """Check whether an environment's interpreter was found and works in a jail."""
    name = environment.name
    if environment.problem is not None:
        what, _, fix = environment.problem.partition(" To get one: ")
        return warn(what, fix, of=name)
    trial = next(trial for trial in trials if trial.environment is environment)
    found = f"{environment.description}, {environment.program}"
    if trial.facts is None:
        error = trial.error or StartFailedError("Its jail said nothing.")
        return warn(f"{found}: {error.message}", fix_of(error), of=name)
    if not trial.facts["works"]:
        return warn(
            f"{found}: does not work in a jail: {trial.facts['version']}",
            f'Configure another one: [environments.{name}] interpreter = "/absolute/path" in '
            "config.toml",
            of=name,
        )
    return ok(found, of=name)


def fix_of(error: NsmError) -> str:
    """The hint of an error, unless it is to ask the doctor."""
    return "" if error.hint == SEE_DOCTOR else error.hint


def check_copies(
    launcher: BwrapLauncher, settings: Settings, working: Sequence[Environment]
) -> HostCheck | None:
    """Start a session with an overlay of a project, as the supervisor does; None if no environment
    works.
    """
    if not working:
        return None
    with tempfile.TemporaryDirectory(prefix="nsm-doctor-") as directory:
        os.chmod(directory, 0o755)  # whatever TMPDIR is, the jails' user must be able to enter
        found = os.stat(directory)
        project = ProjectMount(
            path=os.path.realpath(directory),
            mount_point="/project",
            device=found.st_dev,
            inode=found.st_ino,
            mode="overlay",
        )
        sizes = JailSizes(workspace_mb=16, tmp_mb=16, shm_mb=16, overlay_mb=16)
        spec = JailSpec(environment=working[0], project=project, sizes=sizes)
        forked = settings.defaults.templates
        error = trio.run(_why_not_copied, launcher, spec, forked)
    if error is not None:
        return warn(error, _NO_COPIES)
    detail = "projects can be copied on write"
    with suppress(NsmError):
        program = None if launcher.bwrap_path is None else probe_bwrap(launcher.bwrap_path)
        if program is not None and not program.overlays:
            detail += (
                f" in forks of templates; other sessions need a bubblewrap with --overlay, and "
                f"{program.version} has none"
            )
    return ok(detail)


def try_all(launcher: BwrapLauncher, environments: Sequence[Environment]) -> list[Trial]:
    """Start a trial jail for each environment, all at once."""
    trials: dict[str, Trial] = {}
    trying = launcher.with_agent(_TRIAL)

    async def attempt(environment: Environment) -> None:
        trials[environment.name] = await _try(trying, environment)

    async def attempt_all() -> None:
        async with trio.open_nursery() as nursery:
            for environment in environments:
                nursery.start_soon(attempt, environment)

    trio.run(attempt_all)
    return [trials[environment.name] for environment in environments]


async def _try(launcher: BwrapLauncher, environment: Environment) -> Trial:
    """Start one trial jail and read its output."""
    try:
        jail = await launcher.launch(_trial_spec(environment))
    except NsmError as error:
        return Trial(environment=environment, facts=None, error=error)
    answer = b""
    try:
        with trio.move_on_after(TRIAL_TIMEOUT_S):
            answer = await _read_all(jail.socket)
    finally:
        await discard(jail)
    try:
        return Trial(environment=environment, facts=json.loads(answer))
    except ValueError:
        return Trial(environment=environment, facts=None)


def _trial_spec(environment: Environment) -> JailSpec:
    sizes = JailSizes(workspace_mb=16, tmp_mb=16, shm_mb=16)
    return JailSpec(environment=environment, project=None, sizes=sizes)


async def _why_not_forked(launcher: BwrapLauncher, spec: JailSpec) -> str | None:
    """Start one session as the supervisor does."""
    async with open_templates(launcher) as forking:
        if not isinstance(forking, TemplateLauncher):
            return f"nsm has no table of system calls for {platform.machine()}"
        try:
            jail = await forking.launch(spec)
        except NsmError as error:
            return error.message
        try:
            return forking.reasons.get(spec.environment.name)
        finally:
            await discard(jail)


async def _why_not_preloaded(launcher: BwrapLauncher, environment: Environment) -> Sequence[str]:
    """Modules that cannot be preloaded, with reasons; empty without templates."""
    async with open_templates(launcher) as forking:
        if not isinstance(forking, TemplateLauncher):
            return ()
        await forking.try_preloading(environment)
        reason = forking.reasons.get(environment.name)
        return [*forking.unloaded.get(environment.name, ()), *([reason] if reason else [])]


async def _read_all(channel: socket.socket) -> bytes:
    answer = b""
    while True:
        await trio.lowlevel.wait_readable(channel)
        piece = channel.recv(65536)
        if not piece:
            return answer
        answer += piece


async def _why_not_copied(
    launcher: BwrapLauncher,
    spec: JailSpec,
    forked: bool,
) -> str | None:
    async with open_templates(launcher, enabled=forked) as starting:
        try:
            jail = await starting.launch(spec)
        except NoCopyError as error:
            # the path is only this trial's
            return f"projects cannot be copied on write: {error.why}"
        except NsmError as error:
            return error.message
        await discard(jail)
    return None


COUNTED_BY_NAMESPACE = (5, 14)
"""Linux version from which on RLIMIT_NPROC counts in each user namespace separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsTrial:
    """Results of the trial: where the groups are, which limits did not apply in one, and what to
    do, for people.
    """

    enforcement: Enforcement
    where: str = ""
    lacking: str = ""
    fix: str = ""


async def try_limits(settings: Settings, environment: Mapping[str, str]) -> LimitsTrial:
    """Do what a supervisor does at its start, and make a group; it is removed afterwards.

    This process moves into a scope of its own for that, which ends with it.
    """
    limits = session_limits(settings)
    enforcer = await find_enforcer(limits, environment)
    if enforcer.tree is None:
        return LimitsTrial(enforcement=enforcer.enforcement, fix=enforcer.fix)
    lacking, holds = _try_group(enforcer.tree, settings, limits)
    return LimitsTrial(
        enforcement=enforcer.enforcement if not lacking else enforcement_by(holds, lacking),
        where=enforcer.tree.directory,
        lacking=lacking,
    )


def _try_group(
    tree: GroupTree, settings: Settings, limits: SessionLimits
) -> tuple[str, frozenset[str]]:
    """Try the limits in a group. Returns those that do not apply, and the controllers whose limits
    do.
    """
    defaults = settings.defaults
    spec = JailSpec(
        environment=Environment(
            name="python",
            interpreter="python",
            memory_mb=defaults.memory_mb,
            cpu_weight=defaults.cpu_weight,
        ),
        project=None,
        sizes=JailSizes(
            workspace_mb=defaults.workspace_mb, tmp_mb=defaults.tmp_mb, shm_mb=defaults.shm_mb
        ),
    )
    try:
        group = Group.new(tree, "doctor", limits_of(spec, limits))
    except OSError as error:
        return f"no group can be made: {error.strerror}", frozenset()
    group.remove()
    return group.lacking, group.holds


def check_limits(seen: LimitsTrial, release: str) -> list[HostCheck]:
    """Make a row for each limit of a whole session."""
    return rows(
        ("memory limit", _memory(seen)),
        ("process limit", _processes(seen.enforcement, release)),
        ("processor share", _processor(seen.enforcement)),
    )


def _memory(seen: LimitsTrial) -> HostCheck:
    if seen.enforcement.memory == "cgroup":
        return ok(f"control groups below {seen.where}, read back")
    return warn(
        f"no control groups: {seen.enforcement.why}. Instead, a watchdog ends sessions that use "
        "too much, and each process has a limit of its own",
        seen.fix or "See docs/reference/policy.md, 'With control groups'.",
    )


def _processes(kept: Enforcement, release: str) -> HostCheck:
    if kept.processes == "cgroup":
        return ok("pids.max, read back")
    version = tuple(int(number) for number in re.findall(r"\d+", release)[:2])
    if version and version < COUNTED_BY_NAMESPACE:
        detail = f"RLIMIT_NPROC, which Linux {release} counts for all of the user's processes"
        return warn(detail, "Linux 5.14 or newer.")
    return ok("RLIMIT_NPROC, counted for each session")


def _processor(kept: Enforcement) -> HostCheck:
    if kept.cpu == "cgroup":
        return ok("cpu.weight, read back")
    return warn(
        "not limited: busy sessions compete with all other processes of the machine",
        "As for the memory limit."
        if kept.memory != "cgroup"
        else "Have the cpu controller delegated: `sudo systemctl edit user@.service`, [Service], "
        "`Delegate=cpu memory pids`; then log in again.",
    )
