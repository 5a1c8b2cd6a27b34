"""Questions to one agent besides executions, and their answers by id.

A frame from the agent is an answer only if somebody waits for one under that id, and only if its
kind fits the question. A frame that nobody waits for is late, and ignored; one that does not fit is
a lie, which ends the session like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import trio

from nsm.wire.errors import InternalError, NsmError, UnknownOperationError
from nsmd.agent_link.file_frames import FileEventsFrame, TransferFrame
from nsmd.agent_link.frames import (
    AgentProtocolError,
    CheckedFrame,
    CompletionsFrame,
    ErrorFrame,
    ForkedFrame,
    InputFrame,
    JobAnswerFrame,
    ListeningFrame,
    NamesFrame,
    PortsFrame,
    RunnerFrame,
)

AnswerFrame = (
    TransferFrame
    | InputFrame
    | CompletionsFrame
    | CheckedFrame
    | ForkedFrame
    | ListeningFrame
    | NamesFrame
    | PortsFrame
    | RunnerFrame
    | JobAnswerFrame
)


class NoAnswerError(Exception):
    """The agent did not answer in time."""


class Requests:
    """Questions to one session's agent."""

    __slots__ = (
        "_capabilities",
        "_count",
        "_era",
        "_failure",
        "_listeners",
        "_on_settled",
        "_post",
        "_waiting",
    )

    def __init__(self, post: Callable[[Mapping[str, object]], None]) -> None:
        self._post = post
        self._waiting: dict[str, Question] = {}
        self._listeners: dict[str, Callable[[FileEventsFrame | None], None]] = {}
        self._count = 0
        self._era = ""
        self._capabilities: frozenset[str] | None = None  # known once the agent is ready
        self._failure: NsmError | None = None
        self._on_settled: tuple[Callable[[], None], ...] = ()  # for callers before that

    def open(self, capabilities: frozenset[str], *, era: int = 0) -> None:
        """The agent is ready, and has these capabilities.

        Args:
            era: number of earlier supervisors that asked it: it may still answer them.
        """
        if era:
            self._era = f"{era}."
        self._capabilities = capabilities
        self._settle()

    def new_id(self) -> str:
        """An id that no question of this session has had."""
        self._count += 1
        return f"q{self._era}{self._count}"

    async def ask(
        self,
        capability: str,
        frame: Mapping[str, Any],
        kinds: tuple[type[AnswerFrame], ...],
        timeout_s: float,
    ) -> AnswerFrame:
        """Send a question and wait for its answer.

        Args:
            capability: capability that the agent must have.
            frame: its `id` is one that no other question has now.
            kinds: kinds of frames that answer it.
            timeout_s: counted once the agent is ready.

        Raises:
            NoAnswerError: none came in time.
            UnknownOperationError: the agent is too old.
            NsmError: it refused, or the session has ended.
        """
        await self._wait_settled()
        return await self.begin(capability, frame, kinds).wait(timeout_s)

    async def settled(self) -> None:
        """Wait until the agent is ready; NsmError if the session has ended."""
        await self._wait_settled()
        if self._failure is not None:
            raise copy(self._failure)

    async def _wait_settled(self) -> None:
        if self.unsettled:
            settled = trio.Event()
            self._on_settled += (settled.set,)
            await settled.wait()

    def when_settled(self, function: Callable[[], None]) -> None:
        """Call a function once the agent is ready or the session has ended; it must not raise."""
        if self.unsettled:
            self._on_settled += (function,)
        else:
            function()

    def begin(
        self, capability: str, frame: Mapping[str, Any], kinds: tuple[type[AnswerFrame], ...]
    ) -> Question:
        """Send a question now, before anything else is sent; the agent must be ready.

        Args, Raises: as `ask`.
        """
        self.check(capability)
        question = Question(self, capability, frame["id"], kinds)
        self._waiting[frame["id"]] = question
        self._post(frame)
        return question

    def forget(self, question: Question) -> None:
        """Stop waiting for the answer."""
        if self._waiting.get(question.id) is question:
            del self._waiting[question.id]

    def send(self, frame: Mapping[str, Any]) -> None:
        """Send a frame that needs no answer, if the agent is still there."""
        if not self.unsettled and self._failure is None:
            self._post(frame)

    @property
    def unsettled(self) -> bool:
        """True while the session still starts."""
        return self._capabilities is None and self._failure is None

    def _settle(self) -> None:
        functions, self._on_settled = self._on_settled, ()
        for function in functions:
            function()

    def check(self, capability: str) -> None:
        """Raise NsmError if such a question cannot be answered."""
        if self._failure is not None:
            # A copy: a traceback holds the frames of the caller, and this error is remembered.
            raise copy(self._failure)
        if capability not in (self._capabilities or ()):
            raise UnknownOperationError(
                f"The session's agent is too old for that: it does not offer {capability!r}.",
                hint="End the session and start another; if Nix has built its environment for "
                "an older nsm, build it again first.",
            )

    def receive_answer(self, frame: AnswerFrame) -> None:
        """Take a frame that may answer a question. AgentProtocolError if it does not fit the one
        with its id.
        """
        if isinstance(frame, FileEventsFrame):
            if (listener := self._listeners.get(frame.id)) is not None:
                listener(frame)
            return
        question = self._waiting.pop(frame.id, None)
        if question is None:
            return
        if not isinstance(frame, question.kinds):
            raise AgentProtocolError(f"a {type(frame).__name__} answered something else")
        question.settle(frame)

    def listen(self, id_: str, listener: Callable[[FileEventsFrame | None], None]) -> None:
        """Have events of files with that id told; None once the session has ended."""
        self._listeners[id_] = listener

    def unlisten(self, id_: str) -> None:
        """Tell no more events with that id."""
        self._listeners.pop(id_, None)

    def refused(self, frame: ErrorFrame) -> bool:
        """Take an error; returns whether it concerns a question from here."""
        question = self._waiting.pop(frame.id or "", None)
        if question is None:
            return False
        question.settle(frame)
        return True

    def fail(self, error: NsmError) -> None:
        """The session has ended: no more answers will come."""
        self._failure = error
        self._settle()
        waiting, self._waiting = self._waiting, {}
        for question in waiting.values():
            question.settle(None)
        for listener in self._listeners.values():
            listener(None)


class Question:
    """Question that waits for its answer, from `Requests.begin`; call `wait` or `when_answered`."""

    __slots__ = ("_capability", "_over", "_requests", "_tell", "answer", "id", "kinds")

    def __init__(
        self, requests: Requests, capability: str, id_: str, kinds: tuple[type, ...]
    ) -> None:
        self.id = id_
        self.kinds = kinds
        self.answer: AnswerFrame | ErrorFrame | None = None
        self._over = False
        self._tell: Callable[[], None] | None = None
        self._requests = requests
        self._capability = capability

    async def wait(self, timeout_s: float) -> AnswerFrame:
        """Wait for the answer. Raises: as `Requests.ask`."""
        answered = trio.Event()
        self.when_answered(answered.set)
        try:
            with trio.move_on_after(timeout_s):
                await answered.wait()
        finally:
            self._requests.forget(self)
        return self.result()

    def when_answered(self, function: Callable[[], None]) -> None:
        """Call a function once there is a `result`, instead of waiting; it must not raise.

        It is called before the agent's next frame is looked at, however late the answer comes.
        """
        self._tell = function
        if self._over:
            function()

    def settle(self, answer: AnswerFrame | ErrorFrame | None) -> None:
        """Take the answer; None if there will be none."""
        self.answer, self._over = answer, True
        if self._tell is not None:
            self._tell()

    def result(self) -> AnswerFrame:
        """Return the answer. Raises: as `Requests.ask`."""
        if isinstance(self.answer, ErrorFrame):
            raise InternalError(f"The session's agent refused: {self.answer.message}")
        if self.answer is not None:
            return self.answer
        self._requests.check(self._capability)
        raise NoAnswerError
