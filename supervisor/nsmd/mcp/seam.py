"""What the endpoint needs from the session registry. `nsmd.registry` has it; tests have fakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from nsm.wire.errors import NsmError
from nsmd.values import (
    Client,
    Environment,
    OutputSink,
    ProjectMount,
    RunRequest,
    RunResult,
    Sources,
)


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
