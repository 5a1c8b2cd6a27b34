"""The base of all interpreters: the life of a process tree, its output, what it displays."""

from __future__ import annotations

import _socket
import contextlib
import os
import select
import signal
import time
from copy import copy

from sandbox.capture import (
    DISPLAY_BYTES,
    DISPLAY_LEFT_OUT,
    DISPLAY_TOO_DEEP,
    MAX_DISPLAYS,
    Capture,
    OutputPipe,
    is_deep,
)
from sandbox.framing import (
    FrameError,
    RequestError,
    as_object,
    encode_frame,
    is_module_name,
    is_seconds,
)
from sandbox.limits import Limits, apply_limits
from sandbox.linux import (
    DEFAULT_ACTION,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    close_others,
    dup_high,
    enter_directory,
    go_first_without_memory,
    identity_of,
    leave_forks_alone,
    prctl,
    set_handler,
)
from sandbox.polling import NonblockingStream
from sandbox.processes import is_ending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

    from sandbox.capture import Preview
    from sandbox.framing import Step
    from sandbox.processes import Process, ProcessTrees
    from sandbox.session import SharedSession
    from sandbox.shared_page import SharedPage


MAX_RESULT_IMPORTS = 16
"""Modules in one result whose imports took long."""

MAX_RESULT_NOTES = 8

MAX_RESULT_NOTE = 400
"""Notes that an interpreter adds to one result, and characters of each."""

SETUP_EXCERPT_BYTES = 4096
"""Largest excerpt of a failed step's output, beginning and end together."""

KILLED_EXIT_CODE = 137

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

TICK_PIDS = 10_000
"""More process ids than a machine gives out within a tick, and less than a third of the fewest that
it has, 32,768."""


class CurrentExecution:
    """The piece of code that runs now, and how far it is on the way to being stopped.

    Attributes:
        step: its step of a set-up, if it is one.
        one_shot: the session ends with it.
        undoes: it undoes others.
    """

    def __init__(
        self,
        request_id: str | int,
        number: int,
        interpreter: Interpreter,
        grace_s: float,
        last_pid: int,
    ) -> None:
        self.id = request_id
        self.number = number
        self.interpreter = interpreter
        self.grace_s = grace_s
        self.preview: Preview | None = None
        self.step: Step | None = None
        self.one_shot = False
        self.undoes = False
        self.started = time.monotonic()
        self.started_ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S)
        self.last_pid = last_pid
        self.timed_out = False
        self.interrupted = False

    @property
    def stopping(self) -> bool:
        return self.timed_out or self.interrupted

    def has_started(self, row: Process) -> bool:
        """Return whether a process belongs to this execution, not to an earlier one.

        A clock tick is long: the last execution may have started something within the same one.
        Pids grow, and begin again with low ones after the highest.
        """
        if row.started == self.started_ticks:
            ahead = row.pid - self.last_pid
            return 0 < ahead < TICK_PIDS or ahead < -TICK_PIDS
        return row.started > self.started_ticks


class Interpreter:
    """An interpreter in a process tree of its own. A subclass says how to start and talk to it.

    Attributes:
        pid: leader of the interpreter's session and process group; 0 when it is not running.
        execution: what it runs; None while it waits.
        has_state: code has run in it, so that its end loses something.
        lost: why the next execution will not find the state of the last one; empty if it will.
        setup: steps that run each time it starts.
        steps: steps that the running interpreter still has to run, the next or running one first.
        question: number of what it was asked last besides running code, which may keep it too busy
            to answer, and what takes the answer; None when it has answered.
        on_done: called when the foreground of the code with a number has ended, with an exit code.
        on_lost: called when it cannot go on, with the reason and an exit code for what it runs.
        on_interruptible: called when it takes signals from now on.
    """

    on_done: Callable[[Interpreter, object, object], None]
    on_lost: Callable[[Interpreter, str, int], None]
    on_interruptible: Callable[[Interpreter], None]

    name = ""
    is_job = False
    may_miss_interrupt = False
    """True if an interrupt right after `send_code` can be lost."""
    has_jobs = False
    """True if its code may wait for a process that is in a group of its own."""
    resumes_jobs = False
    """True if its code may wait for such a process of an earlier execution."""
    answers: tuple[str, ...] = ()
    """Kinds of questions that it takes; one at a time."""
    exit_note = ""
    """Usual reason of its exit, for people who wonder where their state is."""
    reads_variables_at_start = False
    """True if it reads some environment variables only when it starts."""
    ends_with_code = False
    """True if its process ends with the code that it runs, so that its exit loses no state."""

    def __init__(self, session: SharedSession, trees: ProcessTrees, program: str) -> None:
        self.session = session
        self.trees = trees
        self.program = program
        self.pid = 0
        self.execution: CurrentExecution | None = None
        self.has_state = False
        self.lost = ""
        self.pipes: dict[str, OutputPipe] = {}
        self.captures: dict[str, Capture] = {}
        self.displays: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.imports: dict[str, float] = {}
        self.setup: list[Step] = []
        self.steps: list[Step] = []
        self._aside: tuple[dict[str, Capture], str] | None = None
        self.link: NonblockingStream | None = None
        self.question: tuple[int, Callable[[Mapping[str, Any]], None]] | None = None
        self.argv: list[str] = []  # of the script that runs; empty for other code
        self._display_bytes = 0
        self._private: dict[int, tuple[int, int]] = {}

    @property
    def leader(self) -> int:
        """Leader of the session of its processes."""
        return self.pid

    # What a subclass provides.

    @property
    def takes_signals(self) -> bool:
        """True if SIGINT would interrupt the code now. Before, it would be lost or worse."""
        return False

    def become_program(self, control_fd: int) -> NoReturn:
        """Become the program, in the new process: 0 to 2 in place, and `kept_fds` open alone."""
        raise NotImplementedError

    def kept_fds(self) -> tuple[int, ...]:
        """Descriptors besides the control socket that the new process needs."""
        return ()

    def begin(self) -> None:
        """Begin to talk to the new process, in the agent."""

    def send_code(self, number: int, code: str, *, one_shot: bool = False, stdin: str = "") -> None:
        """Send `code` to the interpreter as execution `number`.

        Args:
            one_shot: the session ends with this execution, so nothing can be left for a next one.
            stdin: path that it opens as standard input of the code; empty for none.
        """
        raise NotImplementedError

    def variables_code(self, variables: Mapping[str, str]) -> str:
        """Code that sets variables for what it runs, and leaves nothing else behind."""
        raise NotImplementedError

    def send_question(self, kind: str, number: int, fields: Mapping[str, Any]) -> None:
        """Ask it something of its `answers`."""

    def send_interrupt(self, number: int) -> None:
        """Do what it takes besides a signal to interrupt execution `number`."""

    def interrupt_again(self) -> None:
        """Interrupt code once more if it may have missed the interrupt, and if that does no harm.

        What it waits for, or runs to clean up, must not be interrupted twice.
        """

    def hold(self) -> None:
        """Called before its processes are looked at to be signalled."""

    def await_forks(self) -> None:
        """Wait until processes that it has just started may be signalled."""

    def release(self, number: int) -> None:
        """Called when the signals that interrupt execution `number` have been sent."""

    def on_data(self, data: bytes) -> None:
        """Take what came over the control socket."""
        raise NotImplementedError

    def on_exit(self) -> None:
        """Handle the end of its process; the processes that it started are still there."""

    def on_control_end(self) -> None:
        """The control socket is closed: code has closed it, or replaced the program by another.

        While code runs, it may well be doing its job. Its end will be the end of the process. One
        that is killed while it waits closes its socket a moment before it can be reaped, which
        tells more.
        """
        if not self.runs and not is_ending(self.pid):
            self.end("had its control socket closed by code")

    def end(self, reason: str, exit_code: int = KILLED_EXIT_CODE) -> None:
        """Have it killed, since it can't go on, and what it runs answered for."""
        self.on_lost(self, reason, exit_code)

    def limit(self, limits: Mapping[str, int]) -> None:
        """Apply new limits to the running interpreter."""
        try:
            apply_limits(limits, self.pid)
        except OSError:
            # A filter may allow a process to change its own limits only.
            self.start_over()

    def start_over(self) -> None:
        """Replace an interpreter that has not been used yet."""
        if not self.has_state:
            self.discard("")
            with contextlib.suppress(OSError):  # the next execution will say why
                self.start()

    # Life of the process.

    def start(self) -> None:
        """Start a fresh interpreter."""
        # All before the process: what is written to memory that a fork shares is copied.
        pipes, theirs = self.make_ends()
        try:
            self.pid = self.spawn(theirs, pipes)
            self.steps = self.needed(self.setup)
        except OSError:
            os.close(theirs)
            self.forget("")
            raise
        os.close(theirs)
        self.begin()

    def start_like(self, other: Interpreter) -> None:
        """Have the set-up of another one of its kind from now on. An image's workers are left out:
        they are children of PID 1, whichever agent asks for them."""
        self.setup = [copy(step) for step in other.setup]

    def needed(self, steps: list[Step]) -> list[Step]:
        """Choose the steps of a set-up that its process, which has just started, needs."""
        return steps[:]

    def adopt(self, pid: int, *fds: int) -> None:
        """Take over a process that somebody else has started, in place of `start`, with what that
        would have made: control socket, a file of the subclass, pipes."""
        control_fd, _, *pipe_fds = fds
        for fd in fds:
            os.set_inheritable(fd, False)
        ends = iter(pipe_fds)
        pipes = {stream: OutputPipe((next(ends), next(ends))) for stream in ("stdout", "stderr")}
        self.connect(pipes, control_fd)
        self.pid = pid
        self.has_state = True

    def make_ends(self) -> tuple[dict[str, OutputPipe], int]:
        """Make output pipes and a control socket, and take their ends; returns the pipes, and the
        socket's end for a process."""
        pipes: dict[str, OutputPipe] = {}
        try:
            for stream in ("stdout", "stderr"):
                pipes[stream] = OutputPipe()
            # Not `socket.socket`: each use of that class copies pages of memory in a fork.
            ours, theirs = [end.detach() for end in _socket.socketpair()]
        except OSError:
            for pipe in pipes.values():
                pipe.close()
            raise
        self.connect(pipes, ours)
        return pipes, theirs

    def connect(self, pipes: dict[str, OutputPipe], control_fd: int) -> None:
        """Take the ends of a new process's output and control socket."""
        self.pipes = pipes
        self._private = {}
        poller = self.session.poller
        for stream, pipe in pipes.items():
            self._watch_output(stream, pipe)
            self.captures.setdefault(stream, self.session.new_capture(stream))
        self.link = NonblockingStream(
            poller, control_fd, control_fd, self.on_data, self.on_control_end
        )

    def spawn(self, control_fd: int, pipes: Mapping[str, OutputPipe]) -> int:
        """Start the process, as a fork of the agent; return its id."""
        pid = os.fork()
        if pid == 0:
            try:
                self._become_child(control_fd, pipes)
            except ForkedWorker:
                raise
            except BaseException as error:
                with contextlib.suppress(OSError):
                    os.write(2, f"cannot start {self.program}: {error}\n".encode())
                os._exit(127)
        return pid

    def _become_child(self, control_fd: int, pipes: Mapping[str, OutputPipe]) -> NoReturn:
        os.setsid()
        signal.set_wakeup_fd(-1)
        set_handler(signal.SIGCHLD, DEFAULT_ACTION)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, 0)
        os.dup2(pipes["stdout"].child_fd, 1)
        os.dup2(pipes["stderr"].child_fd, 2)
        private = dup_high(control_fd)
        close_others({0, 1, 2, private, *self.kept_fds()})
        # Only now may others look into this process: it held the channel until here.
        prctl(PR_SET_DUMPABLE, 1)
        if self.session.pid != 1:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        go_first_without_memory()
        apply_limits(self.session.limits.resources)
        enter_directory(self.session.workspace)
        if self.session.has_forks:
            leave_forks_alone()
        self.become_program(private)

    def discard(self, reason: str) -> None:
        """End the process tree, if it runs, and forget it. `reason` says why state is lost."""
        if self.pid:
            self.trees.kill(self)
        self.forget(reason)
        # Until they are reaped they count against the session's limit of processes, so that after
        # a fork bomb no new interpreter could be started.
        self.trees.reap()

    def forget(self, reason: str) -> None:
        """Release what belonged to a process that is gone; what it printed is kept."""
        if self.has_state:
            self.lost = reason
        self.pid = 0
        self.has_state = False
        if self.question is not None:
            self.question[1]({})
            self.question = None
        for stream, pipe in self.pipes.items():
            self._keep(stream, pipe.cut())
            self.session.poller.forget(pipe.read_fd)
            pipe.close()
        self.pipes = {}
        if self.link is not None:
            self.link.close()
            self.link = None

    # Set-up.

    def begin_step(self) -> None:
        """Count output from now on as the set-up's.

        What the executions are still to be told, output of an earlier process and why its state is
        lost, is put aside until `end_setup`.
        """
        if self._aside is None:
            self._aside = self.captures, self.lost
        limits = Limits({"reply_bytes": SETUP_EXCERPT_BYTES})
        self.captures = {stream: Capture(stream, None, limits) for stream in self.captures}
        self.resume_output()

    def complain(self, step: Step, why: str, said: str) -> None:
        """Have the next execution told that a step failed, and what it said on stderr."""
        if self._aside is None or step.told:
            return
        step.told = True
        words = "".join(f"  {line}\n" for line in said.splitlines() if line.strip())
        text = f"[nsm: {step.name} of this environment's set-up {why}]\n{words}"
        self._aside[0]["stderr"].write(text.encode("utf-8", "replace"))

    def end_setup(self) -> None:
        """All steps have been run: what is printed belongs to executions."""
        if self._aside is not None:
            self.captures, lost = self._aside
            self.lost = self.lost or lost
            self._aside = None

    # Output.

    def _watch_output(self, stream: str, pipe: OutputPipe) -> None:
        def on_output(_events: int) -> None:
            self._keep(stream, pipe.read())
            if not self.runs and self.captures[stream].full:
                # A background flood waits for the next execution rather than spin the agent.
                pipe.paused = True
                self.session.poller.change(pipe.read_fd, 0)

        self.session.poller.watch(pipe.read_fd, on_output)

    @property
    def runs(self) -> bool:
        """True if the running execution is one of this interpreter."""
        return self.execution is not None

    def _keep(self, stream: str, data: bytes) -> None:
        self.captures[stream].write(data)
        execution = self.execution
        if data and execution is not None and execution.preview is not None:
            execution.preview.write(stream, data)

    def resume_output(self) -> None:
        for pipe in self.pipes.values():
            if pipe.paused:
                pipe.paused = False
                self.session.poller.change(pipe.read_fd, select.POLLIN)

    def take_output(self) -> dict[str, Capture]:
        """All that was printed up to now; what comes from now on is for the next execution."""
        for stream, pipe in self.pipes.items():
            if data := pipe.cut():
                self._keep(stream, data)
        taken = self.captures
        # One that has caught nothing is as good as new.
        self.captures = {
            stream: self.session.new_capture(stream) if capture.total_bytes else capture
            for stream, capture in taken.items()
        }
        return taken

    def add_display(self, data: Any) -> None:
        """Keep what the interpreter says was displayed, if it is what it ought to be."""
        bundle = as_object(data)
        if bundle is None or len(self.displays) >= MAX_DISPLAYS:
            return
        if is_deep(bundle):
            bundle = {kind: value for kind, value in bundle.items() if not is_deep([value])}
            bundle = bundle or {"text/plain": DISPLAY_TOO_DEEP}
        try:
            size = len(encode_frame(bundle))
        except FrameError:
            return
        if self._display_bytes + size > DISPLAY_BYTES:
            bundle = {"text/plain": DISPLAY_LEFT_OUT}
            size = 0
        self._display_bytes += size
        self.displays.append(bundle)

    def take_told(self) -> tuple[list[dict[str, Any]], list[str], dict[str, float]]:
        """Displays, notes and times of imports that were kept up to now."""
        taken = self.displays, self.notes, self.imports
        self.displays, self.notes, self.imports, self._display_bytes = [], [], {}, 0
        return taken

    def add_note(self, text: object) -> None:
        """Keep a sentence about the execution that its result is to show, on one line."""
        if isinstance(text, str) and len(self.notes) < MAX_RESULT_NOTES:
            self.notes.append(" ".join(text[:MAX_RESULT_NOTE].split()))

    def add_import(self, module: object, seconds: object) -> None:
        """Keep the time that an import took."""
        if (
            is_module_name(module)
            and is_seconds(seconds)
            and len(self.imports) < MAX_RESULT_IMPORTS
        ):
            self.imports[module] = round(seconds, 3)

    # Private descriptors.

    def expect_private(self, expected: Mapping[int, tuple[int, int]]) -> None:
        """Set the descriptors of the interpreter that `is_intact` compares from now on."""
        self._private = dict(expected)

    def is_intact(self) -> bool:
        """Return whether code has left the descriptors alone that the next execution depends on."""
        for fd, identity in self._private.items():
            try:
                if identity_of(os.stat(f"/proc/{self.pid}/fd/{fd}")) != identity:
                    return False
            except FileNotFoundError:
                return False
            except OSError:
                return True  # not ours to see, e.g. a set-user-id program: no reason to judge
        return True


class ForkedWorker(BaseException):
    """Unwinds the agent's frames in a fork that is to be a Python worker.

    Derives from BaseException because it is no error and nothing on its way must catch it.
    """

    def __init__(self, control_fd: int, page: SharedPage) -> None:
        super().__init__()
        self.control_fd = control_fd
        self.page = page


class Interpreters(dict[str, Interpreter]):
    """The interpreters of a session, by their names."""

    def named(self, name: object) -> Interpreter:
        """Raise RequestError if there is none of this name."""
        found = self.get(name) if isinstance(name, str) else None
        if found is None:
            have = ", ".join(sorted(self))
            raise RequestError(f"interpreter {name!r:.50} is not in this session, which has {have}")
        return found
