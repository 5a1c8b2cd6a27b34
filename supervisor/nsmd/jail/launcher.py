"""Starts jails with bubblewrap, one process tree each."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass

import sandbox_agent
import trio

from nsm.wire.errors import BadProjectError, StartFailedError
from nsmd.jail.arguments import (
    AGENT_PATH,
    SYNTHETIC_FILES,
    FileData,
    Mount,
    agent_command,
    jail_arguments,
)
from nsmd.jail.bubblewrap import Bubblewrap, missing_bwrap, probe_bwrap
from nsmd.jail.host import HostSystem, scan_host
from nsmd.jail.process import (
    BwrapJail,
    make_stderr,
    open_child,
    read_stderr,
    wait_for_starter,
)
from nsmd.values import JailSpec, ProjectMount

INFO_TIMEOUT_S = 10.0
"""bwrap tells the process id of its child 3 ms after its start. One that has not by now hangs on
a file system and is given up."""

INFO_LIMIT_BYTES = 64 * 1024
"""bwrap writes about 300."""

UMASK = 0o022
"""Of the code in jails; the supervisor's own keeps others out of its socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """A bwrap that has just been started, and our ends of what it was given."""

    starter: subprocess.Popen[bytes]
    channel: socket.socket
    info_fd: int
    stderr_fd: int


class BwrapLauncher:
    """See `nsmd.jail.interface.Launcher`.

    bwrap is started in the calling thread, which should be the main one: what trio's worker
    threads start dies with the thread wherever a parent-death signal is set on the way.

    Args:
        bwrap_path: absolute path from `find_bwrap`; None lets every launch say how to get it.
        jail_uid: user and group on the host of all jails, for a supervisor that runs as root.
            None: the supervisor's own.
        agent_source: the agent's program; None for the installed one.

    Raises:
        ValueError: the jails would run as root, who is no prisoner: inside a user namespace too,
            host uid 0 owns what the kernel protects by owner, such as /proc/sys.
    """

    def __init__(
        self,
        bwrap_path: str | None,
        jail_uid: int | None = None,
        *,
        agent_source: bytes | None = None,
    ) -> None:
        self._bwrap_path = bwrap_path
        self._uid = os.geteuid() if jail_uid is None else jail_uid
        if self._uid == 0:
            raise ValueError(
                "jails are never run as user 0; set [defaults] jail_uid to an ordinary user's id"
            )
        self._agent_source = agent_source or _installed_agent()
        self._bubblewrap: Bubblewrap | None = None
        self._host: HostSystem | None = None

    async def launch(self, spec: JailSpec) -> BwrapJail:
        """See `Launcher`."""
        try:
            attempt = self._start(spec)
        except OSError as error:
            raise StartFailedError(f"The jail could not be started: {error}.") from error
        jail = await _adopt(attempt)
        try:
            if await _speaks(jail.socket):
                return jail
        except BaseException:
            await _discard(jail)
            raise
        raise _failure(await _discard(jail))

    def _start(self, spec: JailSpec) -> _Attempt:
        """Start bwrap; blocks for some 2 ms."""
        program = self._program()
        self._host = self._host or scan_host()
        with ExitStack() as ours, ExitStack() as theirs:
            channel, agent_end = socket.socketpair()
            theirs.enter_context(agent_end)
            ours.enter_context(channel).setblocking(False)
            info_fd, info_end = os.pipe2(os.O_CLOEXEC)
            ours.callback(os.close, info_fd)
            theirs.callback(os.close, info_end)
            stderr_fd = make_stderr()
            ours.callback(os.close, stderr_fd)

            def give(content: bytes) -> int:
                fd = _memory_file(content)
                theirs.callback(os.close, fd)
                return fd

            mounts = [Mount(source=b.source, target=b.target) for b in spec.environment.binds]
            inherited = [info_end]
            if spec.project is not None:
                directory = _open_project(spec.project)
                theirs.callback(os.close, directory)
                source: str | int = spec.project.path
                if program.binds_descriptors:
                    source = directory
                    inherited.append(directory)
                mounts.append(Mount(source=source, target=spec.project.mount_point))
            contents = [(AGENT_PATH, self._agent_source)]
            contents += [(path, text.encode()) for path, text in SYNTHETIC_FILES]
            files = [FileData(descriptor=give(data), target=path) for path, data in contents]
            arguments = jail_arguments(
                host=self._host,
                sizes=spec.sizes,
                mounts=mounts,
                files=files,
                environment=spec.environment,
                info_fd=info_end,
            )
            arguments_fd = give(b"".join(os.fsencode(argument) + b"\0" for argument in arguments))
            starter = self._spawn(
                # Not on the command line: jail and neighbours could read it there.
                [program.path, "--args", str(arguments_fd), "--", *agent_command(spec.environment)],
                channel=agent_end,
                stderr_fd=stderr_fd,
                inherited=[*inherited, arguments_fd, *(file.descriptor for file in files)],
            )
            ours.pop_all()
        return _Attempt(starter=starter, channel=channel, info_fd=info_fd, stderr_fd=stderr_fd)

    def _spawn(
        self, command: list[str], *, channel: socket.socket, stderr_fd: int, inherited: list[int]
    ) -> subprocess.Popen[bytes]:
        as_root = os.geteuid() == 0
        return subprocess.Popen(
            command,
            stdin=channel.fileno(),
            stdout=channel.fileno(),
            stderr=stderr_fd,
            pass_fds=inherited,
            cwd="/",
            # bwrap's own environment could be read in the jail, and steers its dynamic linker.
            env={},
            start_new_session=True,
            umask=UMASK,
            user=self._uid if as_root else None,
            group=self._uid if as_root else None,
            extra_groups=[] if as_root else None,
        )

    def _program(self) -> Bubblewrap:
        if self._bwrap_path is None:
            raise missing_bwrap()
        if self._bubblewrap is None:
            program = probe_bwrap(self._bwrap_path)
            if program.missing:
                raise StartFailedError(
                    f"{program.path} is bubblewrap {program.version} and lacks "
                    f"{', '.join(program.missing)}.",
                    hint="nsm needs bubblewrap 0.8 or newer.",
                )
            self._bubblewrap = program
        return self._bubblewrap


async def _adopt(attempt: _Attempt) -> BwrapJail:
    """Take hold of the jail's PID 1 as soon as bwrap tells it.

    Raises:
        StartFailedError: bwrap ended first.

    Cancellation: shielded, since nobody could end the jail's process before; 2 ms.
    """
    with ExitStack() as owned:
        owned.callback(os.close, attempt.stderr_fd)
        owned.enter_context(attempt.channel)
        pid = pidfd = None
        with trio.CancelScope(shield=True):
            try:
                pid = await _read_child_pid(attempt.info_fd)
            finally:
                os.close(attempt.info_fd)
            if pid is not None:
                pidfd = open_child(pid, attempt.starter.pid)
            if pidfd is None:
                await wait_for_starter(attempt.starter)
        if pid is None or pidfd is None:
            raise _failure(read_stderr(attempt.stderr_fd))
        owned.pop_all()
        return BwrapJail(
            starter=attempt.starter,
            pid=pid,
            pidfd=pidfd,
            channel=attempt.channel,
            stderr_fd=attempt.stderr_fd,
        )


async def _discard(jail: BwrapJail) -> str:
    """End a jail that nobody will use; returns what it wrote to stderr.

    Cancellation: shielded; 1 ms.
    """
    with trio.CancelScope(shield=True):
        jail.kill()
        await jail.wait()
    text = jail.stderr_text()
    jail.release()
    return text


async def _read_child_pid(info_fd: int) -> int | None:
    """The process id that bwrap tells; None if it does not."""
    text = b""
    with trio.move_on_after(INFO_TIMEOUT_S):
        while not text.rstrip().endswith(b"}") and len(text) < INFO_LIMIT_BYTES:
            await trio.lowlevel.wait_readable(info_fd)
            piece = os.read(info_fd, INFO_LIMIT_BYTES)
            if not piece:
                return None
            text += piece
        return int(json.loads(text)["child-pid"])
    return None


async def _speaks(channel: socket.socket) -> bool:
    """Wait for the agent's first byte; False if the channel ends instead."""
    await trio.lowlevel.wait_readable(channel)
    try:
        return channel.recv(1, socket.MSG_PEEK) != b""
    except ConnectionError:
        return False


def _failure(text: str) -> StartFailedError:
    return StartFailedError(f"The jail did not start. {text or 'Nothing was said about why.'}")


def _open_project(project: ProjectMount) -> int:
    """A descriptor of the project directory, if it still is the one that was checked."""
    try:
        fd = os.open(project.path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise BadProjectError(
            f"The project directory {project.path} cannot be opened: {error.strerror}."
        ) from error
    found = os.fstat(fd)
    if (found.st_dev, found.st_ino) != (project.device, project.inode):
        os.close(fd)
        raise BadProjectError(
            f"The project directory {project.path} was replaced by another one.",
            hint="Start a new session.",
        )
    return fd


def _installed_agent() -> bytes:
    path = sandbox_agent.__file__
    assert path is not None
    with open(path, "rb") as file:
        return file.read()


def _memory_file(content: bytes) -> int:
    """A descriptor to read that content from. bwrap takes any descriptor, and a pipe would block
    at its capacity."""
    fd = os.memfd_create("nsm", os.MFD_CLOEXEC)
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
