"""One attached shim, from its first line to its end. Light: does not import `mcp`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import trio

from nsm._version import program_version
from nsm.dataclass import replace
from nsm.wire.errors import BadRequestError, NsmError
from nsmd.mcp.attach import ENDING, accepted, parse_attach, parse_inherited, refused
from nsmd.mcp.interfaces import HostPrograms, Runner
from nsmd.mcp.load import EndpointLoader
from nsmd.mcp.render import MAX_RESULT_CHARS
from nsmd.model.limits import ClientLimits, Variables
from nsmd.model.values import ClientIdentity

log = logging.getLogger(__name__)

ATTACH_TIMEOUT_S = 10.0
"""Time for the first line. A shim sends it at once."""

FAREWELL_TIMEOUT_S = 0.5
"""Time to tell a shim that the supervisor ends; it delays nobody else."""

MAX_ATTACH_BYTES = 256 * 1024
"""Largest first line: room for every variable of a client entry, each at most 128 KiB on Linux."""

_CHUNK_BYTES = 65536


async def serve_attachment(
    stream: trio.abc.HalfCloseableStream,
    first_bytes: bytes,
    runner: Runner,
    *,
    endpoint: EndpointLoader,
    max_result_chars: int = MAX_RESULT_CHARS,
    peer: tuple[int, int] | None = None,
    client_limits: ClientLimits | None = None,
    confined: bool = False,
    ending: Callable[[], bool] = lambda: False,
    programs: HostPrograms | None = None,
) -> None:
    """Serve one MCP client behind a shim until either is gone.

    End-of-file means that the client is gone: its one-shots end, its sessions stay. A shim that
    wants the answers to its requests keeps its side open until it has them.

    Args:
        stream: the connection; closed at the end.
        first_bytes: bytes that were already read, beginning with ``{``.
        runner: carries out the calls.
        endpoint: loads the `mcp` package.
        max_result_chars: `[mcp] max_result_chars`.
        peer: process and user id of the shim, from the kernel; None if unknown.
        client_limits: limits of the client, whatever it says; None if it may choose.
        confined: the client may only run code, within limits.
        ending: says whether the supervisor ends with all sessions. The shim has to know: otherwise
            it would start another supervisor for the answers.
        programs: programs of the bridge; None without a bridge.

    Cancellation: the client's calls are abandoned; it sees end-of-file.
    """
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(stream)
        try:
            line, rest = await _first_line(stream, first_bytes)
            attach = parse_attach(line)
            attach = replace(attach, peer=peer)
            if client_limits is not None:
                attach = attach.kept_to(client_limits, confined=confined)
            if attach.project is not None:
                runner.expect(
                    ClientIdentity(name="", scope="", project=attach.project, bound=attach.bound)
                )
            if not attach.confined:
                await stack.enter_async_context(
                    runner.attached(
                        variables=attach.variables, cwd=attach.cwd, sources=attach.sources
                    )
                )
            serve = await endpoint.serve()
            wanted = runner.inherit if attach.inherits else ()
            numbered = attach.id is not None
            await stream.send_all(
                accepted(
                    version=program_version(),
                    pid=os.getpid(),
                    inherit=wanted,
                    numbered=numbered,
                    instance=runner.instance,
                )
            )
            if wanted:
                line, rest = await _first_line(stream, rest)
                attach = replace(attach, inherited=_inherited(line, wanted))
        except NsmError as error:
            log.warning("attachment refused: %s", error)
            await _send_last(stream, refused(error))
            return
        except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError):
            return
        log.debug("nsm-mcp %s (pid %d) attached", attach.program_version, attach.pid)
        try:
            await serve(
                stream, rest, attach, runner, max_result_chars=max_result_chars, programs=programs
            )
        except Exception:
            # The only catch-all of this connection: the client sees it end, everything else lives
            # on.
            log.exception("attachment of pid %d failed", attach.pid)
        finally:
            if attach.id is not None and ending():
                with trio.CancelScope(shield=True):
                    await _send_last(stream, ENDING, FAREWELL_TIMEOUT_S)


def _inherited(line: bytes, wanted: Sequence[str]) -> Variables:
    """Read the variables of the shim; if they are invalid, use none rather than refuse
    the client.
    """
    try:
        return parse_inherited(line, wanted)
    except BadRequestError as error:
        log.warning("a client's variables are left out: %s", error)
        return ()


async def _first_line(stream: trio.abc.ReceiveStream, first_bytes: bytes) -> tuple[bytes, bytes]:
    """Read the first line, and the bytes after it.

    Raises:
        EOFError: the connection ended first.
        BadRequestError: it is too long or too slow.
    """
    received = bytearray(first_bytes)
    with trio.move_on_after(ATTACH_TIMEOUT_S):
        while (end := received.find(b"\n")) < 0:
            if len(received) > MAX_ATTACH_BYTES:
                raise BadRequestError(
                    f"The first line has more than {MAX_ATTACH_BYTES} bytes.",
                    hint="Make the variables of the client entry shorter.",
                )
            chunk = await stream.receive_some(_CHUNK_BYTES)
            if not chunk:
                raise EOFError
            received += chunk
        return bytes(received[:end]), bytes(received[end + 1 :])
    raise BadRequestError(f"No whole first line came within {ATTACH_TIMEOUT_S:.0f} s.")


async def _send_last(
    stream: trio.abc.SendStream, line: bytes, timeout_s: float = ATTACH_TIMEOUT_S
) -> None:
    with trio.move_on_after(timeout_s):
        try:
            await stream.send_all(line)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
