"""Steps between a program that makes a jail and a jail whose agent speaks, shared by all launchers.

The program (bwrap, or an artifact's wrapper around one) gets the agent's end of a socket pair as
its descriptors 0 and 1 and passes it on. The first byte says that there is a jail. If none comes,
the text on descriptor 2 explains why.

Artifacts' programs of schema 1 take the project as a descriptor beside their channel, and report
their jail on another one; an artifact's metadata says which further ones they take
(docs/reference/formats.md). Older programs get the project's path.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

import trio

from nsm.dataclass import dataclass
from nsm.jail.failure import EXHAUSTED, SEE_DOCTOR, exhausted
from nsm.wire.errors import StartFailedError
from nsmd.jail.process import (
    Jail,
    discard,
    end_starter,
    make_stderr,
    open_descendant,
    open_jail_below,
    read_stderr,
    wait_for_starter,
)
from nsmd.jail.project import open_project
from nsmd.jail.user import Credentials, JailUser
from nsmd.model.values import Artifact, Environment, ProjectMount, SessionLimits

INFO_TIMEOUT_S = 10.0
"""bwrap tells the process id of its child 3 ms after its start, and a wrapper executes it some 10
ms after its own. After this time the program counts as hanging on a file system.
"""

SPEAK_TIMEOUT_S = 20.0
"""Time from there to the agent's first byte: 20 to 100 ms with a prestarted interpreter, seconds on
a machine that swaps.
"""

INFO_LIMIT_BYTES = 64 * 1024
"""Limit of what bwrap writes, which is about 300 bytes."""

UMASK = 0o022
"""Umask of the code in jails; the supervisor's own keeps others out of its socket."""


class JailNotStartedError(Exception):
    """No agent speaks; the message is the text on stderr, and what else we know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Both ends of the descriptors of a program that is to make a jail; it tells the process id of
    the jail's PID 1 at `info_end`.
    """

    channel: socket.socket
    agent_end: socket.socket
    info_fd: int
    info_end: int
    stderr_fd: int


def open_ends(kind: socket.SocketKind, ours: ExitStack, theirs: ExitStack) -> Ends:
    """Make the descriptors for a program; `ours` and `theirs` close the ends of either side."""
    channel, agent_end = socket.socketpair(socket.AF_UNIX, kind)
    theirs.enter_context(agent_end)
    ours.enter_context(channel).setblocking(False)
    info_fd, info_end = open_info_pipe()
    ours.callback(os.close, info_fd)
    theirs.callback(os.close, info_end)
    stderr_fd = make_stderr()
    ours.callback(os.close, stderr_fd)
    return Ends(
        channel=channel,
        agent_end=agent_end,
        info_fd=info_fd,
        info_end=info_end,
        stderr_fd=stderr_fd,
    )


def open_info_pipe() -> tuple[int, int]:
    """Make a pipe on which bwrap reports a jail: our end, and its own, which can also read.

    So the pipe never breaks. If the supervisor were killed while a jail starts, a broken pipe would
    kill bwrap and leave its child waiting for it for ever (main() of bubblewrap.c, child_wait_fd),
    at a point where neither the end of a channel nor that of a parent has any effect yet.
    """
    info_fd, write_only = os.pipe2(os.O_CLOEXEC)
    try:
        return info_fd, os.open(f"/proc/self/fd/{write_only}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        os.close(info_fd)
        raise
    finally:
        os.close(write_only)


def spawn(
    user: JailUser | None,
    command: Sequence[str],
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    inherited: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program as the jails' user, in a session of its own; blocks for some 2 ms. Without a
    user, it becomes that user itself. It inherits these descriptors beside the first three.

    Call it in the main thread: if something on the way sets a parent-death signal, processes
    started in trio's worker threads die with the thread.
    """
    credentials = Credentials(None, None, None) if user is None else user.credentials()
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        # bwrap passes on whatever it inherits, so it gets nothing that it does not need.
        pass_fds=inherited,
        cwd="/",
        # bwrap's environment could be read in the jail, and controls its dynamic linker.
        env=dict(variables or {}),
        start_new_session=True,
        umask=UMASK,
        user=credentials.user,
        group=credentials.group,
        extra_groups=credentials.extra_groups,
    )


def with_limits(
    command: Sequence[str], environment: Environment, limits: SessionLimits
) -> list[str]:
    """Make a command whose processes have the limits that agents set for interpreters, except their
    number: the kernel would count all of the user's processes here (setrlimit(2), RLIMIT_NPROC).

    This is for artifacts without limits of their own. A shell sets them, because `Popen` has no way
    that is safe beside other threads, and root in a container must not limit others' processes
    (prlimit(2)).
    """
    script = 'ulimit -c 0; ulimit -d "$0" && ulimit -n "$1" && shift && exec "$@"'
    kept = (str(environment.memory_mb << 10), str(limits.descriptors))
    return ["/bin/sh", "-c", script, *kept, *command]


def start_error(error: OSError, user: JailUser) -> StartFailedError:
    """Make the error for a program that could not be started."""
    if error.errno in EXHAUSTED:
        return exhausted(error)
    if reason := user.why_impossible():
        return StartFailedError(
            f"Root runs jails as user {user.uid}, and cannot here: {reason}.",
            hint="Start nsm as an ordinary user; or, in a rootless container, map more users "
            "or set [defaults] jail_uid to one that is mapped.",
        )
    return StartFailedError(f"The jail could not be started: {error}.", hint=SEE_DOCTOR)


_GATE = ("/bin/sh", "-c", 'read -r _ && exec "$@"', "sh")


def gate(group: int | None) -> Sequence[str]:
    """Return the words before a command that enters a control group; none without a group. They
    wait for a line on its channel, then become the command.
    """
    return () if group is None else _GATE


async def _let_in(starter: subprocess.Popen[bytes], channel: socket.socket, group: int) -> None:
    """Move a program that waits at its gate into a control group, and open the gate."""

    def move() -> None:
        with suppress(OSError):
            os.write(group, str(starter.pid).encode())

    # milliseconds; otherwise nobody would end the waiting program
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(move)
    with suppress(OSError):
        channel.send(b"\n")


async def jail_of(
    starter: subprocess.Popen[bytes],
    ends: Ends,
    speaker: str,
    group: int | None = None,
    *,
    tells: bool = True,
) -> Jail:
    """Return the jail that a program makes, once its agent speaks. Cancellation ends both.

    The program leads a session and process group of its own, and may tell the process id of the
    jail's PID 1. Our ends are owned from now on. `speaker` is who should speak first, for people.

    Raises `JailNotStartedError`, or `OSError` if there is no descriptor left.
    """
    if group is not None:
        await _let_in(starter, ends.channel, group)
    if not tells:
        os.close(ends.info_fd)
        return await _adopt_speaking(starter, ends, speaker)
    jail = await _adopt(starter, ends)
    try:
        if (silence := await _await_speech(jail.socket, speaker)) is None:
            return jail
    except BaseException:
        await discard(jail)
        raise
    raise JailNotStartedError(f"{await discard(jail)}{silence}")


async def _adopt(starter: subprocess.Popen[bytes], ends: Ends) -> Jail:
    """Open a pidfd of the jail's PID 1 as soon as bwrap tells it."""
    with ExitStack() as owned:
        owned.callback(os.close, ends.stderr_fd)
        owned.enter_context(ends.channel)
        deadline_s = trio.current_time() + INFO_TIMEOUT_S
        try:
            try:
                pid = await read_child_pid(ends.info_fd)
            finally:
                os.close(ends.info_fd)
            pidfd = None if pid is None else open_descendant(pid, starter.pid)
        except BaseException:
            ends.channel.close()  # this also ends a jail that cannot be found
            await end_starter(starter)
            raise
        if pid is None or pidfd is None:
            late = trio.current_time() >= deadline_s
            with trio.CancelScope(shield=True):
                await wait_for_starter(starter)
            raise JailNotStartedError(read_stderr(ends.stderr_fd) + _LATE * late)
        owned.pop_all()
        return Jail(ends.channel, pidfd, pid, starter=starter, stderr_fd=ends.stderr_fd)


async def _adopt_speaking(starter: subprocess.Popen[bytes], ends: Ends, speaker: str) -> Jail:
    """Find the jail's PID 1 when its agent speaks: it exists by then."""
    with ExitStack() as owned:
        owned.callback(os.close, ends.stderr_fd)
        owned.enter_context(ends.channel)
        try:
            silence = await _await_speech(ends.channel, speaker)
            found = open_jail_below(starter.pid) if silence is None else None
        except BaseException:
            ends.channel.close()
            await end_starter(starter)
            raise
        if found is not None:
            owned.pop_all()
            pid, pidfd = found
            return Jail(ends.channel, pidfd, pid, starter=starter, stderr_fd=ends.stderr_fd)
        if silence == "":  # it is about to end, and may have a last message
            with trio.CancelScope(shield=True):
                await wait_for_starter(starter)
        else:
            await end_starter(starter)
        words = read_stderr(ends.stderr_fd)
        raise JailNotStartedError(words + (_NO_JAIL if silence is None else silence))


_LATE = f"""
It has not told of a jail (bwrap's --info-fd) within {INFO_TIMEOUT_S:g} s."""
_NO_JAIL = """
What it started is not in a PID namespace of its own: that is not a jail, and could not be ended."""


async def _await_speech(channel: socket.socket, speaker: str) -> str | None:
    """Wait for the first byte. Returns None if it came; else an explanation, empty if the channel
    ended.
    """
    with trio.move_on_after(SPEAK_TIMEOUT_S):
        await trio.lowlevel.wait_readable(channel)
        try:
            return None if channel.recv(1, socket.MSG_PEEK) else ""
        except ConnectionError:
            return ""
    return f"\nIts {speaker} said nothing for {SPEAK_TIMEOUT_S:g} s."


async def read_child_pid(info_fd: int) -> int | None:
    """Read the process id that bwrap tells; None if it does not."""
    text = b""
    with trio.move_on_after(INFO_TIMEOUT_S):
        while len(text) < INFO_LIMIT_BYTES:
            await trio.lowlevel.wait_readable(info_fd)
            piece = os.read(info_fd, INFO_LIMIT_BYTES)
            text += piece
            if not piece or text.rstrip().endswith(b"}"):
                break
    # The key is the same in all versions; the text around it is not.
    told = re.search(rb'"child-pid": *(\d+)', text)
    return int(told[1]) if told else None


def memory_file(content: bytes, owned: ExitStack) -> int:
    """Make a descriptor to read that content from; `owned` closes it.

    A pipe would mostly do, but would block here at its capacity. Its receiver can neither change
    the content nor keep more in memory with it (memfd_create(2), F_SEAL_GROW).
    """
    fd = os.memfd_create("nsm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    owned.callback(os.close, fd)
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(content)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


POLICY, VARIABLES = "policy", "variables"
"""Values of `Artifact.takes`."""


def hand_over(
    artifact: Artifact,
    user: JailUser,
    owned: ExitStack,
    *,
    project: ProjectMount | None,
    info_end: int,
    policy: bytes,
    code_variables: Sequence[tuple[str, str]] = (),
) -> tuple[Mapping[str, str], Sequence[int]]:
    """Make the variables of a program's environment, and the descriptors that it inherits, which
    `owned` closes, except `info_end`. A template has no policy file, so its policy is empty.
    """
    variables: dict[str, str] = {}
    inherited: list[int] = []

    def give(name: str, descriptor: int) -> None:
        variables[name] = str(descriptor)
        inherited.append(descriptor)

    if project is not None:
        path, directory = open_project(user, project)
        owned.callback(os.close, directory)
        variables["PROJECT_DIR"] = path
        if artifact.schema > 0:
            give("NSM_PROJECT_FD", directory)
    if artifact.schema > 0:
        give("NSM_INFO_FD", info_end)
    if POLICY in artifact.takes:
        give("NSM_POLICY_FD", memory_file(policy, owned))
    if code_variables:
        if VARIABLES not in artifact.takes:
            raise StartFailedError(
                "The environment is to have variables of its own "
                f"({', '.join(name for name, _ in code_variables)}), and its artifact was "
                "built by an nsm that could not set any.",
                hint="Build the environment again, or remove its `env` and `network` from "
                "config.toml.",
            )
        give("NSM_VARIABLES_FD", memory_file(_as_arguments(code_variables), owned))
    return variables, inherited


def _as_arguments(variables: Sequence[tuple[str, str]]) -> bytes:
    """Format them for bwrap (bwrap(1), --args): on its command line, everyone could read them."""
    words = [word for name, value in variables for word in ("--setenv", name, value)]
    return b"".join(os.fsencode(word) + b"\0" for word in words)
