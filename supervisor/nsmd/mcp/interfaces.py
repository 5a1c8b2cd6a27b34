"""Interfaces of the run service and the bridge, as the endpoint needs them.

`nsmd.manager.run_service` and `nsmd.bridge` implement them; tests have fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NoReturn, Protocol, TypeVar

from nsm.wire.errors import NsmError, UnknownProgramError
from nsmd.bridge.program_text import program_not_found
from nsmd.bridge.programs import Caller, OnLine, Program, ProgramEnd
from nsmd.manager.job_starts import CodeJobs
from nsmd.manager.live_forks import LiveForks
from nsmd.model.values import (
    ClientIdentity,
    Environment,
    OutputSink,
    ProjectMount,
    RunOutcome,
    RunRequest,
    Sources,
)

TAKEN_BACK = "nsm.taken_back"
"""Key in the scope of a request over HTTP: a function for a cancelled handler. True: the client
cancelled. False: the supervisor ends, and leaves running code to the next one.
"""


T_co = TypeVar("T_co", covariant=True)


class Handle(Protocol[T_co]):
    """Handle of code or of a program that runs for a client."""

    async def wait(self) -> T_co:
        """Wait for the outcome.

        Cancellation: only the waiter ends; what runs continues.

        Raises:
            NsmError: there is none: it was refused, or could not be started, or its session ended.
        """
        ...

    def interrupt(self) -> None:
        """Ask it to stop: the client cancelled. `wait` then gives an outcome that says so."""

    def abandon(self) -> None:
        """Let the handle go: the client is gone. A one-shot ends, a named session's execution
        continues to its limit, and a program ends unless the client soon asks for it again.
        """


RunHandle = Handle[RunOutcome]
"""Handle of a submitted run."""


class Runner(Protocol):
    """Interface of the run service: runs code, and knows the environments."""

    def submit(self, request: RunRequest, on_output: OutputSink | None) -> RunHandle:
        """Queue one piece of code; quick.

        Raises:
            NsmError: the request cannot be carried out; message and hint are for the model.
        """
        ...

    @property
    def keeps_checkpoints(self) -> bool:
        """True if calls can be undone."""
        ...

    @property
    def live_forks(self) -> LiveForks:
        """Forks of running sessions."""
        ...

    @property
    def code_jobs(self) -> CodeJobs:
        """Jobs that run code."""
        ...

    def environments(self, client: ClientIdentity) -> Sequence[Environment]:
        """Environments of a client at this moment, in display order; some may have a `problem`."""
        ...

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call a function when environments change; it must be quick and not raise.

        Returns:
            A function that ends this.
        """
        ...

    async def look(self, client: ClientIdentity) -> None:
        """Look for a client's environments again: one may have appeared just now."""

    @property
    def instance(self) -> str:
        """Name of this supervisor, from its start to its end or reload."""
        ...

    @property
    def inherit(self) -> Sequence[str]:
        """Names of variables that clients pass on to their project's own shell."""
        ...

    def resolve_project(
        self, *, variables: Mapping[str, str], root: str | None, cwd: str | None
    ) -> tuple[ProjectMount | None, str]:
        """Find the project of a client: its mount, or None and the reason.

        Args:
            variables: the client entry's environment variables.
            root: path of the client's first root.
            cwd: the shim's working directory.

        Raises:
            BadProjectError: a directory that was named explicitly cannot be mounted.
        """
        ...

    def attached(
        self, *, variables: Mapping[str, str], cwd: str | None, sources: Sources | None
    ) -> AbstractAsyncContextManager[None]:
        """Announce a client while the block lasts; its roots are not known yet.

        Its own environments are found when the block begins, and spares are kept for it.

        Args:
            variables, cwd: as for `resolve_project`.
            sources: sources of its own environments.
        """
        ...

    def expect(self, client: ClientIdentity) -> None:
        """Announce a client whose project is known, so that spares are kept for it; quick."""
        ...


ProgramCall = Handle[ProgramEnd]
"""Handle of a requested program."""


class HostPrograms(Protocol):
    """Programs of the host, and rights to start them."""

    def programs(self, caller: Caller) -> Sequence[Program]:
        """Programs that a caller may start now, by name; none if it has no bridge."""
        ...

    def program(self, caller: Caller, name: str) -> Program:
        """Find one of them.

        Raises:
            UnknownProgramError: there is none of that name.
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
        """Submit a call; quick.

        Args:
            name, given: name of the program, and arguments, as received.
            on_line: receives its output.
            call_id: id of a client that may repeat the call.
            again: it repeats it.
            refusal: why it is refused in any case; this is recorded, and `wait` raises it.

        Raises:
            NsmError: it is not accepted at all.
        """
        ...

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call a function when the programs change; it must be quick and not raise.

        Returns:
            A function that ends this.
        """
        ...


class NoPrograms:
    """Programs if there is no bridge: none."""

    def programs(self, caller: Caller) -> Sequence[Program]:
        del caller
        return ()

    def program(self, caller: Caller, name: object, *_: object, **_more: object) -> NoReturn:
        """Raise the error that there are no programs here."""
        del caller
        raise UnknownProgramError(program_not_found(str(name), ()))

    submit = program

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        del changed
        return lambda: None
