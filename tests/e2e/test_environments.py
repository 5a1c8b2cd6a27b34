"""Artifacts come, change and go while clients are connected: real supervisor, clients and jails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import nsm
from artifact_files import write_artifact, write_older, write_run_only
from e2e_mcp import call, connected, description
from e2e_support import supervisor
from realjail import needs_bwrap, open_directory

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, needs_bwrap]


@pytest.fixture
def store() -> Generator[Path]:
    """Directory in which artifacts are built."""
    with open_directory() as path:
        yield path


@pytest.fixture
def sandboxes(shared: Supervisor) -> Generator[Path]:
    """The module's supervisor's sandbox directory, there or not, empty before and after."""
    path = shared.directory / "config" / "nsm" / "sandboxes"
    yield path
    for entry in path.iterdir() if path.exists() else ():
        entry.unlink()
    with shared.client() as client:
        client.kill_all()
        client.envs()  # has the supervisor look


@pytest.mark.parametrize("mode", ["legacy", pytest.param("2026-07-28", marks=pytest.mark.slow)])
async def test_an_artifact_comes_is_replaced_and_goes(
    shared: Supervisor, sandboxes: Path, store: Path, mode: str
) -> None:
    old = write_artifact(store / "1", metadata={"description": "The first one"})
    new = write_artifact(store / "2", metadata={"description": "The second one"})
    async with connected(shared.variables, mode) as (client, changed):
        assert "science" not in await description(client)
        sandboxes.mkdir(parents=True, exist_ok=True)
        (sandboxes / "science").symlink_to(old)
        await changed()
        assert "- science: The first one" in await description(client)
        assert await call(client, "x = 6 * 7; x", "science", session="s") == ("42\n", False)
        (sandboxes / ".next").symlink_to(new)
        (sandboxes / ".next").rename(sandboxes / "science")
        await changed()
        assert "- science: The second one" in await description(client)
        assert await call(client, "x", "science", session="s") == ("42\n", False)
        assert await call(client, "'x' in globals()", "science", session="t") == ("False\n", False)
        (sandboxes / "science").unlink()
        await changed()
        assert "science" not in await description(client)
        assert await call(client, "x + 1", "science", session="s") == ("43\n", False)
        text, failed = await call(client, "x", "science", session="u")
        assert failed
        assert "'science' was removed" in text
        assert "Available: " in text


async def test_an_artifact_can_be_used_at_once(
    client: nsm.Client, sandboxes: Path, store: Path
) -> None:
    sandboxes.mkdir(parents=True, exist_ok=True)
    once = write_run_only(store, "once", interpreter="bash")
    (sandboxes / "once").symlink_to(once)
    assert client.run("echo $((6 * 7))", env="once").stdout == "42\n"
    (sandboxes / "older").symlink_to(write_older(store))
    # Streaming takes another way through the control socket.
    streaming = client.run("print(1)", env="older", on_output=lambda _, __: None)
    assert streaming.stdout == "1\n"
    with pytest.raises(nsm.NsmError, match="keeps no state"):
        client.run("1", env="once", session="s")
    (once / "bin/run").chmod(0o644)
    rows = {row.name: row for row in client.envs()}
    with pytest.raises(nsm.NsmError, match="bin/run: it is not executable"):
        client.run("echo 1", env="once")
    assert rows["once"].problem == "bin/run: it is not executable"
    assert rows["once"].source == str(sandboxes / "once")
    assert rows["older"].available


async def test_environments_of_an_entry_are_for_its_clients_only(
    shared: Supervisor, sandboxes: Path, store: Path
) -> None:
    named = write_artifact(store / "own", "mine", metadata={"description": "For one client"})
    entry = {"environments": {"meta": {"artifact": str(named)}, "bad": {"exec": "/nowhere/run"}}}
    variables = shared.variables | {
        "NIX_SANDBOX_DIR": str(store / "own"),
        "NIX_SANDBOX_METADATA": json.dumps(entry),
    }
    async with connected(shared.variables) as (other, _), connected(variables) as (client, _):
        assert "- mine: For one client" in await description(client)
        assert await call(client, "1 + 1", "meta") == ("2\n", False)
        assert "unavailable" in (await call(client, "1", "bad"))[0]
        assert "mine" not in await description(other)
        text, failed = await call(other, "1", "mine")
        assert failed
        assert "No environment 'mine'" in text
        with shared.client() as control:
            only_for = {row.name: row.only_for for row in control.envs() if row.only_for}
        assert only_for == {
            "meta": "clients with this NIX_SANDBOX_METADATA",
            "bad": "clients with this NIX_SANDBOX_METADATA",
            "mine": f"clients with NIX_SANDBOX_DIR={store / 'own'}",
        }


async def test_a_broken_entry_costs_a_client_nothing_else(
    shared: Supervisor, sandboxes: Path, tmp_path: Path
) -> None:
    variables = shared.variables | {
        "NIX_SANDBOX_DIR": str(tmp_path / "none"),
        "NIX_SANDBOX_METADATA": "{",
    }
    async with connected(variables) as (client, _):
        assert await call(client, "1 + 1", "python") == ("2\n", False)
        text, failed = await call(client, "1", "science")
        assert failed
        assert "NIX_SANDBOX_METADATA: it is not valid JSON" in text
        assert f"{tmp_path / 'none'}: there is no such directory (yet)" in text


KILLED_AT_FIRST = """\
#!/bin/sh
[ -e {0} ] || {{ >{0}; kill -KILL $$; }}
exec /usr/bin/python3 "$@"
"""


@pytest.mark.slow
def test_an_interpreter_that_was_killed_is_asked_again(short_dir: Path) -> None:
    shim = short_dir / "python3"
    shim.write_text(KILLED_AT_FIRST.format(short_dir / "asked"))
    shim.chmod(0o755)
    config = f'[environments.mine]\npreset = "python"\ninterpreter = "{shim}"\n'
    with supervisor(short_dir, config=config) as it, it.client() as client:
        assert client.run("print(6 * 7)", env="mine").stdout == "42\n"


@pytest.mark.slow
def test_the_supervisors_own_variables_are_for_everyone(short_dir: Path, store: Path) -> None:
    entry = {"environments": {"meta": {"artifact": str(write_artifact(store / "a", "x"))}}}
    write_older(store / "b", "shell", interpreter="bash")
    variables = {"NIX_SANDBOX_METADATA": json.dumps(entry), "NIX_SANDBOX_DIR": str(store / "b")}
    with supervisor(short_dir, variables=variables) as it, it.client() as client:
        rows = {row.name: row for row in client.envs()}
        assert rows["meta"].source == "NIX_SANDBOX_METADATA"
        assert rows["shell"].source == str(store / "b" / "shell")
        assert rows["bash"].aliases == ()
        assert client.run("print(6 * 7)", env="meta", session="s").stdout == "42\n"
        assert client.run("echo $BASH_VERSION", env="shell").exit_code == 0
