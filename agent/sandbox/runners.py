"""Runners: agents below the session's, each of which runs programs in fresh interpreters.

A program for which nothing of the session's code may count, a grader's for one, needs an
interpreter in which none has run, and needs to end with all that it started. A runner is a fork of
the agent, in which no code of a user ever runs. It executes one program after another as any agent
does, but each in a new interpreter, which it starts beforehand, and in a directory of its own. What
a program leaves behind becomes a child of its runner, which ends it before the next one begins. So
as many programs run at once as there are runners.

Programs share the session's jail, and are not kept from one another.
"""

from __future__ import annotations

import _socket
import contextlib
import os
import signal
import sys

from sandbox.capture import Capture
from sandbox.file_states import OPEN_DIRECTORY, remove
from sandbox.framing import RequestError
from sandbox.interpreters.fork_server import ForkServer, use_directory
from sandbox.interpreters.framed import PythonInterpreter
from sandbox.limits import Limits
from sandbox.linux import become_helper, dup_high
from sandbox.paths import make_directory
from sandbox.processes import signal_child
from sandbox.session import SharedSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from sandbox.interpreters.base import Interpreter, Interpreters
    from sandbox.processes import ProcessTrees
    from sandbox.workers.python.worker import PythonWorker


MAX_RUNNERS = 64

FRESH_DIRECTORY = ".fresh"
"""Below the workspace: a directory for each program that runs."""


class ForkedRunner(BaseException):
    """Unwinds the agent's frames in a fork that is to be a runner.

    Derives from BaseException because it is no error and nothing on its way must catch it.

    Attributes:
        channel_fd: its socket to the supervisor.
        session: what it shares with its interpreters.
        interpreter: name of the one that it is to have ready.
    """

    def __init__(self, channel_fd: int, session: RunnerSession, interpreter: str) -> None:
        super().__init__()
        self.channel_fd = channel_fd
        self.session = session
        self.interpreter = interpreter


class RunnerSession(SharedSession):
    """Values of a runner: those of its session, with a directory for each program."""

    def __init__(self, session: SharedSession, runner: str) -> None:
        limits = Limits()
        limits.__dict__.update(session.limits.__dict__, undo=0)
        super().__init__(session.file, session.workspace, limits)
        self.has_forks, self.is_fork = session.has_forks, session.is_fork
        self._top = os.path.join(session.workspace, FRESH_DIRECTORY)
        self._runner = runner
        self.top_fd = -1
        self._name = ""

    def open(self) -> None:
        """Find the place for programs. Raise OSError if there is none."""
        make_directory(self._top)
        self.top_fd = os.open(self._top, OPEN_DIRECTORY)

    def new_capture(self, stream: str) -> Capture:
        """Keep no file of output that does not fit the reply: it would go with the program."""
        return Capture(stream, None, self.limits)

    def _enter_next(self) -> None:
        """Make a directory for the next program, unless there is one."""
        if not self._name:
            name = f"{self._runner}-{os.urandom(8).hex()}"  # no program has made one in its place
            try:
                try:
                    os.mkdir(name, dir_fd=self.top_fd)
                except FileNotFoundError:  # a program has removed it with all that is in it
                    before = self.top_fd
                    self.open()
                    os.close(before)
                    os.mkdir(name, dir_fd=self.top_fd)
            except OSError as error:
                error.filename = self._top  # which people know
                raise
            self._name, self.workspace = name, os.path.join(self._top, name)
            use_directory(self.workspace)

    def leave(self) -> None:
        """Remove the directory of the program that has ended."""
        name, self._name = self._name, ""
        if not name:
            return
        try:
            os.rmdir(name, dir_fd=self.top_fd)
        except OSError:
            with contextlib.suppress(OSError):
                remove(self.top_fd, os.fsencode(name))

    def remove_left(self, runners: Collection[str]) -> None:
        """Remove the directories of programs whose runners were killed."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.top_fd) if runners else ():
                if name.partition("-")[0] in runners:
                    with contextlib.suppress(OSError):
                        remove(self.top_fd, os.fsencode(name))

    def start_fork_server(self, interpreter: Interpreter, worker: PythonWorker) -> None:
        """Have Python be forked from a process that does nothing else, if it is the agent's own."""
        if not isinstance(interpreter, PythonInterpreter) or interpreter.program != sys.executable:
            return
        if not self.has_forks:  # else what starts in the session is kept from its forks
            with contextlib.suppress(OSError):
                server = interpreter.fork_server = ForkServer(worker, self.limits.resources)
                interpreter.trees.helpers.add(server.pid)
                interpreter.trees.fork_servers.add(server.pid)

    def start(self, interpreter: Interpreter) -> None:
        """Start an interpreter for a program. Raise OSError if that fails."""
        self._enter_next()
        interpreter.start()

    def begin(self, interpreter: Interpreter) -> None:
        """Have an interpreter ready for a program."""
        with contextlib.suppress(OSError):  # the program is told why it cannot start
            self.start(interpreter)

    def renew(self, interpreter: Interpreter) -> None:
        """End a program with all that it started, and have an interpreter ready for the next."""
        interpreter.discard("")
        self.leave()
        self.begin(interpreter)


class Runners:
    """The runners of a session. Made when the first one is asked for."""

    def __init__(
        self, session: SharedSession, trees: ProcessTrees, interpreters: Interpreters
    ) -> None:
        self._session = session
        self._trees = trees
        self._interpreters = interpreters
        self._ids: dict[str, int] = {}
        self._left: tuple[str, ...] = ()  # ids of those that were killed
        trees.exit_handlers.append(lambda pid, status, _usage: self._on_exit(pid, status))

    def _on_exit(self, pid: int, status: int) -> None:
        """Handle the end of a child, if it is a runner: what its program has left is ours now.
        One that ends by itself leaves nothing."""
        ended = next((name for name, each in self._ids.items() if each == pid), None)
        if ended is None:
            return
        del self._ids[ended]
        if status:
            self._left += (ended,)
        # While code runs or a job has run, nothing tells theirs from these: they live on as theirs.
        busy = self._trees.had_jobs or any(each.runs for each in self._interpreters.values())
        if status and not busy:
            self._trees.kill_strangers()

    def end(self, message: Mapping[str, Any]) -> None:
        """Kill a runner that does not end with its channel."""
        name = str(message.get("runner"))
        pid = self._ids.get(name)
        if pid is not None:
            signal_child(pid, signal.SIGKILL)
            self._left += (name,)  # now, since the next one may start before we hear of its end

    def start(self, message: Mapping[str, Any]) -> None:
        """Start a runner, whose channel the supervisor gets. Raise RequestError if that fails."""
        interpreter = self._interpreters.named(message.get("interpreter"))
        if len(self._ids) >= MAX_RUNNERS:
            raise RequestError(f"{MAX_RUNNERS} runners are the most that a session can have")
        # Orphans that are there now are not of a program.
        self._trees.note_before_another()
        name = str(message["id"])
        session = RunnerSession(self._session, name)
        parent = os.getpid()
        opened: list[int] = []
        try:
            session.open()
            opened.append(session.top_fd)
            opened.extend(end.detach() for end in _socket.socketpair())
            pid = os.fork()
        except OSError as error:
            for fd in opened:
                os.close(fd)
            raise RequestError(f"cannot start a runner: {error}") from None
        _, ours, theirs = opened
        if pid == 0:
            channel_fd = dup_high(theirs)
            become_helper({0, 1, 2, channel_fd, session.top_fd}, parent)
            session.remove_left(self._left)
            raise ForkedRunner(channel_fd, session, interpreter.name)
        os.close(theirs)
        os.close(session.top_fd)
        self._ids[name], self._left = pid, ()
        self._trees.helpers.add(pid)
        self._trees.runners.add(pid)
        answer = {"type": "runner", "id": message["id"]}
        self._session.send_descriptor(answer, ours, "cannot start a runner")
