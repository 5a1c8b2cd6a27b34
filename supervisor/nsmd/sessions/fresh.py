"""Programs of a session that each get a fresh interpreter, and the runners that run them.

A session's agent starts runners when asked (`agent/sandbox/runners.py`). Each has a channel of its
own, on which it executes one program after another. So a program costs neither a session nor a task
here: what wakes up is a function, when its result has come.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import trio

from nsm.wire.errors import BadRequestError, NsmError
from nsm.wire.fresh import MAX_AT_ONCE, NOT_RUN
from nsm.wire.transcripts import FreshRun
from nsm.wire.tuples import NamedTuple
from nsmd.agent_link.frames import (
    AgentProtocolError,
    ErrorFrame,
    ReadyFrame,
    ResultFrame,
    RunnerFrame,
    without_bytes,
)
from nsmd.agent_link.link import AgentLink, AgentLinkError
from nsmd.agent_link.requests import NoAnswerError, Question
from nsmd.host.event_loop import Timer, poller
from nsmd.model.values import ClientIdentity, Outcome

if TYPE_CHECKING:
    from nsmd.sessions.session import Session

REPLY_BYTES = 256 * 1024
"""Output of one program that its result has room for, of each stream."""

MAX_ANSWER_BYTES = 3 * 1024 * 1024
"""Results in one answer, but for the first, which may have 8 MiB of displays: a frame has 16."""

MAX_UNREAD_BYTES = 16 * 1024 * 1024
"""Results that wait for their client, above which none of its programs begins."""

MAX_PENDING = 10_000
"""Programs of one client that run or wait."""

GATHER_S = 0.05
"""How long results wait for others, to be sent together."""

SPARE_S = 60.0
"""How long a runner waits for the next program before it is ended."""

SPARE_END_S = 2.0
"""Time for a runner to end when it is to, which takes milliseconds."""

START_S = 30.0
"""Time for a runner to start, which takes milliseconds: code in the session may have stopped it."""

MARGIN_S = 10.0
"""Time for a result beside the program's limit and grace."""

INTERRUPTED = "It was interrupted before it began."

KILLED = 137
"""Exit code of a program that did not run to its end."""


class CheckedProgram(NamedTuple):
    """A program that may run. `timeout_s` is a limit that its environment allows."""

    code: str
    timeout_s: float
    argv: tuple[str, ...]


_NOTHING = CheckedProgram("", 0.0, ())


class QueuedProgram(NamedTuple):
    """A program that runs or waits, and its number among those of its client."""

    client: ClientPrograms
    number: int
    program: CheckedProgram

    def fail(self, exit_code: int, why: str) -> None:
        """Have its client told why it has no result."""
        self.client.finish(self, Outcome(exit_code=exit_code), why)


class FreshOutcome(NamedTuple):
    """The end of a program.

    Attributes:
        error: why it did not run to its end; else empty.
        size: approximate number of characters of what it printed and displayed.
    """

    program: QueuedProgram
    outcome: Outcome
    error: str
    size: int


class ClientPrograms:
    """The programs that one client runs in a session, in its order.

    Attributes:
        at_once: number of them that may run at the same time.
        waiting: those that wait for a runner.
        pending: number of those that run or wait.
        running: number of those that run.
        unread_bytes: approximate size of results that the client has not read.
    """

    def __init__(self, session: Session, client: ClientIdentity, at_once: int) -> None:
        self.session = session
        self.client = client
        self.at_once = at_once
        self.waiting: deque[QueuedProgram] = deque()
        self.count = self.pending = self.running = 0
        self.unread_bytes = 0
        self._failed = self._not_run = 0
        self._is_over = self._is_noted = self._is_interrupted = False
        self._started_at, self._started_s = time.time(), trio.current_time()
        self._results: list[FreshOutcome] = []
        self._news = trio.Event()
        self._wanted = 1  # results, for whoever waits

    @property
    def may_begin(self) -> bool:
        """True if one more of its programs may begin."""
        return (
            bool(self.waiting)
            and self.running < self.at_once
            and self.unread_bytes <= MAX_UNREAD_BYTES
        )

    def add(self, programs: Sequence[CheckedProgram | NsmError]) -> None:
        """Run further programs; of one that cannot be run, the error says why.

        Raises:
            BadRequestError: too many wait.
            SessionEndedError: the session has ended, and no result is left.
        """
        session = self.session
        if not session.live and not self._results:
            raise session.ended_error()
        if self.pending + len(programs) > MAX_PENDING:
            raise BadRequestError(
                f"{self.pending} programs run or wait; at most {MAX_PENDING} may.",
                hint="Read results before you send more.",
            )
        self.pending += len(programs)
        for program in programs:
            checked = _NOTHING if isinstance(program, NsmError) else program
            queued = QueuedProgram(self, self.count, checked)
            self.count += 1
            if isinstance(program, NsmError):
                queued.fail(NOT_RUN, program.message)
            elif not session.live:
                queued.fail(NOT_RUN, session.ended_error().message)
            elif self._is_interrupted:
                queued.fail(NOT_RUN, INTERRUPTED)
            else:
                self.waiting.append(queued)
        if session.confinement is not None:
            session.confinement.job_started()
        session.runners.serve(self)

    async def wait(self) -> None:
        """Wait until results can be taken, or no program is pending: for half of the results that
        are to come, or for those that come soon after the first, since an answer costs more than a
        result in it.
        """
        enough = (self.pending + len(self._results) + 1) // 2
        while not self._results and self.pending:
            await self._wait_for(1)
        with trio.move_on_after(GATHER_S):
            while len(self._results) < enough and self.pending:
                await self._wait_for(enough)

    async def _wait_for(self, count: int) -> None:
        # One event for all who wait: a client may ask twice, or close while it waits.
        if self._news.is_set():
            self._wanted, self._news = count, trio.Event()
        self._wanted = min(self._wanted, count)
        await self._news.wait()

    def take(self) -> list[FreshOutcome]:
        """Take the results that have come, as many as an answer has room for."""
        count = size = 0
        for result in self._results:
            size += result.size
            if count and size > MAX_ANSWER_BYTES:
                break
            count += 1
            self.unread_bytes -= result.size
        taken, self._results = self._results[:count], self._results[count:]
        self._record(taken)
        if self.waiting:
            self.session.runners.go_on()
        return taken

    def drop(self) -> None:
        """Run no program that waits, or comes."""
        self._is_interrupted = True
        dropped, self.waiting = self.waiting, deque()
        for queued in dropped:
            queued.fail(NOT_RUN, INTERRUPTED)

    def interrupt(self) -> None:
        """Interrupt what runs, and run nothing else."""
        self.session.runners.interrupt(self)

    def end(self) -> None:
        """Interrupt what runs, run nothing else, and note in the transcript what ran."""
        if not self._is_over:
            self._is_over = True
            self.interrupt()
            self._note_end()

    async def ended(self) -> None:
        """Wait until nothing runs."""
        while self.pending:
            await self._wait_for(MAX_PENDING)

    def _note_end(self) -> None:
        """Record what came after the last answer, once all programs have ended."""
        if self._is_over and not self.pending and self.count and not self._is_noted:
            self._is_noted = True
            self._record(self._results)
            self._results = []
            self.session.transcript.programs_ended(
                FreshRun(
                    client=self.client.name,
                    programs=self.count,
                    failed=self._failed,
                    not_run=self._not_run,
                    started_at=self._started_at,
                    duration_s=trio.current_time() - self._started_s,
                )
            )

    def _record(self, results: Sequence[FreshOutcome]) -> None:
        """Have results recorded that were told, or will not be."""
        if results:
            self.session.events.publish(
                "fresh_finished", session=self.session.id, subject=(self, results)
            )

    def finish(self, program: QueuedProgram, outcome: Outcome, error: str = "") -> None:
        """Take the result of a program."""
        self.pending -= 1
        if error and outcome.exit_code == NOT_RUN:
            self._not_run += 1
        else:
            self.session.transcript.programs += 1
        self._failed += outcome.exit_code != 0
        size = len(outcome.stdout) + len(outcome.stderr)
        if outcome.displays:
            size += len(str(outcome.displays))
        self._results.append(FreshOutcome(program, outcome, error, size))
        self.unread_bytes += size
        if len(self._results) >= self._wanted or not self.pending:
            self._news.set()
        if not self.pending:
            self.session.events.publish("fresh_idle", session=self.session.id, subject=self)
        self._note_end()


WHILE_PROGRAMS_RUN = "Wait for them, or interrupt them: `nsm interrupt SESSION`."
"""Hint for what cannot be done while programs run in fresh interpreters of a session."""


class SessionRunners:
    """The runners of one session, and the clients whose programs they run in turn."""

    def __init__(self, session: Session, nursery: trio.Nursery) -> None:
        self.session = session
        self._nursery = nursery
        self._clients: deque[ClientPrograms] = deque()
        self._runners: list[Runner] = []
        self._starting = self._holds = 0
        self._changed = trio.Event()  # a runner has started or ended

    @property
    def busy(self) -> bool:
        """True while programs run or wait."""
        return bool(self.unfinished())

    def unfinished(self) -> list[ClientPrograms]:
        """Return the clients whose programs run or wait."""
        return [client for client in self._clients if client.pending]

    def serve(self, client: ClientPrograms) -> None:
        """Run programs of a client."""
        if client.waiting and client not in self._clients:
            self._clients.append(client)
        self.go_on()

    def go_on(self) -> None:
        """Send programs to runners that have none, and start more runners if there are too few."""
        if self._holds:
            return
        if self.session.link is None:
            if self.session.requests.unsettled:
                self.session.requests.when_settled(self.go_on)
            else:
                self._fail_waiting(self.session.ended_error().message)
            return
        for runner in self._runners:
            if runner.is_free and not runner.run_next():
                break
        wanted = sum(min(client.at_once, client.pending) for client in self._clients)
        for _ in range(min(wanted, MAX_AT_ONCE) - len(self._runners) - self._starting):
            self._start()

    def next(self) -> QueuedProgram | None:
        """Take the next program; clients have turns."""
        for _ in range(0 if self._holds else len(self._clients)):
            client = self._clients[0]
            self._clients.rotate(-1)
            if client.may_begin:
                client.running += 1
                return client.waiting.popleft()
            if not client.pending:
                self._clients.remove(client)
        return None

    def _start(self) -> None:
        session, id_ = self.session, self.session.requests.new_id()
        frame = {"type": "runner", "id": id_, "interpreter": session.spec.environment.interpreter}
        try:
            question = session.requests.begin("runners", frame, (RunnerFrame,))
        except NsmError as error:
            self._fail_waiting(error.message)
            return
        self._starting += 1
        question.when_answered(lambda: self._started(question))

    def _started(self, question: Question) -> None:
        self._starting -= 1
        self._changed.set()
        link = self.session.link
        try:
            question.result()
            descriptor = None if link is None else link.claim_descriptor(question.id)
            runner = Runner(self, question.id, _channel(descriptor), self._nursery)
        except (NsmError, NoAnswerError, AgentProtocolError, OSError) as error:
            self._start_failed(str(error) or "The session has ended.")
            return
        self._runners.append(runner)

    def _start_failed(self, why: str) -> None:
        """Tell clients that a runner could not start, unless another one runs their programs: the
        next one would not start either.
        """
        if not self._runners and not self._starting:
            self._fail_waiting(why)

    def kill(self, runner: Runner) -> None:
        """Have the agent kill a runner, which may be stopped."""
        self.session.post({"type": "runner_end", "runner": runner.id})

    def interrupt(self, client: ClientPrograms | None = None) -> bool:
        """Interrupt all programs that run or wait, or those of one client; return whether there
        were any.
        """
        were = self.busy
        for each in self._clients:
            if client in (None, each):
                each.drop()
        for runner in self._runners:
            if runner.program is not None and client in (None, runner.program.client):
                runner.interrupt()
        return were

    async def end_programs(self) -> None:
        """Interrupt all programs, and wait until none runs."""
        self.interrupt()
        for client in [*self._clients]:
            await client.ended()

    @asynccontextmanager
    async def away(self) -> AsyncGenerator[None]:
        """Have no runner there, and no program begin: runners look like interpreters. None may be
        running a program.
        """
        self._holds += 1
        try:
            while self._starting or self._runners:
                for runner in self._runners:
                    runner.hang_up()
                self._changed = trio.Event()
                await self._changed.wait()
            yield
        finally:
            self._holds -= 1
            self.go_on()

    def forget(self, runner: Runner, why: str) -> None:
        """Forget a runner that has ended, and start another one if there is something to run."""
        if runner in self._runners:
            self._runners.remove(runner)
            self._changed.set()
            if not self.session.live:
                return
            if runner.is_ready:
                self.go_on()
            else:
                self._start_failed(why)

    def close(self) -> None:
        """End all runners: the session ends."""
        for runner in [*self._runners]:
            runner.close(self.session.ended_error().message)
        self._fail_waiting(self.session.ended_error().message)

    def _fail_waiting(self, why: str) -> None:
        for client in self._clients:
            while client.waiting:
                client.waiting.popleft().fail(NOT_RUN, why)


class Runner:
    """A runner of a session, which runs one program at a time.

    Attributes:
        program: the one that it runs.
        is_ready: it has started.
    """

    def __init__(
        self, runners: SessionRunners, id_: str, channel: socket.socket, nursery: trio.Nursery
    ) -> None:
        self.id = id_
        self.program: QueuedProgram | None = None
        self._runners = runners
        self._channel = channel
        self._link = AgentLink(channel, nursery)
        self.is_ready = self._closed = self._is_interrupted = self._is_leaving = False
        session = runners.session
        self._grace_s = session.limits.grace_s
        self._timer = Timer(session.timers, self._late)
        self._number = 0
        self._poller = poller()
        self._poller.watch(channel.fileno(), self._readable)
        self._timer.arm(START_S)

    @property
    def is_free(self) -> bool:
        """True if it can run a program."""
        return self.is_ready and self.program is None and not (self._closed or self._is_leaving)

    def run_next(self) -> bool:
        """Run the next program, if the runner is free. Return whether there is one."""
        program = self._runners.next() if self.is_free else None
        if program is None:
            self._timer.arm(SPARE_END_S if self._is_leaving else SPARE_S)
            return False
        self._run(program)
        return True

    def _run(self, program: QueuedProgram) -> None:
        self.program, self._is_interrupted = program, False
        code, timeout_s, argv = program.program
        self._number += 1
        frame: dict[str, Any] = {
            "type": "execute",
            "id": str(self._number),
            "interpreter": self._runners.session.spec.environment.interpreter,
            "code": code,
            "one_shot": True,
            "timeout_s": timeout_s,
            "grace_s": self._grace_s,
            "reply_bytes": REPLY_BYTES,
        }
        if argv:
            frame["argv"] = list(argv)
        self._timer.arm(timeout_s + self._grace_s + MARGIN_S)
        self._post(frame)

    def hang_up(self) -> None:
        """Have it end, as one that is free does when nothing more can come. Idempotent."""
        if not self._is_leaving:
            self._is_leaving = True
            if self.is_ready:
                self._timer.arm(SPARE_END_S)
            with suppress(OSError):  # it has ended
                self._channel.shutdown(socket.SHUT_WR)

    def interrupt(self) -> None:
        """Interrupt the program that runs."""
        self._post({"type": "interrupt", "id": str(self._number)})
        if not (self._closed or self._is_interrupted):
            self._is_interrupted = True
            self._timer.arm(self._grace_s + MARGIN_S)

    def _post(self, frame: dict[str, Any]) -> None:
        try:
            self._link.post(frame)
        except AgentLinkError as error:
            self.close(f"Its runner {error}.")

    def _readable(self) -> None:
        try:
            self._link.read()
            while not self._closed and (frame := self._link.next_frame()) is not None:
                if isinstance(frame, ReadyFrame) and not self.is_ready:
                    self.is_ready = True
                    self.run_next()
                elif isinstance(frame, ResultFrame) and frame.id == str(self._number):
                    self._finish(without_bytes(frame.outcome))
                elif isinstance(frame, ErrorFrame):
                    self._finish(Outcome(exit_code=NOT_RUN), f"It was not run: {frame.message}.")
        except (AgentLinkError, AgentProtocolError) as error:
            self.close(f"Its runner {error}: code in the session may have killed it.")

    def _finish(self, outcome: Outcome, error: str = "") -> None:
        program, self.program = self.program, None
        self._timer.disarm()
        if program is not None:
            program.client.running -= 1
            program.client.finish(program, outcome, error)
        self.run_next()

    def _late(self) -> None:
        if self.program is None and self.is_ready and not self._is_leaving:
            self.hang_up()
        elif self.program is None:
            self._runners.kill(self)
            self.close("Its runner did not start in time.")
        else:
            self._runners.kill(self)
            self.close("It was killed, since its runner did not end it in time.")

    def close(self, why: str) -> None:
        """End the runner, and what it runs. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._timer.close()
        self._poller.forget(self._channel.fileno())
        self._link.close()
        self._channel.close()
        program, self.program = self.program, None
        session = self._runners.session
        if program is not None:
            program.client.running -= 1
            program.fail(KILLED, why if session.live else session.ended_error().message)
        self._runners.forget(self, why)


def _channel(descriptor: int | None) -> socket.socket:
    """Make a socket of a descriptor that may be anything. Raise AgentProtocolError if it is not a
    runner's channel.
    """
    if descriptor is None:
        raise AgentProtocolError("a runner's channel did not come with the answer")
    try:
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            channel = socket.socket(fileno=descriptor)
            if channel.family == socket.AF_UNIX and channel.type == socket.SOCK_STREAM:
                channel.setblocking(False)
                return channel
            channel.detach()
    except OSError:
        pass
    with suppress(OSError):
        os.close(descriptor)
    raise AgentProtocolError("what came as a runner's channel is no such socket")
