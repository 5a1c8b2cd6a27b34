"""Terminals of the Agent Client Protocol (ACP): an agent's commands run in sessions of nsm.

For the editor's side, with the protocol's Python SDK. The class of its client inherits them::

    class Editor(NsmTerminals, acp.Client): ...

    async with acp.spawn_agent_process(editor, "agent") as (connection, _):
        await connection.initialize(..., client_capabilities=ClientCapabilities(terminal=True))
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import codecs
import os
from typing import TYPE_CHECKING, Any

from acp.exceptions import RequestError
from acp.schema import (
    CreateTerminalResponse,
    KillTerminalResponse,
    ReleaseTerminalResponse,
    TerminalExitStatus,
    TerminalOutputResponse,
    WaitForTerminalExitResponse,
)

from nsm.integrations.sandboxes import GONE, AdapterSandbox
from nsm.wire.errors import NsmError
from nsm.wire.jobs import signal_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future
    from typing import Unpack

    from acp.schema import EnvVariable

    from nsm import AsyncJob, SandboxSettings

OUTPUT_BYTES = 1024 * 1024
"""Output that a terminal keeps if its agent names no limit."""

MAX_OUTPUT_BYTES = 64 * 1024 * 1024
"""Most that an agent can have a terminal keep."""


class _Terminal:
    """A command, and the end of its output."""

    def __init__(self, sandbox: AdapterSandbox, job: AsyncJob, limit: int) -> None:
        self.sandbox = sandbox
        self.job = job
        self.exit = TerminalExitStatus()
        self._limit = limit
        self._output = bytearray()
        self._truncated = False
        self.ended: Future[None] = sandbox.submit(self._read)

    async def _read(self) -> None:
        try:
            async for chunk in self.job:
                self._keep(chunk.data)
        except (NsmError, OSError):  # its session has ended, or nsm itself is gone
            self.exit = TerminalExitStatus(signal="SIGKILL")
            return
        info = self.job.info
        if info.signal:
            self.exit = TerminalExitStatus(signal=signal_name(info.signal))
        else:
            self.exit = TerminalExitStatus(exit_code=info.exit_code)

    def _keep(self, data: bytes) -> None:
        self._output += data
        if (surplus := len(self._output) - self._limit) > 0:
            del self._output[:surplus]
            self._truncated = True

    def output(self) -> TerminalOutputResponse:
        """Return what there is of the output, of whole characters."""
        data = bytes(self._output)
        if self._truncated:
            start = next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
            data = data[start:]
        over = self.ended.done()
        # Half a character at the end is told once the rest has come.
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(data, final=over)
        return TerminalOutputResponse(
            output=text, truncated=self._truncated, exit_status=self.exit if over else None
        )


class NsmTerminals:
    """The five methods about terminals of `acp.Client`.

    Each of the agent's ACP sessions has a sandbox of its own, with files that last from command to
    command. Its working directory is the project's, if the agent's session is in there.

    Args:
        settings: of the sandboxes, as of `nsm.Client.sandbox`. By default they have Bash and no
            project. Below `project`, a directory, an agent's paths are those of this machine.
    """

    def __init__(self, **settings: Unpack[SandboxSettings]) -> None:
        super().__init__()
        project = settings.get("project")
        self._project = os.path.realpath(project) if isinstance(project, str) else None
        self._settings: SandboxSettings = {"env": "bash", "project": None, **settings}
        self._sandboxes: dict[str, AdapterSandbox] = {}
        self._terminals: dict[tuple[str, str], _Terminal] = {}

    async def create_terminal(
        self,
        session_id: str,
        command: str,
        args: list[str] | None = None,
        env: list[EnvVariable] | None = None,
        cwd: str | None = None,
        output_byte_limit: int | None = None,
        **_: Any,
    ) -> CreateTerminalResponse:
        """Start a command. Without arguments it is a line for Bash, as agents send them.

        Raises:
            RequestError: it can't be started, or the directory is none that the sandbox has.
        """
        argv = [command, *args] if args else ["bash", "-c", command]
        environ = {each.name: each.value for each in env or ()}
        limit = OUTPUT_BYTES if output_byte_limit is None else output_byte_limit
        where = self._inside(cwd)
        try:
            sandbox, job = await self._start(session_id, argv, cwd=where, environ=environ)
        except (NsmError, OSError) as error:
            raise RequestError.internal_error({"details": f"nsm: {error}"}) from error
        terminal_id = f"nsm-{os.urandom(6).hex()}"
        terminal = _Terminal(sandbox, job, min(limit, MAX_OUTPUT_BYTES))
        self._terminals[session_id, terminal_id] = terminal
        return CreateTerminalResponse(terminal_id=terminal_id)

    async def terminal_output(
        self, session_id: str, terminal_id: str, **_: Any
    ) -> TerminalOutputResponse:
        """Return what the command has printed so far, and how it ended if it did."""
        return self._terminal(session_id, terminal_id).output()

    async def wait_for_terminal_exit(
        self, session_id: str, terminal_id: str, **_: Any
    ) -> WaitForTerminalExitResponse:
        """Wait for the command's end."""
        terminal = self._terminal(session_id, terminal_id)
        await asyncio.shield(asyncio.wrap_future(terminal.ended))
        return WaitForTerminalExitResponse(
            exit_code=terminal.exit.exit_code, signal=terminal.exit.signal
        )

    async def kill_terminal(
        self, session_id: str, terminal_id: str, **_: Any
    ) -> KillTerminalResponse:
        """Kill the command with all that it has started; its output stays."""
        terminal = self._terminal(session_id, terminal_id)
        await terminal.sandbox.ado(terminal.sandbox.stop, terminal.job)
        return KillTerminalResponse()

    async def release_terminal(
        self, session_id: str, terminal_id: str, **_: Any
    ) -> ReleaseTerminalResponse:
        """Kill the command, and forget its output."""
        await self.kill_terminal(session_id, terminal_id)
        self._terminals.pop((session_id, terminal_id), None)
        return ReleaseTerminalResponse()

    async def close_terminals(self) -> None:
        """End all sandboxes, with what runs in them. To do it twice does nothing more."""
        sandboxes = [*self._sandboxes.values()]
        self._sandboxes.clear()
        self._terminals.clear()
        for sandbox in sandboxes:
            await sandbox.aclose()

    async def _start(
        self, session_id: str, argv: Sequence[str], *, cwd: str, environ: Mapping[str, str]
    ) -> tuple[AdapterSandbox, AsyncJob]:
        """Start a program in the sandbox of an ACP session, in a new one if it has ended."""
        sandbox = self._sandboxes.get(session_id)
        if sandbox is not None:
            try:
                return sandbox, await sandbox.ado(sandbox.start, argv, cwd=cwd, environ=environ)
            except GONE:
                await sandbox.aclose()
        sandbox = self._sandboxes[session_id] = AdapterSandbox("acp", **self._settings)
        return sandbox, await sandbox.ado(sandbox.start, argv, cwd=cwd, environ=environ)

    def _terminal(self, session_id: str, terminal_id: str) -> _Terminal:
        terminal = self._terminals.get((session_id, terminal_id))
        if terminal is None:
            raise RequestError.resource_not_found(terminal_id)
        return terminal

    def _inside(self, cwd: str | None) -> str:
        """The directory in the sandbox for one of this machine.

        Raises:
            RequestError: it is not in the project.
        """
        if cwd is None:
            return "/project" if self._project is not None else "/workspace"
        path = os.path.normpath(cwd)
        if any(path == root or path.startswith(f"{root}/") for root in ("/workspace", "/project")):
            return path
        if self._project is not None:
            real = os.path.realpath(path)
            if os.path.commonpath([real, self._project]) == self._project:
                return os.path.normpath(
                    os.path.join("/project", os.path.relpath(real, self._project))
                )
        raise RequestError.invalid_params(
            {"details": f"{cwd} is not in the project, and terminals see nothing else"}
        )
