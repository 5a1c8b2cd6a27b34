"""The jail of a build, in which uv, npm or py-rattler runs, with no way out but nsm's proxy."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack

import trio

from nsm.dataclass import dataclass, field, replace
from nsm.jail.failure import explain, read_host_facts
from nsm.jail.seccomp import filter_program
from nsmd.environments.commands.log_text import lines_of
from nsmd.environments.host_presets import BASE_PATH
from nsmd.environments.packages import jail_start
from nsmd.environments.packages.store import BUILD
from nsmd.fdstore.holder import receive_one
from nsmd.jail.arguments import (
    SYNTHETIC_FILES,
    BindMount,
    FileData,
    JailContent,
    build_arguments,
    python_command,
)
from nsmd.jail.host import scan_host
from nsmd.jail.starting import memory_file, spawn
from nsmd.jail.user import JailUser
from nsmd.model.values import ImageRoot, Links

ENV = "/env"
"""Place of an environment, in the jail of its build as in sessions."""

STARTER = "/run/nsm/start.py"

TAIL_LINES = 200
"""Lines that are kept: npm explains its options after its error."""

_CHUNK_BYTES = 64 * 1024

_QUERY = re.compile(r"(https?://[^\s?]+)\?[^\s)]+")
"""URL with a query, which may be a signature that opens a file to everybody."""

Serve = Callable[[socket.socket], Awaitable[None]]
"""Serves connections of a listening socket in the jail, until it is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JailOutcome:
    """Outcome of a command in a jail.

    Attributes:
        status: exit code, or the negative number of the signal that ended it.
        tail: last lines of what it printed.
    """

    status: int
    tail: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildJail:
    """The jail of a build: each command runs in a new one with the same directories.

    Attributes:
        bwrap: path of bwrap.
        user: the user whom jails run as.
        python: Python that starts commands in the jail.
        directory: host directory that is `BUILD`; the only one that commands may change.
        environment: directory below it that is `ENV`.
        shown: host directories and files that the jail shows, and where.
        variables: variables of its commands.
        files: texts of files that only the jail has, by path.
        hidden: texts that no line shows, such as passwords.
        say: gets each line that a command prints.
        image, links: its root directory and links in it; commands may then change nothing. None for
            the host's.
    """

    bwrap: str
    user: JailUser
    python: str
    directory: str
    environment: str
    shown: Sequence[tuple[str, str]] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    files: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    hidden: Sequence[str] = field(default=(), repr=False)
    say: Callable[[str], None]
    image: ImageRoot | None = None
    links: Links = ()

    def alone(self, place: str) -> BuildJail:
        """Return the same jail with no more of the build than its own directory."""
        variables = {**self.variables, "TMPDIR": os.path.join(BUILD, "tmp")}
        return replace(self, directory=place, variables=variables)

    async def run(self, command: Sequence[str], *, serve: Serve | None = None) -> JailOutcome:
        """Run a command to its end.

        Args:
            serve: serves its connections to hosts; None for no way out.

        Cancellation: kills it.
        """
        with ExitStack() as owned:
            output, written = os.pipe2(os.O_CLOEXEC)
            owned.callback(os.close, output)
            os.set_blocking(output, False)
            ours: socket.socket | None = None
            with ExitStack() as theirs:
                theirs.callback(os.close, written)
                channel = -1
                if serve is not None:
                    ours, its = socket.socketpair()
                    owned.enter_context(ours).setblocking(False)
                    channel = theirs.enter_context(its).fileno()
                process = self._start(command, channel, written, theirs)
            reader = _Output(output, self.say, self.hidden)
            try:
                async with trio.open_nursery() as nursery:
                    if serve is not None and ours is not None:
                        nursery.start_soon(_serve, ours, serve)
                    await reader.to_its_end()
                    nursery.cancel_scope.cancel()
                status = await trio.to_thread.run_sync(process.wait)
            finally:
                process.kill()  # its jail ends with it
                process.wait()
        return JailOutcome(status=status, tail=tuple(reader.tail))

    def _start(
        self, command: Sequence[str], channel: int, output: int, theirs: ExitStack
    ) -> subprocess.Popen[bytes]:
        with open(jail_start.__file__, "rb") as file:
            starter = file.read()
        usual = SYNTHETIC_FILES if self.image is None else ()
        texts = {**dict(usual), **self.files}
        contents = {STARTER: starter, **{path: text.encode() for path, text in texts.items()}}
        files = [
            FileData(descriptor=memory_file(content, theirs), target=path)
            for path, content in contents.items()
        ]
        system_calls = filter_program(platform.machine())
        filter_fd = None if system_calls is None else memory_file(system_calls, theirs)
        image = self.image
        inside = os.path.relpath(self.environment, self.directory)
        arguments = build_arguments(
            JailContent(
                host=scan_host(),
                mounts=[
                    BindMount(source=self._way_to(source), target=target)
                    for source, target in self.shown
                ],
                files=files,
                path=":".join(BASE_PATH),
                filter_fd=filter_fd,
                variables=tuple(self.variables.items()),
                # No second bind: hard links from the cache to it work only within one mount.
                links=((ENV, f"{BUILD}/{inside}"),) if image is None else self.links,
                image=image is not None,
            ),
            writable=[(self._own(), BUILD)] if image is None else (),
        )
        arguments_fd = memory_file(b"".join(os.fsencode(a) + b"\0" for a in arguments), theirs)
        words = [self.bwrap, "--args", str(arguments_fd), "--"]
        words += python_command(self.python, image)
        words += ["-I", "-S", STARTER, str(channel), *command]
        return spawn(
            self.user,
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            inherited=[
                arguments_fd,
                *(() if channel < 0 else (channel,)),
                *(() if filter_fd is None else (filter_fd,)),
                *(each.descriptor for each in files),
            ],
        )

    def _way_to(self, path: str) -> str:
        """Path by which the jails' user reaches a directory or file."""
        if os.path.isdir(path):
            return self.user.way_to(path)
        folder, name = os.path.split(path)
        return os.path.join(self.user.way_to(folder), name)

    def _own(self) -> str:
        """Path by which the files of the build belong to the jails' user, who changes them.

        On the disk they are ours, so that root's environments are root's. Where the kernel cannot
        translate owners, they are that user's.
        """
        try:
            return self.user.way_to_own(self.directory)
        except OSError:
            for folder, _, _ in os.walk(self.directory):
                self.user.give(folder)
            return self.user.way_to(self.directory)

    def explain(self, ran: JailOutcome) -> str:
        """Say why the jail itself could not be made."""
        return explain("\n".join(ran.tail), read_host_facts(), self.bwrap).message


class _Output:
    """Output of a command: its lines are passed on, and the last ones kept."""

    def __init__(self, descriptor: int, say: Callable[[str], None], hidden: Sequence[str]) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._descriptor = descriptor
        self._say = say
        self._hidden = hidden
        self._rest = b""

    async def to_its_end(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            try:
                data = os.read(self._descriptor, _CHUNK_BYTES)
            except BlockingIOError:
                continue
            *lines, rest = (self._rest + data).split(b"\n")
            if len(rest) > _CHUNK_BYTES or (rest and not data):
                lines.append(rest)
                rest = b""
            self._rest = rest
            for line in lines:
                shown = _QUERY.sub(r"\1?****", line.decode(errors="replace"))
                for secret in self._hidden:
                    shown = shown.replace(secret, "****")
                for text in lines_of(shown):
                    self.tail.append(text)
                    self._say(text)
            if not data:
                return


async def _serve(channel: socket.socket, serve: Serve) -> None:
    """Take the listening socket that the jail passes out, and serve it."""
    await trio.lowlevel.wait_readable(channel)
    _, descriptor = receive_one(channel, 1)
    if descriptor is not None:
        with socket.socket(fileno=descriptor) as listener:
            listener.setblocking(False)
            await serve(listener)
