"""One end of a connection of JSON lines, for tests of either side of an MCP attachment."""

from __future__ import annotations

import json
from typing import Any

import trio

Message = dict[str, Any]

MODERN_META: Message = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "modern-client", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Peer:
    """One end of a connection; lines are JSON.

    Attributes:
        mark: what stood before the last line (`nsmd.mcp.router`).
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.mark = ""
        self._received = b""
        self._next_id = 0

    async def send_raw(self, line: bytes) -> None:
        await self.stream.send_all(line + b"\n")

    async def send(self, message: Message | list[Any]) -> None:
        await self.send_raw(json.dumps(message).encode())

    async def receive(self) -> Message:
        """The next line.

        Raises:
            EOFError: there is none.
        """
        while b"\n" not in self._received:
            try:
                chunk = await self.stream.receive_some(65536)
            except trio.BrokenResourceError:  # it went without reading all that it was sent
                chunk = b""
            if not chunk:
                raise EOFError
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        self.mark = ""
        if line[:1].isdigit():
            mark, _, line = line.partition(b" ")
            self.mark = mark.decode()
        message = json.loads(line)
        assert isinstance(message, dict)
        return message  # pyright: ignore[reportUnknownVariableType]

    async def start(self, method: str, params: Message | None = None) -> int:
        """Send a request; return its id."""
        self._next_id += 1
        message: Message = {"jsonrpc": "2.0", "id": self._next_id, "method": method}
        if params is not None:
            message["params"] = params
        await self.send(message)
        return self._next_id

    async def request(self, method: str, params: Message | None = None) -> Message:
        """Send a request; return its answer, which must be the next line."""
        sent = await self.start(method, params)
        answer = await self.receive()
        assert answer.get("id") == sent, answer
        return answer

    async def notify(self, method: str, params: Message | None = None) -> None:
        message: Message = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = params
        await self.send(message)

    async def attach(
        self,
        variables: dict[str, str] | None = None,
        cwd: str | None = "/somewhere",
        **fields: object,
    ) -> Message:
        """Send the attach line; return the answer.

        Args:
            fields: further ones of the line.
        """
        attach = {
            "program_version": "0",
            "pid": 1,
            "cwd": cwd,
            "variables": variables or {},
            **fields,
        }
        await self.send({"nsm": 1, "attach": attach})
        return await self.receive()

    async def initialize(
        self,
        version: str = "2025-11-25",
        *,
        name: str = "old-client",
        capabilities: Message | None = None,
    ) -> Message:
        """The handshake; returns the result of `initialize`."""
        answer = await self.request(
            "initialize",
            {
                "protocolVersion": version,
                "capabilities": capabilities or {},
                "clientInfo": {"name": name, "version": "1"},
            },
        )
        await self.notify("notifications/initialized")
        result = answer["result"]
        assert isinstance(result, dict)
        return result  # pyright: ignore[reportUnknownVariableType]

    async def call(self, arguments: object, *, modern: bool = False) -> Message:
        """Call `run`; return the result."""
        answer = await self.request("tools/call", call_params(arguments, modern=modern))
        result = answer["result"]
        assert isinstance(result, dict)
        return result  # pyright: ignore[reportUnknownVariableType]


def call_params(arguments: object, *, modern: bool = False) -> Message:
    """Parameters of `tools/call`."""
    params: Message = {"name": "run", "arguments": arguments}
    if modern:
        params["_meta"] = dict(MODERN_META)
    return params


def text_of(result: Message) -> str:
    """The text that a model reads."""
    (content,) = result["content"]
    assert content["type"] == "text"
    text = content["text"]
    assert isinstance(text, str)
    return text
