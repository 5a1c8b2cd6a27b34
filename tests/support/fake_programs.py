"""`Programs` of which the test decides what becomes of each that is started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import trio

from nsm.wire.errors import NsmError, UnknownProgramError
from nsmd.bridge.bridge import BridgeService
from nsmd.bridge.programs import Caller, OnLine, Program, ProgramEnd, program_not_found


def a_program(
    name: str, description: str = "", documentation: str = "", timeout_s: float = 300.0
) -> Program:
    """A program whose command is not there."""
    return Program(
        name=name,
        description=description or f"Does {name}.",
        command=f"/nowhere/{name}",
        documentation=documentation,
        source=f"/nowhere/tools/{name}.md",
        timeout_s=timeout_s,
    )


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """How a program was asked for."""

    caller: Caller
    name: object
    arguments: object
    call_id: str | None
    again: bool
    refusal: NsmError | None


class FakeProgramCall:
    """A program that was asked for, and what was asked of it since."""

    def __init__(self, asked: Submitted, on_line: OnLine) -> None:
        self.asked = asked
        self.on_line = on_line
        self.interrupted = trio.Event()
        self.abandoned = trio.Event()
        self._answered = trio.Event()
        self._answer: ProgramEnd | NsmError | None = None

    async def wait(self) -> ProgramEnd:
        await self._answered.wait()
        if isinstance(self._answer, NsmError):
            raise self._answer
        assert self._answer is not None
        return self._answer

    def interrupt(self) -> None:
        self.interrupted.set()

    def abandon(self) -> None:
        self.abandoned.set()

    def answer(self, answer: ProgramEnd | NsmError) -> None:
        """`wait` gives this."""
        self._answer = answer
        self._answered.set()


class FakePrograms:
    """Takes everything; `next` gives what was asked for, in order.

    Args:
        auto: called with each call as it comes, for tests that need no hand on it.
    """

    def __init__(self, *names: str, auto: Callable[[FakeProgramCall], None] | None = None) -> None:
        self.listed: Sequence[Program] = [a_program(name) for name in names]
        self.auto = auto
        self.subscribers: list[Callable[[], None]] = []
        self._calls, self._called = trio.open_memory_channel[FakeProgramCall](100)

    @property
    def service(self) -> BridgeService:
        """The same, for what wants the real one."""
        return cast("BridgeService", self)

    async def next(self) -> FakeProgramCall:
        """The next that was asked for."""
        return await self._called.receive()

    def programs(self, caller: Caller) -> Sequence[Program]:
        granted = caller.granted
        return [p for p in self.listed if granted is None or p.name in granted]

    def program(self, caller: Caller, name: str) -> Program:
        known = {program.name: program for program in self.programs(caller)}
        if name not in known:
            raise UnknownProgramError(program_not_found(name, known))
        return known[name]

    def submit(
        self,
        caller: Caller,
        name: object,
        given: object,
        on_line: OnLine,
        *,
        call_id: str | None = None,
        again: bool = False,
        refusal: NsmError | None = None,
    ) -> FakeProgramCall:
        asked = Submitted(
            caller=caller, name=name, arguments=given, call_id=call_id, again=again, refusal=refusal
        )
        call = FakeProgramCall(asked, on_line)
        if refusal is not None:
            call.answer(refusal)
        elif self.auto is not None:
            self.auto(call)
        self._calls.send_nowait(call)
        return call

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        self.subscribers.append(changed)
        return lambda: self.subscribers.remove(changed)

    def change(self, *names: str) -> None:
        """Change the list of programs."""
        self.listed = [a_program(name) for name in names]
        for changed in list(self.subscribers):
            changed()
