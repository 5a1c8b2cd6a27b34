"""One attached shim, from its first line, with its client's entry, to its end. Light.

Importing the `mcp` package takes 1 to 2 s, and slows the event loop meanwhile. The daemon listens
first, the first attachment makes `EndpointLoader.run` import it, and all attachments wait for that;
meanwhile the control socket answers. A supervisor without MCP clients never imports it, which saves
35 MB and 0.8 s of a processor.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import math
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import trio

from nsm import jsonlines
from nsm._version import installed_files, program_version
from nsm.dataclass import dataclass, field, replace
from nsm.wire.errors import BadRequestError, InternalError, NsmError
from nsmd.bridge.bridge import BridgeService
from nsmd.environments.artifacts.discovery import sources_of
from nsmd.environments.artifacts.metadata import settings_of
from nsmd.manager.run_service import RunService
from nsmd.mcp.render import MAX_RESULT_CHARS
from nsmd.model.limits import ClientLimits, Variables, check_inherited
from nsmd.model.values import ClientIdentity, NetworkRule, ProjectMount, Sources

ATTACH_VERSION = 1
"""Version of the exchange of first lines; MCP itself has versions for the rest."""

VARIABLES = (
    "PROJECT_DIR",
    "PROJECT_MOUNT",
    "PROJECT_MODE",
    "CLAUDE_PROJECT_DIR",
    "NIX_SANDBOX_ENVS",
    "NIX_SANDBOX_DIR",
    "NIX_SANDBOX_METADATA",
    "SESSION_IDLE_TIMEOUT",
    "SESSION_MAX_LIFETIME",
    "NSM_SCOPE",
    "NSM_BRIDGE",
)
"""Variables of a client entry that the supervisor uses; others are dropped unread."""

TAKEN_BACK = "nsm.taken_back"
"""Key in the scope of a request over HTTP: a function for a cancelled handler. True: the client
cancelled. False: the supervisor ends, and leaves running code to the next one.
"""

_MAX_SCOPE_CHARS = 200

_PROGRAM = re.compile("[a-z0-9][a-z0-9_-]{0,63}")

_ID = re.compile("[0-9a-f]{16,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """An attaching shim and its client entry.

    Attributes:
        variables: those of `VARIABLES` that are set and not empty.
        cwd: the shim's working directory; None if it was removed.
        pid: process id of the shim, in its own words; for logs only.
        inherits: the shim can send further variables on request.
        inherited: these variables.
        confined: it may not choose what code sees, not even by its roots.
        programs: names of the bridge programs that it may start; None for all.
        writable: absolute directories and files that it can write to, as in `ClientLimits`.
        scope: None for the client's own scope.
        idle_timeout_s, max_lifetime_s: limits for new sessions; None for the configured ones.
        peer: process and user id of the shim, from the kernel; None if unknown.
    """

    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None
    pid: int = 0
    program_version: str = ""
    scope: str | None = None
    idle_timeout_s: float | None = None
    max_lifetime_s: float | None = None
    sources: Sources | None = None
    resumes: bool = False
    inherits: bool = False
    inherited: Variables = field(default=(), repr=False)
    confined: bool = False
    id: str | None = None
    peer: tuple[int, int] | None = None
    bound: NetworkRule | None = None
    project: ProjectMount | None = None
    programs: frozenset[str] | None = None
    writable: tuple[str, ...] = ()

    def kept_to(self, client_limits: ClientLimits, *, confined: bool) -> Attach:
        """Return the entry for a client of a listener with these limits.

        A client that may only run code keeps only its own time limits: otherwise directories that
        it names would be mounted, and programs of environments started, with the rights of the
        supervisor's user.
        """
        programs = frozenset(client_limits.programs)
        if self.programs is not None:
            programs &= self.programs
        if not confined:
            return replace(
                self,
                scope=client_limits.scope,
                bound=client_limits.network,
                programs=programs,
                writable=client_limits.writable,
            )
        return Attach(
            programs=programs,
            writable=client_limits.writable,
            project=client_limits.project,
            pid=self.pid,
            program_version=self.program_version,
            scope=client_limits.scope,
            bound=client_limits.network,
            peer=self.peer,
            idle_timeout_s=self.idle_timeout_s,
            max_lifetime_s=self.max_lifetime_s,
            confined=True,
            id=self.id,
        )


def parse_attach(line: bytes) -> Attach:
    """Check the first line. Raises `BadRequestError`."""
    try:
        parsed = jsonlines.parse(line)
    except ValueError as error:
        raise BadRequestError(
            f"The first line must be JSON that attaches an MCP client; it is {error}."
        ) from None
    message = _mapping(parsed)
    if message is None or message.get("nsm") != ATTACH_VERSION:
        raise BadRequestError(
            f'The first line must be {{"nsm": {ATTACH_VERSION}, "attach": {{...}}}}.',
            hint="nsm-mcp and nsm-supervisor may be of different versions: `nsm shutdown`, then "
            "start the client again.",
        )
    attach = _mapping(message.get("attach"))
    if attach is None:
        raise BadRequestError('"attach" must be an object.')
    given = _mapping(attach.get("variables", {}))
    if given is None:
        raise BadRequestError('"variables" must be an object.')
    variables = {name: _text(name, given[name]) for name in VARIABLES if given.get(name)}
    _check_mode(variables.get("PROJECT_MODE"))
    sources = sources_of(variables)
    said = settings_of(None if sources is None else sources.metadata)
    given_id = attach.get("id")
    cwd, pid, version = attach.get("cwd"), attach.get("pid"), attach.get("program_version")
    return Attach(
        variables=variables,
        cwd=cwd if isinstance(cwd, str) and "\0" not in cwd else None,
        pid=pid if isinstance(pid, int) else 0,
        program_version=version[:40] if isinstance(version, str) else "",
        scope=_scope(variables.get("NSM_SCOPE")),
        idle_timeout_s=_seconds("SESSION_IDLE_TIMEOUT", variables)
        or said.session.idle_timeout_seconds,
        max_lifetime_s=_seconds("SESSION_MAX_LIFETIME", variables)
        or said.session.max_lifetime_seconds,
        sources=sources,
        resumes=attach.get("resumes") is True,
        inherits=attach.get("inherits") is True,
        id=given_id if isinstance(given_id, str) and _ID.fullmatch(given_id) else None,
        programs=_programs(given.get("NSM_BRIDGE")),
    )


def parse_inherited(line: bytes, wanted: Sequence[str]) -> Variables:
    """Check the line with the variables that the shim was asked for. Raises `BadRequestError`."""
    try:
        message = _mapping(jsonlines.parse(line))
    except ValueError:
        message = None
    given = None if message is None else _mapping(message.get("inherited"))
    if given is None:
        raise BadRequestError('The second line must be {"nsm": 1, "inherited": {...}}.')
    return check_inherited(wanted, given)


def accepted(
    *,
    version: str,
    pid: int,
    inherit: Sequence[str] = (),
    numbered: bool = False,
    instance: str = "",
) -> bytes:
    """Make the answer to a valid attach line.

    Args:
        instance: this supervisor's; the shim tells which one got a line first.
        inherit: names of variables that the shim should send in a line of its own.
    """
    told: dict[str, Any] = {
        "nsm": ATTACH_VERSION,
        "ok": True,
        "program_version": version,
        "pid": pid,
    }
    if inherit:
        told["inherit"] = list(inherit)
    if numbered:
        told["numbered"] = True
    if instance:
        told["instance"] = instance
    return _line(told)


ENDING = b'\n{"nsm": 1, "ending": true}\n'
"""The last line of a supervisor that ends with all sessions: no other supervisor needs to be
started for the answers. The line break ends a line that was cut off before.
"""


def refused(error: NsmError) -> bytes:
    """Make the answer to any other line."""
    told = {"code": error.code, "message": error.message, "hint": error.hint}
    return _line({"nsm": ATTACH_VERSION, "ok": False, "error": told})


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode("ascii") + b"\n"


def _mapping(value: object) -> Mapping[str, object] | None:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else None


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise BadRequestError(f"{name} must be text without NUL characters.")
    return value


def _check_mode(mode: str | None) -> None:
    if mode not in (None, "readonly", "overlay"):
        raise BadRequestError(f"PROJECT_MODE must be 'readonly' or 'overlay', not {mode[:80]!r}.")


def _scope(scope: str | None) -> str | None:
    if scope is not None and (len(scope) > _MAX_SCOPE_CHARS or not scope.isprintable()):
        raise BadRequestError(
            f"NSM_SCOPE must be at most {_MAX_SCOPE_CHARS} printable characters, "
            f"not {scope[:80]!r}."
        )
    return scope


def _programs(given: object) -> frozenset[str] | None:
    """Programs that the entry names. A missing one may exist later."""
    if given is None:
        return None
    text = _text("NSM_BRIDGE", given)
    names = frozenset(name.strip() for name in text.split(",")) - {""}
    if names <= {"off"}:
        return frozenset()
    wrong = sorted(name for name in names if name == "off" or not _PROGRAM.fullmatch(name))
    if wrong:
        raise BadRequestError(
            f"NSM_BRIDGE must be names of programs, separated by commas, or `off`, not "
            f"{text[:80]!r}.",
            hint=f"{wrong[0][:80]!r} is not a name for a program. `nsm bridge ls` lists them.",
        )
    return names


def _seconds(name: str, variables: Mapping[str, str]) -> float | None:
    given = variables.get(name)
    if given is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise BadRequestError(f"{name} must be a number of seconds above 0, not {given[:80]!r}.")
    return seconds


log = logging.getLogger(__name__)

ServeClient = Callable[..., Awaitable[None]]
"""`nsmd.mcp.endpoint.serve`: serves one client until it is gone."""


class EndpointLoader:
    """Loads the endpoint once, for all attachments."""

    def __init__(self, serve: ServeClient | None = None) -> None:
        self._wanted = trio.Event()
        self._done = trio.Event()
        self._serve = serve
        self._installed = installed_files()
        if serve is not None:
            self._done.set()

    def __repr__(self) -> str:
        state = "not loaded" if not self._done.is_set() else "ready" if self._serve else "failed"
        return f"<EndpointLoader {state}>"

    async def run(self) -> None:
        """Import in a thread, for the first attachment.

        Cancellation: the thread is left behind; it holds nothing.
        """
        await self._wanted.wait()
        began = trio.current_time()
        try:
            self._serve = await trio.to_thread.run_sync(
                _import_serve, self._installed, abandon_on_cancel=True
            )
        except Exception:
            # A third-party package may raise anything while it is imported: the control socket
            # works without it, and each attachment gets the error.
            log.exception("the mcp package cannot be imported; MCP clients are refused")
        else:
            log.info("MCP endpoint ready after %.1f s", trio.current_time() - began)
        self._done.set()

    async def serve(self) -> ServeClient:
        """The loaded function; waits for it. Raises `InternalError`."""
        self._wanted.set()
        await self._done.wait()
        if self._serve is None:
            raise InternalError(
                "The supervisor cannot load what serves MCP clients.",
                hint="If nsm was upgraded since this supervisor started, run `nsm reload`, after "
                "which sessions go on. Else install nsm again; the log says what is missing.",
            )
        return self._serve


def _import_serve(installed: tuple[str, str]) -> ServeClient:
    if installed_files() != installed:
        raise ImportError("another version of nsm was installed since this supervisor started")
    serve = cast("ServeClient", importlib.import_module("nsmd.mcp.endpoint").serve)
    # A quarter of a million objects that stay for good. Scanning them again and again cost a tenth
    # of all calls; each time one call waited for 50 ms.
    gc.freeze()
    return serve


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
    runner: RunService,
    *,
    endpoint: EndpointLoader,
    max_result_chars: int = MAX_RESULT_CHARS,
    peer: tuple[int, int] | None = None,
    client_limits: ClientLimits | None = None,
    confined: bool = False,
    ending: Callable[[], bool] = lambda: False,
    programs: BridgeService,
) -> None:
    """Serve one MCP client behind a shim until either is gone.

    End-of-file means that the client is gone: its one-shots end, its sessions stay. A shim that
    wants the answers to its requests keeps its side open until it has them.

    Args:
        first_bytes: bytes that were already read, beginning with ``{``.
        client_limits: limits of the client, whatever it says; None if it may choose.
        ending: says whether the supervisor ends with all sessions. The shim has to know: otherwise
            it would start another supervisor for the answers.

    Cancellation: the client's calls are abandoned; it sees end-of-file.

    Resources: the stream is closed at the end.
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
                runner.prewarm.expect(
                    ClientIdentity(name="", scope="", project=attach.project, bound=attach.bound)
                )
            if not attach.confined:
                await stack.enter_async_context(
                    runner.attached(
                        variables=attach.variables, cwd=attach.cwd, sources=attach.sources
                    )
                )
            serve = await endpoint.serve()
            wanted = runner.catalog.inherit if attach.inherits else ()
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
    """Read the first line, and the bytes after it. Raises `EOFError` or `BadRequestError`."""
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
