"""Starts jails with bubblewrap, one process tree each."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import trio

import sandbox_agent
import sandbox_template
from nsm.wire.errors import BadProjectError, StartFailedError
from nsmd.jail.arguments import (
    AGENT_PATH,
    FILTER_PATH,
    SYNTHETIC_FILES,
    TEMPLATE_PATH,
    FileData,
    JailContent,
    Mount,
    agent_command,
    session_arguments,
    template_arguments,
    template_command,
)
from nsmd.jail.binds import needed_binds
from nsmd.jail.bubblewrap import Bubblewrap, find_bwrap, missing_bwrap, probe_bwrap
from nsmd.jail.failure import EXHAUSTED, SEE_DOCTOR, exhausted, explain, read_host_facts
from nsmd.jail.host import HostSystem, scan_host
from nsmd.jail.mounts import PrivateMounts, enter_private_mounts
from nsmd.jail.process import (
    BwrapJail,
    make_stderr,
    open_child,
    read_stderr,
    wait_for_starter,
)
from nsmd.jail.programcode import ProgramCode, source_of
from nsmd.jail.seccomp import filter_program
from nsmd.jail.user import JailUser
from nsmd.values import (
    Environment,
    JailSpec,
    ProjectMount,
    ReadOnlyBind,
    SessionLimits,
    TemplateSpec,
)

INFO_TIMEOUT_S = 10.0
"""bwrap tells the process id of its child 3 ms after its start. One that has not by now hangs on
a file system and is given up."""

SPEAK_TIMEOUT_S = 20.0
"""From there to the agent's first byte: 20 to 100 ms with a prestarted interpreter, seconds on a
machine that swaps."""

INFO_LIMIT_BYTES = 64 * 1024
"""bwrap writes about 300."""

UMASK = 0o022
"""Of the code in jails; the supervisor's own keeps others out of its socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What bwrap is to start.

    Attributes:
        command: PID 1's, or its only child's.
        arguments: bwrap's, made from what the jail shows.
        channel: kind of the socket that the command gets as its descriptor 0.
        binds, path, project: as in `TemplateSpec`.
        programs: files that come from us: content by path.
        speaker: what is to speak first, for people.
        system_calls: the filter that bwrap installs for the command, in classic BPF.
    """

    command: list[str]
    arguments: Callable[[JailContent], list[str]]
    channel: socket.SocketKind
    binds: Sequence[ReadOnlyBind]
    path: str
    project: ProjectMount | None
    programs: Mapping[str, bytes]
    speaker: str = "agent"
    system_calls: bytes | None = None


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
        jail_uid: user and group on the host of all jails, for a supervisor that runs as root;
            any other runs them as itself.
        mounts: from `enter_private_mounts`, for the same.
        agent_source: the agent's program; None for the installed one.
        limits: of all sessions.

    Attributes:
        system_calls: the filter of code in jails, in classic BPF; None where nobody has put this
            machine's system calls into a table.

    Raises:
        ValueError: jails would run as root.
    """

    def __init__(
        self,
        bwrap_path: str | None,
        jail_uid: int | None = None,
        *,
        mounts: PrivateMounts | None = None,
        agent_source: bytes | None = None,
        limits: SessionLimits | None = None,
    ) -> None:
        self.user = JailUser(jail_uid, mounts)
        self.system_calls = filter_program(platform.machine())
        self.limits = limits or SessionLimits()
        self.bwrap_path = bwrap_path
        self._jail_uid, self._private_mounts = jail_uid, mounts
        self._agent_source = agent_source
        self._agent_code = ProgramCode(sandbox_agent, AGENT_PATH)
        self._template_code = ProgramCode(sandbox_template, TEMPLATE_PATH)
        self._bubblewrap: Bubblewrap | None = None
        self._host: HostSystem | None = None

    @classmethod
    def for_host(
        cls, search_path: str, jail_uid: int, *, limits: SessionLimits | None = None
    ) -> BwrapLauncher:
        """The launcher for this process; as root, it first gets mounts of its own.

        Call it in the main thread before others exist.

        Args:
            search_path: value of PATH to find bwrap on.
            jail_uid: for a supervisor that runs as root.
        """
        mounts = enter_private_mounts() if os.geteuid() == 0 else None
        return cls(find_bwrap(search_path), jail_uid, mounts=mounts, limits=limits)

    def with_agent(self, source: bytes) -> BwrapLauncher:
        """The same with another program in the agent's place."""
        return BwrapLauncher(
            self.bwrap_path,
            self._jail_uid,
            mounts=self._private_mounts,
            agent_source=source,
            limits=self.limits,
        )

    def __repr__(self) -> str:
        return f"<BwrapLauncher {self.bwrap_path} as user {self.user.uid}>"

    async def prepare(self, spec: JailSpec) -> None:
        """See `Launcher`: nothing is."""

    async def launch(self, spec: JailSpec) -> BwrapJail:
        """See `Launcher`."""
        environment = spec.environment
        return await self._launch(
            Plan(
                command=agent_command(environment, self.limits.of_interpreters(environment)),
                arguments=partial(session_arguments, sizes=spec.sizes),
                channel=socket.SOCK_STREAM,
                binds=environment.binds,
                path=environment.path,
                project=spec.project,
                programs={AGENT_PATH: await self._agent(environment)},
                system_calls=self.system_calls,
            )
        )

    async def launch_template(self, spec: TemplateSpec, system_calls: bytes) -> BwrapJail:
        """Start a jail in which sessions are forked; `socket` is its control socket.

        Args:
            system_calls: the filter of its sessions, in classic BPF.

        Raises, Cancellation: as `launch`.
        """
        python = spec.agent_python
        imports = f", which imports {', '.join(spec.preload)}," if spec.preload else ""
        return await self._launch(
            Plan(
                command=template_command(spec),
                arguments=template_arguments,
                channel=socket.SOCK_SEQPACKET,
                binds=spec.binds,
                path=spec.path,
                project=spec.project,
                programs={
                    # Python that is not the agent's own may run it, too.
                    AGENT_PATH: self._agent_source or await self._agent_code.for_python(python),
                    TEMPLATE_PATH: await self._template_code.for_python(python),
                    FILTER_PATH: system_calls,
                },
                speaker=f"template{imports}",
            )
        )

    async def _launch(self, plan: Plan) -> BwrapJail:
        try:
            attempt = self._start(plan)
        except OSError as error:
            raise self._start_error(error) from error
        try:
            jail = await _adopt(attempt)
        except _NotAdoptedError as error:
            raise self._failure(str(error)) from None
        try:
            with trio.move_on_after(SPEAK_TIMEOUT_S) as patience:
                if await _speaks(jail.socket):
                    return jail
        except BaseException:
            await _discard(jail)
            raise
        text = await _discard(jail)
        if patience.cancelled_caught:
            text = f"{text}\nIts {plan.speaker} said nothing for {SPEAK_TIMEOUT_S:g} s."
        raise self._failure(text)

    async def _agent(self, environment: Environment) -> bytes:
        """The program of PID 1."""
        if self._agent_source is not None:
            return self._agent_source
        if environment.interpreter == "python" and environment.program != environment.agent_python:
            return source_of(sandbox_agent)  # it will be run by both
        return await self._agent_code.for_python(environment.agent_python)

    def _start(self, plan: Plan) -> _Attempt:
        """Start bwrap; blocks for some 2 ms."""
        program = self._program()
        with ExitStack() as ours, ExitStack() as theirs:
            channel, agent_end = socket.socketpair(socket.AF_UNIX, plan.channel)
            theirs.enter_context(agent_end)
            ours.enter_context(channel).setblocking(False)
            info_fd, info_end = os.pipe2(os.O_CLOEXEC)
            ours.callback(os.close, info_fd)
            theirs.callback(os.close, info_end)
            stderr_fd = make_stderr()
            ours.callback(os.close, stderr_fd)
            mounts = self._mounts(plan, program, theirs)
            files = _files(plan.programs, theirs)
            filter_fd = None
            if plan.system_calls is not None:
                filter_fd = _memory_file(plan.system_calls, theirs)
            if self._host is None:
                self._host = scan_host()
            arguments = self._arguments(
                plan,
                JailContent(
                    host=self._host,
                    mounts=mounts,
                    files=files,
                    path=plan.path,
                    info_fd=info_end,
                    filter_fd=filter_fd,
                ),
            )
            # Not on the command line: everyone on the host and in the jail could read it there.
            arguments_fd = _memory_file(b"".join(os.fsencode(a) + b"\0" for a in arguments), theirs)
            starter = self._spawn(
                [program.path, "--args", str(arguments_fd), "--", *plan.command],
                channel=agent_end,
                stderr_fd=stderr_fd,
                inherited=[
                    info_end,
                    arguments_fd,
                    *(() if filter_fd is None else (filter_fd,)),
                    *(file.descriptor for file in files),
                    *(mount.source for mount in mounts if isinstance(mount.source, int)),
                ],
            )
            ours.pop_all()
        return _Attempt(starter=starter, channel=channel, info_fd=info_fd, stderr_fd=stderr_fd)

    def _arguments(self, plan: Plan, content: JailContent) -> list[str]:
        return plan.arguments(content)

    def _spawn(
        self, command: list[str], *, channel: socket.socket, stderr_fd: int, inherited: list[int]
    ) -> subprocess.Popen[bytes]:
        credentials = self.user.credentials()
        return subprocess.Popen(
            command,
            stdin=channel.fileno(),
            stdout=channel.fileno(),
            stderr=stderr_fd,
            # bwrap hands on whatever it inherits, so it gets nothing that it does not need.
            pass_fds=inherited,
            cwd="/",
            # bwrap's environment could be read in the jail, and steers its dynamic linker.
            env={},
            start_new_session=True,
            umask=UMASK,
            user=credentials.user,
            group=credentials.group,
            extra_groups=credentials.extra_groups,
        )

    def _mounts(self, plan: Plan, program: Bubblewrap, owned: ExitStack) -> list[Mount]:
        """What the jail shows beyond the base system; descriptors among it go to `owned`."""
        mounts: list[Mount] = [
            Mount(source=self.user.way_to(bind.source), target=bind.target)
            for bind in needed_binds(plan.binds, plan.project)
        ]
        if plan.project is not None:
            path, directory = self._open_project(plan.project)
            owned.callback(os.close, directory)
            # By descriptor, it is what was checked. Older versions take a path, a moment later.
            source = directory if program.binds_descriptors else path
            mounts.append(Mount(source=source, target=plan.project.mount_point))
        return mounts

    def _open_project(self, project: ProjectMount) -> tuple[str, int]:
        """Where the jails' user finds the project, and a descriptor of it, if it still is the
        directory that was checked."""
        try:
            path = self.user.way_to(project.path)
            fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except PermissionError as error:
            raise BadProjectError(
                f"The project directory {project.path} cannot be shown: {error}.",
                hint="Open it to that user (chmod o+rx), start nsm as the project's owner, or set "
                "[defaults] jail_uid in config.toml.",
            ) from error
        except OSError as error:
            raise BadProjectError(
                f"The project directory {project.path} cannot be opened: {error.strerror}.",
                hint="Name another directory, or put it back.",
            ) from error
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != (project.device, project.inode):
            os.close(fd)
            raise BadProjectError(
                f"The project directory {project.path} was replaced by another one.",
                hint="Start a new session.",
            )
        return path, fd

    def _program(self) -> Bubblewrap:
        """bwrap, asked once what it can do; one that gets installed later is found."""
        if self.bwrap_path is None:
            raise missing_bwrap()
        if self._bubblewrap is None:
            folder, name = os.path.split(self.bwrap_path)
            program = probe_bwrap(os.path.join(self.user.way_to(folder), name))
            if program.missing:
                raise StartFailedError(
                    f"{program.path} is bubblewrap {program.version} and lacks "
                    f"{', '.join(program.missing)}.",
                    hint="nsm needs bubblewrap 0.8 or newer.",
                )
            self._bubblewrap = program
        return self._bubblewrap

    def _start_error(self, error: OSError) -> StartFailedError:
        if error.errno in EXHAUSTED:
            return exhausted(error)
        if reason := self.user.why_impossible():
            return StartFailedError(
                f"Root runs jails as user {self.user.uid}, and cannot here: {reason}.",
                hint="Start nsm as an ordinary user; or, in a rootless container, map more users "
                "or set [defaults] jail_uid to one that is mapped.",
            )
        return StartFailedError(f"The jail could not be started: {error}.", hint=SEE_DOCTOR)

    def _failure(self, text: str) -> StartFailedError:
        return explain(text, read_host_facts(), self.bwrap_path or "bwrap")


class _NotAdoptedError(Exception):
    """bwrap ended before it told of a child; the message is what it wrote to stderr."""


async def _adopt(attempt: _Attempt) -> BwrapJail:
    """Take hold of the jail's PID 1 as soon as bwrap tells it.

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
            try:
                pidfd = None if pid is None else open_child(pid, attempt.starter.pid)
            except OSError:  # no descriptor is left for it
                attempt.channel.close()  # which ends the jail
                await wait_for_starter(attempt.starter)
                raise
            if pidfd is None:
                await wait_for_starter(attempt.starter)
        if pid is None or pidfd is None:
            raise _NotAdoptedError(read_stderr(attempt.stderr_fd))
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
        while len(text) < INFO_LIMIT_BYTES:
            await trio.lowlevel.wait_readable(info_fd)
            piece = os.read(info_fd, INFO_LIMIT_BYTES)
            text += piece
            if not piece or text.rstrip().endswith(b"}"):
                break
    # The key is the same in all versions; what stands around it is not.
    told = re.search(rb'"child-pid": *(\d+)', text)
    return int(told[1]) if told else None


async def _speaks(channel: socket.socket) -> bool:
    """Wait for the agent's first byte; False if the channel ends instead."""
    await trio.lowlevel.wait_readable(channel)
    try:
        return channel.recv(1, socket.MSG_PEEK) != b""
    except ConnectionError:
        return False


def _files(programs: Mapping[str, bytes], owned: ExitStack) -> list[FileData]:
    contents = {**programs, **{path: text.encode() for path, text in SYNTHETIC_FILES}}
    return [
        FileData(descriptor=_memory_file(content, owned), target=path)
        for path, content in contents.items()
    ]


def _memory_file(content: bytes, owned: ExitStack) -> int:
    """A descriptor to read that content from, to be closed by `owned`. A pipe would do for bwrap,
    but block here at its capacity."""
    fd = os.memfd_create("nsm", os.MFD_CLOEXEC)
    owned.callback(os.close, fd)
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
