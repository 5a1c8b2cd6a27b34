"""The agent: messages from the supervisor on one side, interpreters on the other."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

from sandbox.capture import Capture, Preview, Spills
from sandbox.channel import Channel
from sandbox.checks import InputCheck, suggest_indent
from sandbox.execution import GRACE_S, Execution
from sandbox.fields import as_object, as_texts, is_id, is_seconds, is_whole
from sandbox.files import Transfers
from sandbox.framing import READ_BYTES, RESUMED, FrameError, resume_marker
from sandbox.interpreters import INTERPRETERS
from sandbox.interpreters.base import Question
from sandbox.interpreters.setup import SetupStep
from sandbox.limits import Limits
from sandbox.linux import (
    DEFAULT_ACTION,
    PR_SET_CHILD_SUBREAPER,
    identity_of,
    listen_on_loopback,
    prctl,
    set_handler,
)
from sandbox.polling import Poller
from sandbox.processes import NewestPid, read_children, read_processes, send_signal, tree_of
from sandbox.protocol import AGENT_VERSION, CAPABILITIES, PROTOCOL
from sandbox.workers.completion import MAX_MATCH, MAX_MATCHES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, NoReturn

    from sandbox.interpreters.base import Interpreter
    from sandbox.processes import Process

LAG_BYTES = 1024 * 1024
"""Unacknowledged bytes above which output is no longer streamed but merged."""


MAX_QUESTION_CHARS = 64 * 1024
"""Of a text to be checked or completed. Whoever types a longer one will not wait for it."""


VARIABLES_S = 10.0
"""For telling an interpreter that runs of variables, which takes it less than a millisecond."""


QUESTION_S = 1.0
"""Within that time a question is answered, if only by saying that nobody could tell."""


MAX_CHECKS = 4
"""Children that check a text, at a time."""


NOTED_CODE = 2000
"""Characters of code that a new supervisor is told of what runs, for people to read."""


REHEARSAL_S = 10.0
"""An interpreter that has not run code that does nothing by then is killed."""


EARLY_S = 0.05

REPEAT_S = 0.1
"""An interrupt this soon after the start may come before the code does, and is repeated."""


KILL_ROUNDS = 64

FREEZE_ROUND = 3
"""A tree that still grows in this round of killing is a fork bomb: everything is stopped first."""


END_S = 2.0
"""How long the agent waits for processes that it has killed; a few milliseconds, as a rule."""


class Agent:
    """Messages from the supervisor on one side, interpreters on the other.

    Args:
        file: path of the agent's program, for another Python to run.
        read_fd, write_fd: the channel; may be the same.
        programs: interpreter name → path of the program.
        workspace: working directory of interpreters and place for spilled output.
    """

    def __init__(
        self,
        file: str,
        read_fd: int,
        write_fd: int,
        programs: Mapping[str, str],
        workspace: str,
        limits: Limits | None = None,
    ) -> None:
        self.file = file
        self.pid = os.getpid()
        self.workspace = workspace
        self.limits = limits or Limits()
        self.running: Execution | None = None
        self.poller = Poller()
        self._token = ""
        self._rehearses = False
        self._executions = 0
        self._waiting: Mapping[str, Any] | None = None
        self._notes: dict[str, dict[str, Any]] = {}
        self._knows_setup = False
        self._questions = 0
        self._checks: dict[int, tuple[InputCheck, str | int]] = {}
        self._orphans: dict[int, Interpreter] = {}
        self._spills = Spills(workspace)
        self._newest = NewestPid()
        self._transfers = Transfers(
            workspace, self._send, lambda: self._channel.lag_bytes <= LAG_BYTES
        )
        self._interpreters = {
            name: INTERPRETERS[name](self, program) for name, program in programs.items()
        }
        # As PID 1 this process gets no signal from inside that it has no handler for, and orphans
        # come to it by themselves.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            set_handler(number, DEFAULT_ACTION)
        if self.pid != 1:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._wakeup_fd, wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        set_handler(signal.SIGCHLD, wake_up)
        self.poller.watch(self._wakeup_fd, lambda _: self._reap())
        self._channel = Channel(
            self.poller, read_fd, write_fd, self._on_request, self.end, self._on_progress
        )

    def run(self, prestart: str | None = None) -> NoReturn:
        """Serves until the channel ends.

        Args:
            prestart: name of the interpreter that is up before `ready` is sent.
        """
        if prestart is not None:
            self._interpreters[prestart].start()
            if prestart == "python":
                self._rehearse(self._interpreters[prestart])
        self._send(
            {
                "type": "ready",
                "protocol": PROTOCOL,
                "agent": AGENT_VERSION,
                "python": ".".join(map(str, sys.version_info[:3])),
                "pid": self.pid,
                "interpreters": sorted(self._interpreters),
                "capabilities": list(CAPABILITIES),
            }
        )
        while True:
            self.poller.turn()

    def _rehearse(self, interpreter: Interpreter) -> None:
        """Has it run code that does nothing, of which nobody hears.

        A fork's memory is copied page by page when it is first written to, which is most of the
        time of a first execution. A session that was kept ready has that behind it.
        """
        self._executions = -1
        self._rehearses = True
        self._on_execute(
            {
                "id": 0,
                "interpreter": interpreter.name,
                "code": "None",
                "timeout_s": REHEARSAL_S,
                "grace_s": 0.0,
            }
        )
        while self.running is not None:
            self.poller.turn()
        self._rehearses = False
        self._executions = 0
        interpreter.has_state = False
        interpreter.lost = ""

    def end(self) -> NoReturn:
        """Ends the agent; as PID 1 with it everything, else what it started."""
        self._transfers.drop_all()
        if self.pid != 1:
            for interpreter in self._interpreters.values():
                if interpreter.pid:
                    self.kill_tree(interpreter)
        os._exit(0)

    def new_capture(self, stream: str) -> Capture:
        return Capture(stream, self._spills, self.limits)

    # Messages.

    def _send(self, message: dict[str, Any]) -> None:
        if not self._rehearses:
            self._channel.send(message)

    def _on_progress(self) -> None:
        if self.running is not None and self.running.preview is not None:
            self.running.preview.schedule()
        self._transfers.go_on()

    def _fail(self, text: str, request_id: object = None) -> None:
        about = {"id": request_id} if isinstance(request_id, (str, int)) else {}
        self._send({"type": "error", "message": text, **about})

    def _on_request(self, message: Mapping[str, Any]) -> None:
        if message is RESUMED:
            self._on_resume()
            return
        kind = message.get("type")
        if kind == "execute":
            self._on_execute(message)
        elif kind == "interrupt":
            self._on_interrupt(message)
        elif kind == "stream":
            self._on_stream(message)
        elif kind == "ack":
            self._on_ack(message)
        elif kind == "hello":
            self._on_hello(message)
        elif kind in Transfers.REQUESTS:
            self._on_transfer(message)
        elif kind == "check":
            self._on_check(message)
        elif kind == "complete":
            self._on_complete(message)
        elif kind == "ping":
            self._send({"type": "pong"})
        elif kind == "status":
            self._on_status()
        elif kind == "listen":
            self._on_listen(message)
        elif kind == "shutdown":
            self.end()
        else:
            self._fail(
                f"unknown type {kind!r:.50}: expected execute, interrupt, stream, ack, hello, "
                "ping, status, check, complete, listen, shutdown, "
                f"{', '.join(Transfers.REQUESTS)}",
                message.get("id"),
            )

    def _on_hello(self, message: Mapping[str, Any]) -> None:
        try:
            limits = Limits(as_object(message.get("limits")))
            token = message.get("token")
            marker = resume_marker(token) if isinstance(token, str) else b""
            set_up = self._setup_of(message)
        except ValueError as error:
            self._fail(f"hello is not valid: {error}")
            return
        if marker and self._token not in {"", token}:
            self._fail("hello was said before with another token")
            return
        if marker and not self._token:
            self._token = str(token)
            self._channel.begin_sequence(marker)
        known, self.limits = self.limits.resources, limits
        for interpreter in self._interpreters.values():
            if interpreter.pid and self.running is None:
                interpreter.captures = {
                    stream: capture if capture.total_bytes else self.new_capture(stream)
                    for stream, capture in interpreter.captures.items()
                }
                # Those of its start hold already, and a filter may keep us from setting them.
                if limits.resources and limits.resources != known:
                    interpreter.limit(limits.resources)
        if set_up is not None:
            self._take_setup(*set_up)

    def _setup_of(self, message: Mapping[str, Any]) -> tuple[Interpreter, list[SetupStep]] | None:
        """What a `hello` says for the first time about a set-up.

        Raises:
            ValueError: it is not valid.
        """
        given = as_object(message.get("setup"))
        if given is None or self._knows_setup:
            return None
        name = given.get("interpreter")
        interpreter = self._interpreters.get(name) if isinstance(name, str) else None
        if interpreter is None:
            raise ValueError(f"setup is for interpreter {name!r:.50}, which is not in this session")
        return interpreter, SetupStep.all_of(given)

    def _take_setup(self, interpreter: Interpreter, steps: list[SetupStep]) -> None:
        self._knows_setup = True
        interpreter.setup = steps
        if interpreter.pid and not interpreter.has_state and self.running is None:
            interpreter.steps = steps[:]
            self._set_up(interpreter)

    def _on_listen(self, message: Mapping[str, Any]) -> None:
        request_id, port = message.get("id"), message.get("port", 0)
        variables = as_texts(message.get("variables"))
        if not is_id(request_id) or not is_whole(port) or not 0 < port < 65536:
            self._fail("listen needs an id and a port", request_id)
            return
        if variables is None:
            self._fail("listen takes variables, names and values without NUL", request_id)
            return
        if not self._channel.passes_descriptors:
            self._fail("cannot listen: this channel is no socket", request_id)
            return
        try:
            listener = listen_on_loopback(port)
        except OSError as error:
            self._fail(f"cannot listen: {error.strerror}", request_id)
            return
        port = listener.getsockname()[1]
        answer = {"type": "listening", "id": request_id, "port": port}
        self._channel.send(answer, listener.detach())
        self._set_variables(
            {name: value.replace("{port}", str(port)) for name, value in variables.items()}
        )

    def _set_variables(self, variables: Mapping[str, str]) -> None:
        """Has code find them from now on, in interpreters that run as well."""
        new = {name: value for name, value in variables.items() if os.environ.get(name) != value}
        if not new:
            return
        os.environ.update(new)
        for interpreter in self._live_interpreters():
            unused = self.running is None and not interpreter.has_state
            if unused and interpreter.reads_variables_at_start:
                interpreter.start_over()
                continue
            step = SetupStep("network", interpreter.variables_code(new), VARIABLES_S, GRACE_S)
            step.late = True
            interpreter.steps.append(step)
            if self.running is None:
                self._set_up(interpreter)

    def _on_ack(self, message: Mapping[str, Any]) -> None:
        number = message.get("seq")
        if not isinstance(number, int):
            self._fail(f"ack has seq {number!r}, expected a number")
            return
        self._channel.acknowledge(number)

    def _on_resume(self) -> None:
        executions = dict.fromkeys(self._channel.kept_results, "finished")
        if (running := self._running_id()) is not None:
            executions[str(running)] = "running"
        self._channel.resume(
            {
                "type": "resumed",
                "executions": executions,
                "files": self._transfers.ids,
                "notes": {
                    known: self._notes[known] for known in executions if known in self._notes
                },
                "recent": self._channel.recent,
                "count": self._executions,
            }
        )

    def _keep_note(self, message: Mapping[str, Any]) -> None:
        """Keeps what the supervisor wants to be told of an execution should it forget."""
        note = as_object(message.get("note"))
        if note is None:
            return
        kept = self._channel.kept_results
        self._notes = {known: its for known, its in self._notes.items() if known in kept}
        self._notes[str(message["id"])] = {"note": note, "code": message["code"][:NOTED_CODE]}

    def _running_id(self) -> str | int | None:
        """The execution that runs, or waits for the set-up of its interpreter."""
        if self._waiting is not None:
            request_id: str | int = self._waiting["id"]
            return request_id
        if self.running is None or self.running.step is not None:
            return None
        return self.running.id

    def _on_transfer(self, message: Mapping[str, Any]) -> None:
        request_id = message.get("id")
        if is_id(request_id):
            self._transfers.take(request_id, message)
        else:
            self._fail(f"{message['type']} needs an id")

    # Questions.

    def _interpreter_asked(self, message: Mapping[str, Any]) -> Interpreter | None:
        """The interpreter that a question with text is for; None if the question is none."""
        request_id, name = message.get("id"), message.get("interpreter")
        interpreter = self._interpreters.get(name) if isinstance(name, str) else None
        if not is_id(request_id):
            self._fail(f"{message['type']} needs an id")
        elif not isinstance(message.get("code"), str):
            self._fail(f"{message['type']} needs code, a text", request_id)
        elif interpreter is None:
            have = ", ".join(sorted(self._interpreters))
            self._fail(
                f"interpreter {name!r:.50} is not in this session, which has {have}", request_id
            )
        else:
            return interpreter
        return None

    def _ask(
        self,
        interpreter: Interpreter,
        kind: str,
        fields: Mapping[str, Any],
        settle: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """Has `settle` called with an interpreter's answer, or with nothing within a second.

        A question that is not answered yet, be it long given up, keeps others back: they would
        only pile up in front of an interpreter that is busy.
        """
        if not interpreter.pid or interpreter.question is not None:
            settle({})
            return
        self._questions += 1
        timer = f"question {self._questions}"

        def settled(answer: Mapping[str, Any]) -> None:
            self.poller.cancel(timer)
            settle(answer)

        question = interpreter.question = Question(self._questions, settled)
        self.poller.at(timer, time.monotonic() + QUESTION_S, lambda: question.settle({}))
        interpreter.send_question(kind, question.number, fields)

    def _on_complete(self, message: Mapping[str, Any]) -> None:
        interpreter = self._interpreter_asked(message)
        if interpreter is None:
            return
        request_id, code, cursor = message["id"], message["code"], message.get("cursor")
        if not isinstance(cursor, int) or cursor is True or not 0 <= cursor <= len(code):
            self._fail(f"cursor is {cursor!r:.50}, expected 0 to {len(code)}", request_id)
            return
        before = code[:cursor]

        def settle(answer: Mapping[str, Any]) -> None:
            prefix: Any = answer.get("prefix")
            found: list[Any] | None = answer.get("matches")
            available = isinstance(prefix, str) and before.endswith(prefix)
            matches = found if available and type(found) is list else []
            self._send(
                {
                    "type": "completions",
                    "id": request_id,
                    "start": cursor - len(str(prefix)) if available else cursor,
                    "end": cursor,
                    "matches": [text for text in matches if _may_be_offered(text)][:MAX_MATCHES],
                    "available": available,
                }
            )

        if (
            interpreter.runs
            or "complete" not in interpreter.answers
            or len(code) > MAX_QUESTION_CHARS
        ):
            settle({})
        else:
            fields = {"before": before, "next": code[cursor : cursor + 1]}
            self._ask(interpreter, "complete", fields, settle)

    def _on_check(self, message: Mapping[str, Any]) -> None:
        interpreter = self._interpreter_asked(message)
        if interpreter is None:
            return
        request_id, code = message["id"], message["code"]
        if len(code) > MAX_QUESTION_CHARS:
            self._tell_checked(request_id, "unknown", "")
        elif "check" in interpreter.answers:

            def settle(answer: Mapping[str, Any]) -> None:
                status, in_text = answer.get("status"), answer.get("in_text") is True
                if status not in InputCheck.STATUSES:
                    status = "unknown"
                indents = status == "incomplete" and not in_text
                self._tell_checked(request_id, status, suggest_indent(code) if indents else "")

            self._ask(interpreter, "check", {"code": code}, settle)
        else:
            self._begin_check(request_id, interpreter, code)

    def _tell_checked(self, request_id: str | int, status: object, indent: str) -> None:
        self._send({"type": "checked", "id": request_id, "status": status, "indent": indent})

    def _begin_check(self, request_id: str | int, interpreter: Interpreter, code: str) -> None:
        try:
            if len(self._checks) >= MAX_CHECKS:
                raise BlockingIOError
            check = InputCheck(interpreter.name, interpreter.program, code, self.file)
        except OSError:
            self._tell_checked(request_id, "unknown", "")
            return
        pid = check.pid
        self._checks[pid] = check, request_id
        self.poller.at(
            f"check {pid}",
            time.monotonic() + QUESTION_S,
            lambda: send_signal(pid, signal.SIGKILL),
        )

    def _on_checked(self, pid: int, wait_status: int) -> None:
        check, request_id = self._checks.pop(pid)
        self.poller.cancel(f"check {pid}")
        self._tell_checked(request_id, *check.finish(wait_status))

    def count_background(self) -> int:
        """The number of processes in the session besides the agent's and its interpreters'."""
        table = read_processes()
        ours = {self.pid, *self._checks, *(i.pid for i in self._interpreters.values())}
        inside = set(table) if self.pid == 1 else tree_of(table, self.pid, [self.pid])
        return sum(1 for pid in inside - ours if table[pid].alive)

    def _on_status(self) -> None:
        count = self.count_background()
        self._send({"type": "status", "running": self._running_id(), "background": count})

    def _on_execute(self, message: Mapping[str, Any]) -> None:
        request_id, code, name = (
            message.get("id"),
            message.get("code"),
            message.get("interpreter"),
        )
        timeout_s, grace_s = message.get("timeout_s"), message.get("grace_s", GRACE_S)
        if not is_id(request_id):
            self._fail("execute needs an id")
            return
        if not isinstance(code, str):
            self._fail("execute needs code, a text", request_id)
            return
        if not (timeout_s is None or is_seconds(timeout_s)) or not is_seconds(grace_s):
            self._fail("timeout_s and grace_s must be numbers of seconds, 0 or more", request_id)
            return
        reply_bytes = message.get("reply_bytes")
        if not (reply_bytes is None or (is_whole(reply_bytes) and reply_bytes > 0)):
            self._fail("reply_bytes must be a whole number above 0", request_id)
            return
        if is_whole(message.get("ack")):
            self._channel.acknowledge(message["ack"])
        interpreter = self._interpreters.get(name) if isinstance(name, str) else None
        if interpreter is None:
            have = ", ".join(sorted(self._interpreters))
            self._fail(f"interpreter {name!r} is not in this session, which has {have}", request_id)
            return
        if self.running is not None:
            if self.running.step is not None and self._waiting is None:
                self._keep_note(message)
                self._waiting = message
            else:
                self._fail("another execution is running: wait for its result", request_id)
            return
        try:
            if interpreter.pid and not interpreter.is_intact():
                self.end_interpreter(interpreter, "lost descriptors that belong to nsm to code")
            if not interpreter.pid:
                # As long as there was one, every orphan was its own, and nobody had to look.
                if len(others := self._live_interpreters()) == 1:
                    self._note_orphans(others[0])
                interpreter.start()
        except OSError as error:
            self._fail(f"cannot start {interpreter.program}: {error}", request_id)
            return
        self._keep_note(message)
        if interpreter.steps:
            self._waiting = message
            self._set_up(interpreter)
            return
        self._executions += 1
        execution = Execution(
            request_id, self._executions, interpreter, float(grace_s), self._newest.pid()
        )
        self.running = execution
        if message.get("stream") is True:
            self._show_output(execution)
        if timeout_s is not None:
            self.poller.at("stop", execution.started + timeout_s, self._on_timeout)
        for capture in interpreter.captures.values():
            capture.bound_reply(reply_bytes or self.limits.reply_bytes)
        interpreter.resume_output()
        try:
            interpreter.send_code(execution.number, code, one_shot=message.get("one_shot") is True)
        except (FrameError, OSError) as error:  # too large, or no memory left for it
            self._cancel_timers()
            self.running = None
            self._fail(f"cannot hand over the code: {error}", request_id)

    def _show_output(self, execution: Execution) -> None:
        """Streams an execution's output from now on, beginning with what there is already."""

        def send(stream: str, text: str) -> None:
            self._send({"type": "output", "id": execution.id, "stream": stream, "text": text})

        execution.preview = Preview(self.poller, send, lambda: self._channel.lag_bytes <= LAG_BYTES)
        execution.preview.begin(execution.interpreter.captures)

    def _on_stream(self, message: Mapping[str, Any]) -> None:
        execution = self.running
        if execution is None or self._running_id() != message.get("id"):
            return
        if self._waiting is not None:
            self._waiting = {**self._waiting, "stream": True}
        elif not execution.preview:
            self._show_output(execution)

    def _on_interrupt(self, message: Mapping[str, Any]) -> None:
        execution, request_id = self.running, message.get("id")
        if execution is None or request_id is None or self._running_id() != request_id:
            self._send({"type": "idle", "id": request_id})
            return
        if self._waiting is not None:
            self._waiting = None
            self._send(_never_began(request_id))
        if not execution.stopping:
            execution.interrupted = True
            self._interrupt(execution)

    # The ladder: interrupt, interrupt again and wider, kill.

    def _on_timeout(self) -> None:
        execution = self.running
        if execution is not None and not execution.stopping:
            execution.timed_out = True
            self._interrupt(execution)

    def _interrupt(self, execution: Execution) -> None:
        now = time.monotonic()
        self.poller.at("stop", now + execution.grace_s, self._on_grace_over)
        self.poller.at("repeat", now + execution.grace_s / 2, self._repeat_interrupt)
        if execution.interpreter.may_miss_interrupt and now - execution.started < EARLY_S:
            self.poller.at("early", now + REPEAT_S, lambda: self._signal(execution, wide=False))
        self._signal(execution, wide=False)

    def _repeat_interrupt(self) -> None:
        if self.running is not None:
            self._signal(self.running, wide=True)

    def _signal(self, execution: Execution, *, wide: bool) -> None:
        """Interrupts the interpreter and its foreground: what Ctrl-C reaches, but not processes
        of earlier executions.

        Args:
            wide: processes in groups of their own too, such as a shell's jobs under `set -m`.
        """
        interpreter = execution.interpreter
        leader = interpreter.pid
        interpreter.hold()
        table = read_processes()
        below = [table[pid] for pid in tree_of(table, leader, ()) - {leader}]
        new = [row for row in below if row.alive and execution.has_started(row)]
        foreground = [row.pid for row in new if row.group == leader]
        interpreter.send_interrupt(execution.number)
        # The interpreter first: a shell whose child is gone before would go on with the next.
        if interpreter.takes_signals:
            send_signal(leader, signal.SIGINT)
        # The rest all at once, as a terminal does it: else the last of a pipeline sees its input
        # end before it sees the signal, and its normal exit has the shell go on.
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGCONT):
            for pid in foreground:
                send_signal(pid, number)
        if wide:
            for pid in {row.pid for row in new} - set(foreground):
                send_signal(pid, signal.SIGINT)
        interpreter.release(execution.number)
        # Held, or stopped by its own code: a stopped process handles no other signal. (Node that
        # stops itself has torn itself down before, believing that it would end.)
        if interpreter.takes_signals:
            send_signal(leader, signal.SIGCONT)

    def _signal_latecomers(self, execution: Execution) -> None:
        """Interrupts what the shell was about to start when it was interrupted itself.

        A child that is forked after the look at the processes and before the signal reaches the
        shell would live on in the background. A job that was meant to ignores the signal.
        """
        leader = execution.interpreter.pid
        execution.interpreter.await_forks()
        table = read_processes()
        for pid in tree_of(table, leader, ()) - {leader}:
            row = table[pid]
            if row.alive and row.group == leader and execution.has_started(row):
                send_signal(pid, signal.SIGINT)

    def _on_grace_over(self) -> None:
        if self.running is not None:
            self.end_interpreter(
                self.running.interpreter,
                f"did not stop within {self.running.grace_s:g} s of an interrupt and was killed",
            )

    # Set-up of an interpreter.

    def _set_up(self, interpreter: Interpreter) -> None:
        """Runs the next step of a set-up, or what waited for the last one."""
        if interpreter.steps:
            self._begin_step(interpreter, interpreter.steps[0])
            return
        interpreter.end_setup()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._on_execute(waiting)

    def _begin_step(self, interpreter: Interpreter, step: SetupStep) -> None:
        interpreter.begin_step()
        self._executions += 1
        execution = Execution("", self._executions, interpreter, step.grace_s, self._newest.pid())
        execution.step = step
        self.running = execution
        self.poller.at("stop", execution.started + step.timeout_s, self._on_timeout)
        try:
            interpreter.send_code(execution.number, step.code)
        except (FrameError, OSError) as error:
            self._finish_step(execution, step, 0, f"could not be handed over: {error}")

    def _finish_step(
        self, execution: Execution, step: SetupStep, exit_code: int, why: str = ""
    ) -> None:
        """Goes on with the next step, in a fresh interpreter if this one has ended it.

        Args:
            why: it could not be run.
        """
        interpreter = execution.interpreter
        self._cancel_timers()
        if execution.stopping and interpreter.pid:
            self._signal_latecomers(execution)
        said = interpreter.take_output()["stderr"].result()[0]
        interpreter.take_displays()
        interpreter.take_notes()
        self.running = None
        if self._live_interpreters() != [interpreter]:
            self._note_orphans(interpreter)
        if interpreter.pid and not interpreter.is_intact():
            self.end_interpreter(interpreter, "lost descriptors that belong to nsm")
        if not interpreter.pid:
            why = f"is left out from now on: {interpreter.lost}"
        elif execution.timed_out:
            why = f"was interrupted after {step.timeout_s:g} s"
        elif execution.interrupted:
            why = "was interrupted"
        elif exit_code != 0 and said.strip():  # a hook's last command may well be a test
            why = f"failed with exit code {exit_code}"
        if why:
            interpreter.complain(step, why, said)
        if not step.late:
            interpreter.has_state = False
            interpreter.lost = ""
        if interpreter.pid:
            del interpreter.steps[0]
        else:
            # It would end the next one as well.
            interpreter.setup = [each for each in interpreter.setup if each is not step]
            try:
                interpreter.start()
            except OSError as error:
                interpreter.end_setup()
                waiting, self._waiting = self._waiting, None
                if waiting is not None:
                    self._fail(f"cannot start {interpreter.program}: {error}", waiting["id"])
                return
        self._set_up(interpreter)

    # Executions.

    def on_interruptible(self, interpreter: Interpreter) -> None:
        """The interpreter takes signals from now on: here is the one that came too early."""
        execution = self.running
        if execution is not None and execution.interpreter is interpreter and execution.stopping:
            self._signal(execution, wide=False)

    def on_done(self, interpreter: Interpreter, number: object, exit_code: object) -> None:
        """The interpreter says that the code's foreground has ended."""
        execution = self.running
        if execution is None or execution.interpreter is not interpreter:
            return
        if execution.number == number:
            interpreter.has_state = True
            code = exit_code if isinstance(exit_code, int) and 0 <= exit_code <= 255 else 1
            self._finish(execution, code)

    def end_interpreter(self, interpreter: Interpreter, reason: str, exit_code: int = 137) -> None:
        """Kills an interpreter that can't go on, and answers for what it ran."""
        sentence = f"{interpreter.name} {reason}; its state and its background processes are gone"
        execution = self.running
        runs = interpreter.runs
        interpreter.has_state = interpreter.has_state or runs
        interpreter.discard(sentence)
        if execution is not None and runs:
            self._finish(execution, exit_code)

    def _on_death(self, interpreter: Interpreter, status: int) -> None:
        if interpreter.link is not None:
            interpreter.link.drain()
        if not interpreter.pid:
            return
        interpreter.on_exit()
        execution = self.running
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            exit_code = 128 + number
            reason = f"was killed by {_signal_name(number)}"
            expected = execution is not None and execution.stopping
        else:
            exit_code = os.WEXITSTATUS(status)
            reason = f"exited with status {exit_code}{interpreter.exit_note}"
            expected = True
        if interpreter.ends_with_code and interpreter.runs and expected and execution is not None:
            interpreter.discard("")
            self._finish(execution, exit_code)
        else:
            self.end_interpreter(interpreter, reason, exit_code)

    def _finish(self, execution: Execution, exit_code: int) -> None:
        if execution.step is not None:
            self._finish_step(execution, execution.step, exit_code)
            return
        interpreter = execution.interpreter
        self._cancel_timers()
        if execution.stopping and interpreter.pid:
            self._signal_latecomers(execution)
        captures = interpreter.take_output()
        if execution.preview is not None:
            execution.preview.finish()
        results = {stream: capture.result() for stream, capture in captures.items()}
        self.running = None
        if self._live_interpreters() != [interpreter]:
            self._note_orphans(interpreter)
        reason = interpreter.lost
        if interpreter.pid:
            interpreter.lost = ""
        if execution.timed_out:
            exit_code = 124
        elif execution.interrupted:
            exit_code = 130
        message: dict[str, Any] = {
            "type": "result",
            "id": execution.id,
            "stdout": results["stdout"][0],
            "stderr": results["stderr"][0],
            "exit_code": exit_code,
            "duration_s": round(time.monotonic() - execution.started, 6),
            "displays": interpreter.take_displays(),
            "truncated": {
                stream: left_out for stream, (_, left_out) in results.items() if left_out
            },
            "timed_out": execution.timed_out,
            "interrupted": execution.interrupted,
            "interpreter_restarted": bool(reason),
            "restart_reason": reason,
        }
        if notes := interpreter.take_notes():
            message["notes"] = notes
        try:
            self._send(message)
        except FrameError as error:
            message["displays"] = []
            message["stderr"] += f"\n[displays left out: {error}]\n"
            self._send(message)

    def _cancel_timers(self) -> None:
        for timer in ("stop", "repeat", "early"):
            self.poller.cancel(timer)

    # Processes.

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup_fd, READ_BYTES)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                # Code has made this process its tracer (PTRACE_TRACEME), and would wait for it.
                send_signal(pid, signal.SIGKILL)
                continue
            self._orphans.pop(pid, None)
            if pid in self._checks:
                self._on_checked(pid, status)
            for interpreter in self._interpreters.values():
                if interpreter.pid == pid:
                    self._on_death(interpreter, status)

    def _live_interpreters(self) -> list[Interpreter]:
        return [i for i in self._interpreters.values() if i.pid]

    def _note_orphans(self, interpreter: Interpreter) -> None:
        """Remembers whose the orphans are that have not been seen yet; later nothing tells.

        Args:
            interpreter: the one that was running, or whose end has made them orphans.
        """
        leaders = {i.pid for i in self._interpreters.values()}
        for pid in read_children(self.pid) - leaders - set(self._checks) - set(self._orphans):
            self._orphans[pid] = self._recognise(pid) or interpreter

    def _recognise(self, pid: int) -> Interpreter | None:
        """The interpreter in whose session an orphan is, or whose pipes it has."""
        with contextlib.suppress(OSError):
            session = os.getsid(pid)
            for interpreter in self._live_interpreters():
                if interpreter.pid == session:
                    return interpreter
        pipes = {
            pipe.identity: interpreter
            for interpreter in self._interpreters.values()
            for pipe in interpreter.pipes.values()
        }
        for fd in (1, 2):
            with contextlib.suppress(OSError):
                owner = pipes.get(identity_of(os.stat(f"/proc/{pid}/fd/{fd}")))
                if owner is not None:
                    return owner
        return None

    def kill_tree(self, interpreter: Interpreter) -> set[int]:
        """Kills everything that came from an interpreter, daemons in their own sessions included.

        Processes of other interpreters live on. Where there are none, one system call reaches
        all without a race; else rounds of looking and killing, which a fork bomb may outrun:
        then everything is stopped for the time it takes to sort out who is to go.

        Returns:
            Process ids of all that was killed; some may not have ended yet.
        """
        others = [i for i in self._interpreters.values() if i.pid and i is not interpreter]
        if self.pid == 1 and not others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(-1, signal.SIGKILL)
            # A process that is being killed starts no other one, so these are all.
            return set(read_processes()) - {self.pid}
        self._note_orphans(interpreter)
        killed: set[int] = set()
        for attempt in range(KILL_ROUNDS):
            freeze = self.pid == 1 and attempt == FREEZE_ROUND
            before = read_processes() if freeze else {}
            if freeze:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(-1, signal.SIGSTOP)
            table = read_processes()
            victims = self._belongings(table, interpreter, others)
            fresh = {pid for pid in victims - killed if table[pid].alive}
            for pid in fresh:
                send_signal(pid, signal.SIGKILL)
            killed |= fresh
            if freeze:
                for pid in set(table) - victims - {self.pid}:
                    if pid not in before or before[pid].state != b"T":
                        send_signal(pid, signal.SIGCONT)
            if not fresh:
                break
        return killed

    def await_end(self, killed: Iterable[int]) -> None:
        """Waits until processes that were killed are gone, for `END_S` at most.

        Until they are reaped they count against the session's limit of processes, so that after a
        fork bomb no new interpreter could be started.

        Args:
            killed: from `kill_tree`.
        """
        left = set(killed)
        deadline = time.monotonic() + END_S
        ended = select.poll()
        ended.register(self._wakeup_fd, select.POLLIN)
        while left and (left_s := deadline - time.monotonic()) > 0:
            self._reap()
            left = {pid for pid in left if os.path.exists(f"/proc/{pid}")}
            if left:
                ended.poll(left_s * 1000)

    def _belongings(
        self, table: Mapping[int, Process], interpreter: Interpreter, others: Sequence[Interpreter]
    ) -> set[int]:
        """Pids of an interpreter and all that it started, as far as can be told."""
        spared: set[int] = {self.pid, *self._checks}
        for other in others:
            adopted = [pid for pid, owner in self._orphans.items() if owner is other]
            spared |= tree_of(table, other.pid, adopted)
        adopted = [
            pid
            for pid, row in table.items()
            if row.parent == self.pid
            # An orphan that has not been noted was made by the killing.
            and self._orphans.get(pid, interpreter) is interpreter
        ]
        return tree_of(table, interpreter.pid, adopted) - spared


def wake_up(_number: int, _frame: object) -> None:
    """Handles SIGCHLD: the write to the wake-up descriptor is all that it takes."""


def _never_began(request_id: object) -> dict[str, Any]:
    """The result of an execution that was interrupted while it waited for a set-up."""
    return {
        "type": "result",
        "id": request_id,
        "stdout": "",
        "stderr": "interrupted before it began: its environment was being set up\n",
        "exit_code": 130,
        "duration_s": 0.0,
        "displays": [],
        "truncated": {},
        "timed_out": False,
        "interrupted": True,
        "interpreter_restarted": False,
        "restart_reason": "",
    }


def _may_be_offered(text: object) -> bool:
    return isinstance(text, str) and len(text) <= MAX_MATCH and text.isprintable()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
