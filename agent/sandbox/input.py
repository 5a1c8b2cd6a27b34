"""Input of jobs and executions: bytes that wait until they are read."""

from __future__ import annotations

import os
import select
import signal

from sandbox.framing import READ_BYTES, data_field, whole_field
from sandbox.linux import PR_SET_DUMPABLE, become_helper, prctl
from sandbox.processes import signal_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

    from sandbox.polling import Poller
    from sandbox.processes import ProcessTrees
    from sandbox.session import SharedSession


INPUT_BYTES = 256 * 1024
"""Input that a program has not read yet; who writes more has to wait."""

END_OF_INPUT = b"\x04"
"""Ctrl-D, the end of input in a terminal (VEOF), unless the program has changed that."""


class Input:
    """Bytes on their way into a pipe or a terminal, written as far as there is room.

    Args:
        fd: ours to write to, not blocking. A pipe is closed with the input. A terminal belongs to
            who reads it, and who calls `flush` when there is room.
        changed: called when something was written, or nobody reads any more.

    Attributes:
        ended: no more are taken, since the end of the input was told.
        broken: no more are taken, since nobody reads them.
    """

    def __init__(
        self, poller: Poller, fd: int, changed: Callable[[], None], *, of_terminal: bool = False
    ) -> None:
        self.taken_bytes = 0
        self.ended = self.broken = False
        self._poller = poller
        self._fd = fd
        self._changed = changed
        self._of_terminal = of_terminal
        self._waiting = bytearray()
        if not of_terminal:
            poller.watch(fd, self._on_event, 0)

    @property
    def takes_more(self) -> bool:
        return self._fd >= 0 and not self.ended

    @property
    def room(self) -> int:
        """Bytes that would be taken now."""
        return max(0, INPUT_BYTES - len(self._waiting))

    @property
    def waits(self) -> bool:
        """True if bytes wait for room."""
        return bool(self._waiting)

    def write(self, data: bytes) -> None:
        """Take bytes, if any are taken."""
        if self.takes_more:
            self._waiting += data
            self.taken_bytes += len(data)
            self.flush()

    def end(self) -> None:
        """Close the pipe once all has been read, or type the end of input into the terminal."""
        if not self.takes_more:
            return
        if self._of_terminal:
            self._waiting += END_OF_INPUT  # it goes on; the program decides
        else:
            self.ended = True
        self.flush()

    def flush(self) -> None:
        try:
            while self._waiting and self._fd >= 0:
                written = os.write(self._fd, self._waiting[:READ_BYTES])
                del self._waiting[:written]
        except BlockingIOError:
            pass
        except OSError:
            self._break()
        if self.ended and not self._waiting:
            self.close()
        elif self._fd >= 0:
            waits = select.POLLOUT if self._waiting else 0
            self._poller.change(self._fd, waits | (select.POLLIN if self._of_terminal else 0))
        self._changed()

    def _on_event(self, events: int) -> None:
        if events & (select.POLLERR | select.POLLHUP):  # which poll(2) would report for ever
            self._break()
            self._changed()
        else:
            self.flush()

    def _break(self) -> None:
        self.broken = True
        self.close()

    def close(self) -> None:
        """Drop what waits, and close the pipe."""
        self._waiting.clear()
        if self._fd >= 0 and not self._of_terminal:
            self._poller.forget(self._fd)
            os.close(self._fd)
        self._fd = -1


MAX_INPUT_REQUESTS = 16
"""Requests that wait for room; the supervisor sends one at a time."""


class StandardInput:
    """Standard input of one execution; `pid` is the child that holds the read end, or 0."""

    def __init__(self, session: SharedSession, trees: ProcessTrees, execution: str | int) -> None:
        self.execution = execution
        self.pid = 0
        self._session = session
        self._trees = trees
        self._requests: list[Mapping[str, Any]] = []
        self._read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write_end, False)
        self._input = Input(session.poller, write_end, self._changed)

    def open_path(self) -> str:
        """Make the path that the interpreter opens as its standard input.

        It is that of a descriptor of a child process, which has nothing else open. The agent's own
        descriptors are closed to code, and Bash and Node take none over a socket. A FIFO would have
        a path, too, but code that opens /dev/stdin after the end of the input would wait for ever.
        """
        ready, theirs = os.pipe2(os.O_CLOEXEC)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    _hold(self._read_end, theirs, self._session.pid)
                finally:
                    os._exit(126)
        finally:
            os.close(theirs)
            if self.pid:
                self._trees.helpers.add(self.pid)
                os.read(ready, 1)  # returns when the child has closed its end
            os.close(ready)
        self._close_read_end()
        return f"/proc/{self.pid}/fd/0"

    def _close_read_end(self) -> None:
        if self._read_end >= 0:
            os.close(self._read_end)
            self._read_end = -1

    def take(self, message: Mapping[str, Any]) -> None:
        """Take input now, or when there is room.

        Its offset says which bytes it has, so that none is taken twice or left out, however often
        the supervisor or a later one sends it. Without one, it comes after all others.
        """
        whole_field(message, "offset", 0, high=self._input.taken_bytes)
        data_field(message)
        if not self._answer(message):
            self._requests.append(message)
            if len(self._requests) > MAX_INPUT_REQUESTS:
                self._session.fail("too much input waits", self._requests.pop(0)["id"])

    def _answer(self, message: Mapping[str, Any]) -> bool:
        """Take input, and tell how far all input goes; False if there is no room."""
        source = self._input
        data = data_field(message)[source.taken_bytes - message.get("offset", source.taken_bytes) :]
        if data and source.takes_more and not source.room:
            return False
        source.write(data)
        if message.get("eof") is True:
            source.end()
        self._tell(message["id"])
        return True

    def _tell(self, request_id: str | int) -> None:
        self._session.send(
            {
                "type": "input_taken",
                "id": request_id,
                "offset": self._input.taken_bytes,
                "open": self._input.takes_more,
            }
        )

    def _changed(self) -> None:
        if self._requests:
            self._session.poller.at("input", 0.0, self._go_on)

    def _go_on(self) -> None:
        while self._requests and self._answer(self._requests[0]):
            del self._requests[0]

    def forget_requests(self) -> None:
        """Nobody waits any more: whoever asked is gone, and a successor asks again."""
        self._requests.clear()

    def close(self) -> None:
        """End it with the execution: what nobody has read is dropped."""
        self._input.close()
        self._close_read_end()
        waiting, self._requests = self._requests, []
        for message in waiting:
            self._tell(message["id"])
        if self.pid:
            signal_child(self.pid, signal.SIGKILL)


def _hold(read_end: int, ready: int, parent: int) -> NoReturn:
    """Hold the read end until it is killed, in a child of the agent."""
    os.dup2(read_end, 0)
    become_helper({0, ready}, parent)
    # Only now may others look into this process: it held the channel until here.
    prctl(PR_SET_DUMPABLE, 1)
    os.close(ready)
    while True:
        signal.pause()
