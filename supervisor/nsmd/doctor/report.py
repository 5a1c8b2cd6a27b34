"""Doctor: the needs of nsm on this host, whether they are met, and how to meet them.

Each check is data; the two renderings and the exit code come from that. Jails are really tried:
one for each environment, in which its interpreter tells its version.
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import trio

from nsm import paths
from nsm.checks import Check, render_text
from nsm.jail.failure import SEE_DOCTOR
from nsm.wire.errors import NixUnavailableError, NsmError, StartFailedError
from nsmd.doctor import check_host, this_host
from nsmd.doctor.copy_checks import check_copies
from nsmd.doctor.limit_checks import check_limits, look_at_limits
from nsmd.environments.host_presets import find_environments
from nsmd.environments.nix.program import RECOMMENDED_VERSION, Nix, find_nix, why_no_store
from nsmd.host.paths import trusted_owners
from nsmd.host.unix_listener import PlaceError, check_way
from nsmd.jail import BwrapLauncher
from nsmd.jail.bubblewrap import missing_bwrap, probe_bwrap
from nsmd.jail.host_network import open_sockets
from nsmd.jail.templates import TemplateLauncher, open_templates
from nsmd.model.settings import Settings
from nsmd.model.values import Environment, JailSizes, JailSpec

TRIAL_TIMEOUT_S = 20.0
"""For one jail in which an interpreter tells its version: 100 ms, or a slow disk."""

SAFE_BWRAP = (0, 12)
"""Older ones follow a symlink at a mount point out of the jail (CVE-2026-87766)."""

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
"""Takes the agent's place in a trial jail. It waits to be ended: on a busy machine it would
otherwise be gone before the launcher has found its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Result of one trial jail.

    Attributes:
        facts: what `_TRIAL` printed; None if the jail did not start.
        error: why it did not.
    """

    environment: Environment
    facts: dict[str, Any] | None
    error: NsmError | None = None


def report(
    settings: Settings, search_path: str, *, mistakes: Sequence[str] = (), as_json: bool
) -> int:
    """Check everything and print it.

    Args:
        settings: the configured ones, or the defaults where there are mistakes.
        search_path: value of PATH to find programs on.
        mistakes: in `config.toml`.

    Returns:
        The exit code: 1 if something needed is missing.
    """
    checks = [*check_configuration(mistakes), *examine(settings, search_path)]
    sys.stdout.write(render_json(checks) if as_json else render_text(checks, _columns()))
    return 1 if any(check.status == "fail" for check in checks) else 0


def examine(settings: Settings, search_path: str) -> list[Check]:
    """Look at everything; takes about as long as three jails.

    Args:
        search_path: value of PATH to find programs on.
    """
    launcher = BwrapLauncher.for_host(search_path, settings.defaults.jail_uid)
    environments = find_environments(settings, search_path, unreadable=launcher.user.why_unreadable)
    usable = [environment for environment in environments if environment.problem is None]
    trials = trio.run(_try_all, launcher.with_agent(_TRIAL), usable)
    return [
        check_bubblewrap(launcher.bwrap_path),
        check_jails(trials),
        *check_lockdown(trials),
        *check_filter(trials, platform.machine(), has_table=launcher.system_calls is not None),
        *check_forking(launcher, settings, trials),
        *check_preloading(launcher, settings, trials),
        *check_copies(launcher, settings, [t.environment for t in trials if t.facts is not None]),
        *check_user(launcher),
        *check_network(settings, open_sockets()),
        *check_limits(trio.run(look_at_limits, settings, os.environ), platform.release()),
        *(check_environment(environment, trials) for environment in environments),
        check_nix(find_nix(search_path, os.environ, paths.home())),
        check_directory("runtime directory", safe_runtime_dir),
        check_directory("state directory", _ensure_state_dir),
        *check_host(
            this_host(search_path),
            settings,
            jails_work=any(trial.facts is not None for trial in trials),
        ),
    ]


def check_configuration(mistakes: Sequence[str]) -> list[Check]:
    """The mistakes in `config.toml`, if there are any: no supervisor starts with them."""
    if not mistakes:
        return []
    return [
        Check(
            name="configuration",
            status="fail",
            detail="\n".join(mistakes),
            fix="Correct it; `nsm config check` looks again. What follows holds for the defaults.",
        )
    ]


def check_bubblewrap(path: str | None) -> Check:
    """Check whether there is a bwrap that can do what jails need."""
    name = "bubblewrap"
    if path is None:
        return _failed(name, missing_bwrap())
    try:
        program = probe_bwrap(path)
    except NsmError as error:
        return _failed(name, error)
    detail = f"{program.version}, {path}"
    if program.missing:
        return Check(
            name=name,
            status="fail",
            detail=f"{detail}: lacks {', '.join(program.missing)}",
            fix="Install bubblewrap 0.8 or newer.",
        )
    numbers = tuple(int(number) for number in re.findall(r"\d+", program.version)[:3])
    if numbers < SAFE_BWRAP:
        return Check(
            name=name,
            status="warn",
            detail=f"{detail}: older than 0.12, whose fix for CVE-2026-87766 it may lack; nsm "
            "mounts nothing where a jail can write, so it is not exposed",
            fix="Upgrade when your distribution has it.",
        )
    return Check(name=name, status="ok", detail=detail)


def check_jails(trials: Sequence[Trial]) -> Check:
    """Check whether a jail starts at all."""
    name = "jails"
    if any(trial.facts is not None for trial in trials):
        return Check(name=name, status="ok", detail="start, with namespaces of their own")
    for trial in trials:
        if trial.error is not None:
            return Check(name=name, status="fail", detail=trial.error.message, fix=trial.error.hint)
    return Check(
        name=name,
        status="fail",
        detail="not tried: no environment is usable",
        fix="See the environments below.",
    )


def check_lockdown(trials: Sequence[Trial]) -> list[Check]:
    """Check that code in a jail is as powerless as it should be; empty if none started."""
    facts = next((trial.facts for trial in trials if trial.facts is not None), None)
    if facts is None:
        return []
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
        return [
            Check(
                name="lock-down",
                status="fail",
                detail=f"code in a jail has {', '.join(powers)}",
                fix="This should not happen: do not run untrusted code, and report it.",
            )
        ]
    return [
        Check(
            name="lock-down",
            status="ok",
            detail="no capabilities, no new privileges, no nested user namespaces",
        )
    ]


def check_filter(trials: Sequence[Trial], machine: str, *, has_table: bool) -> list[Check]:
    """Check whether code's system calls are filtered; empty if no jail started.

    Args:
        machine: as `platform.machine()` names it.
        has_table: there is a filter for it.
    """
    facts = next((trial.facts for trial in trials if trial.facts is not None), None)
    if facts is None:
        return []
    name = "system calls"
    if not has_table:
        return [
            Check(
                name=name,
                status="warn",
                detail=f"not filtered: nobody has put those of {machine} into a table, so each "
                "session starts in a jail of its own; the jail's other measures hold",
                fix="Use x86_64 or aarch64 for code that you don't trust.",
            )
        ]
    if not facts["filtered"]:
        return [
            Check(
                name=name,
                status="fail",
                detail="not filtered, though there is a filter",
                fix="This should not happen: do not run untrusted code, and report it.",
            )
        ]
    return [Check(name=name, status="ok", detail="filtered")]


def check_forking(
    launcher: BwrapLauncher, settings: Settings, trials: Sequence[Trial]
) -> list[Check]:
    """Check whether sessions can be forked from templates; empty if no jail starts anyway."""
    name = "templates"
    if not settings.defaults.templates:
        return [Check(name=name, status="ok", detail="off in config.toml: sessions start slowly")]
    # Without modules to preload: each environment says by itself whether its own can be.
    environments = [replace(t.environment, preload=()) for t in trials if t.facts is not None]
    if not environments:
        return []
    reason = trio.run(_why_not_forked, launcher, _trial_spec(environments[0]))
    if reason is None:
        return [Check(name=name, status="ok", detail="sessions are forked from running ones")]
    return [
        Check(
            name=name,
            status="warn",
            detail=f"each session starts in a jail of its own, which takes longer and "
            f"more memory: {reason}",
            fix="Sessions work all the same. Forks need user namespaces within user namespaces, "
            "and a /proc of their own: see docs/explanation/security.md.",
        )
    ]


def check_preloading(
    launcher: BwrapLauncher, settings: Settings, trials: Sequence[Trial]
) -> list[Check]:
    """A row for each environment with modules to preload: can they be?"""
    if not settings.defaults.templates:
        return []
    checks: list[Check] = []
    for environment in [t.environment for t in trials if t.facts is not None]:
        if not environment.preload:
            continue
        name = f"preload {environment.name}"
        failed = trio.run(_why_not_preloaded, launcher, environment)
        if not failed:
            checks.append(Check(name=name, status="ok", detail=", ".join(environment.preload)))
            continue
        checks.append(
            Check(
                name=name,
                status="warn",
                detail=f"not preloaded: {'; '.join(failed)}",
                fix=f"Correct `preload` of [environments.{environment.name}] in config.toml, or "
                "the module. Until then, code has to import it itself.",
            )
        )
    return checks


def check_network(settings: Settings, open_sockets: str | None) -> list[Check]:
    """Check the networks of the environments that have one.

    Args:
        open_sockets: from `nsmd.jail.host_network`.
    """
    rules = {name: entry.network_rule for name, entry in settings.environments.items()}
    full = sorted(name for name, rule in rules.items() if rule.mode == "full")
    listed = sorted(name for name, rule in rules.items() if rule.mode == "allow")
    if full and open_sockets is not None:
        return [
            Check(
                name="network",
                status="warn",
                detail=f"{', '.join(full)} may use the host's, and {open_sockets}",
                fix='Use a list of hosts, which may be ["*"], in config.toml, or a newer kernel.',
            )
        ]
    words = [f"{', '.join(full)} may use the host's"] if full else []
    words += [f"{', '.join(listed)} may reach the hosts of a list"] if listed else []
    return [Check(name="network", status="ok", detail="; ".join(words))] if words else []


def check_user(launcher: BwrapLauncher) -> list[Check]:
    """As whom jails run, where the supervisor is root; else there is nothing to say."""
    if os.geteuid() != 0:
        return []
    user = launcher.user
    if user.has_mounts:
        return [
            Check(name="jail user", status="ok", detail=f"{user.uid}, since the supervisor is root")
        ]
    return [
        Check(
            name="jail user",
            status="warn",
            detail=f"{user.uid}, since the supervisor is root; it cannot pass through closed "
            "directories such as /root, and no mount namespace can be made to help it",
            fix="Run nsm as an ordinary user, or keep projects where everyone may go; in a "
            "container, --cap-add SYS_ADMIN helps too.",
        )
    ]


def check_environment(environment: Environment, trials: Sequence[Trial]) -> Check:
    """Check whether an environment's interpreter was found and works in a jail."""
    name = f"environment {environment.name}"
    if environment.problem is not None:
        what, _, fix = environment.problem.partition(" To get one: ")
        return Check(name=name, status="warn", detail=what, fix=fix)
    trial = next(trial for trial in trials if trial.environment is environment)
    found = f"{environment.description}, {environment.program}"
    if trial.facts is None:
        error = trial.error or StartFailedError("Its jail said nothing.")
        return Check(name=name, status="warn", detail=f"{found}: {error.message}", fix=_fix(error))
    if not trial.facts["works"]:
        return Check(
            name=name,
            status="warn",
            detail=f"{found}: does not work in a jail: {trial.facts['version']}",
            fix="Configure another one: [environments."
            f'{environment.name}] interpreter = "/absolute/path" in config.toml',
        )
    return Check(name=name, status="ok", detail=found)


def check_nix(found: Nix | NixUnavailableError) -> Check:
    """Check whether environments can be built with Nix, which nsm does not need otherwise."""
    name = "nix"
    if isinstance(found, NixUnavailableError):
        refused: list[str] = found.data["refused"]
        if refused:
            return Check(name=name, status="warn", detail="; ".join(refused), fix=found.hint)
        detail = "none; `nsm env`, which builds environments with it, is all that needs it"
        return Check(name=name, status="ok", detail=detail)
    detail = f"{found.version_text}, {found.program}"
    if why := why_no_store(found):
        return Check(
            name=name,
            status="warn",
            detail=f"{detail}: its store cannot be used: {why}",
            fix="Start its daemon (`sudo systemctl start nix-daemon`), or make its store writable.",
        )
    if found.version < RECOMMENDED_VERSION:
        wanted = ".".join(map(str, RECOMMENDED_VERSION))
        return Check(
            name=name,
            status="warn",
            detail=f"{detail}: nixpkgs asks for {wanted} or newer",
            fix="Upgrade it, if building an environment fails.",
        )
    return Check(name=name, status="ok", detail=f"{detail}; its store can be used")


def check_directory(name: str, ensure: Callable[[], str]) -> Check:
    """Check whether a directory of ours exists or can be made, and is safe."""
    try:
        return Check(name=name, status="ok", detail=ensure())
    except (OSError, PlaceError) as error:
        return Check(name=name, status="fail", detail=str(error), fix="See the message.")


def safe_runtime_dir() -> str:
    """The runtime directory, as a supervisor wants it before it starts.

    Raises:
        PathError: it can't be made, or is open to others.
        PlaceError: somebody else could put another one in its place.
    """
    path = paths.ensure_runtime_dir()
    check_way(os.path.dirname(paths.socket_path()), trusted_owners())
    return path


def _columns() -> int | None:
    """Columns of the terminal that standard output is; None if it is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError):
        return None


def render_json(checks: Sequence[Check]) -> str:
    """For programs: `{"ok": bool, "checks": [{name, status, detail, fix}]}`."""
    ok = all(check.status != "fail" for check in checks)
    return json.dumps({"ok": ok, "checks": [asdict(check) for check in checks]}, indent=2) + "\n"


def _failed(name: str, error: NsmError) -> Check:
    return Check(name=name, status="fail", detail=error.message, fix=_fix(error))


def _fix(error: NsmError) -> str:
    return "" if error.hint == SEE_DOCTOR else error.hint


def _ensure_state_dir() -> str:
    path = paths.state_dir()
    paths.ensure_private_dir(path)
    return path


async def _try_all(launcher: BwrapLauncher, environments: Sequence[Environment]) -> list[Trial]:
    trials: dict[str, Trial] = {}

    async def attempt(environment: Environment) -> None:
        trials[environment.name] = await _try(launcher, environment)

    async with trio.open_nursery() as nursery:
        for environment in environments:
            nursery.start_soon(attempt, environment)
    return [trials[environment.name] for environment in environments]


async def _try(launcher: BwrapLauncher, environment: Environment) -> Trial:
    """Start one trial jail and read what it says."""
    try:
        jail = await launcher.launch(_trial_spec(environment))
    except NsmError as error:
        return Trial(environment=environment, facts=None, error=error)
    answer = b""
    try:
        with trio.move_on_after(TRIAL_TIMEOUT_S):
            answer = await _read_all(jail.socket)
    finally:
        jail.kill()
        with trio.CancelScope(shield=True):
            await jail.wait()
        jail.release()
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
            jail.kill()
            with trio.CancelScope(shield=True):
                await jail.wait()
            jail.release()


async def _why_not_preloaded(launcher: BwrapLauncher, environment: Environment) -> Sequence[str]:
    """Modules that cannot be, and why; empty where there are no templates."""
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
