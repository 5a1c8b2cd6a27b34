"""Parts of the clients about the host: ``client.boxes``, ``client.bridge``, ``client.ports`` and
``client.secrets``.

A box is made by whoever asks for it (`nsmbox`); the supervisor serves sockets for its programs,
for as long as the process lives that asked. That process becomes the box, by exec(2).

Example::

    import nsm

    with nsm.Client() as client:
        for program in client.bridge.programs().programs:
            print(program.name, program.description)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

from nsm.client.events import output_of
from nsm.client.steps import AsyncPart, BlockingPart, Calls, ask, method
from nsm.wire import host as wire
from nsm.wire.code import NetworkRequest
from nsm.wire.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsm.client.events import Stream
    from nsm.client.steps import OnEvent, Steps
    from nsm.wire.host import BoxPlace, BoxRow, ProgramHelp, ProgramResult, ProgramsReport
    from nsm.wire.messages import Event
    from nsm.wire.operation import OperationCall

    OnLine: TypeAlias = Callable[[Stream, str], object]
    from nsm.client.api import ClientMethods
    from nsm.wire.host import PortRow, SecretsReport


class BoxMethods(Calls):
    """Operations on boxes."""

    @method
    def open(
        self,
        directory: str,
        *,
        profile: str,
        digest: str,
        network: str,
        allow: Sequence[str] = (),
        shows_project: bool = True,
        programs: Sequence[str] = (),
        secrets: Sequence[str] = (),
        writable: Sequence[str] = (),
        limits: Mapping[str, int] | None = None,
    ) -> Steps[BoxPlace]:
        """Have sockets made for a box that this process becomes.

        Whoever connects to them may run code in the box's own scope, and no more: its new sessions
        see the directory as their project, and reach no more than the box does.

        Args:
            directory: the agent's working directory, absolute.
            profile: for people: 1 to 64 printable characters.
            digest: 64 hex digits that tell what is possible in the box: those with the same have
                the same sessions.
            network: network of the box: ``off``, ``full``, or ``allow``.
            allow: with ``allow``, patterns of hosts.
            shows_project: its sessions may see the directory; False if the box hides parts of it.
            programs: names of the bridge's programs that its programs may start on the host.
            secrets: names of the secrets that it uses without seeing them.
            writable: absolute paths of the host that can be changed in the box: nothing that lies
                there is started for it.
            limits: `memory_mb`, `files_mb`, `processes` and `cpu_weight` of all its processes
                together; None for no such limits.

        Raises:
            OverloadedError: there are too many.
            UnknownProgramError: the bridge has not all of these programs.
            NsmError: there can be none.
        """
        try:
            directory.encode()
        except UnicodeEncodeError:
            # There are such names, and none of them in messages: its sessions do without.
            directory = directory.encode(errors="backslashreplace").decode()
            shows_project = False
        call = wire.box_open(
            directory,
            profile,
            digest,
            NetworkRequest(network, tuple(allow)),
            shows_project=shows_project,
            programs=tuple(programs),
            secrets=tuple(secrets),
            writable=tuple(writable) if programs else (),
            limits=None if limits is None else wire.RequestedBoxLimits(**limits),
        )
        return (yield from ask(call))

    @method
    def list(self) -> Steps[list[BoxRow]]:
        """Live boxes, the oldest first."""
        return (yield from ask(wire.boxes()))


class Boxes(BoxMethods, BlockingPart):
    """``nsm.Client.boxes``."""


class AsyncBoxes(BoxMethods, AsyncPart):
    """``nsm.AsyncClient.boxes``."""


class BridgeMethods(Calls):
    """Operations on the bridge's programs (docs/how-to/bridge.md)."""

    @method
    def programs(self) -> Steps[ProgramsReport]:
        """Programs that this client may start, and files with mistakes."""
        return (yield from ask(wire.bridge_programs()))

    @method
    def help(self, program: str) -> Steps[ProgramHelp]:
        """A program's documentation.

        Raises:
            UnknownProgramError: there is none of that name for this client.
        """
        return (yield from ask(wire.bridge_help(program)))

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
    return wire.bridge_run(program, given, stream=stream or None)


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


UNIX = "unix:"


class PortMethods(Calls):
    """Ports of sessions that are open on the host."""

    _client: ClientMethods

    @method
    def open(
        self, target: str, port: int, *, listen: str | None = None, public: bool = False
    ) -> Steps[PortRow]:
        """Open a port of a live session on the host, until the session ends or it is closed.

        Every user of this machine, and every web page in a browser on it, can connect to a TCP
        port. A Unix socket is for its user alone.

        Args:
            target: id, name or ``scope/name`` of the session.
            port: port in the session; a program may listen there later.
            listen: ``HOST:PORT`` of the loopback, or ``unix:PATH``; port 0 is any free one. The
                default is ``127.0.0.1:0``.
            public: permit an address that other machines reach.

        Returns:
            The open port; its `address` says where to connect.

        Raises:
            BadRequestError: nobody can listen there.
        """
        listen = _absolute(listen)
        if (far := self._client.far_socket) is not None:
            from nsm.hosts import ports as far_ports  # noqa: PLC0415  # most are of this machine

            return (yield from far_ports.open_port(far, target, port, listen))
        return (yield from ask(wire.port_open(target, port, listen=listen or "", public=public)))

    @method
    def close(self, target: str, port: int) -> Steps[None]:
        """Close a port of a session. Connections that are open go on.

        Raises:
            BadRequestError: it is not open.
        """
        if (far := self._client.far_socket) is not None:
            from nsm.hosts import ports as far_ports  # noqa: PLC0415  # as above

            yield from far_ports.close_port(far, target, port)
        else:
            yield from ask(wire.port_close(target, port))

    @method
    def list(self, target: str | None = None) -> Steps[list[PortRow]]:
        """List the open ports of a session, or of all."""
        if (far := self._client.far_socket) is not None:
            from nsm.hosts import ports as far_ports  # noqa: PLC0415  # most are of this machine

            return (yield from far_ports.list_ports(far, target))
        return (yield from ask(wire.ports(target)))


class Ports(PortMethods, BlockingPart):
    """``nsm.Client.ports``."""


class AsyncPorts(PortMethods, AsyncPart):
    """``nsm.AsyncClient.ports``."""


def _absolute(listen: str | None) -> str | None:
    """An address for the supervisor, which has another working directory."""
    if listen is None or not listen.startswith(UNIX) or listen == UNIX:
        return listen
    return UNIX + os.path.abspath(listen.removeprefix(UNIX))


class SecretMethods(Calls):
    """Operations on secrets. No answer has a value."""

    @method
    def list(self) -> Steps[SecretsReport]:
        """Describe all secrets, and who has them."""
        return (yield from ask(wire.secrets()))

    @method
    def test(self, name: str) -> Steps[str]:
        """Have a secret read as for a session. Returns a text of the kind that code sees.

        Raises:
            BadRequestError: there is no such secret, or no value.
        """
        return (yield from ask(wire.secret_test(name)))

    @method
    def revoke(self, name: str, owner: str | None = None) -> Steps[tuple[str, ...]]:
        """Make the stand-ins of a secret worthless.

        Args:
            owner: a session or box; None for all.

        Returns:
            Ids of those that had it.
        """
        return (yield from ask(wire.secret_revoke(name, owner)))


class Secrets(SecretMethods, BlockingPart):
    """``nsm.Client.secrets``."""


class AsyncSecrets(SecretMethods, AsyncPart):
    """``nsm.AsyncClient.secrets``."""
