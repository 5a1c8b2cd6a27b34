"""Programs that clients may start, and the one way to start them.

Each call is a task of its own from the first check to the last line of the ledger, whatever becomes
of whoever asked: no program runs that nobody has written down, and none ends without.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import trio

from nsm.wire.errors import (
    BadRequestError,
    DrainingError,
    NsmError,
    OverloadedError,
    ShuttingDownError,
    UnknownProgramError,
)
from nsmd.bridge.arguments import MAX_ARGUMENTS
from nsmd.bridge.call import Means, Wanted, carry_out, fault, outcome_of
from nsmd.bridge.call_handle import ProgramCall, who_runs
from nsmd.bridge.definitions_index import DefinitionsIndex, open_definitions, render
from nsmd.bridge.finished_calls import FinishedCalls
from nsmd.bridge.ledger import LAST_LINES_S, Ledger, open_ledger
from nsmd.bridge.values import Asked, Caller, Ended, OnLine, Problem, Program
from nsmd.bridge.wording import program_not_found
from nsmd.host.watching.source_watcher import SourceWatcher
from nsmd.model.events import Events
from nsmd.model.settings import BridgeSettings
from nsmd.model.shutdown import Shutdown

log = logging.getLogger(__name__)

MAX_CALLS_OF_ONE = 64
"""Of one client under way at once, those that are about to be refused included: that waits for the
disk, too."""

STOP_S = 15.0
"""For all programs to be gone once they were stopped: the steps of each, and some."""

ANSWERS_S = 0.1
"""For the last answers to reach their clients before connections are closed."""

_MAX_NAME_CHARS = 200
"""Of a name that is asked for, as it is written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgePaths:
    """Where the bridge finds things.

    Attributes:
        definitions: directory of the definition files.
        ledger: path of the audit's file.
        home: of the user; programs work there where nothing else is said.
        variables: of the supervisor.
    """

    definitions: str
    ledger: str
    home: str
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Open:
    shelf: DefinitionsIndex
    ledger: Ledger


class Bridge:
    """Access of clients to the programs that they may start; made by `open_bridge`.

    Args:
        places: where things are.
        keeper: watches the definitions.
        nursery: for calls.
        ending: whether anything new may begin.
        events: are told of what is started and what comes of it.
        output_bytes: of each stream of a program, what is kept.
    """

    def __init__(
        self,
        places: BridgePaths,
        keeper: SourceWatcher,
        nursery: trio.Nursery,
        *,
        ending: Shutdown,
        events: Events,
        output_bytes: Callable[[], int],
    ) -> None:
        self._places = places
        self._keeper = keeper
        self._nursery = nursery
        self._ending = ending
        self._events = events
        self._output_bytes = output_bytes
        self._settings = BridgeSettings()
        self._open: _Open | None = None
        self._leave, self._left = trio.Event(), trio.Event()
        self._changing = trio.Lock()
        self._calls: dict[tuple[str, str], ProgramCall] = {}
        self._kept = FinishedCalls()
        self._one_ended = trio.Event()
        self._closed = False
        self._listeners: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        state = "on" if self._open is not None else "off"
        return f"<Bridge {state}, {len(self._calls)} calls>"

    # What there is.

    @property
    def enabled(self) -> bool:
        """True if the bridge is configured, so that somebody can start something."""
        return self._open is not None

    @property
    def problems(self) -> Sequence[Problem]:
        """Definitions that are of no use."""
        return () if self._open is None else self._open.shelf.problems

    @property
    def audit_problem(self) -> str:
        """Why calls are refused at this moment; empty where they can be written down."""
        return "" if self._open is None else self._open.ledger.problem

    def facts(self) -> Mapping[str, object]:
        """For `nsm status`."""
        shelf = None if self._open is None else self._open.shelf
        return {
            "enabled": shelf is not None,
            "programs": 0 if shelf is None else len(shelf.programs),
            "wrong": 0 if shelf is None else len(shelf.problems),
            "running": self.calls,
            "audit": self._places.ledger,
            "problem": self.audit_problem,
        }

    def programs(self, caller: Caller) -> Sequence[Program]:
        """Those that somebody may start, by name; none where the bridge is off."""
        if self._open is None:
            return ()
        everything = self._open.shelf.programs
        if caller.granted is None:
            return tuple(everything.values())
        return tuple(each for name, each in everything.items() if name in caller.granted)

    def program(self, caller: Caller, name: object) -> Program:
        """One of these.

        Raises:
            BadRequestError: that is no name.
            UnknownProgramError: there is none of that name for this caller.
        """
        if not isinstance(name, str):
            raise BadRequestError(
                "`program` must be the name of a program, as text.",
                hint="`list_programs` has the names.",
            )
        programs = self.programs(caller)
        for program in programs:
            if program.name == name:
                return program
        why = ""
        if caller.granted is None:  # who may start all may know what is in the way of one
            why = next((render(each) for each in self.problems if each.name == name), "")
        not_found = program_not_found(name, (each.name for each in programs))
        raise UnknownProgramError(not_found, hint=why)

    def unset(self, program: Program) -> list[str]:
        """Names in a program's `env` of variables that the supervisor does not have."""
        return [name for name in program.env if name not in self._places.variables]

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Have a function called when programs come, change or go; quick.

        Returns:
            Ends that.
        """
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    async def look(self) -> None:
        """Look at the definitions now."""
        if self._open is not None:
            await self._open.shelf.look()

    def under_way(self) -> list[dict[str, str]]:
        """Programs that run, as `{program, client, scope}`."""
        return [
            {
                "program": call.asked.program,
                "client": call.asked.caller.client,
                "scope": call.asked.caller.scope,
            }
            for call in self.unfinished()
            if call.started
        ]

    @property
    def calls(self) -> int:
        """How many are under way, those included that are refused."""
        return len(self._calls)

    # What is done.

    def submit(
        self,
        caller: Caller,
        name: object,
        given: object,
        on_line: OnLine | None = None,
        *,
        call_id: str | None = None,
        again: bool = False,
        refusal: NsmError | None = None,
    ) -> ProgramCall:
        """Ask for a program; quick. What is wrong with it, waiting for the answer tells.

        Args:
            name, given: of the program, and its arguments, as they came.
            on_line: takes output as it comes.
            call_id: by which the client may ask for the same call again.
            again: it does: the program must be started once in all.
            refusal: why nothing is started whatever is asked for; written down as any other.

        Raises:
            NsmError: nothing is taken at this moment.
        """
        if self._open is None:
            raise _ends() if self._closed else off()
        key = caller.scope, call_id or secrets.token_hex(8)
        known = self._calls.get(key) or self._kept.get(key)
        if known is not None and again:
            known.claim(on_line)
            return known
        asked = Asked(
            id=key[1], caller=caller, program=_plain(name)[:_MAX_NAME_CHARS], arguments=_told(given)
        )
        if known is not None:
            self._open.ledger.count_refused(asked)
            raise BadRequestError("A call of that id is there already.", hint="Use a fresh one.")
        if sum(scope == caller.scope for scope, _ in self._calls) >= MAX_CALLS_OF_ONE:
            self._open.ledger.count_refused(asked)
            raise OverloadedError(
                f"{MAX_CALLS_OF_ONE} calls of this client are under way, which is the limit.",
                hint="Nothing was started. Wait for some of them, then try again.",
            )
        call = ProgramCall(asked, on_line, self._nursery)
        if self._closed:
            refusal, call.late, call.refused = _ends(), True, True
        self._calls[key] = call
        wanted = Wanted(name=name, given=given, again=again, refusal=refusal)
        self._nursery.start_soon(self._carry_out, key, call, wanted, self._open.ledger)
        return call

    async def finish(self, timeout_s: float) -> None:
        """Start nothing more, and return when nothing runs.

        Args:
            timeout_s: that what runs may take by itself; then it is stopped. At once where the
                supervisor is to end with all it has.
        """
        self._closed = True
        if not self.unfinished():
            return
        if timeout_s:
            log.info("waiting %g s at most for %s", timeout_s, who_runs(self.unfinished()))
        with trio.move_on_after(timeout_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ending.wait_for_end, nursery.cancel_scope.cancel)
                await self._until_idle()
                nursery.cancel_scope.cancel()
        if self.unfinished():
            log.info("stopping %s", who_runs(self.unfinished()))
            for call in self.unfinished():
                call.stop.ask("shutdown")
            with trio.move_on_after(STOP_S):
                await self._until_idle()
        await trio.sleep(ANSWERS_S)

    def unfinished(self) -> Sequence[ProgramCall]:
        """Calls that run something, or may come to; of those that are refused, nobody waits for
        the line."""
        return tuple(call for call in self._calls.values() if not call.refused)

    async def configure(self, settings: BridgeSettings) -> None:
        """Go on with other settings: open what is on now, close what is off.

        Calls that are under way go on to their ends.
        """
        async with self._changing:
            self._settings = settings
            if settings.enabled and self._open is None and not self._closed:
                await self._nursery.start(self._keep_open)
            elif not settings.enabled and self._open is not None:
                await self._switch_off()
            if self._open is not None:
                self._open.ledger.configure(max_mb=settings.max_mb)

    async def close(self) -> None:
        """Let go of everything; calls are over."""
        async with self._changing:
            if self._open is not None:
                await self._switch_off()

    async def _keep_open(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """One time from on to off, in a task of its own: what it opens has tasks, too."""
        self._leave, self._left = trio.Event(), trio.Event()
        try:
            async with (
                open_ledger(self._places.ledger, max_mb=self._settings.max_mb) as ledger,
                open_definitions(self._places.definitions, self._keeper) as shelf,
            ):
                unsubscribe = shelf.subscribe(self._changed)
                self._open = _Open(shelf, ledger)
                log.info("the bridge is on: %d programs", len(shelf.programs))
                self._changed()
                task_status.started()
                try:
                    await self._leave.wait()
                finally:
                    self._open = None
                    unsubscribe()
                self._changed()
                await self._until_idle()  # their ends are written down, too
                ledger.hurry()
                with trio.move_on_after(LAST_LINES_S):
                    while self._calls:  # and what was refused
                        await self._one_ended.wait()
            log.info("the bridge is off")
        finally:
            self._left.set()

    async def _switch_off(self) -> None:
        self._leave.set()
        await self._left.wait()

    def _changed(self) -> None:
        for listener in list(self._listeners):
            listener()

    async def _until_idle(self) -> None:
        while self.unfinished():
            await self._one_ended.wait()

    # One call.

    async def _carry_out(
        self,
        key: tuple[str, str],
        call: ProgramCall,
        wanted: Wanted,
        ledger: Ledger,
    ) -> None:
        answer: Ended | NsmError = ShuttingDownError("The supervisor ended.")
        try:
            answer = await carry_out(
                call,
                wanted,
                ledger,
                Means(
                    find=self._find,
                    admit=self._admit,
                    variables=self._places.variables,
                    output_bytes=self._output_bytes,
                    events=self._events,
                ),
            )
        except NsmError as error:
            answer = error
        except Exception:  # the boundary of a call, whose fault is nobody else's
            log.exception("%r failed", call)
            answer = fault()
        finally:
            del self._calls[key]
            call.settle(answer)
            self._kept.add(key, call)
            self._events.publish(
                "program_ended", subject=call, program=_word(call), outcome=outcome_of(answer)
            )
            self._one_ended.set()
            self._one_ended = trio.Event()

    async def _find(self, caller: Caller, name: object) -> Program:
        """Find a program, including one that came a moment ago.

        Raises:
            BadRequestError, UnknownProgramError: as `program`.
        """
        try:
            return self.program(caller, name)
        except UnknownProgramError:
            await self.look()
            return self.program(caller, name)

    def _admit(self, call: ProgramCall) -> None:
        """
        Raises:
            NsmError: nothing is started now.
        """
        if self._closed or (self._ending.draining and self._ending.then is not None):
            raise _ends()
        if self._ending.draining:  # and it stays so until somebody has it otherwise
            raise DrainingError(
                f"The supervisor is being drained ({self._ending.draining}) and starts no program.",
                hint="Nothing was started. `nsm drain --cancel` has it take work again.",
            )
        running = [each for each in self._calls.values() if each.admitted]
        most = self._settings.max_running
        ours = sum(each.asked.caller.scope == call.asked.caller.scope for each in running)
        if len(running) >= most or ours >= max(1, most // 2):
            raise OverloadedError(
                f"{len(running)} programs are running, {ours} of them for this client: more than "
                f"{most} in all, or half of these for one client, must not.",
                hint="Nothing was started. Wait for some of them, then try again.",
            )
        call.admitted = True  # now: the next one that is looked at counts it


def _word(call: ProgramCall) -> str:
    """The program's name; of one that was not started, whatever was asked for is left out."""
    return call.asked.program if call.started else ""


def _told(given: object) -> tuple[str, ...]:
    """Arguments of unknown shape, as far as they are plain values, bounded; for the ledger.

    Of others only the type is said: megabytes of empty lists are seconds of text."""
    if not isinstance(given, list):
        return ()
    return tuple(_plain(each) for each in cast("list[object]", given)[:MAX_ARGUMENTS])


def _plain(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float | None) else f"<{type(value).__name__}>"


def off() -> BadRequestError:
    """Make the error for requests where there is no bridge."""
    return BadRequestError(
        "The bridge is off.",
        hint="`[bridge] enabled = true` in config.toml turns it on; then `nsm reload --config`.",
    )


def _ends() -> ShuttingDownError:
    return ShuttingDownError(
        "The supervisor is about to end, and starts no program.",
        hint="Nothing was started. Try again in a moment.",
    )


@asynccontextmanager
async def open_bridge(
    places: BridgePaths,
    keeper: SourceWatcher,
    *,
    ending: Shutdown,
    events: Events,
    output_bytes: Callable[[], int],
) -> AsyncGenerator[Bridge]:
    """A bridge that is off; its programs end with the block."""
    async with trio.open_nursery() as nursery:
        bridge = Bridge(
            places, keeper, nursery, ending=ending, events=events, output_bytes=output_bytes
        )
        try:
            yield bridge
        finally:
            with trio.CancelScope(shield=True):
                await bridge.finish(0)
                await bridge.close()
            nursery.cancel_scope.cancel()
