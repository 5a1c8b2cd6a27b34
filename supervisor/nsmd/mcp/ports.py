"""Interfaces that the endpoint needs of the session registry and the bridge.

`nsmd.manager.run_service` and `nsmd.bridge` have it; tests have fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NoReturn, Protocol

from nsm.wire.errors import NsmError, UnknownProgramError
from nsmd.bridge.values import Caller, Ended, OnLine, Program
from nsmd.bridge.wording import program_not_found
from nsmd.model.values import (
    Client,
    Environment,
    OutputSink,
    ProjectMount,
    RunRequest,
    RunResult,
    Sources,
)

TAKEN_BACK = "nsm.taken_back"
"""In the scope of a request over HTTP: tells whether its client took it back, when its handler is
cancelled; else the supervisor goes, and leaves what runs to the next."""


class Execution(Protocol):
    """Handle of a submitted run."""

    id: str

    async def wait(self) -> RunResult:
        """The result.

        Cancellation: the waiter goes, the execution does not notice.

        Raises:
            NsmError: there is none, for example because the session ended.
        """
        ...

    def tell(self, function: Callable[[RunResult | NsmError], None]) -> None:
        """Call one function with the answer, in place of waiting; it neither waits nor raises."""

    def interrupt(self) -> None:
        """Ask for an interrupt; `wait` then gives a result that says `interrupted`."""

    def abandon(self) -> None:
        """The caller is gone: a one-shot is ended, a named session's goes on to its limit."""


class Runner(Protocol):
    """Takes runs, and knows what there is to run in."""

    def submit(self, request: RunRequest, on_output: OutputSink | None) -> Execution:
        """Queue one piece of code; quick.

        Raises:
            NsmError: the request cannot be carried out; message and hint are for the model.
        """
        ...

    def environments(self, client: Client) -> Sequence[Environment]:
        """A client's at this moment, in the order in which they are shown; some may have a
        `problem`."""
        ...

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Have a function called when environments change; it must be quick and not raise.

        Returns:
            Ends that.
        """
        ...

    async def look(self, client: Client) -> None:
        """Look for a client's environments again: one may have come a moment ago."""

    @property
    def inherit(self) -> Sequence[str]:
        """Names of variables that clients hand on to their project's own shell."""
        ...

    def resolve_project(
        self, *, variables: Mapping[str, str], root: str | None, cwd: str | None
    ) -> tuple[ProjectMount | None, str]:
        """The project of a client: its mount, or None and the reason.

        Args:
            variables: the client entry's environment variables.
            root: path of the client's first root.
            cwd: the shim's working directory.

        Raises:
            BadProjectError: a directory that was asked for explicitly cannot be mounted.
        """
        ...

    def attached(
        self, *, variables: Mapping[str, str], cwd: str | None, sources: Sources | None
    ) -> AbstractAsyncContextManager[None]:
        """While the block lasts, a client is there, whose roots are not known yet.

        Its own environments are there when it begins, and sessions are kept ready for it.

        Args:
            variables, cwd: as for `resolve_project`.
            sources: of its own environments.
        """
        ...

    def expect(self, client: Client) -> None:
        """A client is there, whose project is known: have some sessions ready; quick."""
        ...


class ProgramCall(Protocol):
    """Handle of a program that was asked for."""

    async def wait(self) -> Ended:
        """Wait for the outcome.

        Cancellation: the waiter goes, the program does not notice.

        Raises:
            NsmError: it was refused, or could not be started.
        """
        ...

    def interrupt(self) -> None:
        """Stop the program: the client cancelled."""

    def abandon(self) -> None:
        """Stop the program unless its client, which is gone, soon comes back and asks again."""


class Programs(Protocol):
    """Programs of the host, and who may start them."""

    def programs(self, caller: Caller) -> Sequence[Program]:
        """Those that a caller may start now, by name; none where there is no bridge for it."""
        ...

    def program(self, caller: Caller, name: str) -> Program:
        """One of them.

        Raises:
            UnknownProgramError: it is none of them.
        """
        ...

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
    ) -> ProgramCall:
        """Ask for one; quick.

        Args:
            name, given: of the program, and its arguments, as they came.
            on_line: takes its output.
            call_id: of a client that may ask for the same call again.
            again: it does.
            refusal: why it is refused whatever is asked for, which is written down; `wait` raises
                it.

        Raises:
            NsmError: it is not taken at all.
        """
        ...

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Have a function called when there are other programs; it must be quick and not raise.

        Returns:
            Ends that.
        """
        ...


class NoPrograms:
    """Where there is no bridge."""

    def programs(self, caller: Caller) -> Sequence[Program]:
        del caller
        return ()

    def program(self, caller: Caller, name: object, *_: object, **_more: object) -> NoReturn:
        """Raise the error: no program is here."""
        del caller
        raise UnknownProgramError(program_not_found(str(name), ()))

    submit = program

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        del changed
        return lambda: None
