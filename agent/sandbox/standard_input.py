"""Standard input of an execution: a pipe that its interpreter can open by a path."""

from __future__ import annotations

import os
import signal

from sandbox.fields import data_field, whole_field
from sandbox.input import Input
from sandbox.linux import (
    DEFAULT_ACTION,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    close_others,
    prctl,
    set_handler,
)
from sandbox.processes import signal_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

    from sandbox.process_trees import ProcessTrees
    from sandbox.session import SharedSession


MAX_INPUT_REQUESTS = 16
"""Requests that wait for room; the supervisor sends one at a time."""


class StandardInput:
    """Standard input of one execution.

    Args:
        execution: id of the execution.

    Attributes:
        pid: the child that holds the read end; 0 while there is none.

    Raises:
        OSError: no descriptor is left.
    """

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

        Raises:
            OSError: no process or descriptor is left.
        """
        ready, theirs = os.pipe2(os.O_CLOEXEC)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    _hold(self._read_end, theirs, pid_one=self._session.pid == 1)
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


def _hold(read_end: int, ready: int, *, pid_one: bool) -> NoReturn:
    """Hold the read end until it is killed, in a child of the agent."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    set_handler(signal.SIGCHLD, DEFAULT_ACTION)
    if not pid_one:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(read_end, 0)
    close_others({0, ready})
    # Only now may others look into this process: it held the channel until here.
    prctl(PR_SET_DUMPABLE, 1)
    os.close(ready)
    while True:
        signal.pause()
