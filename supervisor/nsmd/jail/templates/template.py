"""One template: a jail with a process that does nothing but fork, and its forks, each from the
request to the first byte of its agent.

The protocol is in `docs/contributing/agent-protocol.md`, "Templates". A template may die or be
ended at any time: its forks live on below its jail's PID 1, which is bwrap's and ends with the last
of them.

It outlives the supervisor. One that consists of other programs than those installed by then is
closed: its forks live on, and the next session is a fork of a new template.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import signal
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache

import trio

from nsm._version import __version__
from nsm.dataclass import dataclass, field
from nsm.jail.failure import EXHAUSTED
from nsm.wire.decode import decode
from nsm.wire.tuples import NamedTuple
from nsmd.fdstore import records
from nsmd.fdstore.holder import receive
from nsmd.host.event_loop import Timer, Timers, poller
from nsmd.host.processes import has_ended, pid_of
from nsmd.jail import BwrapLauncher, ProjectCopy
from nsmd.jail.arguments import TemplateSpec
from nsmd.jail.process import Jail, discard, hang_up
from nsmd.jail.program_code import AGENT, TEMPLATE, source_of
from nsmd.jail.templates.spec import host_paths

SPEAK_TIMEOUT_S = 20.0
"""Time from the fork's announcement to its agent's first byte: 1 ms, plus Node's start."""

MESSAGE_BYTES = 64 * 1024

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


_SAID_OF_SHORTAGES = frozenset(os.strerror(number) for number in EXHAUSTED - {errno.ENOSPC})
"""Errors of a shortage; not ENOSPC, since clone(2) also fails with it if namespaces may not be
nested.
"""


def refusal(text: str) -> TemplateError:
    """Make the error for a fork's message about its failure, ``STEP: WHAT THE KERNEL SAID``."""
    short = text.rpartition(": ")[2] in _SAID_OF_SHORTAGES
    return ShortageError(text) if short else TemplateError(text)


class StartingFork:
    """A fork from its request to the first byte of its agent. It owns the supervisor's end of the
    agent's socket until `jail` returns. Its PID 1 has `announced_s` to announce itself. `due_s` is
    when the present step has taken too long; infinite once it has.
    """

    def __init__(
        self, channel: socket.socket, now: Callable[[], float], announced_s: float
    ) -> None:
        self._channel = channel
        self._now = now
        self.due_s = now() + announced_s
        self._poller = poller()
        self._over = trio.Event()
        self._jail: Jail | None = None
        self._failure: Exception | None = None
        self._refused = False
        self._copies = False
        self._announced: Callable[[Jail], None] = lambda _: None

    @property
    def waits_for_template(self) -> bool:
        """True until its PID 1 has announced itself."""
        return self._jail is None

    def hang_up(self) -> None:
        """Give up the present step, which has taken too long."""
        self.due_s = math.inf
        hang_up(self._channel)

    async def jail(self, *, copies: bool, announced: Callable[[Jail], None]) -> Jail:
        """Wait until its agent speaks."""
        self._copies, self._announced = copies, announced
        self._poller.watch(self._channel.fileno(), self._readable)
        try:
            await self._over.wait()
        finally:
            self._poller.forget(self._channel.fileno())
        if self._refused:
            self._failure = refusal(await _read_text(self._channel))
        if self._failure is not None:
            raise self._failure
        assert self._jail is not None, "it has spoken"
        return self._jail

    def give_up(self) -> None:
        """End it and release everything."""
        if self._jail is None:
            self._channel.close()
        else:
            self._jail.kill()
            self._jail.release()

    def _readable(self) -> None:
        try:
            if self._jail is None:
                self._receive_pid_1()
            if self._jail is not None:
                self._check_first_byte()
        except BlockingIOError:
            return  # the next step is still to come
        except (OSError, TemplateError) as error:
            self._failure = error
        self._poller.forget(self._channel.fileno())
        self._over.set()

    def _receive_pid_1(self) -> None:
        """Receive its PID 1, which announces itself, and its overlay."""
        try:
            message, fds, cut = receive(self._channel, size=1)
        except ConnectionError:
            message, fds, cut = b"", [], False
        try:
            if cut:  # our fault, not the template's
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if message == WENT_WELL and len(fds) == 1 + COPY_DESCRIPTORS * self._copies:
                if (pid := pid_of(fds[0])) is None:
                    raise OSError(errno.EMFILE, "none is left to look with")
                copy = ProjectCopy(fds[1], fds[2]) if self._copies else None
                self._jail = Jail(self._channel, fds[0], pid, project_copy=copy)
        finally:
            if self._jail is None:
                _close(fds)
        if self._jail is not None:
            self._announced(self._jail)
            self.due_s = self._now() + SPEAK_TIMEOUT_S
        elif message == WENT_WRONG:
            self._refused = True
        else:
            raise TemplateGoneError(
                "the template ended, or the fork did, before there was a session"
            )

    def _check_first_byte(self) -> None:
        """Look at the agent's first byte; no frame begins with `WENT_WRONG`."""
        if self.due_s == math.inf:  # the time is over
            raise TemplateError(f"the fork's agent said nothing for {SPEAK_TIMEOUT_S:g} s")
        try:
            first = self._channel.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            first = b""
        if not first:
            raise ForkEndedError("the fork ended before its agent was ready")
        if first == WENT_WRONG:
            self._channel.recv(1)
            self._refused = True


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


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


FORK_TIMEOUT_S = 10.0
"""Time from the request to the announcement of the fork's PID 1: 3 ms; seconds on a machine that
swaps.
"""

IMPORT_TIMEOUT_S = 60.0
"""Time between two words of a template whose image's Python imports. It gives each import half:
`IMPORT_S` in sandbox.template.image_python."""

KEEP_S = 900.0
"""How long an unused template stays."""

END_TIMEOUT_S = 10.0

MAX_TEXT = 300

PROTOCOL = 2
"""Version of the templates' protocol (agent-protocol.md)."""


class Template:
    """Process in a jail that does nothing but fork. It comes from `start_template`; run its `run`.

    Args:
        jail: its socket is the control socket; owned from now on.
        pidfd: pidfd of the process that forks; owned from now on.

    Attributes:
        state: state of these files when it was made (`nsmd.jail.templates.spec`).
        suspect: something there has changed, and nobody has checked it yet.
        unwatched: nobody would notice a change.
    """

    def __init__(
        self,
        spec: TemplateSpec,
        jail: Jail,
        pidfd: int,
        *,
        failed: Mapping[str, str] | None = None,
        imported: Mapping[str, float] | None = None,
    ) -> None:
        self.spec = spec
        self.failed = failed or {}
        self.imported = imported or {}
        self.files: Sequence[str] = ()
        self.state = ""
        self.suspect = self.unwatched = False
        self._copies = spec.project is not None and spec.project.copied
        self.forks = 0
        self.used_s = trio.current_time()
        self.jail = jail
        self.on_closed: Callable[[Template], None] = lambda _: None
        self._pidfd = pidfd
        self.is_open = True
        self._closed = trio.Event()
        # A cancel scope for each wait would take a tenth of the time that a session takes.
        self._timers = Timers()
        self._patience = Timer(self._timers, self._too_slow)
        self._starting: set[StartingFork] = set()
        self._asking = trio.Lock()
        self._hung: StartingFork | None = None

    def __repr__(self) -> str:
        return f"<Template pid={self.jail.pid} forks={self.forks} open={self.is_open}>"

    @property
    def pid(self) -> int:
        """Host process id of the jail's PID 1, which is bwrap's."""
        return self.jail.pid

    @property
    def name(self) -> str:
        """Name in the descriptor store."""
        return f"{PREFIX}{self.pid}"

    @property
    def pidfd(self) -> int:
        """Descriptor of the process that forks."""
        return self._pidfd

    @property
    def forker_pid(self) -> int:
        """Host process id of the process that forks; 0 if it has ended."""
        return pid_of(self._pidfd) or 0

    def close(self) -> None:
        """End the process that forks; its forks live on. May be repeated."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._note_end()

    def _note_end(self) -> None:
        self.is_open = False
        self._closed.set()
        for starting in self._starting:
            if starting.waits_for_template:
                starting.hang_up()

    async def run(self) -> None:
        """Watch it; returns once nothing of its jail is left, forks included. Cancellation ends all
        of it.
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
                if any(starting.waits_for_template for starting in self._starting):
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

    async def fork(self, request: bytes, group: int | None = None) -> Jail:
        """Fork a session. Returns when its agent has begun to speak; cancellation ends the new
        fork.

        Raises `OSError` if there are no descriptors left, else a `TemplateError`, whose message has
        the step: `TemplateGoneError` and `ForkEndedError` if another one may work.
        """
        self.used_s = trio.current_time()
        channel, theirs = socket.socketpair()
        starting = StartingFork(channel, self._timers.now, FORK_TIMEOUT_S)
        self._starting.add(starting)
        if starting.due_s < self._patience.due_s:
            self._patience.arm(FORK_TIMEOUT_S)
        try:
            channel.setblocking(False)
            with theirs:
                groups = () if group is None else (group,)
                await self._send_request(request, [theirs.fileno(), *groups])
            jail = await starting.jail(copies=self._copies, announced=self._announced)
        except BaseException as error:
            starting.give_up()
            if isinstance(error, TemplateGoneError) and self._hung is starting:
                what = f"the template did not fork within {FORK_TIMEOUT_S:g} s"
                raise TemplateError(what) from error
            raise
        finally:
            self._starting.discard(starting)
        return jail

    def _announced(self, jail: Jail) -> None:
        jail.template_pid = self.pid
        self.forks += 1

    def _too_slow(self) -> None:
        now = self._timers.now()
        late = [starting for starting in self._starting if starting.due_s <= now]
        for starting in late:
            if starting.waits_for_template:  # it hangs, while its forks live on without it
                self._hung = starting
                self.close()
            else:
                starting.hang_up()
        if due_s := [starting.due_s for starting in self._starting if starting not in late]:
            self._patience.arm(min(due_s) - now)

    async def _send_request(self, request: bytes, fds: Sequence[int]) -> None:
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
    launcher: BwrapLauncher, spec: TemplateSpec, system_calls: bytes
) -> Template:
    """Start a template. Returns when it waits for requests; a `TemplateError` says why it does not
    work. Cancellation ends it.
    """
    jail = await launcher.launch_template(spec, system_calls)
    try:
        message, fds = await _after_imports(spec, jail)
    except BaseException:
        await discard(jail)
        raise
    try:
        told = decode(_Told, json.loads(message))
    except (ValueError, RecursionError):
        why = f"it said {message[:200]!r}"
    else:
        if told.ready and len(fds) == 1 and told.protocol == PROTOCOL:
            failed = (told.failed or {}).items()
            bounded = {name[:MAX_TEXT]: reason[:MAX_TEXT] for name, reason in failed}
            template = Template(spec, jail, fds[0], failed=bounded, imported=told.imported)
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


async def _after_imports(spec: TemplateSpec, jail: Jail) -> tuple[bytes, list[int]]:
    """Read what a template says once it has imported all. It has said something already."""
    while True:
        message, fds = b"", list[int]()
        with suppress(OSError):
            message, fds, _ = receive(jail.socket, size=MESSAGE_BYTES)
        name = None if spec.image is None else _imported_next(message)
        if name is None:
            return message, fds
        for fd in fds:
            os.close(fd)
        with trio.move_on_after(IMPORT_TIMEOUT_S) as waiting:
            await trio.lowlevel.wait_readable(jail.socket)
        if waiting.cancelled_caught:
            imports = f", which imports {name}," if name else ""
            raise TemplateError(
                f"the image's Python{imports} said nothing for {IMPORT_TIMEOUT_S:g} s"
            )


def _imported_next(message: bytes) -> str | None:
    """The module that a template says it imports next; None if it says something else."""
    try:
        return decode(_Importing, json.loads(message)).importing[:MAX_TEXT]
    except (ValueError, RecursionError):
        return None


class _Importing(NamedTuple):
    """Message of a template of an image; `importing` is empty for other steps."""

    importing: str


class _Told(NamedTuple):
    """First message of a template."""

    ready: bool
    protocol: int | None
    error: str = ""
    failed: dict[str, str] | None = None
    imported: dict[str, float] | None = None
    loaded: dict[str, list[str]] | None = None


PREFIX = "template-"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRecord:
    """One template, with the digest of its programs (`made_of`) and the identity of its control
    socket. `starter` is the process that made the jail, our child; 0 for none.
    """

    spec: TemplateSpec
    made_of: str
    pid: int
    starter: int
    channel: str
    failed: dict[str, str] = field(default_factory=dict[str, str])
    imported: dict[str, float] = field(default_factory=dict[str, float])
    files: tuple[str, ...] = ()
    state: str = ""


@cache
def read_programs() -> bytes:
    """Return the digest of the jails' programs, which are read only once."""
    digest = hashlib.sha256(__version__.encode())
    for program in (AGENT, TEMPLATE):
        digest.update(source_of(program))
    return digest.digest()


def made_of(system_calls: bytes, uid: int) -> str:
    """Digest of everything in a template that its specification does not contain."""
    return hashlib.sha256(read_programs() + system_calls + b"%d" % uid).hexdigest()


def kept_template(template: Template, made: str) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield what the store keeps of a template, unless that is being closed."""
    channel = template.jail.socket.fileno()
    if channel >= 0:
        record = TemplateRecord(
            spec=template.spec,
            made_of=made,
            pid=template.pid,
            starter=template.jail.starter_pid,
            channel=records.identity(channel),
            failed=dict(template.failed),
            imported=dict(template.imported),
            files=tuple(template.files),
            state=template.state,
        )
        given = [channel, template.jail.pidfd, template.pidfd]
        yield from records.kept_entry(template.name, record, *given)


def template_of_record(
    record: TemplateRecord, descriptors: Sequence[int]
) -> tuple[Template | None, Collection[int]]:
    """Make the template of these descriptors, if it lives, with those that it uses."""
    pidfds = {fd: pid for fd in descriptors if (pid := pid_of(fd)) and not has_ended(fd)}
    jail = next((fd for fd, pid in pidfds.items() if pid == record.pid), None)
    forker = next((fd for fd, pid in pidfds.items() if pid != record.pid), None)
    channel = records.by_identity(descriptors).get(record.channel)
    if jail is None or forker is None or channel is None:
        return None, ()
    control = socket.socket(fileno=channel)
    control.setblocking(False)
    made = Jail(control, jail, record.pid, starter=record.starter)
    template = Template(record.spec, made, forker, failed=record.failed, imported=record.imported)
    template.files, template.state = record.files, record.state
    return template, (jail, forker, channel)
