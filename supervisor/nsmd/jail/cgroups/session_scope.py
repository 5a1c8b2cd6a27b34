"""A systemd scope for sessions alone, without the supervisor's service.

Sessions below a service's own group would prevent its next start: a group that passes controllers
down may have no processes itself (cgroup-v2.rst), so the new main process could not be put there
while they live (status 219/CGROUP). In a scope beside the service they prevent nothing. A scope
exists while it has a process: the anchor, a shell that reads from a pipe until nobody holds its
other end. The supervisor holds it, and so does the descriptor store. So the scope lives as long as
the sessions may, and no longer.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress

import trio

from nsm import paths
from nsm.dataclass import dataclass
from nsmd.fdstore.store import DescriptorStore, Kept
from nsmd.host.processes import signal_child
from nsmd.jail.cgroups.discovery import NoGroupsError, directory_of
from nsmd.jail.cgroups.scope import ANSWER_TIMEOUT_S, complaint_of, how_to_manage, manager_of

log = logging.getLogger(__name__)

OWN = "anchor"
"""Name of the anchor's group in the scope."""

NAME = "scope"
"""Name in the store: the anchor's pipe, and a memory file with the directory of its group."""

_ANCHOR = "echo; exec >&- 2>&-; read _"
_MAX_PATH_BYTES = 4096


@dataclass(slots=True, kw_only=True)
class Anchor:
    """Process that holds a scope open.

    Attributes:
        directory: directory of the scope's group.
        pid: process id of the shell in it; 0 if an earlier supervisor started it.
        pipe: the shell ends when nobody holds this any more.
        record: the directory in its stored form.
    """

    directory: str
    pid: int
    pipe: int
    record: int

    def keep(self, store: DescriptorStore) -> None:
        """Store it, so that it outlives this process."""
        store.keep(NAME, [self.pipe, self.record])

    def descriptors(self) -> Sequence[int]:
        """Descriptors to store."""
        return [self.pipe, self.record]

    def close(self) -> None:
        """Close it: the scope ends unless others hold it. May be repeated."""
        for fd in (self.pipe, self.record):
            if fd >= 0:
                os.close(fd)
        self.pipe = self.record = -1


def taken_up(kept: Kept) -> Anchor | None:
    """Take over the anchor that an earlier supervisor started; None if none lives.

    Args:
        kept: descriptors; those of the anchor are taken.
    """
    pipe, record = -1, -1
    for fd in kept.get(NAME, ()):
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


async def start(environment: Mapping[str, str]) -> Anchor:
    """Ask systemd for a scope with an anchor in it; takes some 50 ms.

    Args:
        environment: variables of this process.

    Raises:
        NoGroupsError: systemd is not there, or refuses.
    """
    manager, variables = manager_of(environment)
    properties = ["Delegate=yes", "TasksMax=infinity", "OOMPolicy=continue"]
    while True:
        name = f"nsm-sessions-{secrets.token_hex(4)}.scope"
        command = ["systemd-run", *manager, "--scope", "--quiet", "--collect", f"--unit={name}"]
        command += ["--description=nsm: sessions", *(f"--property={each}" for each in properties)]
        started, said = await _start([*command, "/bin/sh", "-c", _ANCHOR], variables)
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


async def _start(
    command: list[str], variables: Mapping[str, str]
) -> tuple[tuple[int, int] | None, str]:
    """Start the anchor. Returns its process and pipe, or the message of systemd-run.

    Raises:
        NoGroupsError: it cannot be run.
    """
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
    descriptor of its messages.

    Raises:
        NoGroupsError: it cannot be run.
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
