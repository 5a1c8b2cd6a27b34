"""Real MCP clients through the real shim to a real supervisor and real jails."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from mcp import Client
from mcp_types import CallToolResult, ImageContent

import nsm
import pictures
import vm_client
from e2e_mcp import server, text_of
from e2e_support import end_supervisor, program, run, variables_for

if TYPE_CHECKING:
    from pathlib import Path

    from e2e_support import Supervisor

ERAS = ["2026-07-28", "legacy", pytest.param("auto", marks=pytest.mark.slow)]


FAKE_PYPLOT = """
figures = [1]
class Figure:
    def __repr__(self): return '<Figure size 640x480 with 1 Axes>'
    def savefig(self, file, **options): file.write(PICTURE)
    def get_children(self): return ['background', 'axes']
def get_fignums(): return list(figures)
def figure(number): return Figure()
def close(figure): figures.clear()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    (tmp_path / "numbers.txt").write_text("1\n2\n39\n")
    return tmp_path


@pytest.mark.node
@pytest.mark.parametrize("era", ERAS)
async def test_the_main_job_in_both_eras(emptied: Supervisor, project: Path, era: Any) -> None:
    variables = emptied.variables | {"PROJECT_DIR": str(project)}
    async with Client(server(variables), mode=era) as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["run"]
        assert "/project, read-only" in (tools[0].description or "")

        async def call(code: str, env: str, **more: Any) -> CallToolResult:
            return await client.call_tool("run", {"code": code, "env": env, **more})

        total = "t = sum(int(n) for n in open('/project/numbers.txt'))"
        assert not (await call(total, "python", session="s")).is_error
        assert text_of(await call("t", "python", session="s")) == "42\n[exit code 0]"
        failed = await call("exit 3", "bash")
        assert failed.is_error
        assert "exit code 3" in text_of(failed)
        denied = await call("echo x > /project/new", "bash")
        assert denied.is_error
        assert text_of(denied).endswith(
            "/project/new: Read-only file system\n[exit code 1]\n[policy: /project is read-only, "
            "unless the user sets the project's mode to overlay; writable: /workspace, /tmp]"
        )
        elsewhere = await call("exec 3<>/dev/tcp/192.0.2.1/80", "bash")
        assert "[policy: network is off; " in text_of(elsewhere)
        assert "[policy" not in text_of(await call("exec 3<>/dev/tcp/127.0.0.1/9", "bash"))
        assert "no output" in text_of(await call("let x = 1", "node"))
        assert "Did you mean 'python'" in text_of(await call("1", "pyhton"))
        wrong = await call("echo", "bash", session="s")
        assert wrong.is_error
        assert "runs python, not bash" in text_of(wrong)
    with emptied.client() as control:
        (row,) = control.sessions()
        assert (row.name, row.project) == ("s", str(project))


async def test_the_same_client_finds_its_sessions_again(emptied: Supervisor) -> None:
    for expected in ("(no output)", "kept\n"):
        code = "print(x)" if "kept" in expected else "x = 'kept'"
        async with Client(server(emptied.variables), mode="legacy") as client:
            result = await client.call_tool(
                "run", {"code": code, "env": "python", "session": "mine"}
            )
            assert expected in text_of(result)
    shared = emptied.variables | {"NSM_SCOPE": "elsewhere"}
    async with Client(server(shared), mode="legacy") as client:
        other = await client.call_tool(
            "run", {"code": "print(x)", "env": "python", "session": "mine"}
        )
        assert other.is_error


async def test_output_that_a_result_has_no_room_for_is_in_a_file(emptied: Supervisor) -> None:
    async with Client(server(emptied.variables), mode="legacy") as client:
        call = partial(client.call_tool, "run")
        code = "for n in range(20_000): print(f'line {n}')"
        result = await call({"code": code, "env": "python", "session": "long"})
        text = text_of(result)
        assert len(text) < 42_000
        assert text.startswith("line 0\n")
        assert "line 19999\n" in text
        found = re.search(r"all of it is in (/workspace/\.nsm/\S+?)\]", text)
        assert found is not None, text[-300:]
        counted = await call(
            {"code": f"len(open('{found[1]}').readlines())", "env": "python", "session": "long"}
        )
        assert text_of(counted) == "20000\n[exit code 0]"
        once = text_of(await call({"code": code, "env": "python"}))
        assert "repeat with a session" in once


async def test_images(emptied: Supervisor) -> None:
    """A figure left open, an object that draws itself, one that is broken, one too large."""
    picture = pictures.png(640, 480)
    prepare = f"""
import pathlib, sys
package = pathlib.Path('matplotlib')
package.mkdir()
(package / '__init__.py').touch()
(package / 'pyplot.py').write_text({FAKE_PYPLOT!r})
PICTURE = {picture!r}
class Drawn:
    def __init__(self, data): self.data = data
    def _repr_png_(self): return self.data
"""
    async with Client(server(emptied.variables), mode="legacy") as client:

        async def run(code: str) -> CallToolResult:
            return await client.call_tool(
                "run", {"code": code, "env": "python", "session": "plots"}
            )

        assert not (await run(prepare)).is_error
        result = await run(
            "import matplotlib.pyplot; matplotlib.pyplot.PICTURE = PICTURE\n"
            "print('text'); display(Drawn(PICTURE[:-1])); Drawn(PICTURE)"
        )
        assert [part.type for part in result.content] == ["text", "image", "image"]
        assert text_of(result) == (
            "text\n[image 1]\n"
            f"[image 1: image/png, {len(picture) - 1} bytes, cannot be shown: it is a damaged or "
            "incomplete PNG]\n"
            "[image 2: image/png, 640x480]\n[image 3: image/png, 640x480]\n"
        )
        for part in result.content[1:]:
            assert isinstance(part, ImageContent)
            assert (part.mime_type, base64.b64decode(part.data)) == ("image/png", picture)
        result = await run(f"Drawn({pictures.png(10_000, 1)!r})")
        assert "[image/png, 10000x1, " in text_of(result)
        assert "save to files" in text_of(result)
        assert "Drawn object" in text_of(result)


async def test_progress_and_cancellation(emptied: Supervisor) -> None:
    async with Client(server(emptied.variables), mode="legacy") as client:
        heard: list[str] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            del progress, total
            heard.append(message or "")
            if "started" in "".join(heard):
                scope.cancel()

        with trio.CancelScope() as scope:
            await client.call_tool(
                "run",
                {
                    "code": "n = 1; print('started', flush=True)\nwhile True: pass",
                    "env": "python",
                    "session": "loop",
                },
                progress_callback=on_progress,
            )
        assert scope.cancelled_caught
        after = await client.call_tool(
            "run", {"code": "print('usable')", "env": "python", "session": "loop"}
        )
        assert "usable" in text_of(after)


@pytest.mark.slow
async def test_ten_shims_at_once_start_one_supervisor(short_dir: Path) -> None:
    variables = variables_for(short_dir)
    short_dir.chmod(0o700)
    pids: set[int] = set()

    async def use(number: int) -> None:
        async with Client(server(variables), mode="legacy") as client:
            result = await client.call_tool("run", {"code": f"echo {number}", "env": "bash"})
            assert text_of(result) == f"{number}\n[exit code 0]"
            pids.add(_supervisor_pid(short_dir))

    try:
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(use, number)
        assert len(pids) == 1
    finally:
        end_supervisor(variables["NSM_SOCKET"])


def test_without_autostart_the_reason_is_told(short_dir: Path) -> None:
    variables = variables_for(short_dir) | {"NSM_AUTOSTART": "0"}
    initialize = (
        '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
        '"capabilities":{},"clientInfo":{"name":"t","version":"0"}}}\n'
    )
    result = run("nsm-mcp", variables=variables, stdin=initialize)
    assert result.returncode != 0
    assert "NSM_AUTOSTART=0" in result.stdout
    assert "NSM_AUTOSTART=0" in result.stderr


def _supervisor_pid(directory: Path) -> int:
    with nsm.Client(socket_path=str(directory / "control.sock"), autostart=False) as control:
        return control.status().pid


@pytest.mark.slow
def test_steps_of_the_vm_test_hold_on_this_host(shared: Supervisor) -> None:
    """The steps of nix/tests/vm.nix, which is not run here."""
    done = subprocess.run(
        [sys.executable, "-I", vm_client.__file__, program("nsm-mcp")],
        env=shared.variables,
        cwd="/usr",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines[0] == "ok initialize: nsm"
    assert len(lines) == 16
    assert all(line.startswith("ok ") for line in lines)
