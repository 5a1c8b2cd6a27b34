"""Requests to systemd: scopes that are delegated to the supervisor, and moves of processes that the
supervisor may not move itself.

An editor or a terminal starts the supervisor in its own group, and the surroundings there do not
belong to the supervisor. It asks for one scope around itself, once, and sessions get groups below
that, so that none of them needs a conversation over D-Bus.

A supervisor that is the main process of a service stays where it is: systemd would lose sight of
it. Sessions below the service's own group would prevent its next start: a group that passes
controllers down may have no processes itself (cgroup-v2.rst), so the new main process could not be
put there while they live (status 219/CGROUP). In a scope beside the service they prevent nothing. A
scope exists while it has a process: the anchor, a shell that reads from a pipe until nobody holds
its other end. The supervisor holds it, and so does the descriptor store. So the scope lives as long
as the sessions may, and no longer.

A user's manager may not move processes out of a login session by itself. It asks the system's
manager, which accepts such requests for the user's own processes.

`environment` is everywhere the variables of this process.

`DelegateSubgroup=` would do the same without a scope, but only from systemd 254 on. Moving the main
process out of its group, or taking the controllers away before it ends, fails with `kill -9`.
"""

from __future__ import annotations

import logging
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import trio

from nsm import paths
from nsm.dataclass import dataclass
from nsmd.fdstore.store import DescriptorStore, Kept
from nsmd.host.processes import signal_child
from nsmd.jail.limits.tree import GroupPlace, NoGroupsError, directory_of

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
    """Move this process from `place` into a scope of its own, or raise `NoGroupsError` if systemd
    is not there, or refuses.
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
    """Have systemd move processes of this user into a group below the unit that is delegated to us,
    whose directory is `around`: the kernel lets nobody else take some out of a login, or out of
    another service. A `NoGroupsError` says that it is not there, or refuses.
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
    """Run a program; None if it did not answer, NoGroupsError if it cannot be run."""
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
    Raises NoGroupsError if there is none.
    """
    if os.geteuid() == 0:
        return ["--system"], {}
    return ["--user"], _bus_variables(environment)


def is_main_process(environment: Mapping[str, str]) -> bool:
    """Return whether systemd started exactly this process (systemd.exec(5), SYSTEMD_EXEC_PID)."""
    return environment.get("SYSTEMD_EXEC_PID") == str(os.getpid())


def _bus_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Make the variables that lead to the user's manager. MCP clients may not pass them on."""
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


log = logging.getLogger(__name__)

ANCHOR_GROUP = "anchor"
"""Name of the anchor's group in the scope."""

STORED_NAME = "scope"
"""Name in the store: the anchor's pipe, and a memory file with the directory of its group."""

_ANCHOR = "echo; exec >&- 2>&-; read _"
_MAX_PATH_BYTES = 4096


@dataclass(slots=True, kw_only=True)
class Anchor:
    """Process that holds a scope open: a shell (its process id is 0 if an earlier supervisor
    started it) that ends when nobody holds the pipe any more. The directory of the scope's group is
    also in a memory file, `record`, to be stored.
    """

    directory: str
    pid: int
    pipe: int
    record: int

    def keep(self, store: DescriptorStore) -> None:
        """Store it, so that it outlives this process."""
        store.keep(STORED_NAME, self.descriptors())

    def descriptors(self) -> Sequence[int]:
        """Descriptors to store."""
        return [self.pipe, self.record]

    def close(self) -> None:
        """Close it: the scope ends unless others hold it. May be repeated."""
        for fd in (self.pipe, self.record):
            if fd >= 0:
                os.close(fd)
        self.pipe = self.record = -1


def take_up_anchor(kept: Kept) -> Anchor | None:
    """Take over the anchor that an earlier supervisor started, and its descriptors of `kept`; None
    if none lives.
    """
    pipe, record = -1, -1
    for fd in kept.get(STORED_NAME, ()):
        if stat.S_ISFIFO(os.fstat(fd).st_mode) and pipe < 0:
            pipe = fd
        elif stat.S_ISREG(os.fstat(fd).st_mode) and record < 0:
            record = fd
        else:
            os.close(fd)
    anchor = Anchor(directory="", pid=0, pipe=pipe, record=record)
    if pipe >= 0 and record >= 0:
        anchor.directory = os.pread(record, _MAX_PATH_BYTES, 0).decode(errors="replace")
    if anchor.directory and os.path.isdir(f"{anchor.directory}/sessions"):
        return anchor
    anchor.close()
    return None


async def start_anchor(environment: Mapping[str, str]) -> Anchor:
    """Ask systemd for a scope with an anchor in it; takes some 50 ms. A `NoGroupsError` says that
    it is not there, or refuses.
    """
    manager, variables = manager_of(environment)
    properties = ["Delegate=yes", "TasksMax=infinity", "OOMPolicy=continue"]
    while True:
        name = f"nsm-sessions-{secrets.token_hex(4)}.scope"
        command = ["systemd-run", *manager, "--scope", "--quiet", "--collect", f"--unit={name}"]
        command += ["--description=nsm: sessions", *(f"--property={each}" for each in properties)]
        started, said = await _start_holding([*command, "/bin/sh", "-c", _ANCHOR], variables)
        if started is not None:
            break
        # OOMPolicy= of scopes is newer than all else here (systemd 253).
        if "OOMPolicy" in said and "OOMPolicy=continue" in properties:
            properties.remove("OOMPolicy=continue")
            continue
        raise NoGroupsError(f"systemd makes no scope for sessions ({said})", how_to_manage())
    pid, pipe = started
    try:
        directory = directory_of(pid)
        record = os.memfd_create("nsm-scope", os.MFD_CLOEXEC)
        os.write(record, os.fsencode(directory))
    except BaseException:
        os.close(pipe)
        raise
    return Anchor(directory=directory, pid=pid, pipe=pipe, record=record)


async def _start_holding(
    command: list[str], variables: Mapping[str, str]
) -> tuple[tuple[int, int] | None, str]:
    """Start the anchor. Returns its process and pipe, or the message of systemd-run."""
    given = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", **variables}
    pid, pipe, said = _spawn(command, given)
    try:
        words = await _words(said)
        if words == "\n":
            return (pid, pipe), ""
    except BaseException:
        os.close(pipe)
        raise
    finally:
        os.close(said)
    os.close(pipe)
    signal_child(pid, signal.SIGKILL)
    await trio.to_thread.run_sync(os.waitpid, pid, 0)
    return None, complaint_of(words) or f"no answer within {ANSWER_TIMEOUT_S:g} s"


def _spawn(command: list[str], variables: Mapping[str, str]) -> tuple[int, int, int]:
    """Start a program that reads from a pipe. Returns its pid, our end of the pipe, and a
    descriptor of its messages; NoGroupsError if it cannot be run.
    """
    program = shutil.which(command[0], path=paths.search_path())
    if program is None:
        raise NoGroupsError(f"{command[0]} cannot be run: it is not on PATH", how_to_manage())
    hold, pipe = os.pipe2(os.O_CLOEXEC)
    said, tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    streams = [(os.POSIX_SPAWN_DUP2, hold, 0), *((os.POSIX_SPAWN_DUP2, tell, fd) for fd in (1, 2))]
    try:
        # A session of its own, so that it outlives the terminal's hang-up and signals to us.
        pid = os.posix_spawn(
            program, command, variables, file_actions=streams, setsid=True, setsigmask=[]
        )
    except OSError as error:
        for fd in (pipe, said):
            os.close(fd)
        raise NoGroupsError(
            f"{command[0]} cannot be run: {error.strerror}", how_to_manage()
        ) from error
    finally:
        for fd in (hold, tell):
            os.close(fd)
    return pid, pipe, said


async def _words(fd: int) -> str:
    """Read until the end, or until an empty line: then the anchor holds."""
    words = b""
    with trio.move_on_after(ANSWER_TIMEOUT_S):
        while words != b"\n":
            await trio.lowlevel.wait_readable(fd)
            with suppress(BlockingIOError):
                piece = os.read(fd, 4096)
                if not piece:
                    break
                words += piece
    return words.decode(errors="replace")
