"""Programs of the host that nsm starts for its clients: ``client.bridge`` of either client.

Example::

    import nsm

    with nsm.Client() as client:
        for program in client.bridge.programs().programs:
            print(program.name, program.description)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from nsm.client import operations
from nsm.wire.answers import read
from nsm.wire.bridge import ProgramHelp, ProgramResult, ProgramsReport
from nsm.wire.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from nsm.client.asynchronous import AsyncClient
    from nsm.client.blocking import Client
    from nsm.wire.messages import Event

    OnLine: TypeAlias = Callable[[operations.Stream, str], object]


class Bridge:
    """Operations on the bridge's programs (docs/how-to/bridge.md). Blocks."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def programs(self) -> ProgramsReport:
        """Programs that this client may start, and files that describe none."""
        return read(ProgramsReport, self._client.call("bridge_programs"))

    def help(self, program: str) -> ProgramHelp:
        """A program's documentation.

        Raises:
            UnknownProgramError: there is none of that name for this client.
        """
        return read(ProgramHelp, self._client.call("bridge_help", {"program": program}))

    def run(
        self,
        program: str,
        arguments: Iterable[str] = (),
        *,
        on_line: OnLine | None = None,
    ) -> ProgramResult:
        """Start a program, and wait for its end.

        Ctrl-C (in the main thread, with Python's own handler) stops it, and the call returns what
        came of it. A second one raises `KeyboardInterrupt`.

        Args:
            arguments: arguments of the program, as a list: no shell reads them.
            on_line: called with ``stdout`` or ``stderr`` and a line without its end, as it comes. A
                line of more than 8192 characters comes in pieces. Where this client is too slow,
                some are left out, which a line says; the result has head and tail of all. What it
                raises stops the program.

        Raises:
            UnknownProgramError: there is none of that name for this client.
            BadRequestError: an argument has a character that none may have.
            BadProgramError: what the definition names is not started as it is.
            AuditFailedError: the call cannot be written down; nothing was started.
            NsmError: it was not started; its other subclasses say why.
        """
        wire = self._client.call(
            "bridge_run",
            run_arguments(program, arguments, stream=on_line is not None),
            on_event=None if on_line is None else _lines_to(on_line),
            interruptible=True,
        )
        return read(ProgramResult, wire)


class AsyncBridge:
    """The same on trio; `Bridge` describes the methods. A call that is cancelled stops its program,
    and does not wait for what comes of it."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def programs(self) -> ProgramsReport:
        """List the programs, as `Bridge.programs`."""
        return read(ProgramsReport, await self._client.call("bridge_programs"))

    async def help(self, program: str) -> ProgramHelp:
        """Describe a program, as `Bridge.help`."""
        wire = await self._client.call("bridge_help", {"program": program})
        return read(ProgramHelp, wire)

    async def run(
        self,
        program: str,
        arguments: Iterable[str] = (),
        *,
        on_line: OnLine | None = None,
    ) -> ProgramResult:
        """Run a program, as `Bridge.run`."""
        wire = await self._client.call(
            "bridge_run",
            run_arguments(program, arguments, stream=on_line is not None),
            on_event=None if on_line is None else _lines_to(on_line),
        )
        return read(ProgramResult, wire)


def run_arguments(program: str, arguments: Iterable[str], *, stream: bool) -> dict[str, Any]:
    """The arguments of `bridge_run`.

    Raises:
        BadRequestError: some are no text that can be sent. (What else none may have is for the
            supervisor to say, which writes it down.)
    """
    given = list(arguments)
    for number, text in enumerate((program, *given)):
        try:
            text.encode()
        except UnicodeEncodeError:
            what = f"argument {number}" if number else "the program's name"
            raise BadRequestError(
                f"{what} is not UTF-8 text: {text!a}", hint="Programs take text only."
            ) from None
    wanted: dict[str, Any] = {"program": program, "arguments": given}
    return {**wanted, "stream": True} if stream else wanted


def _lines_to(on_line: OnLine) -> Callable[[Event], None]:
    def on_event(event: Event) -> None:
        output = operations.output_of(event)
        if output is not None and output[1]:
            stream, text = output
            if skipped := event.data.get("skipped"):
                on_line(stream, f"[... {skipped} characters left out ...]")
            on_line(stream, text.removesuffix("\n"))

    return on_event
