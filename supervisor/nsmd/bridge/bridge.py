"""Programs that clients may start, and the one way to start them.

Each call is a task of its own from the first check to the last line of the ledger, even if its
caller goes away: no program starts or ends without a line in the ledger.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from nsm.dataclass import dataclass, replace
from nsm.wire.errors import (
    BadRequestError,
    DrainingError,
    InternalError,
    NsmError,
    OverloadedError,
    ShuttingDownError,
    UnknownProgramError,
)
from nsmd.audit.journal import LAST_LINES_S
from nsmd.bridge.calls import (
    FinishedCalls,
    ProgramCall,
    check_never_started,
    fault,
    outcome_of,
    record_refusal,
    recorded_arguments,
    recorded_text,
    who_runs,
)
from nsmd.bridge.commands import Command, open_command
from nsmd.bridge.definitions import DefinitionsIndex, render
from nsmd.bridge.ledger import Ledger, ended, failed, not_started, open_ledger
from nsmd.bridge.programs import (
    Caller,
    OnLine,
    Problem,
    Program,
    ProgramEnd,
    RecordedCall,
    check_arguments,
    check_characters,
    program_not_found,
)
from nsmd.bridge.running import run, variables_of
from nsmd.host.source_watcher import SourceWatcher
from nsmd.model.events import Events
from nsmd.model.lifecycle import Shutdown
from nsmd.model.settings import BridgeSettings

log = logging.getLogger(__name__)

MAX_CALLS_OF_ONE = 64
"""Largest number of calls of one client at once, including those that will be refused: these wait
for the disk, too.
"""

STOP_S = 15.0
"""Time for all stopped programs to end: the steps of each, and some."""

ANSWERS_S = 0.1
"""Time for the last answers to reach their clients before connections are closed."""

_MAX_NAME_CHARS = 200
"""Characters of a requested name in the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgePaths:
    """Directory of the definition files, file of the audit, and the supervisor's variables."""

    definitions: str
    ledger: str
    variables: Mapping[str, str]


class BridgeService:
    """Access of clients to the programs that they may start, if it is `enabled`; made by
    `open_bridge`. `output_bytes` returns how much of each stream of a program to keep.
    """

    def __init__(
        self,
        bridge_paths: BridgePaths,
        watcher: SourceWatcher,
        ledger: Ledger,
        nursery: trio.Nursery,
        *,
        ending: Shutdown,
        events: Events,
        output_bytes: Callable[[], int],
    ) -> None:
        self.enabled = False
        self._paths = bridge_paths
        self._definitions = DefinitionsIndex(bridge_paths.definitions, watcher)
        self._ledger = ledger
        self._nursery = nursery
        self._ending = ending
        self._events = events
        self._output_bytes = output_bytes
        self._settings = BridgeSettings()
        self._changing = trio.Lock()
        self._calls: dict[tuple[str, str], ProgramCall] = {}
        self._kept = FinishedCalls()
        self._one_ended = trio.Event()
        self._closed = False

    def __repr__(self) -> str:
        state = "on" if self.enabled else "off"
        return f"<BridgeService {state}, {len(self._calls)} calls>"

    # Queries.

    @property
    def problems(self) -> Sequence[Problem]:
        """Problems of definitions that cannot be used."""
        return self._definitions.problems

    @property
    def audit_problem(self) -> str:
        """Reason why calls are refused now; empty if they can be recorded."""
        return self._ledger.problem if self.enabled else ""

    def facts(self) -> Mapping[str, object]:
        """Facts for `nsm status`."""
        return {
            "enabled": self.enabled,
            "programs": len(self._definitions.programs),
            "wrong": len(self._definitions.problems),
            "running": self.calls,
            "audit": self._paths.ledger,
            "problem": self.audit_problem,
        }

    def programs(self, caller: Caller) -> Sequence[Program]:
        """Programs that a caller may start, by name; none if the bridge is off."""
        everything = self._definitions.programs
        if caller.granted is None:
            return tuple(everything.values())
        return tuple(each for name, each in everything.items() if name in caller.granted)

    def program(self, caller: Caller, name: object) -> Program:
        """Find one of these programs."""
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
        if caller.granted is None:  # who may start all programs may know why one is missing
            why = next((render(each) for each in self.problems if each.name == name), "")
        not_found = program_not_found(name, (each.name for each in programs))
        raise UnknownProgramError(not_found, hint=why)

    def unset(self, program: Program) -> list[str]:
        """Variables in a program's `env` that the supervisor does not have."""
        return [name for name in program.env if name not in self._paths.variables]

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call a function, which must be quick, when programs appear, change or disappear. Returns
        a function that ends this.
        """
        return self._definitions.subscribe(changed)

    async def read_definitions(self) -> None:
        """Read the definitions now."""
        if self.enabled:
            await self._definitions.read_again()

    def under_way(self) -> list[dict[str, str]]:
        """Running programs, as `{program, client, scope}`."""
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
        """Number of calls under way, refused ones included."""
        return len(self._calls)

    # Calls.

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
        """Submit a call; quick. Errors in it come with the answer, an `NsmError` only if no calls
        are accepted now.

        Name and arguments are as received. `on_line` gets output while the program runs. The client
        may repeat the call by its id, `again`: the program must start only once. With a `refusal`,
        nothing will be started, which is recorded like other refusals.
        """
        if not self.enabled:
            raise _ends() if self._closed else off()
        key = caller.scope, call_id or secrets.token_hex(8)
        known = self._calls.get(key) or self._kept.get(key)
        if known is not None and again:
            known.claim(on_line)
            return known
        asked = RecordedCall(
            id=key[1],
            caller=caller,
            program=recorded_text(name)[:_MAX_NAME_CHARS],
            arguments=recorded_arguments(given),
        )
        if known is not None:
            self._ledger.count_refused(asked)
            raise BadRequestError("There is already a call with that id.", hint="Use a fresh one.")
        if sum(scope == caller.scope for scope, _ in self._calls) >= MAX_CALLS_OF_ONE:
            self._ledger.count_refused(asked)
            raise OverloadedError(
                f"{MAX_CALLS_OF_ONE} calls of this client are under way, which is the limit.",
                hint="Nothing was started. Wait for some of them, then try again.",
            )
        call = ProgramCall(asked, on_line, self._nursery)
        if self._closed:
            refusal, call.late, call.refused = _ends(), True, True
        self._calls[key] = call
        self._nursery.start_soon(
            partial(
                self._carry_out,
                key,
                call,
                (name, given),
                again=again,
                refusal=refusal,
            )
        )
        return call

    async def finish(self, timeout_s: float) -> None:
        """Start nothing more, and return when nothing runs. Programs that run after so many
        seconds, or once the supervisor ends with all it has, are stopped.
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
        """Calls that run something or still may. Refused calls only wait for their line in the
        ledger.
        """
        return tuple(call for call in self._calls.values() if not call.refused)

    async def configure(self, settings: BridgeSettings) -> None:
        """Use other settings. If the bridge is off from now on, calls under way continue."""
        async with self._changing:
            self._settings = settings
            self._ledger.configure(max_mb=settings.max_mb)
            if settings.enabled and not self.enabled and not self._closed:
                self.enabled = True
                await self._definitions.begin()
                log.info("the bridge is on: %d programs", len(self._definitions.programs))
            elif not settings.enabled and self.enabled:
                self.enabled = False
                self._definitions.end()
                log.info("the bridge is off")

    async def close(self) -> None:
        """End the bridge, and let the last lines, of refused calls, too, wait only for the disk."""
        self.enabled = False
        self._definitions.end()
        self._ledger.hurry()
        with trio.move_on_after(LAST_LINES_S):
            while self._calls:
                await self._one_ended.wait()

    async def _until_idle(self) -> None:
        while self.unfinished():
            await self._one_ended.wait()

    # One call, in a task of its own.

    async def _carry_out(
        self,
        key: tuple[str, str],
        call: ProgramCall,
        wanted: tuple[object, object],
        *,
        again: bool,
        refusal: NsmError | None,
    ) -> None:
        """Answer a call of a program with arguments, both unchecked, which may be a repetition.
        With a `refusal`, nothing will be started.
        """
        answer: ProgramEnd | NsmError = ShuttingDownError("The supervisor ended.")
        try:
            if again and not call.late:  # the supervisor that starts it will find that out
                await check_never_started(call.asked, self._ledger)
            program, command, variables = await self._checked(call, wanted, refusal)
            with command:
                answer = await self._run(call, program, command, variables)
        except NsmError as error:
            answer = error
        except Exception:  # boundary of a call: its fault must not harm others
            log.exception("%r failed", call)
            answer = fault()
        finally:
            del self._calls[key]
            call.settle(answer)
            self._kept.add(key, call)
            # A client chose the name of one that was not started.
            name = call.asked.program if call.started else ""
            self._events.publish(
                "program_ended", subject=call, program=name, outcome=outcome_of(answer)
            )
            self._one_ended.set()
            self._one_ended = trio.Event()

    async def _checked(
        self,
        call: ProgramCall,
        wanted: tuple[object, object],
        refusal: NsmError | None,
    ) -> tuple[Program, Command, Mapping[str, str]]:
        """Check a call, and find the program to start, with its open file and its variables. The
        call then counts as running. Errors say that nothing will be started, and that was recorded.
        """
        name, given = wanted
        if refusal is not None:
            raise await record_refusal(call, refusal, self._ledger)
        try:
            # Before all other checks, so that these characters cannot mislead one.
            texts = check_characters(given)
            call.asked = replace(call.asked, arguments=texts)
            program = await self._find(call.asked.caller, name)
            check_arguments(program, texts)
            self._admit(call)
            variables = variables_of(program, self._paths.variables)
            writable, search_path = call.asked.caller.writable, variables.get("PATH", "")
            command = await trio.to_thread.run_sync(
                partial(open_command, program, writable, search_path=search_path)
            )
        except NsmError as error:
            raise await record_refusal(call, error, self._ledger) from None
        except Exception as error:  # boundary of a call: its fault must not harm others
            log.exception("%r failed before anything was started", call)
            await record_refusal(call, InternalError(f"nsm failed: {error!r}"), self._ledger)
            raise fault() from error
        return program, command, variables

    async def _run(
        self,
        call: ProgramCall,
        program: Program,
        command: Command,
        variables: Mapping[str, str],
    ) -> ProgramEnd:
        """Start a checked program, and wait for its end."""
        asked = call.asked
        if call.stop.why is not None:
            gone = BadRequestError("The call was cancelled before the program was started.")
            raise await record_refusal(call, gone, self._ledger)
        await self._ledger.begin(asked)
        outcome = ended(ProgramEnd(exit_code=None, why_stopped="shutdown"))  # if cancelled
        try:
            call.started = True
            self._events.publish("program_started", subject=call, program=program.name)
            result = await run(
                command,
                program,
                asked.arguments,
                variables=variables,
                output_bytes=self._output_bytes(),
                on_line=call.take_line,
                stop=call.stop,
            )
            outcome = ended(result)
        except NsmError as error:
            outcome = not_started(error.message)
            raise
        except Exception as error:
            log.exception("%r failed; its program has been stopped", call)
            outcome = failed(
                f"nsm failed: {error!r}. The program was stopped, unless it had ended before."
            )
            raise fault() from error
        finally:
            with trio.CancelScope(shield=True):
                await self._ledger.end(asked, outcome)
        return replace(result, timeout_s=program.timeout_s)

    async def _find(self, caller: Caller, name: object) -> Program:
        """Find a program, including one that was described just now."""
        try:
            return self.program(caller, name)
        except UnknownProgramError:
            await self.read_definitions()
            return self.program(caller, name)

    def _admit(self, call: ProgramCall) -> None:
        """Check that a call may start something now, and count it."""
        if self._closed or (self._ending.draining and self._ending.then is not None):
            raise _ends()
        if self._ending.draining:  # it stays so until somebody cancels the drain
            raise DrainingError(
                f"The supervisor is being drained ({self._ending.draining}) and starts no program.",
                hint="Nothing was started. `nsm drain --cancel` lets it accept work again.",
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
        call.admitted = True  # now, so that the next check counts it


def off() -> BadRequestError:
    """Make the error for requests when the bridge is off."""
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
    bridge_paths: BridgePaths,
    watcher: SourceWatcher,
    *,
    ending: Shutdown,
    events: Events,
    output_bytes: Callable[[], int],
) -> AsyncGenerator[BridgeService]:
    """Open a bridge that is off; its programs end with the block."""
    max_mb = BridgeSettings().max_mb
    async with (
        open_ledger(bridge_paths.ledger, max_mb=max_mb) as ledger,
        trio.open_nursery() as nursery,
    ):
        bridge = BridgeService(
            bridge_paths,
            watcher,
            ledger,
            nursery,
            ending=ending,
            events=events,
            output_bytes=output_bytes,
        )
        try:
            yield bridge
        finally:
            with trio.CancelScope(shield=True):
                await bridge.finish(0)
                await bridge.close()
            nursery.cancel_scope.cancel()
