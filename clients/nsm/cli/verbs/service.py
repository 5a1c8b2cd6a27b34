"""`nsm service`: have systemd keep the supervisor, for this user."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from nsm import paths
from nsm.cli import options as cli
from nsm.cli import systemd, terminal
from nsm.cli.systemd import MARK, SERVICE, SOCKET, units

if TYPE_CHECKING:
    from argparse import Namespace

_ASIDE = ".before-nsm"
"""Ends the name of a unit of somebody else's that was put aside."""

_SHOWN = (
    "LoadState",
    "ActiveState",
    "SubState",
    "MainPID",
    "NRestarts",
    "NFileDescriptorStore",
    "StatusText",
    "ExecStart",
    "FragmentPath",
)


_service = cli.verb(
    "service",
    "Have systemd keep the supervisor.",
    "systemd starts it with the first client, and again after a crash. Sessions outlive a crash.",
)


def commands() -> tuple[Sequence[str], Sequence[str]]:
    """Commands of the supervisor and of this program, found after an upgrade, too: by the path that
    the user has, not by what it leads to."""
    ours = shutil.which(sys.argv[0], path=paths.search_path()) or sys.argv[0]
    directory = os.path.dirname(os.path.abspath(ours))
    found = [os.path.join(directory, name) for name in ("nsm-supervisor", "nsm")]
    if all(os.access(each, os.X_OK) for each in found):
        return [found[0]], [found[1]]
    return paths.supervisor_command(), (sys.executable, "-P", "-m", "nsm.cli")


# install


@_service.action(
    "install",
    "write the units, enable them, and have them run without a login",
    "Shows what it will do, and asks.",
    cli.flag("--yes", "do not ask"),
    cli.flag(
        "--no-linger", "leave lingering as it is: without it, sessions end with your last login"
    ),
)
def _install(options: Namespace) -> int:
    systemd.check()
    directory = systemd.unit_directory()
    wanted = units(*commands())
    _check_place(directory)
    changed = [name for name, text in wanted.items() if _read(f"{directory}/{name}") != text]
    linger = not options.no_linger and not systemd.lingers()
    steps = [_step(f"{directory}/{name}") for name in changed]
    steps.append(f"systemctl --user daemon-reload; enable --now {SOCKET}")
    if linger:
        steps.append("loginctl enable-linger: it goes on when you log out (asked for separately)")
    if not _may(steps, "Go on?", yes=options.yes):
        return cli.EXIT_FAILED
    os.makedirs(directory, exist_ok=True)
    for name in changed:
        _write(f"{directory}/{name}", wanted[name])
    systemd.ask("daemon-reload")
    systemd.ask("enable", SERVICE, SOCKET)
    systemd.ask("start", SOCKET)
    if linger and _may([], "Have it go on when you log out (lingering)?", yes=options.yes):
        _enable_lingering()
    elif not systemd.lingers():
        terminal.note("sessions end with your last login: `loginctl enable-linger` changes that")
    terminal.out("installed; `nsm service status` shows how it is")
    if changed and systemd.properties(SERVICE, ["ActiveState"])["ActiveState"] == "active":
        terminal.out(f"`systemctl --user restart {SERVICE}` has it run as it is installed now")
    return cli.EXIT_OK


def _enable_lingering() -> None:
    if why := systemd.set_lingering(on=True):
        terminal.note(f"lingering stays off ({why}): sessions end with your last login")
        return
    _remember(lingering=True)


def _check_place(directory: str) -> None:
    """
    Raises:
        ManagerFailedError: the units are somebody else's to write, or a supervisor runs already.
    """
    for name in (SERVICE, SOCKET):
        path = f"{directory}/{name}"
        if os.path.islink(path):
            raise systemd.ManagerFailedError(
                f"{path} is a link to {os.path.realpath(path)}: what made it (home-manager, a "
                "package) manages the service. Change it there."
            )
    pid = _running()
    if pid and pid != systemd.properties(SERVICE, ["MainPID"])["MainPID"]:
        raise systemd.ManagerFailedError(
            f"a supervisor runs already that systemd did not start (pid {pid}). "
            "`nsm shutdown` ends it, with its sessions; then install."
        )


def _running() -> str:
    """The process of the supervisor that runs; empty for none."""
    try:
        with open(os.path.join(paths.runtime_dir(), "supervisor.lock"), encoding="ascii") as file:
            return file.read().strip() if _is_held(file.fileno()) else ""
    except (OSError, ValueError):
        return ""


def _is_held(lock: int) -> bool:
    import fcntl  # noqa: PLC0415  # here only

    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _step(path: str) -> str:
    before = _read(path)
    if before is None:
        return f"write {path}"
    if before.startswith(MARK):
        return f"write {path} again: it is of another version or installation"
    return f"write {path}; what is there now is kept as {path}{_ASIDE}"


def _write(path: str, text: str) -> None:
    before = _read(path)
    if before is not None and not before.startswith(MARK):
        os.replace(path, f"{path}{_ASIDE}")
    paths.replace_file(path, text.encode())


# uninstall


def is_installed() -> bool:
    """Return whether there are units that `nsm service install` has written."""
    return bool(_our_units(systemd.unit_directory()))


def _our_units(directory: str) -> list[str]:
    return [name for name in (SERVICE, SOCKET) if _is_ours(f"{directory}/{name}")]


@_service.action(
    "uninstall",
    "end the supervisor with all sessions, and put everything back as it was",
    "Shows what it will do, and asks.",
    cli.flag("--yes", "do not ask"),
)
def _uninstall(options: Namespace) -> int:
    directory = systemd.unit_directory()
    ours = _our_units(directory)
    if not ours:
        terminal.out(f"there are no units of `nsm service install` in {directory}")
        return cli.EXIT_OK
    systemd.check()
    lingering = bool(_remembered().get("lingering")) and systemd.lingers()
    steps = [
        "systemctl --user disable --now, which ends the supervisor with all sessions",
        *(f"remove {directory}/{name}" for name in ours),
        *(f"put {path} back" for path in (f"{directory}/{name}" for name in ours) if _aside(path)),
    ]
    if lingering:
        steps.append("loginctl disable-linger, since `nsm service install` enabled it")
    if not _may(steps, "Go on?", yes=options.yes):
        return cli.EXIT_FAILED
    systemd.ask("disable", "--now", SOCKET, SERVICE)
    for name in ours:
        path = f"{directory}/{name}"
        os.unlink(path)
        if _aside(path):
            os.replace(f"{path}{_ASIDE}", path)
    systemd.ask("daemon-reload")
    if lingering and (why := systemd.set_lingering(on=False)):
        terminal.note(f"lingering stays on: {why}")
    with suppress(FileNotFoundError):
        os.unlink(_memory())
    terminal.out("uninstalled; clients start supervisors by themselves again")
    return cli.EXIT_OK


def _is_ours(path: str) -> bool:
    return (_read(path) or "").startswith(MARK)


def _aside(path: str) -> bool:
    return os.path.exists(f"{path}{_ASIDE}")


# status


@_service.action(
    "status",
    "show whether systemd keeps the supervisor",
    "Exits 0 if it does, and the units are those of this installation; else 1.",
    cli.as_json("what systemd says"),
)
def _status(options: Namespace) -> int:
    systemd.check()
    service = systemd.properties(SERVICE, _SHOWN)
    socket = systemd.properties(SOCKET, ["ActiveState", "Listen"])
    installed = service["LoadState"] == "loaded"
    listens = socket["Listen"].split(" ")[0]
    supervisor = commands()[0]
    facts: dict[str, Any] = {
        "installed": installed,
        "unit": service["FragmentPath"] or None,
        "current": installed and f"path={supervisor[0]} ;" in service["ExecStart"],
        "socket": {"state": socket["ActiveState"], "path": listens or None},
        "service": {
            "state": service["ActiveState"],
            "detail": service["SubState"],
            "pid": _number(service["MainPID"]) or None,
            "restarts": _number(service["NRestarts"]),
            "kept_descriptors": _number(service["NFileDescriptorStore"]),
            "says": service["StatusText"],
        },
        "lingering": systemd.lingers(),
    }
    problems = _problems(facts, supervisor[0])
    facts["problems"] = problems
    terminal.answer(options, facts, lambda: render(facts))
    return cli.EXIT_FAILED if problems else cli.EXIT_OK


def _problems(facts: dict[str, Any], supervisor: str) -> list[str]:
    if not facts["installed"]:
        return ["not installed: `nsm service install`"]
    problems: list[str] = []
    if not facts["current"]:
        problems.append(f"the unit does not start {supervisor}: `nsm service install`")
    if facts["socket"]["state"] != "active":
        problems.append(
            f"the socket is {facts['socket']['state']}: `systemctl --user start {SOCKET}`"
        )
    elif facts["socket"]["path"] != paths.socket_path():
        problems.append(
            f"it listens on {facts['socket']['path']}, and clients here look for "
            f"{paths.socket_path()}: unset NSM_SOCKET, or set it alike everywhere"
        )
    if facts["service"]["state"] == "failed":
        problems.append(f"the service has failed: `journalctl --user -u {SERVICE}` says why")
    return problems


def render(facts: dict[str, Any]) -> str:
    """The text of `nsm service status`."""
    service, socket = facts["service"], facts["socket"]
    rows = {"unit": facts["unit"] or "none"}
    if facts["installed"]:
        pid = f", pid {service['pid']}" if service["pid"] else ""
        restarts = f", restarted {service['restarts']} times" if service["restarts"] else ""
        says = f": {service['says']}" if service["says"] else ""
        rows |= {
            "socket": f"{socket['state']}, {socket['path']}",
            "service": f"{service['state']} ({service['detail']}){pid}{restarts}{says}",
            "kept": f"{service['kept_descriptors']} descriptors of sessions",
        }
    on = "on" if facts["lingering"] else "off: sessions end with your last login"
    rows["lingering"] = on
    width = max(map(len, rows))
    lines = [f"{name:<{width}}  {text}" for name, text in rows.items()]
    return "\n".join([*lines, *(f"problem: {problem}" for problem in facts["problems"])])


# what all have in common


def _may(steps: Sequence[str], question: str, *, yes: bool) -> bool:
    """Show what will be done, and ask whether it may be."""
    for step in steps:
        terminal.out(f"- {step}")
    if yes:
        return True
    if not terminal.may_ask():
        terminal.note("nobody is there to be asked; `--yes` does it without")
        return False
    return terminal.agreed(question, "[y/N]")


def _memory() -> str:
    return os.path.join(paths.state_dir(), "service.json")


def _remembered() -> dict[str, Any]:
    """Read the record of changes that `install` made besides the units."""
    try:
        with open(_memory(), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _remember(**facts: bool) -> None:
    os.makedirs(paths.state_dir(), mode=0o700, exist_ok=True)
    known = _remembered() | facts
    with open(_memory(), "w", encoding="utf-8") as file:
        json.dump(known, file)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
