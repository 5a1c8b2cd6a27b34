"""One template: a jail with a process that does nothing but fork, and its forks.

The protocol is in `docs/contributing/agent-protocol.md`, "Templates". A template may die or be
ended at any time: its forks live on below its jail's PID 1, which is bwrap's and ends with the last
of them.
"""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

import trio

from nsm.jail.failure import EXHAUSTED
from nsm.wire.decode import decode
from nsmd.fdstore.holder import receive
from nsmd.host.processes import pid_of
from nsmd.host.timer import Timer, Timers
from nsmd.jail import ColdLauncher, Jail, ProjectCopy
from nsmd.jail.handle import JailHandle, hang_up
from nsmd.jail.interface import TemplateSpec, discard
from nsmd.jail.templates.freshness import host_paths

FORK_TIMEOUT_S = 10.0
"""Time from the request to the announcement of the fork's PID 1: 3 ms; seconds on a machine that
swaps.
"""

SPEAK_TIMEOUT_S = 20.0
"""Time from there to the agent's first byte: 1 ms, plus Node's start if Node is prestarted."""

KEEP_S = 900.0
"""How long an unused template stays."""

END_TIMEOUT_S = 10.0

MESSAGE_BYTES = 64 * 1024
MAX_TEXT = 300

PROTOCOL = 2
"""Version of the templates' protocol (agent-protocol.md)."""

COPY_DESCRIPTORS = 2
"""Descriptors of an overlay: the changes, and the directory that code sees."""

WENT_WELL = b"+"
WENT_WRONG = b"-"


class TemplateError(Exception):
    """No fork could be made; the message says why, for people."""


class TemplateGoneError(TemplateError):
    """The template has ended; another one may work."""


class ForkEndedError(TemplateError):
    """The fork ended without a message: it was killed, and another one may live."""


class ShortageError(TemplateError):
    """Processes, memory or descriptors are short just now; a jail would need more of them."""


SHORTAGES = frozenset(os.strerror(number) for number in EXHAUSTED - {errno.ENOSPC})
"""Errors of a shortage. clone(2) also fails with the removed one if namespaces may not
be nested.
"""


def refusal(text: str) -> TemplateError:
    """Make the error for a fork's message about its failure, ``STEP: WHAT THE KERNEL SAID``."""
    short = text.rpartition(": ")[2] in SHORTAGES
    return ShortageError(text) if short else TemplateError(text)


class ForkedJail(JailHandle):
    """Forked session in namespaces of its own, in a template's jail.

    Args:
        channel: the supervisor's end of the agent's socket; owned from now on.
        pidfd: pidfd of the session's PID 1; owned from now on.
        pid: host process id of the same process.
        project_copy: descriptors of its overlay; owned from now on.
    """

    __slots__ = ()

    def __init__(
        self,
        channel: socket.socket,
        pidfd: int,
        pid: int,
        project_copy: ProjectCopy | None = None,
    ) -> None:
        super().__init__(channel, pidfd, pid, project_copy=project_copy)

    @property
    def starter_pid(self) -> int:
        return 0

    async def wait(self) -> None:
        if not self._released:
            # PID 1 of a PID namespace becomes waitable after all others in it are gone
            # (pid_namespaces(7)).
            await trio.lowlevel.wait_readable(self._pidfd)

    def stderr_text(self) -> str:
        return ""


class TemplateJail(Jail, Protocol):
    """The jail of a template."""

    async def reap_starter(self) -> None:
        """Reap the process that made the jail, which ends before the jail."""


class Template:
    """Process in a jail that does nothing but fork. It comes from `start_template`; run its `run`.

    Args:
        jail: its socket is the control socket; owned from now on.
        pidfd: pidfd of the process that forks; owned from now on.
        failed: modules that it could not preload, and why.

    Attributes:
        files: its files on the host; empty if they never change.
        state: state of these files when it was made (`nsmd.jail.templates.freshness`).
        suspect: something there has changed, and nobody has checked it yet.
        unwatched: nobody would notice a change.
        on_closed: called once it can no longer be asked for forks.
    """

    def __init__(
        self,
        spec: TemplateSpec,
        jail: TemplateJail,
        pidfd: int,
        *,
        failed: Mapping[str, str] | None = None,
    ) -> None:
        self.spec = spec
        self.failed = failed or {}
        self.files: Sequence[str] = ()
        self.state = ""
        self.suspect = self.unwatched = False
        self._copies = spec.project is not None and spec.project.copied
        self.forks = 0
        self.used_s = trio.current_time()
        self.jail = jail
        self.on_closed: Callable[[Template], None] = lambda _: None
        self._pidfd = pidfd
        self._closed = trio.Event()
        # A cancel scope for each wait would take a tenth of the time that a session takes.
        self._timers = Timers()
        self._waiting: set[socket.socket] = set()
        self._asking = trio.Lock()
        self._hung: socket.socket | None = None

    def __repr__(self) -> str:
        return f"<Template pid={self.jail.pid} forks={self.forks} open={self.is_open}>"

    @property
    def is_open(self) -> bool:
        """True if it can be forked, as far as known."""
        return not self._closed.is_set()

    @property
    def pid(self) -> int:
        """Host process id of the jail's PID 1, which is bwrap's."""
        return self.jail.pid

    @property
    def pidfd(self) -> int:
        """Descriptor of the process that forks."""
        return self._pidfd

    def close(self) -> None:
        """End the process that forks; its forks live on. May be repeated."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._note_end()

    def _note_end(self) -> None:
        self._closed.set()
        for channel in self._waiting:
            hang_up(channel)

    async def run(self) -> None:
        """Watch it; returns once nothing of its jail is left, forks included.

        Cancellation: ends all of it.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._timers.run)
                await self._until_closed()
                self.close()
                self.on_closed(self)
                trio.lowlevel.notify_closing(self.jail.socket)
                self.jail.socket.close()
                await self.jail.reap_starter()
                await self.jail.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._note_end()
            self.on_closed(self)
            self.jail.kill()
            with trio.move_on_after(END_TIMEOUT_S, shield=True):
                await self.jail.wait()
            self.jail.release()
            os.close(self._pidfd)

    async def _until_closed(self) -> None:
        """Wait until it ends, is closed, or was not used for `KEEP_S`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_dead)
            while self.is_open:
                if self._waiting:
                    self.used_s = trio.current_time()
                left_s = self.used_s + KEEP_S - trio.current_time()
                if left_s <= 0:
                    break
                with trio.move_on_after(left_s):
                    await self._closed.wait()
            nursery.cancel_scope.cancel()

    async def _until_dead(self) -> None:
        # Its control socket does not show its end: bwrap's processes hold that end, too.
        await trio.lowlevel.wait_readable(self._pidfd)
        self._note_end()

    async def fork(self, request: bytes, group: int | None = None) -> ForkedJail:
        """Fork a session. Returns when its agent has begun to speak.

        Args:
            request: from `request_for`.
            group: as in `Launcher.launch`.

        Raises:
            OSError: there are no descriptors left.
            TemplateGoneError: the template is gone.
            ForkEndedError: the fork is gone.
            TemplateError: forking failed; the message has the step.

        Cancellation: ends the new fork.
        """
        self.used_s = trio.current_time()
        channel, theirs = socket.socketpair()
        patience = Timer(self._timers, partial(self._too_slow, channel))
        self._waiting.add(channel)
        try:
            channel.setblocking(False)
            patience.arm(FORK_TIMEOUT_S)
            with theirs:
                await self._ask(request, [theirs.fileno(), *self._taken(group)])
            jail = await _adopt(channel, copies=self._copies)
        except BaseException as error:
            channel.close()
            patience.close()
            if isinstance(error, TemplateGoneError) and self._hung is channel:
                what = f"the template did not fork within {FORK_TIMEOUT_S:g} s"
                raise TemplateError(what) from error
            raise
        finally:
            self._waiting.discard(channel)
        jail.template_pid = self.pid
        self.forks += 1
        patience.arm(SPEAK_TIMEOUT_S)
        try:
            await _until_it_speaks(channel, patience)
        except BaseException:
            jail.kill()
            jail.release()
            raise
        finally:
            patience.close()
        return jail

    def _too_slow(self, channel: socket.socket) -> None:
        if channel in self._waiting:  # the template hangs, while its forks live on without it
            self._hung = channel
            self.close()
        else:
            hang_up(channel)

    def _taken(self, group: int | None) -> Sequence[int]:
        return () if group is None else (group,)

    async def _ask(self, request: bytes, fds: Sequence[int]) -> None:
        while self.is_open:
            try:
                socket.send_fds(self.jail.socket, [request], fds)
            except BlockingIOError:
                async with self._asking:  # trio allows only one waiter for each socket
                    with suppress(trio.ClosedResourceError):
                        if self.is_open:  # else the socket is closed, or about to be
                            await trio.lowlevel.wait_writable(self.jail.socket)
            except ConnectionError:
                break
            except OSError as error:
                raise TemplateError(f"the template cannot be asked: {error.strerror}") from error
            else:
                return
        raise TemplateGoneError("the template has ended")


async def start_template(
    launcher: ColdLauncher, spec: TemplateSpec, system_calls: bytes
) -> Template:
    """Start a template. Returns when it waits for requests.

    Args:
        system_calls: filter of its sessions, in classic BPF.

    Raises:
        TemplateError: it does not work; the message says why.
        StartFailedError, BadProjectError: as `Launcher.launch`.

    Cancellation: ends the template.
    """
    jail = await launcher.launch_template(spec, system_calls)
    message, fds = b"", list[int]()
    with suppress(OSError):
        message, fds, _ = receive(jail.socket, size=MESSAGE_BYTES)
    try:
        told = decode(_Told, json.loads(message))
    except (ValueError, RecursionError):
        why = f"it said {message[:200]!r}"
    else:
        if told.ready and len(fds) == 1 and told.protocol == PROTOCOL:
            failed = (told.failed or {}).items()
            bounded = {name[:MAX_TEXT]: reason[:MAX_TEXT] for name, reason in failed}
            template = Template(spec, jail, fds[0], failed=bounded)
            if spec.artifact is None:  # files in Nix's store never change
                template.files = host_paths(spec, told.loaded or {})
            return template
        why = told.error or (
            f"the template speaks protocol {told.protocol}, and this supervisor {PROTOCOL}: one "
            "is newer than the other"
        )
    for fd in fds:
        os.close(fd)
    await discard(jail)
    raise TemplateError(why)


class _Told(NamedTuple):
    """First message of a template."""

    ready: bool
    protocol: int | None
    error: str = ""
    failed: dict[str, str] | None = None
    loaded: dict[str, list[str]] | None = None


async def _adopt(channel: socket.socket, *, copies: bool) -> ForkedJail:
    """Receive a fork's PID 1, which announces itself, and its overlay.

    Args:
        copies: it was asked to make an overlay.
    """
    expected = 1 + COPY_DESCRIPTORS * copies
    while True:
        await trio.lowlevel.wait_readable(channel)
        try:
            message, fds, cut = receive(channel, size=1)
            if cut:
                _close(fds)
                # Our fault, not the template's.
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            break
        except BlockingIOError:
            continue
        except ConnectionError:
            message, fds = b"", []
            break
    if message == WENT_WELL and len(fds) == expected:
        try:
            copy = ProjectCopy(fds[1], fds[2]) if copies else None
            if (pid := pid_of(fds[0])) is None:
                raise OSError(errno.EMFILE, "none is left to look with")  # noqa: TRY301 - see below
            return ForkedJail(channel, fds[0], max(0, pid), copy)
        except OSError:
            _close(fds)
            raise
    _close(fds)
    if message == WENT_WRONG:
        raise refusal(await _read_text(channel))
    raise TemplateGoneError("the template ended, or the fork did, before there was a session")


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


async def _until_it_speaks(channel: socket.socket, patience: Timer) -> None:
    """Wait for the agent's first byte; no frame begins with `WENT_WRONG`."""
    await trio.lowlevel.wait_readable(channel)
    if patience.due_s == math.inf:  # the time is over
        raise TemplateError(f"the fork's agent said nothing for {SPEAK_TIMEOUT_S:g} s")
    try:
        first = channel.recv(1, socket.MSG_PEEK)
    except OSError:
        first = b""
    if first == WENT_WRONG:
        channel.recv(1)
        raise refusal(await _read_text(channel))
    if not first:
        raise ForkEndedError("the fork ended before its agent was ready")


async def _read_text(channel: socket.socket) -> str:
    """Read a fork's message about its failure; no code has run in it."""
    text = b""
    while len(text) < MESSAGE_BYTES:
        await trio.lowlevel.wait_readable(channel)
        try:
            piece = channel.recv(MESSAGE_BYTES)
        except OSError:
            piece = b""
        if not piece:
            break
        text += piece
    return text.decode(errors="replace")
