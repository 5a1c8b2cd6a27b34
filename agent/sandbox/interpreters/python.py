"""Python: a fork of the agent, or another Python that runs the agent's worker."""

from __future__ import annotations

import _socket
import os
import signal
import sys

from sandbox.capture import OutputPipe
from sandbox.framing import encode_frame, to_json
from sandbox.interpreters.base import ForkedWorker
from sandbox.interpreters.framed import FramedInterpreter
from sandbox.processes import ignores_interrupts, signal_child
from sandbox.shared_page import INTERRUPT, SharedPage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from sandbox.interpreters.base import InterpreterEvents
    from sandbox.process_trees import ProcessTrees
    from sandbox.requests import Step
    from sandbox.session import SharedSession


class PythonInterpreter(FramedInterpreter):
    """A fork of the agent when the agent's own Python is to be used, else another program."""

    name = "python"
    answers = ("complete", "fork")

    def __init__(
        self, session: SharedSession, trees: ProcessTrees, events: InterpreterEvents, program: str
    ) -> None:
        super().__init__(session, trees, events, program)
        self._page_fd = -1
        self._page: SharedPage | None = None
        self._number = 0
        self._awaits_start = False
        self._is_preloaded = False

    @property
    def takes_signals(self) -> bool:
        return self._page is not None and self._page.interruptible == self._number

    def kept_fds(self) -> tuple[int, ...]:
        return (self._page_fd,)

    def start(self) -> None:
        self._page_fd = SharedPage.make_file()
        try:
            self._page = SharedPage(self._page_fd)
            super().start()
        finally:
            os.close(self._page_fd)

    def spawn(self, control_fd: int, pipes: Mapping[str, OutputPipe]) -> int:
        workers = self.session.workers
        if workers is not None and not self.session.has_forks:
            outputs = [pipes[stream].child_fd for stream in ("stdout", "stderr")]
            given = [*outputs, control_fd, self._page_fd]
            pid = workers.fork(given, self.session.limits.resources)
            self._is_preloaded = pid > 0
            if pid:
                if changed := workers.changed_variables():
                    self.send({"type": "variables", "variables": dict(changed)})
                return pid
        self._is_preloaded = False
        return super().spawn(control_fd, pipes)

    def needed(self, steps: list[Step]) -> list[Step]:
        return [step for step in steps if not (step.preloads and self._is_preloaded)]

    def adopt(self, pid: int, *fds: int) -> None:
        control_fd, page_fd, *pipe_fds = fds
        for fd in fds:
            os.set_inheritable(fd, False)
        self._page = SharedPage(page_fd)
        os.close(page_fd)
        ends = iter(pipe_fds)
        pipes = {stream: OutputPipe((next(ends), next(ends))) for stream in ("stdout", "stderr")}
        self._connect(pipes, control_fd)
        self.pid = pid
        self.has_state = True
        self.begin()

    def become_program(self, control_fd: int) -> NoReturn:
        if self.program == sys.executable and self._page is not None:
            raise ForkedWorker(control_fd, self._page)
        agent_file = self.session.file
        for fd in (control_fd, self._page_fd):
            os.set_inheritable(fd, True)
        os.execv(
            self.program,
            [self.program, "-I", agent_file, "--worker", str(control_fd), str(self._page_fd)],
        )

    def send_code(self, number: int, code: str, *, one_shot: bool = False, stdin: str = "") -> None:
        self._number = number
        self._awaits_start = True
        super().send_code(number, code, one_shot=one_shot, stdin=stdin)

    def freeze(self, fd: int) -> None:
        """Have the worker make a checkpoint.

        Args:
            fd: the checkpoint's end of a socket; the worker's from now on.

        Raises:
            FrameError: never, as the message is small.
        """
        if self.link is not None:
            self.link.send(encode_frame({"type": "checkpoint"}), fd)

    def thaw(self, pid: int, number: int, wake: Callable[[str, list[int]], None]) -> None:
        """Have a checkpoint be the worker, which answers as if it had run code.

        Args:
            pid: its process.
            number: of the running execution.
            wake: sends it a message and descriptors.

        Raises:
            OSError: no descriptor is left, or it is gone.
        """
        ends: list[int] = []
        pipes: dict[str, OutputPipe] = {}
        try:
            page_fd = SharedPage.make_file()
            ends.append(page_fd)
            for stream in ("stdout", "stderr"):
                pipes[stream] = OutputPipe()
            ours, theirs = [end.detach() for end in _socket.socketpair()]
            ends.append(theirs)
            self._page = SharedPage(page_fd)
            self._connect(pipes, ours)
            self.steps = []
            self.pid = pid
            self.begin()
            self._number = number
            self._token = os.urandom(16).hex()
            order = to_json({"id": number, "token": self._token})
            wake(order, [theirs, pipes["stdout"].child_fd, pipes["stderr"].child_fd, page_fd])
        finally:
            for fd in ends:
                os.close(fd)

    def variables_code(self, variables: Mapping[str, str]) -> str:
        return f"__import__('os').environ.update({dict(variables)!r})"

    def on_started(self) -> None:
        if self._awaits_start:  # else code says so, which may say it thousands of times
            self._awaits_start = False
            self.events.interruptible(self)

    def send_interrupt(self, number: int) -> None:
        if self._page is not None:
            # Before looking whether it takes signals, as the worker does it the other way round:
            # so at least one side sees what the other wrote.
            self._page.awaited = number
            self._awaits_start = self._awaits_start and not self.takes_signals
        # system(3) ignores SIGINT while its command runs, and the code would go on behind it.
        if self.takes_signals and ignores_interrupts(self.pid):
            self.send({"type": "interrupt"})
            signal_child(self.pid, INTERRUPT)

    def interrupt_again(self) -> None:
        # The event loop has not gone on since: another task than that of the code seems to compute.
        if self._page is not None and self._page.pending_interrupt == self._number:
            signal_child(self.pid, signal.SIGINT)

    def limit(self, limits: Mapping[str, int]) -> None:
        self.send({"type": "limits", "limits": dict(limits)})
