"""Artifacts, built for real, in a real supervisor's sessions, asked for by the SDK's client."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, TextContent, ToolListChangedNotification

from e2e_support import end_holder, program, supervisor, wait_gone
from nix.jails import check_jail, closure, look

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    import standin
    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, pytest.mark.slow]

ATTRIBUTES = {
    "bash": "presets.bash",
    "python": "presets.python",
    "node": "presets.node",
    "test-sandbox": "test-sandbox",
}
ERAS = ["legacy", "2026-07-28"]
CHANGE_TIMEOUT_S = 20


@pytest.fixture
def short_dir() -> Generator[Path]:
    """A private directory with a short path: pytest's are too long for a socket's."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        yield Path(path)


def sandboxes(directory: Path) -> Path:
    """The sandbox directory of a supervisor that has all in `directory`."""
    path = directory / "config/nsm/sandboxes"
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="module")
def shared(place: standin.Place, built: Callable[[str], Path]) -> Generator[Supervisor]:
    """A supervisor with one environment of each kind; `cold` is one that has no template."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        folder = sandboxes(Path(path))
        for name, attribute in ATTRIBUTES.items():
            if name != "node" or "nodejs" not in place.missing():
                (folder / name).symlink_to(built(attribute))
        without_template(built("test-sandbox"), folder / "cold", "cold")
        with supervisor(Path(path)) as it:
            yield it


def without_template(artifact: Path, directory: Path, name: str) -> None:
    """The same artifact by another name, and without a template: each session has its own jail."""
    (directory / "bin").mkdir(parents=True)
    for wrapper in ("run", "session-run"):
        (directory / "bin" / wrapper).symlink_to(artifact / "bin" / wrapper)
    told = json.loads((artifact / "metadata.json").read_text())
    told["name"] = name
    del told["template"]
    (directory / "metadata.json").write_text(json.dumps(told))


@pytest.fixture
def project() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="nsm-project-") as path:
        Path(path).chmod(0o755)
        Path(path, "numbers.txt").write_text("1\n2\n39\n")
        yield Path(path)


def server(variables: Mapping[str, str]) -> StdioServerParameters:
    return StdioServerParameters(command=program("nsm-mcp"), env=dict(variables), cwd="/usr")


def text_of(result: CallToolResult) -> str:
    return "".join(part.text for part in result.content if isinstance(part, TextContent))


async def run(client: Client, code: str, env: str, **more: str) -> CallToolResult:
    return await client.call_tool("run", {"code": code, "env": env, **more})


async def output(client: Client, code: str, env: str, **more: str) -> str:
    """Return the output of code that is expected to succeed."""
    result = await run(client, code, env, **more)
    assert not result.is_error, text_of(result)
    return text_of(result)


@pytest.mark.node
@pytest.mark.parametrize("era", ERAS)
async def test_sessions_keep_their_state_apart(shared: Supervisor, era: Any) -> None:
    async with Client(server(shared.variables), mode=era) as client:
        for env, keep, show in (
            ("python", "import yaml; x = yaml.safe_load('[4, 2]')", "print(*x, sep='')"),
            ("test-sandbox", "x = 42", "print(x)"),
            ("bash", "x=42; cd /tmp", 'printf "%s\\n" "$x"'),
            ("node", "var x = 42", "console.log(x)"),
        ):
            one, another = f"{env}-{era}-one", f"{env}-{era}-another"
            await output(client, keep, env, session=one)
            assert await output(client, show, env, session=one) == "42\n[exit code 0]"
            assert "42" not in text_of(await run(client, show, env, session=another))
            assert "42" not in text_of(await run(client, show, env))


async def test_sessions_run_what_the_artifact_names(
    shared: Supervisor, built: Callable[[str], Path]
) -> None:
    """Not the host's presets of those names, though they are there."""
    told = json.loads((built("presets.python") / "metadata.json").read_text())
    async with Client(server(shared.variables), mode="legacy") as client:
        code = "import sys; print(sys.executable)"
        assert await output(client, code, "python") == told["program"] + "\n"
        assert "/store/" in await output(client, "type -p bc; type -p bash", "bash")
        missing = await run(client, "import yaml", "test-sandbox")
        assert "No module named 'yaml'" in text_of(missing)
    with shared.client() as control:
        rows = {row.name: row for row in control.envs() if row.available}
    assert rows["python"].program == told["program"]
    assert rows["python"].cold_start is None
    assert rows["python"].keeps_state


@pytest.mark.parametrize("env", ["test-sandbox", "cold"])
async def test_the_jail_of_a_session(
    shared: Supervisor,
    place: standin.Place,
    built: Callable[[str], Path],
    project: Path,
    env: str,
) -> None:
    """A fork of a template, and one of its own: code sees no difference."""
    variables = shared.variables | {"PROJECT_DIR": str(project)}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        code = look(place, listening.getsockname()[1])
        async with Client(server(variables), mode="legacy") as client:
            printed = await output(client, code, env, session=f"look-{env}")
    seen = json.loads(printed.partition("\n")[0])  # what follows tells of files written
    check_jail(seen, place, closure(place, built("test-sandbox")), session=True)
    with shared.client() as control:
        (row,) = [row for row in control.envs() if row.name == env]
    assert (row.cold_start is None) == (env == "test-sandbox")


def test_the_jail_ends_with_the_last_holder_of_its_socket(
    short_dir: Path, built: Callable[[str], Path]
) -> None:
    """Nobody is there who could end it: the supervisor is gone, by a signal that it cannot hear."""
    folder = sandboxes(short_dir)
    (folder / "python").symlink_to(built("presets.python"))
    without_template(built("test-sandbox"), folder / "cold", "cold")
    with supervisor(short_dir) as it:
        with it.client() as control:
            for env in ("python", "cold"):
                assert control.run("1", env=env, session=env).exit_code == 0
        pidfds = [os.pidfd_open(pid) for pid in it.descendants()]
        assert len(pidfds) >= 4
        it.process.send_signal(signal.SIGKILL)
        it.process.wait()
        assert end_holder(short_dir), "nobody would have kept the sessions"
        wait_gone(pidfds)


@pytest.mark.slow
def test_sessions_of_artifacts_outlive_the_supervisor(
    short_dir: Path, built: Callable[[str], Path]
) -> None:
    folder = sandboxes(short_dir)
    (folder / "python").symlink_to(built("presets.python"))
    without_template(built("test-sandbox"), folder / "cold", "cold")
    with supervisor(short_dir) as first:
        with first.client() as control:
            for env in ("python", "cold"):
                assert control.run("x = 41", env=env, session=env).exit_code == 0
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        with supervisor(short_dir, keep=True) as it, it.client() as control:
            for env in ("python", "cold"):
                assert control.run("print(x + 1)", env=env, session=env).stdout == "42\n"
            control.kill_all()


class Changes:
    """Record of whether a client was told of changed tools since the last question."""

    def __init__(self) -> None:
        self._told = trio.Event()

    async def hear(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._told.set()

    async def next(self) -> None:
        with trio.fail_after(CHANGE_TIMEOUT_S):
            await self._told.wait()
        self._told = trio.Event()


async def description(client: Client) -> str:
    (tool,) = (await client.list_tools()).tools
    return f"{tool.description} {json.dumps(tool.input_schema)}"


async def test_an_artifact_comes_changes_and_goes_while_a_client_is_connected(
    short_dir: Path, built: Callable[[str], Path]
) -> None:
    folder = sandboxes(short_dir)
    first, second = built("test-sandbox"), built("presets.python")
    changes = Changes()
    with supervisor(short_dir) as it:
        async with Client(
            server(it.variables), mode="legacy", message_handler=changes.hear
        ) as client:
            assert "test-sandbox" not in await description(client)
            (folder / "mine").symlink_to(first)
            await changes.next()
            assert "test-sandbox" in await description(client)
            await output(client, "x = 42", "test-sandbox", session="kept")

            # The same name, in one step: sessions live on, new ones are of the new artifact.
            renamed = short_dir / "renamed"
            without_template(second, renamed, "test-sandbox")
            (folder / ".new").symlink_to(renamed)
            (folder / ".new").rename(folder / "mine")
            await changes.next()
            await description(client)
            assert (
                await output(client, "print(x)", "test-sandbox", session="kept")
                == "42\n[exit code 0]"
            )
            later = await output(client, "import yaml; print(1)", "test-sandbox", session="later")
            assert later.startswith("1\n")

            (folder / "mine").unlink()
            await changes.next()
            assert "test-sandbox" not in await description(client)
            gone = await run(client, "print(1)", "test-sandbox")
            assert gone.is_error
