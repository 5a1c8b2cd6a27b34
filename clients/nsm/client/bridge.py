"""Programs of the host that nsm starts for its clients: ``client.bridge`` of either client.

Example::

    import nsm

    with nsm.Client() as client:
        for program in client.bridge.programs().programs:
            print(program.name, program.description)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from nsm.client.events import output_of
from nsm.client.steps import AsyncPart, BlockingPart, Calls, ask, method
from nsm.wire.errors import BadRequestError
from nsm.wire.host import bridge_help, bridge_programs, bridge_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsm.client.events import Stream
    from nsm.client.steps import OnEvent, Steps
    from nsm.wire.host import ProgramHelp, ProgramResult, ProgramsReport
    from nsm.wire.messages import Event
    from nsm.wire.operation import OperationCall

    OnLine: TypeAlias = Callable[[Stream, str], object]


class BridgeMethods(Calls):
    """Operations on the bridge's programs (docs/how-to/bridge.md)."""

    @method
    def programs(self) -> Steps[ProgramsReport]:
        """Programs that this client may start, and files that describe none."""
        return (yield from ask(bridge_programs()))

    @method
    def help(self, program: str) -> Steps[ProgramHelp]:
        """A program's documentation.

        Raises:
            UnknownProgramError: there is none of that name for this client.
        """
        return (yield from ask(bridge_help(program)))

    @method
    def run(
        self,
        program: str,
        arguments: Iterable[str] = (),
        *,
        on_line: OnLine | None = None,
    ) -> Steps[ProgramResult]:
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
        call = run_request(program, arguments, stream=on_line is not None)
        return (yield from ask(call, _lines_to(on_line), interruptible=True))


class Bridge(BridgeMethods, BlockingPart):
    """``nsm.Client.bridge``."""


class AsyncBridge(BridgeMethods, AsyncPart):
    """``nsm.AsyncClient.bridge``. A call that is cancelled stops its program."""


def run_request(
    program: str, arguments: Iterable[str], *, stream: bool
) -> OperationCall[ProgramResult]:
    """Make the request for a run of a program.

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
    return bridge_run(program, given, stream=stream or None)


def _lines_to(on_line: OnLine | None) -> OnEvent | None:
    if on_line is None:
        return None

    def on_event(event: Event) -> None:
        output = output_of(event)
        if output is not None and output[1]:
            stream, text = output
            if skipped := event.data.get("skipped"):
                on_line(stream, f"[... {skipped} characters left out ...]")
            on_line(stream, text.removesuffix("\n"))

    return on_event
