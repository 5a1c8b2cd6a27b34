"""The poll loop: descriptors, timers, and byte streams that never block."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time

from sandbox.framing import READ_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator


MAX_POLL_MS = 24 * 3600 * 1000
"""poll(2) takes an int; a timer that is further away is looked at again after that."""

STEP_S = 2.0

WATCHED_S = 60.0

LATE_S = 3.0
"""Steps of the clock: in the last minute before a timer, the agent looks at it every two seconds.
A look that comes more than three seconds late means that the agent was stopped, together with all
that it started if a container was frozen. That time does not count."""

DRAIN_READS = 1024
"""Reads of a dead interpreter's control socket: more than two of its largest frames."""


class Poller:
    """Handlers of descriptors and named timers; `turn` runs those that are due."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}

    def watch(self, fd: int, handler: Callable[[int], None], events: int = select.POLLIN) -> None:
        """Call `handler` with the events; it must not mind being called for nothing."""
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        if fd in self._handlers:
            self._poll.modify(fd, events)

    def forget(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def at(self, name: str, when: float, callback: Callable[[], None]) -> None:
        """Call `callback` once at `when` (monotonic, seconds); replace a timer of that name.

        Time in which this process was stopped is added, as far as it is noticed.
        """
        self._timers[name] = (when, callback)

    def cancel(self, *names: str) -> None:
        for name in names:
            self._timers.pop(name, None)

    def turn(self) -> None:
        """Wait for an event or a timer and handle what is due."""
        timeout_ms, due = None, 0.0
        if self._timers:
            now = time.monotonic()
            left = min(when for when, _ in self._timers.values()) - now
            left = left - WATCHED_S if left > WATCHED_S + STEP_S else min(left, STEP_S)
            # Rounded up: waking a fraction early would spin until the moment has come.
            timeout_ms = min(max(0, int(left * 1000) + 1), MAX_POLL_MS)
            due = now + timeout_ms / 1000
        ready = self._poll.poll(timeout_ms)
        if self._timers:
            self._put_off(time.monotonic() - due)
        for fd, events in ready:
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
        if self._timers:
            now = time.monotonic()
            for name, (when, callback) in list(self._timers.items()):
                if when <= now and self._timers.get(name) == (when, callback):
                    del self._timers[name]
                    callback()

    def _put_off(self, late: float) -> None:
        """Put all timers off if poll(2) returned so many seconds too late."""
        if late > LATE_S:
            for name, (when, callback) in self._timers.items():
                self._timers[name] = (when + late, callback)


class _Passed:
    """A descriptor that waits to be passed.

    Attributes:
        offset: bytes that go before it.
        size: bytes of the data that it goes along with.
        fallback: makes what to send in place of that data if the kernel refuses to pass it.
    """

    def __init__(
        self, offset: int, descriptor: int, size: int, fallback: Callable[[], bytes] | None
    ) -> None:
        self.offset, self.descriptor = offset, descriptor
        self.size, self.fallback = size, fallback


class NonblockingStream:
    """A byte stream in both directions that never blocks.

    Args:
        on_end: called once at end-of-file or when the peer cannot be written to.
        on_sent: called when all that had to wait has been written.
    """

    def __init__(
        self,
        poller: Poller,
        read_fd: int,
        write_fd: int,
        on_data: Callable[[bytes], None],
        on_end: Callable[[], None],
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self._poller = poller
        self._on_data = on_data
        self._on_end = on_end
        self._on_sent = on_sent
        self._out = bytearray()
        self._passed: list[_Passed] = []
        self._reading = True
        self._gathers = False
        self._ended = False
        for fd in {read_fd, write_fd}:
            os.set_blocking(fd, False)
        poller.watch(read_fd, self._handle)
        if write_fd != read_fd:
            poller.watch(write_fd, self._handle_write, 0)

    @property
    def unsent_bytes(self) -> int:
        return len(self._out)

    def send(
        self,
        data: bytes,
        descriptor: int | None = None,
        fallback: Callable[[], bytes] | None = None,
    ) -> None:
        """Write what the peer has room for now and the rest later.

        Args:
            descriptor: goes along with the first byte, over a Unix socket; ours from now on.
            fallback: makes what to send in place of `data` if the kernel refuses to pass the
                descriptor: it limits how many are in flight for all processes of one user (unix(7),
                ETOOMANYREFS).
        """
        waiting = bool(self._out)
        if descriptor is not None:
            self._passed.append(_Passed(len(self._out), descriptor, len(data), fallback))
        self._out += data
        if not waiting and not self._gathers:
            self._flush()
            if self._out:
                self._update()

    @contextlib.contextmanager
    def together(self) -> Generator[None, None, None]:
        """Write what is sent meanwhile as a whole: each write wakes the peer."""
        self._gathers = not self._out  # else it goes when there is room for what waits
        try:
            yield
        finally:
            if self._gathers:
                self._gathers = False
                self._flush()
                if self._out:
                    self._update()

    def drop_unsent(self) -> None:
        self._forget_unsent()
        self._update()  # with nothing to write, to be told of room for it would be for ever

    def read_on(self, reading: bool) -> None:
        """Stop or resume reading; the peer's end is noticed in either case."""
        if reading != self._reading:
            self._reading = reading
            self._update()

    def close(self) -> None:
        """Forget and close the descriptors."""
        for fd in {self.read_fd, self.write_fd}:
            self._poller.forget(fd)
            os.close(fd)
        self._forget_unsent()
        self._ended = True

    def drain(self) -> None:
        """Read what a writer that is dead has left; bounded, others may hold its end."""
        for _ in range(DRAIN_READS):
            if self._ended or not self._receive():
                break

    def _update(self) -> None:
        wanted = select.POLLIN if self._reading else select.POLLRDHUP
        out = select.POLLOUT if self._out else 0
        if self.read_fd == self.write_fd:
            self._poller.change(self.read_fd, wanted | out)
        else:
            self._poller.change(self.read_fd, wanted)
            self._poller.change(self.write_fd, out)

    def _flush(self) -> None:
        try:
            while self._out:
                if self._passed:
                    written = self._write_passing()
                else:
                    written = os.write(self.write_fd, self._out[: 4 * READ_BYTES])
                del self._out[:written]
        except BlockingIOError:
            pass
        except OSError:
            self._end()

    def _write_passing(self) -> int:
        """Write what goes before the next descriptor, or that with the byte that it belongs to."""
        passed = self._passed[0]
        longer = 0
        if passed.offset:
            written = os.write(self.write_fd, self._out[: min(passed.offset, 4 * READ_BYTES)])
        else:
            channel = socket.socket(fileno=self.write_fd)
            end = min([READ_BYTES, *(each.offset for each in self._passed[1:2])])
            try:
                written = socket.send_fds(channel, [self._out[:end]], [passed.descriptor])
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS or passed.fallback is None:
                    raise
                written, data = 0, passed.fallback()
                self._out[: passed.size] = data
                longer = len(data) - passed.size
            finally:
                channel.detach()
            del self._passed[0]
            os.close(passed.descriptor)
        for each in self._passed:
            each.offset += longer - written
        return written

    def _forget_unsent(self) -> None:
        self._out.clear()
        for each in self._passed:
            os.close(each.descriptor)
        self._passed.clear()

    def _continue(self) -> None:
        if self._out:
            self._flush()
            if not self._out and not self._ended:
                self._update()
                self._on_sent()

    def _handle_write(self, events: int) -> None:
        if events & (select.POLLERR | select.POLLHUP):
            self._end()
        else:
            self._continue()

    def _handle(self, events: int) -> None:
        if events & select.POLLOUT:
            self._continue()
        if events & ~select.POLLOUT and not self._ended:
            if self._reading:
                self._receive()
            else:
                self._end()

    def _receive(self) -> bool:
        """Read once; False when there was nothing."""
        try:
            data = os.read(self.read_fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._on_data(data)
            return True
        self._end()
        return False

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            for fd in {self.read_fd, self.write_fd}:
                self._poller.forget(fd)
            self._forget_unsent()
            self._on_end()
