"""One fork of a template, from the request to the first byte of its agent."""

from __future__ import annotations

import errno
import math
import os
import socket
from collections.abc import Callable, Sequence

import trio

from nsm.jail.failure import EXHAUSTED
from nsmd.fdstore.holder import receive
from nsmd.host.event_loop import poller
from nsmd.host.processes import pid_of
from nsmd.jail import ProjectCopy
from nsmd.jail.process import Jail, hang_up

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


class Birth:
    """A fork from its request to the first byte of its agent.

    Args:
        channel: the supervisor's end of the agent's socket; owned until `jail` returns.
        now: reads the event loop's clock.
        announced_s: time in which its PID 1 has to announce itself.

    Attributes:
        due_s: when the present step has taken too long; infinite once it has.
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
        """Wait until its agent speaks.

        Args:
            copies: it was asked to make an overlay.
            announced: called when its PID 1 has announced itself.

        Raises:
            OSError, TemplateError: as `Template.fork`.
        """
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
                self._adopt()
            if self._jail is not None:
                self._hear()
        except BlockingIOError:
            return  # the next step is still to come
        except (OSError, TemplateError) as error:
            self._failure = error
        self._poller.forget(self._channel.fileno())
        self._over.set()

    def _adopt(self) -> None:
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

    def _hear(self) -> None:
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
