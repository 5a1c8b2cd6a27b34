"""Requests to systemd: a scope around the supervisor, which is a group of its own that is delegated
to it, and moves of processes that the supervisor may not move itself.

An editor or a terminal starts the supervisor in its own group, and the surroundings there do not
belong to the supervisor. It asks for one scope, once, and sessions get groups below that, so that
none of them needs a conversation over D-Bus. A supervisor that is the main process of a service
stays where it is: systemd would lose sight of it.

A user's manager may not move processes out of a login session by itself. It asks the system's
manager, which accepts such requests for the user's own processes.
"""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from collections.abc import Iterable, Mapping

import trio

from nsmd.jail.cgroups.discovery import GroupPlace, NoGroupsError

ANSWER_TIMEOUT_S = 3.0
"""Time for each of two programs, which take 10 to 50 ms. The supervisor's start waits for them, and
its starter waits 10 s for that (`nsm.startup.spawn`).
"""

LINGER = "/var/lib/systemd/linger"
"""Directory with a file for each user whose service manager outlives the logins."""

_CALL = (
    "call",
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
)

DELEGATE = (
    "Add `Delegate=yes` to its [Service] section (`systemctl --user edit nsm-supervisor.service`), "
    "and restart it."
)


async def is_delegated(place: GroupPlace, environment: Mapping[str, str]) -> bool:
    """Return whether systemd says that this process may divide its own unit.

    Users' managers do not mark groups visibly, at least up to systemd 252.

    Args:
        place: its position.
        environment: variables of this process.
    """
    if not place.unit.endswith((".service", ".scope")):
        return False
    try:
        manager, variables = manager_of(environment)
        show = ["systemctl", *manager, "show", "--value", "-p", "Delegate", place.unit]
        told = await _run(show, variables)
    except NoGroupsError:
        return False
    return told is not None and told.returncode == 0 and told.stdout.strip() == b"yes"


async def enter_scope(place: GroupPlace, environment: Mapping[str, str]) -> None:
    """Move this process into a scope of its own.

    Args:
        place: its present position.
        environment: variables of this process.

    Raises:
        NoGroupsError: systemd is not there, or refuses.
    """
    if place.unit.endswith(".service") and is_main_process(environment):
        raise NoGroupsError(f"its service {place.unit} is not delegated to it", DELEGATE)
    manager, variables = manager_of(environment)
    name = f"nsm-supervisor-{os.getpid()}.scope"
    properties = [
        ("Description", "s", "nsm: jailed sessions for coding agents"),
        ("Delegate", "b", "true"),
        # In one session: the others and the supervisor must live.
        ("OOMPolicy", "s", "continue"),
        ("CollectMode", "s", "inactive-or-failed"),
    ]
    while True:
        told = _complaint(
            await _run(["busctl", *manager, *_start_transient(name, properties)], variables)
        )
        if not told:
            break
        # OOMPolicy= of scopes is newer than all else here (systemd 253).
        if len(properties) == 4 and "OOMPolicy" in told:
            del properties[2]
            continue
        raise NoGroupsError(f"systemd makes no scope for it ({told})", how_to_manage())
    # The answer comes before the request is carried out; this waits for that.
    told = _complaint(await _run(["systemctl", *manager, "start", name], variables))
    if told:
        raise NoGroupsError(f"systemd does not start its scope ({told})", how_to_manage())


async def attach(
    around: str, group: str, pids: Iterable[int], environment: Mapping[str, str]
) -> None:
    """Have systemd move processes into a group: the kernel lets nobody else take some out of a
    login, or out of another service.

    Args:
        around: directory of the unit that is delegated to us.
        group: directory below it.
        pids: processes of this user.
        environment: variables of this process.

    Raises:
        NoGroupsError: systemd is not there, or refuses.
    """
    unit = os.path.basename(around)
    if not unit.endswith((".service", ".scope")):
        raise NoGroupsError("it was started in another part of the tree of control groups")
    if not _lingers():
        raise NoGroupsError(
            "a control group of nsm's would end with your last login, and the box with it "
            "(`loginctl enable-linger` prevents that)"
        )
    manager, variables = manager_of(environment)
    numbers = [str(pid) for pid in pids]
    words = (unit, group.removeprefix(around), str(len(numbers)), *numbers)
    told = _complaint(
        await _run(["busctl", *manager, *_CALL, "AttachProcessesToUnit", "ssau", *words], variables)
    )
    if told:
        raise NoGroupsError(f"systemd does not move it into a control group ({told})")


def _lingers() -> bool:
    """Return whether this user's service manager outlives the logins; the system's does."""
    if os.geteuid() == 0:
        return True
    try:
        return os.path.exists(f"{LINGER}/{pwd.getpwuid(os.geteuid()).pw_name}")
    except KeyError:  # a user without a name has no logins
        return True


def _start_transient(name: str, properties: list[tuple[str, str, str]]) -> list[str]:
    """Make the arguments of busctl(1) for StartTransientUnit (org.freedesktop.systemd1(5))."""
    arguments = [
        *_CALL,
        "StartTransientUnit",
        "ssa(sv)a(sa(sv))",
        name,
        "fail",
        str(len(properties) + 1),
    ]
    for each in properties:
        arguments += each
    return [*arguments, "PIDs", "au", "1", str(os.getpid()), "0"]


async def _run(
    command: list[str], variables: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes] | None:
    """Run a program; None if it did not answer.

    Raises:
        NoGroupsError: it cannot be run.
    """
    given = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", **variables}
    try:
        with trio.move_on_after(ANSWER_TIMEOUT_S):
            return await trio.run_process(
                command, capture_stdout=True, capture_stderr=True, check=False, cwd="/", env=given
            )
    except OSError as error:
        raise NoGroupsError(
            f"{command[0]} cannot be run: {error.strerror}", how_to_manage()
        ) from error
    return None


def _complaint(told: subprocess.CompletedProcess[bytes] | None) -> str:
    """Return the error of a program; empty if there was none."""
    if told is None:
        return f"no answer within {ANSWER_TIMEOUT_S:g} s"
    if told.returncode == 0:
        return ""
    return complaint_of(told.stderr.decode(errors="replace")) or f"status {told.returncode}"


def complaint_of(words: str) -> str:
    """Shorten a message of a systemd program to a clause."""
    return words.strip()[:300]


def manager_of(environment: Mapping[str, str]) -> tuple[list[str], Mapping[str, str]]:
    """Options that select the service manager for programs, and variables by which they find it.

    Raises:
        NoGroupsError: there is none.
    """
    if os.geteuid() == 0:
        return ["--system"], {}
    return ["--user"], _bus_variables(environment)


def is_main_process(environment: Mapping[str, str]) -> bool:
    """Return whether systemd started exactly this process (systemd.exec(5), SYSTEMD_EXEC_PID)."""
    return environment.get("SYSTEMD_EXEC_PID") == str(os.getpid())


def _bus_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Make the variables that lead to the user's manager. MCP clients may not pass them on.

    Raises:
        NoGroupsError: there is none.
    """
    usual = f"/run/user/{os.geteuid()}"
    runtime = environment.get("XDG_RUNTIME_DIR") or usual
    if not _is_ours(runtime) and _is_ours(usual):
        runtime = usual
    if not os.path.exists(f"{runtime}/systemd/private") and not os.path.exists(f"{runtime}/bus"):
        raise NoGroupsError(
            "no service manager of this user runs (`systemd --user`)", how_to_manage()
        )
    variables = {"XDG_RUNTIME_DIR": runtime}
    if "DBUS_SESSION_BUS_ADDRESS" in environment:
        variables["DBUS_SESSION_BUS_ADDRESS"] = environment["DBUS_SESSION_BUS_ADDRESS"]
    return variables


def _is_ours(directory: str) -> bool:
    try:
        found = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def how_to_manage() -> str:
    if os.geteuid() == 0:
        return "Run the supervisor as a system service with Delegate=yes."
    return (
        "Log in through a login manager or ssh, with pam_systemd, and have lingering on "
        "(`loginctl enable-linger`); or run nsm-supervisor.service with Delegate=yes."
    )
