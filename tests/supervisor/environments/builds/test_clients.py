"""Environments that a client's entry names: built while it is connected, and its own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, TextContent, ToolListChangedNotification

from artifact_files import write_artifact
from e2e_support import program, supervisor
from fake_nix import FakeNix
from realjail import needs_bwrap

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, needs_bwrap]

TIMEOUT_S = 120


@pytest.fixture
def folder() -> Generator[Path]:
    """A directory with a short name, that jails of root can read."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        yield Path(path)


@pytest.fixture
def nix(folder: Path) -> FakeNix:
    return FakeNix(folder / "bin")


@pytest.fixture
def it(folder: Path, nix: FakeNix) -> Generator[Supervisor]:
    home = folder / "home"
    home.mkdir()
    path = f"{nix.folder}:{os.environ.get('PATH', '')}"
    with supervisor(home, variables={"PATH": path}) as it:
        folder.chmod(0o755)
        yield it


def server(it: Supervisor, flakes: str) -> StdioServerParameters:
    variables = it.variables | {"NIX_SANDBOX_ENVS": flakes}
    return StdioServerParameters(command=program("nsm-mcp"), env=variables, cwd="/usr")


def text_of(result: CallToolResult) -> str:
    return "".join(part.text for part in result.content if isinstance(part, TextContent))


async def test_a_client_has_its_own_as_soon_as_it_is_built(
    it: Supervisor, nix: FakeNix, folder: Path
) -> None:
    gate = folder / "gate"
    os.mkfifo(gate)
    path = write_artifact(folder / "store", "science")
    science = nix.builds("science", ("gate", str(gate)), ("out", str(path)))
    bad = nix.builds("bad", ("fail", "no such luck"))
    changed = trio.Event()

    async def hear(message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    async with Client(
        server(it, f"{science}, {bad}"), mode="legacy", message_handler=hear
    ) as client:
        code = {"code": "print(6 * 7)", "env": "science"}
        early = await client.call_tool("run", code)
        assert early.is_error
        assert "so far" in text_of(early)
        assert "nsm env log science" in text_of(early)
        fine = await client.call_tool("run", {"code": "echo fine", "env": "bash"})
        assert text_of(fine) == "fine\n"
        async with await trio.open_file(gate, "w"):
            pass
        with trio.fail_after(TIMEOUT_S):
            while (answer := await client.call_tool("run", code)).is_error:
                await changed.wait()
                changed = trio.Event()
        assert text_of(answer) == "42\n[exit code 0]"
        failed = await client.call_tool("run", {"code": "1", "env": "bad"})
        assert "its build failed: error: no such luck" in text_of(failed)
        assert it.run("nsm", "run", "-e", "science", "1").returncode == 125
        assert "in NIX_SANDBOX_ENVS" in it.run("nsm", "env", "show", "science").stdout
