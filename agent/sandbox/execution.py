"""Pieces of code that run, one at a time: from a request to its result."""

from __future__ import annotations

import os
import signal
import time

from sandbox.capture import Preview
from sandbox.fields import are_arguments, as_object, is_id, is_seconds, is_whole
from sandbox.framing import FrameError
from sandbox.processes import EXEC_LOOK_S, EXEC_LOOKS, NewestPid, command_of, is_helper
from sandbox.standard_input import StandardInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sandbox.agent import Agent
    from sandbox.interpreters.base import Interpreter
    from sandbox.processes import Process
    from sandbox.setups import Step


GRACE_S = 2.0
"""Time between the interrupt and the kill, where the request does not say."""

UNDO_IS_OFF = b"nothing was undone: undo was turned off when this session began\n"

NOTED_CODE = 2000
"""Characters of code that a new supervisor is told of what runs, for people to read."""

REHEARSAL_S = 10.0
"""An interpreter that has not run code that does nothing by then is killed."""

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

TICK_PIDS = 10_000
"""More process ids than a machine gives out within a tick, and less than a third of the fewest that
it has, 32,768."""

LAG_BYTES = 1024 * 1024
"""Unacknowledged bytes above which output is no longer streamed but merged."""


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


class Executor:
    """Runs the code of requests, one after another, and answers each with a result.

    Attributes:
        rehearses: nobody is to hear of what runs.
        count: executions so far that a request asked for.
        number: number of the newest execution, steps of set-ups included.
        waiting: a request to run code, which waits for the set-up of its interpreter.
        input: standard input of the execution that runs or waits; None if it is empty.
        notes: notes about executions for a new supervisor, by their ids.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.rehearses = False
        self.count = self.number = 0
        self.waiting: Mapping[str, Any] | None = None
        self.input: StandardInput | None = None
        self.notes: dict[str, dict[str, Any]] = {}
        self._newest = NewestPid()

    def open(self) -> None:
        """Prepare for executions, in the process that is to serve."""
        self._newest.open()

    def rehearse(self, interpreter: Interpreter) -> None:
        """Have it run code that does nothing, of which nobody hears.

        A fork's memory is copied page by page when it is first written to, which is most of the
        time of a first execution. A session that was kept ready has that behind it.
        """
        self.number = -1
        self.rehearses = True
        self.execute(
            {
                "id": 0,
                "interpreter": interpreter.name,
                "code": "None",
                "timeout_s": REHEARSAL_S,
                "grace_s": 0.0,
            }
        )
        while self._agent.running is not None:
            self._agent.poller.turn()
        self.rehearses = False
        self.count = self.number = 0
        interpreter.has_state = False
        interpreter.lost = ""

    def _keep_note(self, message: Mapping[str, Any]) -> None:
        """Keep what the supervisor wants to be told of an execution should it forget."""
        note = as_object(message.get("note"))
        if note is None:
            return
        kept = self._agent.channel.kept_results
        self.notes = {known: its for known, its in self.notes.items() if known in kept}
        self.notes[str(message["id"])] = {"note": note, "code": message["code"][:NOTED_CODE]}

    def running_id(self) -> str | int | None:
        """The execution that runs, or waits for the set-up of its interpreter."""
        if self.waiting is not None:
            request_id: str | int = self.waiting["id"]
            return request_id
        if self._agent.running is None or self._agent.running.step is not None:
            return None
        return self._agent.running.id

    def execute(self, message: Mapping[str, Any]) -> None:
        request_id, code, name = (
            message.get("id"),
            message.get("code"),
            message.get("interpreter"),
        )
        timeout_s, grace_s = message.get("timeout_s"), message.get("grace_s", GRACE_S)
        if not is_id(request_id):
            self._agent.fail("execute needs an id")
            return
        if not isinstance(code, str):
            self._agent.fail("execute needs code, a text", request_id)
            return
        if not (timeout_s is None or is_seconds(timeout_s)) or not is_seconds(grace_s):
            self._agent.fail(
                "timeout_s and grace_s must be numbers of seconds, 0 or more", request_id
            )
            return
        rooms = reply_bytes, reply_chars = message.get("reply_bytes"), message.get("reply_chars")
        if not all(room is None or (is_whole(room) and room > 0) for room in rooms):
            self._agent.fail(
                "reply_bytes and reply_chars must be whole numbers above 0", request_id
            )
            return
        if is_whole(message.get("ack")):
            self._agent.channel.acknowledge(message["ack"])
        interpreter = self._agent.interpreters.get(name) if isinstance(name, str) else None
        if interpreter is None:
            have = ", ".join(sorted(self._agent.interpreters))
            self._agent.fail(
                f"interpreter {name!r} is not in this session, which has {have}", request_id
            )
            return
        if self._agent.running is not None:
            if self._agent.running.step is not None and self.waiting is None:
                self._keep_note(message)
                self.waiting = message
            else:
                self._agent.fail("another execution is running: wait for its result", request_id)
            return
        if message.get("undo") is not None:
            self._undo(message, interpreter, float(grace_s))
            return
        try:
            if interpreter.pid and message.get("reset") is True:
                self.end_interpreter(interpreter, "was reset as this call asked")
            elif interpreter.pid and not interpreter.is_intact():
                self.end_interpreter(interpreter, "lost descriptors that belong to nsm to code")
            if not interpreter.pid:
                # As long as there was one, every orphan was its own, and nobody had to look.
                if len(others := self._agent.live_interpreters()) == 1:
                    self._agent.trees.note_orphans(others[0])
                interpreter.start()
        except OSError as error:
            self.end_input()
            self._agent.fail(f"cannot start {interpreter.program}: {error}", request_id)
            return
        try:
            if message.get("stdin") is True and self.input is None:
                self.input = StandardInput(self._agent, request_id)
        except OSError as error:
            self._agent.fail(f"cannot make standard input: {error}", request_id)
            return
        self._keep_note(message)
        if interpreter.steps:
            self.waiting = message
            self._agent.setups.go_on(interpreter)
            return
        one_shot = message.get("one_shot") is True
        if not one_shot and not self.rehearses:
            checkpoints = self._agent.keep_checkpoints()
            if checkpoints is not None:
                checkpoints.before(interpreter)
        execution = self.begin(request_id, interpreter, float(grace_s))
        execution.one_shot = one_shot
        if message.get("stream") is True:
            self._show_output(execution)
        if timeout_s is not None:
            self._agent.poller.at(
                "stop", execution.started + timeout_s, self._agent.stopper.on_timeout
            )
        for capture in interpreter.captures.values():
            capture.bound_reply(reply_bytes or self._agent.limits.reply_bytes, reply_chars)
        interpreter.resume_output()
        argv = message.get("argv")
        interpreter.argv = argv if are_arguments(argv) else []
        try:
            interpreter.send_code(
                execution.number,
                code,
                one_shot=one_shot,
                stdin="" if self.input is None else self.input.open_path(),
            )
        except (FrameError, OSError) as error:  # too large, or no memory left for it
            self._agent.stopper.cancel_timers()
            self._agent.running = None
            self.end_input()
            self._agent.fail(f"cannot hand over the code: {error}", request_id)

    def _undo(self, message: Mapping[str, Any], interpreter: Interpreter, grace_s: float) -> None:
        """Undo the last executions."""
        self._keep_note(message)
        execution = self.begin(message["id"], interpreter, grace_s)
        for stream in ("stdout", "stderr"):
            interpreter.captures.setdefault(stream, self._agent.new_capture(stream))
        checkpoints = self._agent.keep_checkpoints()
        if checkpoints is None:
            interpreter.captures["stderr"].write(UNDO_IS_OFF)
            self.finish(execution, 1)
            return
        execution.undoes = True
        if message.get("timeout_s") is not None:
            self._agent.poller.at(
                "stop", execution.started + message["timeout_s"], self._agent.stopper.on_timeout
            )
        checkpoints.undo(execution, message["undo"])

    def begin(
        self, request_id: str | int, interpreter: Interpreter, grace_s: float
    ) -> CurrentExecution:
        """Make another execution the running one."""
        self.number += 1
        self.count += request_id != ""  # a step of a set-up has no id
        pid = self._newest.pid()
        execution = CurrentExecution(request_id, self.number, interpreter, grace_s, pid)
        self._agent.running = execution
        return execution

    def _show_output(self, execution: CurrentExecution) -> None:
        """Stream an execution's output from now on, beginning with what there is already."""

        def send(stream: str, text: str) -> None:
            self._agent.send({"type": "output", "id": execution.id, "stream": stream, "text": text})

        execution.preview = Preview(
            self._agent.poller, send, lambda: self._agent.channel.lag_bytes <= LAG_BYTES
        )
        execution.preview.begin(execution.interpreter.captures)

    def stream(self, message: Mapping[str, Any]) -> None:
        execution = self._agent.running
        if execution is None or self.running_id() != message.get("id"):
            return
        if self.waiting is not None:
            self.waiting = {**self.waiting, "stream": True}
        elif not execution.preview:
            self._show_output(execution)

    def take_input(self, message: Mapping[str, Any]) -> None:
        """Take input for the execution that runs, or waits for the set-up of its interpreter."""
        if not is_id(message.get("id")):
            self._agent.fail("input needs an id")
        elif self.input is not None and self.input.execution == message.get("execution"):
            self.input.take(message)
        else:
            offset = message.get("offset")
            told = offset if is_whole(offset) else 0
            answer = {"type": "input_taken", "id": message["id"], "offset": told, "open": False}
            self._agent.send(answer)

    def end_input(self) -> None:
        """Drop the input that is left of an execution."""
        if self.input is not None:
            self.input.close()
            self.input = None

    def interrupt(self, message: Mapping[str, Any]) -> None:
        execution, request_id = self._agent.running, message.get("id")
        if execution is None or request_id is None or self.running_id() != request_id:
            self._agent.send({"type": "idle", "id": request_id})
            return
        if self.waiting is not None:
            self.waiting = None
            self.end_input()
            self._agent.send(_never_began(request_id))
        if not execution.stopping:
            execution.interrupted = True
            self._agent.stopper.interrupt(execution)

    def on_done(self, interpreter: Interpreter, number: object, exit_code: object) -> None:
        """The interpreter says that the code's foreground has ended."""
        execution = self._agent.running
        if execution is None or execution.interpreter is not interpreter:
            return
        if execution.number == number:
            self._note_background(execution)
            interpreter.has_state = True
            code = exit_code if isinstance(exit_code, int) and 0 <= exit_code <= 255 else 1
            # A search for processes takes long: not if nothing has been started.
            if execution.step is None and self._newest.pid() != execution.last_pid:
                may_wait = not (execution.stopping or execution.one_shot)
                if self._agent.fork_bombs.end(interpreter, may_wait=may_wait):
                    code = code or 137
            self.finish(execution, code)

    def end_interpreter(self, interpreter: Interpreter, reason: str, exit_code: int = 137) -> None:
        """Kill an interpreter that can't go on, and answer for what it ran."""
        sentence = f"{interpreter.name} {reason}; its state and its background processes are gone"
        execution = self._agent.running
        runs = interpreter.runs
        interpreter.has_state = interpreter.has_state or runs
        interpreter.discard(sentence)
        if execution is not None and runs:
            self.finish(execution, exit_code)

    def on_death(self, interpreter: Interpreter, status: int) -> None:
        if interpreter.link is not None:
            interpreter.link.drain()
        if not interpreter.pid:
            return
        interpreter.on_exit()
        execution = self._agent.running
        if execution is not None and execution.interpreter is interpreter:
            self._note_background(execution)
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
            self.finish(execution, exit_code)
        else:
            self.end_interpreter(interpreter, reason, exit_code)

    def _note_background(self, execution: CurrentExecution) -> None:
        """Say what ends with a one-shot though its code had put it into the background."""
        if not execution.one_shot:
            return
        unclear = {b"", command_of(execution.interpreter.pid)}
        commands: list[bytes] = []
        for _ in range(EXEC_LOOKS):
            commands = [command_of(pid) for pid in self._agent.trees.background()]
            if not unclear.intersection(commands):
                break
            time.sleep(EXEC_LOOK_S)  # a helper is a copy of the interpreter until it executes
        count = sum(not is_helper(command) for command in commands)
        if count:
            were = (
                "1 background process was" if count == 1 else f"{count} background processes were"
            )
            execution.interpreter.add_note(
                f"{were} still running when the code ended, and ended with it; "
                "wait for them, or run the code in a session"
            )

    def finish(self, execution: CurrentExecution, exit_code: int) -> None:
        if execution.step is not None:
            self._agent.setups.finish_step(execution, execution.step, exit_code)
            return
        interpreter = execution.interpreter
        self._agent.stopper.cancel_timers()
        self.end_input()
        if execution.stopping and interpreter.pid:
            self._agent.stopper.signal_latecomers(execution)
        captures = interpreter.take_output()
        if execution.preview is not None:
            execution.preview.finish()
        results = {stream: capture.result() for stream, capture in captures.items()}
        self._agent.running = None
        if self._agent.live_interpreters() != [interpreter] or self._agent.has_jobs:
            self._agent.trees.note_orphans(interpreter)
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
        if imports := interpreter.take_imports():
            message["imports"] = imports
        checkpoints = self._agent.checkpoints
        if checkpoints is not None:
            message["checkpoints"] = checkpoints.count(is_present=execution.undoes)
        try:
            self._agent.send(message)
        except FrameError as error:
            message["displays"] = []
            message["stderr"] += f"\n[displays left out: {error}]\n"
            self._agent.send(message)
        if checkpoints is not None and execution.undoes:
            checkpoints.renew(interpreter)
        elif checkpoints is not None and not execution.one_shot:
            checkpoints.after(interpreter)


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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
