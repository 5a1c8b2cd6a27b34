"""Pieces of code that run, one at a time: from a request to its result.

Before any other code an interpreter runs the steps of its set-up, each time it starts.
"""

from __future__ import annotations

import os
import signal
import time

from sandbox.capture import Preview
from sandbox.checkpoints import Checkpoints
from sandbox.framing import (
    GRACE_S,
    ExecuteRequest,
    FrameError,
    RequestError,
    Step,
    as_object,
    is_whole,
    steps_of,
)
from sandbox.input import StandardInput
from sandbox.interpreters import INTERPRETERS
from sandbox.interpreters.base import CurrentExecution, Interpreters
from sandbox.processes import EXEC_LOOK_S, EXEC_LOOKS, NewestPid, command_of, is_helper
from sandbox.runners import RunnerSession
from sandbox.stopping import ForkBombs, Stopper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from sandbox.interpreters.base import Interpreter
    from sandbox.limits import Limits
    from sandbox.processes import ProcessTrees
    from sandbox.session import SharedSession


VARIABLES_S = 10.0
"""Time limit for sending variables to a running interpreter, which takes less than a millisecond.
"""

UNDO_IS_OFF = b"nothing was undone: undo was turned off when this session began\n"

INPUT_AND_FORKS = (
    "code in a session that was forked, or is a fork, takes no standard input: "
    "interpreters cannot open it there; put the input into a file of the session, or give it to a "
    "program (`nsm exec`)"
)

NOTED_CODE = 2000
"""Characters of code that a new supervisor is told of what runs, for people to read."""

REHEARSAL_S = 10.0
"""An interpreter that has not run code that does nothing by then is killed."""


class Executor:
    """Runs the code of requests, one after another, and answers each with a result.

    Attributes:
        checkpoints: None where there is no undo, or nothing to undo yet.
        count: executions so far that a request asked for.
        number: number of the newest execution, steps of set-ups included.
        waiting: a request to run code, which waits for the set-up of its interpreter.
        notes: notes about executions for a new supervisor, by their ids.
    """

    def __init__(
        self, session: SharedSession, trees: ProcessTrees, programs: Mapping[str, str]
    ) -> None:
        self._session = session
        self._trees = trees
        self._stopper = Stopper(session.poller, self.end_input)
        self._fork_bombs = ForkBombs(session, trees)
        self.checkpoints: Checkpoints | None = None
        self.interpreters = Interpreters(
            (name, INTERPRETERS[name](session, trees, program))
            for name, program in programs.items()
        )
        for each in self.interpreters.values():
            each.on_done, each.on_lost = self._on_done, self._end_interpreter
            each.on_interruptible = self._stopper.on_interruptible
        trees.interpreters.extend(self.interpreters.values())
        trees.exit_handlers.append(lambda pid, status, _usage: self._on_exit(pid, status))
        self.running: CurrentExecution | None = None
        self._knows_setup = False
        self.count = self.number = 0
        self.waiting: ExecuteRequest | None = None
        self.input: StandardInput | None = None
        self.notes: dict[str, dict[str, Any]] = {}
        self._newest = NewestPid()

    def open(self) -> None:
        """Prepare for executions, in the process that is to serve."""
        self._newest.open()

    def prestart(self, name: str, adopted: Sequence[int], *, rehearse: bool) -> None:
        """Have an interpreter up; `adopted` are arguments of its `adopt`, if it runs already."""
        interpreter = self.interpreters[name]
        if isinstance(self._session, RunnerSession):
            self._session.begin(interpreter)
            return
        if adopted:
            self._session.is_fork = True
            interpreter.adopt(*adopted)
            return
        try:
            interpreter.start()
        except OSError:
            return  # the first execution will say why
        if name == "python" and rehearse:
            self._rehearse(interpreter)

    def _rehearse(self, interpreter: Interpreter) -> None:
        """Have it run code that does nothing, of which nobody hears.

        A fork's memory is copied page by page when it is first written to, which is most of the
        time of a first execution. A session that was kept ready has that behind it.
        """
        self.number = -1
        self._session.rehearses = True
        self.execute(
            {
                "id": 0,
                "interpreter": interpreter.name,
                "code": "None",
                "timeout_s": REHEARSAL_S,
                "grace_s": 0.0,
            }
        )
        while self.running is not None:
            self._session.poller.turn()
        self._session.rehearses = False
        self.count = self.number = 0
        interpreter.has_state = False
        interpreter.lost = ""

    def limit(self, limits: Limits) -> None:
        """Take new limits of the session, for interpreters that wait, too."""
        known, self._session.limits = self._session.limits.resources, limits
        if self.running is not None:
            return
        for interpreter in self.interpreters.values():
            if interpreter.pid:
                interpreter.captures = {
                    stream: capture if capture.total_bytes else self._session.new_capture(stream)
                    for stream, capture in interpreter.captures.items()
                }
                # Those of its start hold already, and a filter may keep us from setting them.
                if limits.resources and limits.resources != known:
                    interpreter.limit(limits.resources)

    def go_on_with_output(self) -> None:
        """Show more of what is printed, as the supervisor has caught up."""
        if self.running is not None and self.running.preview is not None:
            self.running.preview.schedule()

    def _keep_note(self, request: ExecuteRequest) -> None:
        """Keep what the supervisor wants to be told of an execution should it forget."""
        if request.note is None:
            return
        kept = self._session.channel.kept_results
        self.notes = {known: its for known, its in self.notes.items() if known in kept}
        self.notes[str(request.id)] = {"note": request.note, "code": request.code[:NOTED_CODE]}

    def running_id(self) -> str | int | None:
        """The execution that runs, or waits for the set-up of its interpreter."""
        if self.waiting is not None:
            return self.waiting.id
        if self.running is None or self.running.step is not None:
            return None
        return self.running.id

    def execute(self, message: Mapping[str, Any]) -> None:
        request = ExecuteRequest(message)
        if request.acknowledged is not None:
            self._session.channel.acknowledge(request.acknowledged)
        self._execute(request)

    def _execute(self, request: ExecuteRequest) -> None:
        interpreter = self.interpreters.named(request.interpreter)
        if self.running is not None:
            if self.running.step is None or self.waiting is not None:
                raise RequestError("another execution is running: wait for its result")
            self._keep_note(request)
            self.waiting = request
            return
        if request.undo is not None:
            self._undo(request, interpreter)
            return
        if request.stdin and (self._session.has_forks or self._session.is_fork):
            raise RequestError(INPUT_AND_FORKS)
        try:
            if interpreter.pid and request.reset:
                interpreter.end("was reset as this call asked")
            elif interpreter.pid and not interpreter.is_intact():
                interpreter.end("lost descriptors that belong to nsm to code")
            if not interpreter.pid:
                self._trees.note_before_another()
                if isinstance(self._session, RunnerSession):
                    self._session.start(interpreter)
                else:
                    interpreter.start()
        except OSError as error:
            self.end_input()
            raise RequestError(f"cannot start {interpreter.program}: {error}") from None
        try:
            if request.stdin and self.input is None:
                self.input = StandardInput(self._session, self._trees, request.id)
        except OSError as error:
            raise RequestError(f"cannot make standard input: {error}") from None
        self._keep_note(request)
        if interpreter.steps:
            self.waiting = request
            self._go_on(interpreter)
            return
        if not request.one_shot and not self._session.rehearses:
            checkpoints = self._keep_checkpoints()
            if checkpoints is not None:
                checkpoints.before(interpreter)
        execution = self._begin(request.id, interpreter, request.grace_s)
        execution.one_shot = request.one_shot
        if request.stream:
            self._show_output(execution)
        if request.timeout_s is not None:
            self._stopper.limit(execution, request.timeout_s)
        reply_bytes = request.reply_bytes or self._session.limits.reply_bytes
        for capture in interpreter.captures.values():
            capture.bound_reply(reply_bytes, request.reply_chars)
        interpreter.resume_output()
        interpreter.argv = request.argv
        try:
            interpreter.send_code(
                execution.number,
                request.code,
                one_shot=request.one_shot,
                stdin="" if self.input is None else self.input.open_path(),
            )
        except (FrameError, OSError) as error:  # too large, or no memory left for it
            self._stopper.cancel_timers()
            self.running = interpreter.execution = None
            self.end_input()
            raise RequestError(f"cannot hand over the code: {error}") from None

    def _undo(self, request: ExecuteRequest, interpreter: Interpreter) -> None:
        """Undo the last executions."""
        self._keep_note(request)
        execution = self._begin(request.id, interpreter, request.grace_s)
        for stream in ("stdout", "stderr"):
            interpreter.captures.setdefault(stream, self._session.new_capture(stream))
        checkpoints = self._keep_checkpoints()
        if checkpoints is None:
            interpreter.captures["stderr"].write(UNDO_IS_OFF)
            self._finish(execution, 1)
            return
        execution.undoes = True
        if request.timeout_s is not None:
            self._stopper.limit(execution, request.timeout_s)
        exit_code = checkpoints.undo(execution, request.undo)
        if exit_code is not None:
            self._finish(execution, exit_code)

    def _begin(
        self, request_id: str | int, interpreter: Interpreter, grace_s: float
    ) -> CurrentExecution:
        """Make another execution the running one."""
        self.number += 1
        self.count += request_id != ""  # a step of a set-up has no id
        pid = self._newest.pid()
        execution = CurrentExecution(request_id, self.number, interpreter, grace_s, pid)
        self.running = interpreter.execution = execution
        return execution

    def _keep_checkpoints(self) -> Checkpoints | None:
        """The checkpoints of the session; None where there is no undo."""
        if self.checkpoints is None and self._session.limits.undo:
            self.checkpoints = Checkpoints(self._session, self._trees)
        return self.checkpoints

    def _show_output(self, execution: CurrentExecution) -> None:
        """Stream an execution's output from now on, beginning with what there is already."""

        def send(stream: str, text: str) -> None:
            self._session.send(
                {"type": "output", "id": execution.id, "stream": stream, "text": text}
            )

        execution.preview = Preview(self._session.poller, send, self._session.may_send)
        execution.preview.begin(execution.interpreter.captures)

    def stream(self, message: Mapping[str, Any]) -> None:
        execution = self.running
        if execution is None or self.running_id() != message.get("id"):
            return
        if self.waiting is not None:
            self.waiting.stream = True
        elif not execution.preview:
            self._show_output(execution)

    def take_input(self, message: Mapping[str, Any]) -> None:
        """Take input for the execution that runs, or waits for the set-up of its interpreter."""
        if self.input is not None and self.input.execution == message.get("execution"):
            self.input.take(message)
        else:
            offset = message.get("offset")
            told = offset if is_whole(offset) else 0
            answer = {"type": "input_taken", "id": message["id"], "offset": told, "open": False}
            self._session.send(answer)

    def end_input(self) -> None:
        """Drop the input that is left of an execution."""
        if self.input is not None:
            self.input.close()
            self.input = None

    def interrupt(self, message: Mapping[str, Any]) -> None:
        execution, request_id = self.running, message.get("id")
        if execution is None or request_id is None or self.running_id() != request_id:
            self._session.send({"type": "idle", "id": request_id})
            return
        if self.waiting is not None:
            self.waiting = None
            self.end_input()
            self._session.send(_never_began(request_id))
        if not execution.stopping:
            execution.interrupted = True
            self._stopper.interrupt(execution)

    def _on_done(self, interpreter: Interpreter, number: object, exit_code: object) -> None:
        """The interpreter says that the code's foreground has ended."""
        execution = self.running
        if execution is None or execution.interpreter is not interpreter:
            return
        if execution.number == number:
            left = self._note_background(execution)
            interpreter.has_state = True
            code = exit_code if isinstance(exit_code, int) and 0 <= exit_code <= 255 else 1
            # A search for processes takes long: not if nothing has been started.
            if left and execution.step is None and self._newest.pid() != execution.last_pid:
                may_wait = not (execution.stopping or execution.one_shot)
                if self._fork_bombs.end(interpreter, may_wait=may_wait):
                    code = code or 137
            self._finish(execution, code)

    def _end_interpreter(self, interpreter: Interpreter, reason: str, exit_code: int) -> None:
        """Kill an interpreter that can't go on, and answer for what it ran."""
        sentence = f"{interpreter.name} {reason}; its state and its background processes are gone"
        execution = self.running
        runs = interpreter.runs
        interpreter.has_state = interpreter.has_state or runs
        interpreter.discard(sentence)
        if execution is not None and runs:
            self._finish(execution, exit_code)

    def _on_exit(self, pid: int, status: int) -> None:
        """Handle the end of a child, if it is an interpreter."""
        for interpreter in self.interpreters.values():
            if interpreter.pid == pid:
                self._on_death(interpreter, status)

    def _on_death(self, interpreter: Interpreter, status: int) -> None:
        if interpreter.link is not None:
            interpreter.link.drain()
        if not interpreter.pid:
            return
        interpreter.on_exit()
        execution = self.running
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
            self._finish(execution, exit_code)
        else:
            interpreter.end(reason, exit_code)

    def _note_background(self, execution: CurrentExecution) -> bool:
        """Say what ends with a one-shot though its code had put it into the background; return
        False if that is nothing."""
        if not execution.one_shot:
            return True
        if not self._trees.background():
            return False
        unclear = {b"", command_of(execution.interpreter.pid)}
        commands: list[bytes] = []
        for _ in range(EXEC_LOOKS):
            commands = [command_of(pid) for pid in self._trees.background()]
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
        return True

    def _finish(self, execution: CurrentExecution, exit_code: int) -> None:
        if execution.step is not None:
            self._finish_step(execution, execution.step, exit_code)
            return
        interpreter = execution.interpreter
        self._stopper.cancel_timers()
        self.end_input()
        if execution.stopping and interpreter.pid:
            self._stopper.signal_latecomers(execution)
        captures = interpreter.take_output()
        if execution.preview is not None:
            execution.preview.finish()
        results = {stream: capture.result() for stream, capture in captures.items()}
        self.running = interpreter.execution = None
        if not self._trees.is_alone(interpreter):
            self._trees.note_orphans(interpreter)
        reason = interpreter.lost
        if interpreter.pid:
            interpreter.lost = ""
        if execution.timed_out:
            exit_code = 124
        elif execution.interrupted:
            exit_code = 130
        displays, notes, imports = interpreter.take_told()
        message: dict[str, Any] = {
            "type": "result",
            "id": execution.id,
            "stdout": results["stdout"][0],
            "stderr": results["stderr"][0],
            "exit_code": exit_code,
            "duration_s": round(time.monotonic() - execution.started, 6),
            "displays": displays,
            "truncated": {
                stream: left_out for stream, (_, left_out) in results.items() if left_out
            },
            "timed_out": execution.timed_out,
            "interrupted": execution.interrupted,
            "interpreter_restarted": bool(reason),
            "restart_reason": reason,
        }
        if notes:
            message["notes"] = notes
        if imports:
            message["imports"] = imports
        checkpoints = self.checkpoints
        if checkpoints is not None:
            message["checkpoints"] = checkpoints.count(is_present=execution.undoes)
        try:
            self._session.send(message)
        except FrameError as error:
            message["displays"] = []
            message["stderr"] += f"\n[displays left out: {error}]\n"
            self._session.send(message)
        if isinstance(self._session, RunnerSession):
            self._session.renew(interpreter)
        elif checkpoints is not None and execution.undoes:
            checkpoints.renew(interpreter)
        elif checkpoints is not None and not execution.one_shot:
            checkpoints.after(interpreter)

    # Set-up.

    def read_setup(self, message: Mapping[str, Any]) -> tuple[Interpreter, list[Step]] | None:
        """Read the first set-up of a `hello`. Raise RequestError if it is not valid."""
        given = as_object(message.get("setup"))
        if given is None or self._knows_setup:
            return None
        return self.interpreters.named(given.get("interpreter")), steps_of(given)

    def take_setup(self, interpreter: Interpreter, steps: list[Step]) -> None:
        self._knows_setup = True
        interpreter.setup = steps
        if interpreter.pid and not interpreter.has_state and self.running is None:
            interpreter.steps = interpreter.needed(steps)
            self._go_on(interpreter)

    def set_variables(self, variables: Mapping[str, str]) -> None:
        """Have code find them from now on, in interpreters that run as well."""
        new = {name: value for name, value in variables.items() if os.environ.get(name) != value}
        if not new:
            return
        os.environ.update(new)
        for interpreter in [each for each in self.interpreters.values() if each.pid]:
            unused = self.running is None and not interpreter.has_state
            if unused and interpreter.reads_variables_at_start:
                interpreter.start_over()
                continue
            step = Step("network", interpreter.variables_code(new), VARIABLES_S, GRACE_S)
            step.late = True
            interpreter.steps.append(step)
            if self.running is None:
                self._go_on(interpreter)

    def _go_on(self, interpreter: Interpreter) -> None:
        """Run the next step of a set-up, or what waited for the last one."""
        if interpreter.steps:
            self._begin_step(interpreter, interpreter.steps[0])
            return
        interpreter.end_setup()
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            try:
                self._execute(waiting)
            except RequestError as error:
                self._session.fail(str(error), waiting.id)

    def _begin_step(self, interpreter: Interpreter, step: Step) -> None:
        interpreter.begin_step()
        execution = self._begin("", interpreter, step.grace_s)
        execution.step = step
        self._stopper.limit(execution, step.timeout_s)
        try:
            interpreter.send_code(execution.number, step.code)
        except (FrameError, OSError) as error:
            self._finish_step(execution, step, 0, f"could not be handed over: {error}")

    def _finish_step(
        self, execution: CurrentExecution, step: Step, exit_code: int, why: str = ""
    ) -> None:
        """Go on with the next step, in a fresh interpreter if this one has ended it, or say why it
        could not be run."""
        interpreter = execution.interpreter
        self._stopper.cancel_timers()
        if execution.stopping and interpreter.pid:
            self._stopper.signal_latecomers(execution)
        said = interpreter.take_output()["stderr"].result()[0]
        _, _, interpreter.imports = interpreter.take_told()  # these are for whoever asks next
        self.running = interpreter.execution = None
        if not self._trees.is_alone(interpreter):
            self._trees.note_orphans(interpreter)
        if interpreter.pid and not interpreter.is_intact():
            interpreter.end("lost descriptors that belong to nsm")
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
                waiting, self.waiting = self.waiting, None
                if waiting is not None:
                    self.end_input()
                    self._session.fail(f"cannot start {interpreter.program}: {error}", waiting.id)
                return
        self._go_on(interpreter)


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
