"""Asks systemd for a scope around the supervisor: a group of its own that is delegated to it.

An editor or a terminal starts the supervisor wherever it is itself, and what is around it there is
not the supervisor's. One scope is asked for, once, and sessions get groups below it, so that none
of them costs a conversation over D-Bus. A supervisor that is the main process of a service stays
where it is: systemd would lose sight of it.

A user's manager may not move processes out of a login session by itself; it asks the system's
to do so, which takes such requests for the user's own processes.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Mapping

import trio

from nsmd.cgroups.place import NoGroupsError, Place

ANSWER_TIMEOUT_S = 5.0
"""Of each of two programs, which take 10 to 50 ms; the supervisor's start waits for them."""

DELEGATE = (
    "Add `Delegate=yes` to its [Service] section (`systemctl --user edit nsm-supervisor.service`), "
    "and restart it."
)


async def enter_scope(place: Place, environment: Mapping[str, str]) -> None:
    """Move this process into a scope of its own.

    Args:
        place: where it is now.
        environment: of this process.

    Raises:
        NoGroupsError: systemd is not there, or does not do it.
    """
    if place.unit.endswith(".service") and _is_main_process(environment):
        raise NoGroupsError(f"its service {place.unit} is not delegated to it", DELEGATE)
    user = os.geteuid() != 0
    variables = _bus_variables(environment) if user else {}
    manager = ["--user"] if user else ["--system"]
    name = f"nsm-supervisor-{os.getpid()}.scope"
    properties = [
        ("Description", "s", "nsm: jailed sessions for coding agents"),
        ("Delegate", "b", "true"),
        # Of one session: the others and the supervisor are to live.
        ("OOMPolicy", "s", "continue"),
        ("CollectMode", "s", "inactive-or-failed"),
    ]
    while True:
        told = await _run(
            ["busctl", *manager, *_start_transient(name, properties)], variables, user=user
        )
        if told is None:
            break
        # OOMPolicy= of scopes is newer than all else here (systemd 253).
        if len(properties) == 4 and "OOMPolicy" in told:
            del properties[2]
            continue
        raise NoGroupsError(f"systemd makes no scope for it ({told})", _how_to_manage(user=user))
    # The answer to the request comes before it is carried out; this waits for that.
    told = await _run(["systemctl", *manager, "start", name], variables, user=user)
    if told is not None:
        raise NoGroupsError(f"systemd does not start its scope ({told})", _how_to_manage(user=user))


def _start_transient(name: str, properties: list[tuple[str, str, str]]) -> list[str]:
    """Arguments of busctl(1) for StartTransientUnit (org.freedesktop.systemd1(5))."""
    arguments = [
        "call",
        "org.freedesktop.systemd1",
        "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager",
        "StartTransientUnit",
        "ssa(sv)a(sa(sv))",
        name,
        "fail",
        str(len(properties) + 1),
    ]
    for each in properties:
        arguments += each
    return [*arguments, "PIDs", "au", "1", str(os.getpid()), "0"]


async def _run(command: list[str], variables: Mapping[str, str], *, user: bool) -> str | None:
    """What a program complains of; None if it went well."""
    given = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", **variables}
    told: subprocess.CompletedProcess[bytes] | None = None
    try:
        with trio.move_on_after(ANSWER_TIMEOUT_S):
            told = await trio.run_process(
                command, capture_stdout=True, capture_stderr=True, check=False, env=given
            )
    except OSError as error:
        raise NoGroupsError(
            f"{command[0]} cannot be run: {error.strerror}", _how_to_manage(user=user)
        ) from error
    if told is None:
        return f"{command[0]} did not answer within {ANSWER_TIMEOUT_S:g} s"
    if told.returncode == 0:
        return None
    return told.stderr.decode(errors="replace").strip()[:300] or f"{command[0]} failed"


def _is_main_process(environment: Mapping[str, str]) -> bool:
    """Whether we are the one that systemd started (systemd.exec(5), SYSTEMD_EXEC_PID)."""
    return environment.get("SYSTEMD_EXEC_PID") == str(os.getpid())


def _bus_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What leads to the user's manager. MCP clients may not hand it on.

    Raises:
        NoGroupsError: there is none.
    """
    usual = f"/run/user/{os.geteuid()}"
    runtime = environment.get("XDG_RUNTIME_DIR") or usual
    if not _is_ours(runtime) and _is_ours(usual):
        runtime = usual
    if not os.path.exists(f"{runtime}/systemd/private") and not os.path.exists(f"{runtime}/bus"):
        raise NoGroupsError(
            "no service manager of this user runs (`systemd --user`)", _how_to_manage(user=True)
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


def _how_to_manage(*, user: bool) -> str:
    if not user:
        return "Run the supervisor as a system service with Delegate=yes."
    return (
        "Log in through a login manager or ssh, with pam_systemd, and have lingering on "
        "(`loginctl enable-linger`); or run nsm-supervisor.service with Delegate=yes."
    )
