"""A real `nsm-mcp` process, and a supervisor on a real socket whose every word is scripted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from json_peer import Message, Peer
from rungates import of_run

PATIENCE_S = 120
"""Time limit for anything that a process does; reached only in a test that fails."""


CODE = {"code": "print(1)", "env": "python"}
INITIALIZE: Message = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}
"""How a client introduces itself."""


class FakeSupervisor:
    """Takes connections on a socket; the test plays the supervisor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener: trio.SocketListener | None = None
        self._accepted: list[trio.SocketStream] = []

    async def listen(self) -> None:
        listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await listener.bind(os.fspath(self.path))
        listener.listen()
        self._listener = trio.SocketListener(listener)

    async def close(self) -> None:
        """Stop listening, as a supervisor that has ended."""
        if self._listener is not None:
            await self._listener.aclose()
            self._listener = None
        self.path.unlink(missing_ok=True)

    async def hang_up(self) -> None:
        """Close all connections."""
        for stream in self._accepted:
            await trio.aclose_forcefully(stream)

    async def accept(self) -> Peer:
        """The next connection; nothing has been read from it."""
        assert self._listener is not None
        with trio.fail_after(PATIENCE_S):
            stream = await self._listener.accept()
        self._accepted.append(stream)
        return Peer(stream)

    async def attached(self, **said: Any) -> tuple[Peer, Message]:
        """The next connection, attached, and what its attach line said.

        Args:
            said: further fields of the answer.
        """
        peer = await self.accept()
        line = await peer.receive()
        await peer.send({"nsm": 1, "ok": True, **said})
        return peer, line["attach"]


class Shim(Peer):
    """A running `nsm-mcp`: its stdin and stdout are the peer's stream."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        super().__init__(trio.StapledStream(process.stdin, process.stdout))
        self.process = process
        self.stdin = process.stdin
        self.stdout = process.stdout
        self._stderr = process.stderr

    async def ended(self) -> int:
        """The exit code, once it is gone."""
        with trio.fail_after(PATIENCE_S):
            return await self.process.wait()

    async def stderr(self) -> str:
        """All that it said on stderr; waits for its end."""
        with trio.fail_after(PATIENCE_S):
            said = b"".join([chunk async for chunk in self._stderr])
        return said.decode()


@asynccontextmanager
async def shim(
    supervisor_path: Path, variables: Mapping[str, str] | None = None, *, cwd: Path | None = None
) -> AsyncGenerator[Shim, None]:
    """A running `nsm-mcp` that starts no supervisor; killed at the end if it still runs."""
    environment = {"NSM_SOCKET": os.fspath(supervisor_path), "NSM_AUTOSTART": "0"}
    process = await trio.lowlevel.open_process(
        [sys.executable, "-P", "-m", "nsm.shim"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**of_run(), **environment, **(variables or {})},
        cwd=cwd,
    )
    running = Shim(process)
    try:
        with trio.fail_after(PATIENCE_S):
            yield running
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await process.wait()
            await running.stream.aclose()
            assert process.stderr is not None
            await process.stderr.aclose()


@asynccontextmanager
async def fake_supervisor(directory: Path) -> AsyncGenerator[FakeSupervisor, None]:
    """A listening one."""
    supervisor = FakeSupervisor(directory / "s")
    await supervisor.listen()
    try:
        yield supervisor
    finally:
        await supervisor.hang_up()
        await supervisor.close()
