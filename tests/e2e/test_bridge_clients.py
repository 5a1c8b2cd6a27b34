"""Programs of the bridge: real clients, the real shim, a real supervisor, real programs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from mcp import Client, MCPError

import http_support
from box.modelapi import model
from e2e_mcp import server, text_of
from e2e_support import program, supervisor

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from contextlib import AbstractAsyncContextManager

    from e2e_support import Supervisor

ERAS = ["legacy", pytest.param("2026-07-28", marks=pytest.mark.slow)]

CONFIG = f"[bridge]\nenabled = true\n{http_support.CONFIG}programs = ['deploy', 'wait']\n"

PROGRAMS = {
    "deploy": ("", 'echo "to $1"; echo careful >&2; echo done'),
    "fail": ("", "echo half; echo no host >&2; exit 7"),
    "slow": ("timeout_seconds: 0.3\n", "echo begun; sleep 1000"),
    # Says who it and its child are, so that the test can wait for the ends of both.
    "wait": ("", 'sleep 1000 & echo "$$ $!"; wait'),
}


def describe(directory: Path, name: str, more: str = "", body: str = "true") -> None:
    """A program and its description below a supervisor's directory."""
    commands, tools = directory / "bin", directory / "config" / "nsm" / "tools"
    commands.mkdir(exist_ok=True)
    tools.mkdir(parents=True, exist_ok=True)
    command = commands / name
    command.write_text(f"#!/bin/sh\n{body}\n")
    command.chmod(0o755)
    described = tools / f".{name}"
    described.write_text(
        f"---\nname: {name}\ndescription: Does {name}.\ncommand: {command}\n{more}---\n"
        f"# How to {name}\n"
    )
    described.rename(tools / f"{name}.md")


@pytest.fixture(scope="module")
def bridged() -> Generator[Supervisor]:
    """A supervisor with programs; tests leave them as they found them."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        directory = Path(path)
        for name, (more, body) in PROGRAMS.items():
            describe(directory, name, more, body)
        (directory / "config" / "nsm" / "config.toml").write_text(CONFIG)
        with supervisor(directory) as it:
            yield it


@pytest.fixture(scope="module")
def over_http(bridged: Supervisor) -> tuple[str, str]:
    """URL and token of MCP over HTTP."""
    return http_support.url_of(bridged), http_support.token_of(bridged)


def written(it: Supervisor) -> list[dict[str, Any]]:
    """The audit's records."""
    file = it.directory / "state" / "nsm" / "audit.log"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("era", ERAS)
async def test_from_the_list_to_the_result(bridged: Supervisor, era: Any) -> None:
    async with Client(server(bridged.variables), mode=era) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert tools == ["run", "list_programs", "help", "execute"]
        listed = text_of(await client.call_tool("list_programs"))
        assert listed.splitlines() == [f"- {name}: Does {name}." for name in sorted(PROGRAMS)]
        assert text_of(await client.call_tool("help", {"program": "deploy"})) == "# How to deploy"

        async def execute(name: str, *args: str) -> tuple[bool | None, str]:
            result = await client.call_tool("execute", {"program": name, "args": list(args)})
            return result.is_error, text_of(result)

        assert await execute("deploy", "prod") == (False, "to prod\ndone\n[stderr]\ncareful\n")
        assert await execute("fail") == (True, "Command failed (exit 7): no host\n[stdout]\nhalf")
        failed, said = await execute("slow")
        assert failed
        assert said.startswith("Timed out after 0.3 s")
        failed, said = await execute("foo")
        assert failed
        assert said == "Program 'foo' not found. Available: deploy, fail, slow, wait"
        failed, said = await execute("deploy", "prod; rm -rf /")
        assert failed
        assert said.startswith("Invalid character in argument: semicolon (;) not allowed")
        last = written(bridged)[-1]
        assert (last["event"], last["decision"], last["way"]) == ("refused", "refused", "mcp")
        assert last["arguments"] == ["prod; rm -rf /"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("way", ["shim", "http"])
async def test_lines_are_told_while_it_runs_and_it_ends_when_it_is_taken_back(
    bridged: Supervisor, over_http: tuple[str, str], way: str, era: Any
) -> None:
    lines, told = trio.open_memory_channel[str](100)
    connect = (
        partial(Client, server(bridged.variables))
        if way == "shim"
        else partial(http_support.sdk_client, *over_http)
    )

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        lines.send_nowait(message or "")

    async with connect(mode=era) as client:

        async def wait() -> None:
            await client.call_tool("execute", {"program": "wait"}, progress_callback=hear)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            fds = [os.pidfd_open(int(pid)) for pid in (await told.receive()).split()]
            nursery.cancel_scope.cancel()
        for fd in fds:
            await trio.lowlevel.wait_readable(fd)
            os.close(fd)


async def test_programs_that_come_are_there_and_clients_learn_of_the_first(
    bridged: Supervisor, over_http: tuple[str, str]
) -> None:
    tools = bridged.directory / "config" / "nsm" / "tools"
    aside = tools.with_name("aside")

    @asynccontextmanager
    async def listed(
        connect: Callable[..., AbstractAsyncContextManager[Client]],
    ) -> AsyncGenerator[tuple[Client, trio.MemoryReceiveChannel[str]]]:
        changed, changes = trio.open_memory_channel[str](100)

        async def hear(message: object) -> None:
            changed.send_nowait(str(getattr(message, "method", message)))

        async with connect(mode="legacy", message_handler=hear) as client:
            assert len((await client.list_tools()).tools) == 4
            yield client, changes

    by_shim = partial(Client, server(bridged.variables))
    by_http = partial(http_support.sdk_client, *over_http)
    async with listed(by_shim) as one, listed(by_http) as two, listed(by_http) as three:
        clients = one, two, three
        tools.rename(aside)
        try:
            for client, changes in clients:
                assert await changes.receive() == "notifications/tools/list_changed"
                assert [tool.name for tool in (await client.list_tools()).tools] == ["run"]
                with pytest.raises(MCPError, match="There is no tool 'execute'"):
                    await client.call_tool("execute", {"program": "deploy"})
        finally:
            aside.rename(tools)
        for client, changes in clients:
            assert await changes.receive() == "notifications/tools/list_changed"
            assert len((await client.list_tools()).tools) == 4
            result = await client.call_tool("execute", {"program": "deploy", "args": ["b"]})
            assert not result.is_error


async def test_an_entry_may_name_fewer(bridged: Supervisor) -> None:
    async with Client(
        server(bridged.variables, NSM_BRIDGE="deploy,later"), mode="legacy"
    ) as client:
        assert text_of(await client.call_tool("list_programs")) == "- deploy: Does deploy."
        result = await client.call_tool("execute", {"program": "fail"})
        assert text_of(result) == "Program 'fail' not found. Available: deploy"
        assert result.is_error
    async with Client(server(bridged.variables, NSM_BRIDGE="off"), mode="legacy") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["run"]


@pytest.mark.parametrize("era", ERAS)
async def test_http_has_exactly_the_programs_that_are_configured(
    over_http: tuple[str, str], bridged: Supervisor, era: str
) -> None:
    lines: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        lines.append(message)

    async with http_support.sdk_client(*over_http, mode=era) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert tools == ["run", "list_programs", "help", "execute"]
        listed = text_of(await client.call_tool("list_programs"))
        assert listed == "- deploy: Does deploy.\n- wait: Does wait."
        arguments = {"program": "deploy", "args": ["prod"]}
        result = await client.call_tool("execute", arguments, progress_callback=hear)
        assert text_of(result) == "to prod\ndone\n[stderr]\ncareful\n"
        assert sorted(map(str, lines)) == ["[stderr] careful", "done", "to prod"]
        result = await client.call_tool("execute", {"program": "fail"})
        assert text_of(result) == "Program 'fail' not found. Available: deploy, wait"
        assert written(bridged)[-1]["way"] == "http"


@pytest.mark.slow
def test_claude_code_itself_starts_one(bridged: Supervisor, tmp_path: Path) -> None:
    """A loop and a client of MCP of its own; only the model is a stand-in."""
    claude = shutil.which("claude", path=os.environ.get("NSM_TEST_AGENTS"))
    if claude is None:
        pytest.skip("not here: no claude (see tests/nsmbox/test_real_agents.py)")
    entry = {"command": program("nsm-mcp"), "env": bridged.variables}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"nsm": entry}}))
    arguments: dict[str, object] = {"program": "deploy", "args": ["prod"]}

    def ask(*options: str) -> str:
        with model("mcp__nsm__execute", arguments) as url:
            done = subprocess.run(
                [claude, "-p", "deploy", "--mcp-config", tmp_path / "mcp.json", *options],
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "HOME": str(tmp_path),
                    "ANTHROPIC_BASE_URL": url,
                    "ANTHROPIC_API_KEY": "sk-none",
                    "DISABLE_TELEMETRY": "1",
                    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                },
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    # It waits for no server that is slow to come, as one is that has to load the package first.
    assert bridged.run("nsm-mcp", stdin='{"jsonrpc":"2.0","id":1,"method":"ping"}\n').stdout
    started = len(written(bridged))
    refused = ask()
    assert "permission" in refused
    assert len(written(bridged)) == started, "it asks a person before it starts a program"
    assert ask("--allowedTools", "mcp__nsm__execute").startswith("to prod\ndone\n[stderr]\ncareful")
    assert written(bridged)[-1]["client"] == "claude-code"
