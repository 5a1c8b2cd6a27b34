"""Other programs' MCP clients against nsm: a session of each, told the same way.

The Python SDK's client, the TypeScript SDK's two lines and the Inspector's command line, each over
stdio (`nsm-mcp`) and over HTTP, in the eras that they speak. What a session does is in `task`; what
has to come of it, in `faults`.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import mcp_types as types
import trio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from http_support import sdk_client
from mcpconformance.suite import HERE, Packages, environment

LEGACY, MODERN = "2025-11-25", "2026-07-28"
TIMEOUT_S = 60.0

Seen = dict[str, Any]
"""Record of a session: `tools`, `calls` (key -> `text`, `error`); of clients that keep a connection
`revision`, `progress` (messages of the call that asks for it), `atOnce` (texts), `cancelled`
("taken back") and `after` (text), too.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a client reaches nsm.

    Attributes:
        url: of the endpoint; empty for stdio.
        token: that it shows there.
        command: of the shim, for stdio.
        variables: its environment.
    """

    url: str = ""
    token: str = field(default="", repr=False)
    command: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


PROGRAM = "deploy"
"""A program of the bridge: prints `deploying ARGS` on stdout, `careful` on stderr, and ends."""

Call = Mapping[str, Any]
"""A tool's `name`, `args`, the `key` for its answer; `progress` where that is to be heard."""

AT_ONCE: tuple[Call, ...] = tuple(
    {"name": "run", "args": {"env": "python", "code": f"print({number})"}} for number in range(3)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps of a session.

    Attributes:
        calls: one after the other.
        cancelled: then this, which is taken back as soon as its progress has `until`.
        after: then this, in the session of nsm's that was taken up by it.
    """

    calls: Sequence[Call]
    cancelled: Call
    after: Call


def plan() -> Plan:
    """Another one for each session: over HTTP, all clients see the same sessions of nsm's."""
    kept = {"env": "python", "session": f"kept-{uuid.uuid4().hex[:8]}"}
    program = {"program": PROGRAM}
    sleep = "print('begun', flush=True)\nimport time\ntime.sleep(600)"
    return Plan(
        calls=[
            {"key": "set", "name": "run", "args": {**kept, "code": "x = 6"}},
            {"key": "run", "name": "run", "args": {**kept, "code": "print(x * 7)"}},
            {"key": "list", "name": "list_programs", "args": {}},
            {"key": "help", "name": "help", "args": program},
            {
                "key": "execute",
                "name": "execute",
                "args": {**program, "args": ["staging"]},
                "progress": True,
            },
            {"key": "refused", "name": "execute", "args": {**program, "args": ["a;b"]}},
            {"key": "unknown", "name": "execute", "args": {"program": "foo", "args": []}},
        ],
        cancelled={"name": "run", "args": {**kept, "code": sleep}, "until": "begun"},
        after={"name": "run", "args": {**kept, "code": "print(x)"}},
    )


def python_version() -> str:
    """Version of the Python SDK."""
    return metadata.version("mcp")


def faults(seen: Seen, *, revision: str, lasting: bool = True) -> list[str]:
    """List the faults of a session; empty if there are none.

    Args:
        revision: that was to be spoken.
        lasting: the client keeps its connection, hears of progress, and can take a call back.
    """
    told = seen["calls"]
    wanted: list[tuple[str, object, object]] = [
        ("tools", sorted(seen["tools"]), ["execute", "help", "list_programs", "run"]),
        ("run", told["run"], {"text": "42\n[exit code 0]", "error": False}),
        ("list_programs names it", PROGRAM in told["list"]["text"], True),
        ("help", told["help"]["text"].strip(), "Brings the site to a stage."),
        (
            "execute",
            told["execute"],
            {"text": "deploying staging\n[stderr]\ncareful\n", "error": False},
        ),
        (
            "execute with a semicolon",
            told["refused"],
            {"text": "Invalid character in argument: semicolon (;) not allowed", "error": True},
        ),
        (
            "execute of what is not there",
            told["unknown"],
            {"text": f"Program 'foo' not found. Available: {PROGRAM}", "error": True},
        ),
    ]
    if lasting:
        said = "".join(seen["progress"])
        wanted += [
            # Version 1 of the TypeScript SDK does not tell it over stdio.
            ("revision", seen["revision"] or revision, revision),
            ("progress", ("deploying staging" in said, "careful" in said), (True, True)),
            ("calls at once", seen["atOnce"], [f"{number}\n[exit code 0]" for number in range(3)]),
            ("a call that is taken back", seen["cancelled"], "taken back"),
            # It would have to wait for its turn if the other one still ran.
            ("the call after it", seen["after"], "6\n[exit code 0]"),
        ]
    return [f"{what}: {got!r}, not {right!r}" for what, got, right in wanted if got != right]


def task(way: Way, *, mode: str, sdk: str) -> dict[str, Any]:
    """Task for `ts_client.mjs`."""
    planned = plan()
    return {
        "sdk": sdk,
        "mode": mode,
        "url": way.url,
        "headers": way.headers if way.url else {},
        "command": list(way.command),
        "variables": dict(way.variables),
        "calls": planned.calls,
        "atOnce": list(AT_ONCE),
        "cancelled": planned.cancelled,
        "after": planned.after,
    }


async def by_typescript(installed: Packages, way: Way, *, sdk: str, revision: str) -> Seen:
    """A session of the TypeScript SDK's client.

    Args:
        sdk: `v1` (`@modelcontextprotocol/sdk`) or `v2` (`@modelcontextprotocol/client`).
        revision: LEGACY or MODERN; v1 speaks only the former.
    """
    script = installed.directory / "ts_client.mjs"
    shutil.copyfile(HERE / script.name, script)
    mode = "legacy" if revision == LEGACY else revision
    words = json.dumps(task(way, mode=mode, sdk=sdk))
    seen: Seen = await _json_of([str(installed.node), str(script), words])
    return seen


async def by_inspector(installed: Packages, way: Way, directory: Path) -> Seen:
    """The Inspector's command line: a program of its own for each question.

    Args:
        directory: for what it keeps.
    """
    program = installed.script("@modelcontextprotocol/inspector", "clients/launcher/build/index.js")
    if way.url:
        header = f"Authorization: {way.headers['Authorization']}"
        target = ["--transport", "http", "--server-url", way.url, "--header", header]
    else:
        # It takes no empty variables.
        named = [f"{name}={value}" for name, value in way.variables.items() if value]
        target = [word for each in named for word in ("-e", each)] + [*way.command]
    start = [*program, "--cli", *target]
    seen: Seen = {"calls": {}}
    listed = await _json_of([*start, "--method", "tools/list"], home=directory)
    seen["tools"] = [tool["name"] for tool in listed["tools"]]
    for call in plan().calls:
        words = [*start, "--method", "tools/call", "--tool-name", call["name"]]
        for name, value in call["args"].items():
            given = value if isinstance(value, str) else json.dumps(value)
            words += ["--tool-arg", f"{name}={given}"]
        result = await _json_of(words, home=directory)
        seen["calls"][call["key"]] = {
            "text": "".join(part["text"] for part in result["content"]),
            "error": bool(result.get("isError")),
        }
    return seen


async def by_python(way: Way, *, revision: str) -> Seen:
    """A session of the Python SDK's client.

    Args:
        revision: LEGACY or MODERN.
    """
    mode = "legacy" if revision == LEGACY else revision
    with trio.fail_after(TIMEOUT_S):
        if way.url:
            async with sdk_client(way.url, way.token, mode) as client:
                return await _session(client)
        parameters = StdioServerParameters(
            command=way.command[0], args=list(way.command[1:]), env=dict(way.variables)
        )
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:  # noqa: ASYNC230
            transport = stdio_client(parameters, errlog=nowhere)
            async with Client(transport, mode=mode) as client:
                return await _session(client)


async def _session(client: Client) -> Seen:
    planned = plan()
    told: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    seen: Seen = {
        "revision": client.protocol_version,
        "tools": [tool.name for tool in (await client.list_tools()).tools],
        "calls": {},
        "progress": told,
    }
    for call in planned.calls:
        hears = hear if call.get("progress") else None
        result = await client.call_tool(call["name"], call["args"], progress_callback=hears)
        seen["calls"][call["key"]] = {"text": _text(result), "error": result.is_error}
    answers: dict[int, str] = {}

    async def ask(number: int, call: Mapping[str, Any]) -> None:
        answers[number] = _text(await client.call_tool(call["name"], call["args"]))

    async with trio.open_nursery() as nursery:
        for number, call in enumerate(AT_ONCE):
            nursery.start_soon(ask, number, call)
    seen["atOnce"] = [answers[number] for number in sorted(answers)]
    seen["cancelled"] = await _take_back(client, planned.cancelled)
    seen["after"] = _text(await client.call_tool(planned.after["name"], planned.after["args"]))
    return seen


async def _take_back(client: Client, call: Call) -> str:
    begun = ""
    with trio.CancelScope() as scope:

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            nonlocal begun
            begun += message or ""
            if call["until"] in begun:
                scope.cancel()

        await client.call_tool(call["name"], call["args"], progress_callback=hear)
    return "taken back" if scope.cancelled_caught else "answered"


def _text(result: types.CallToolResult) -> str:
    return "".join(part.text for part in result.content if isinstance(part, types.TextContent))


async def _json_of(command: list[str], home: Path | None = None) -> Any:
    """Run a program and parse its output as JSON.

    Raises:
        RuntimeError: it failed, or printed something else than JSON.
    """
    variables = environment() | ({"HOME": str(home)} if home else {})
    with trio.fail_after(TIMEOUT_S):
        done = await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, check=False, env=variables
        )
    try:
        return json.loads(done.stdout)
    except ValueError:
        words = (done.stderr or done.stdout).decode(errors="replace")[-1500:]
        raise RuntimeError(f"exit {done.returncode}: {words}") from None
