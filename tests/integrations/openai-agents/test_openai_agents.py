"""Sandboxes of the OpenAI Agents SDK, with the package itself and its scripted model."""

# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from agents import (
    Agent,
    RunConfig,
    Runner,
    ShellActionRequest,
    ShellCallData,
    ShellCommandRequest,
    ShellTool,
)
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    InvalidManifestPathError,
    PtySessionNotFoundError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.sandboxes import UnixLocalSandboxClient, UnixLocalSandboxClientOptions
from agents.sandbox.types import User
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseFunctionShellToolCall

import adapter_faults
import host_attacks
from nsm.integrations import openai_agents_terminals
from nsm.integrations.openai_agents import LABEL, NsmSandboxClient, NsmSandboxClientOptions
from nsm.integrations.openai_agents_shell import NsmShellExecutor
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from agents.sandbox.session import SandboxSession

    from e2e_support import Supervisor

RESULT = "function_call_output"

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def session(shared: Supervisor) -> AsyncGenerator[SandboxSession]:
    client = NsmSandboxClient()
    options = NsmSandboxClientOptions(exposed_ports=(8000,))
    it = await client.create(options=options)
    async with it:
        yield it
    await client.delete(it)


def _call(name: str, **arguments: Any) -> Any:
    return [function_call(name, arguments, call_id=os.urandom(8).hex())]


async def _run(model: ScriptedModel, client: Any, manifest: Manifest | None = None) -> Any:
    agent = SandboxAgent(name="worker", model=model, default_manifest=manifest)
    config = RunConfig(sandbox=SandboxRunConfig(client=client), tracing_disabled=True)
    return await Runner.run(agent, "go", run_config=config)


def _results(call: Any) -> list[str]:
    return [str(each["output"]) for each in call.input if each.get("type") == RESULT]


def _outputs(model: ScriptedModel) -> list[str]:
    return _results(model.last_call)


def _nsm_id(session: SandboxSession) -> str:
    return session.state.nsm_session


async def test_an_agent_with_a_scripted_model(shared: Supervisor) -> None:
    model = ScriptedModel(
        [_call("exec_command", cmd="wc -w notes.txt; pwd"), [assistant_message("done")]]
    )
    manifest = Manifest(entries={"notes.txt": File(content=b"one two three")})
    result = await _run(model, NsmSandboxClient(), manifest)
    assert result.final_output == "done"
    assert "3 notes.txt\n/workspace" in _outputs(model)[0]
    with shared.client() as client:
        assert not client.sessions()  # the runner has ended it


async def test_an_agent_comes_back_to_a_terminal(shared: Supervisor) -> None:
    def type_something(call: Any) -> Any:
        number = re.search(r"session ID (\d+)", _results(call)[-1])
        assert number is not None
        program = {"session_id": int(number[1]), "yield_time_ms": 30_000}
        return _call("write_stdin", chars="print(6 * 7); exit()\n", **program)

    model = ScriptedModel(
        [
            _call("exec_command", cmd="python3 -q", tty=True, yield_time_ms=500),
            ModelStep.respond(type_something),
            [assistant_message("done")],
        ]
    )
    await _run(model, NsmSandboxClient())
    assert "42" in _outputs(model)[-1]
    assert "exited with code 0" in _outputs(model)[-1]


async def test_the_local_clients_program_with_one_line_changed(shared: Supervisor) -> None:
    async def outcome(client: Any) -> tuple[bytes, bytes, list[str]]:
        manifest = Manifest(
            entries={"in/a.txt": File(content=b"6")}, environment={"value": {"FACTOR": "7"}}
        )
        it = await client.create(manifest=manifest, options=UnixLocalSandboxClientOptions())
        async with it:
            done = await it.exec("echo $(( $(cat in/a.txt) * FACTOR ))")
            await it.write(Path("out/b.bin"), io.BytesIO(b"\xff\0"))
            data = (await it.read(Path("out/b.bin"))).read()
            await it.mv("out/b.bin", "out/c")
            names = sorted(Path(each.path).name for each in await it.ls("out"))
            await it.rm("out", recursive=True)
        await client.delete(it)
        return done.stdout, data, names

    assert await outcome(NsmSandboxClient()) == await outcome(UnixLocalSandboxClient())


async def test_a_hostile_model_reaches_nothing(session: SandboxSession, tmp_path: Path) -> None:
    with host_attacks.target(tmp_path) as target:
        local = UnixLocalSandboxClient()
        theirs = await local.create()
        async with theirs:
            done = await theirs.exec(*target.argv, shell=False)
        await local.delete(theirs)
        assert host_attacks.gained(done.stdout.decode()) == host_attacks.ALL
        done = await session.exec(*target.argv, shell=False)
    assert host_attacks.gained(done.stdout.decode()) == set()


async def test_a_command_with_binary_output_and_its_exit_code(session: SandboxSession) -> None:
    done = await session.exec("printf '\\377\\0'; echo bad >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code) == (b"\xff\0", b"bad\n", 3)


async def test_time_limit_with_what_was_printed(session: SandboxSession) -> None:
    with pytest.raises(ExecTimeoutError) as caught:
        await session.exec("echo begun; exec sleep 1000", timeout=1)
    assert caught.value.timeout_s == 1
    assert caught.value.context["stdout"] == "begun\n"
    with pytest.raises(ExecTimeoutError):
        await session.exec("true", timeout=0)


async def test_cancelling_stops_the_program(shared: Supervisor, session: SandboxSession) -> None:
    running = asyncio.create_task(session.exec("touch begun; exec sleep 1000"))
    while not (await session.exec("test", "-e", "begun", shell=False)).ok():
        pass
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    with shared.client() as client:
        for job in client.jobs(_nsm_id(session)):
            assert not client.job(_nsm_id(session), job.id).wait().running


@pytest.mark.parametrize(
    ("command", "settings", "words"),
    [
        (["a\0b"], {"shell": False}, "NUL"),
        (["true", "x" * 3_000_000], {"shell": False}, "are taken"),
        (["\udcff"], {"shell": False}, "not UTF-8"),
        (["true"], {"user": "root"}, "has one user"),
        (["true"], {"user": User(name="root")}, "has one user"),
        (["yes | head -c 17000000"], {}, "Redirect its output to a file"),
    ],
)
async def test_what_a_session_cannot_do_is_a_transport_error(
    session: SandboxSession, command: list[str], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ExecTransportError, match=words):
        await session.exec(*command, **settings)


async def test_a_missing_program(session: SandboxSession) -> None:
    assert (await session.exec("/missing", shell=False)).exit_code == 127


async def test_files(session: SandboxSession) -> None:
    large = os.urandom(20_000_000)
    await session.write(Path("deep/large"), io.BytesIO(large))
    assert (await session.read(Path("deep/large"))).read() == large
    assert await session.read_bounded(Path("deep/large"), max_bytes=7) == large[:7]
    await session.exec("ln -s deep/large link; ln -s /etc/passwd out")
    await session.write(Path("link"), io.BytesIO(b"short"))
    assert (await session.read(Path("deep/large"))).read() == b"short"
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("missing"))
    with pytest.raises(WorkspaceArchiveReadError):
        await session.read(Path("deep"))
    with pytest.raises(WorkspaceArchiveWriteError):
        await session.write(Path("deep"), io.BytesIO(b"x"))
    with pytest.raises(InvalidManifestPathError):
        await session.read(Path("out"))
    with pytest.raises(InvalidManifestPathError):
        await session.write(Path("../tmp/x"), io.BytesIO(b"x"))
    await session.exec("ln -s /tmp/new dangling; ln -s /tmp elsewhere; ln -s deep inside")
    for outside in ("dangling", "elsewhere/x", "inside/../../tmp/x"):
        with pytest.raises((InvalidManifestPathError, WorkspaceArchiveWriteError)):
            await session.write(Path(outside), io.BytesIO(b"x"))
    await session.write(Path("inside/new"), io.BytesIO(b"x"))
    await session.write(Path("inside/a/b/large"), io.BytesIO(large))
    await session.write(Path("inside/a/c/new"), io.BytesIO(b"y"))
    done = await session.exec(
        "cat deep/new deep/a/c/new; wc -c <deep/a/b/large; ls /tmp/x /tmp/new"
    )
    assert done.stdout == b"xy20000000\n"
    with pytest.raises(ExecTransportError, match="one user"):
        await session.read(Path("link"), user="root")


async def test_a_file_larger_than_the_workspace(session: SandboxSession) -> None:
    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            return bytes(size)

    with pytest.raises(WorkspaceArchiveWriteError, match="space"):
        await session.write(Path("endless"), Endless())
    assert not (await session.exec("test -e endless")).ok()


async def test_a_patch(session: SandboxSession) -> None:
    await session.write(Path("a.txt"), io.BytesIO(b"one\ntwo\n"))
    diff = {"type": "update_file", "path": "a.txt", "diff": "@@\n one\n-two\n+three\n"}
    await session.apply_patch(diff)
    assert (await session.read(Path("a.txt"))).read() == b"one\nthree\n"


async def test_a_port(session: SandboxSession) -> None:
    program = "import socket; s = socket.create_server(('127.0.0.1', 8000)); print(1, flush=True); "
    program += "c = s.accept()[0]; c.sendall(b'hello'); c.close(); s.accept()"
    started = await session.pty_exec_start("python3", "-c", program, shell=False, yield_time_s=0.5)
    output = started.output
    while b"1" not in output:
        update = await session.pty_write_stdin(session_id=started.process_id, chars="")
        output += update.output
    place = await session.resolve_exposed_port(8000)
    assert await session.resolve_exposed_port(8000) == place
    reader, writer = await asyncio.open_connection(place.host, place.port)
    assert await reader.read() == b"hello"
    writer.close()
    with pytest.raises(ExposedPortUnavailableError):
        await session.resolve_exposed_port(8001)


async def test_programs_without_a_terminal(session: SandboxSession) -> None:
    started = await session.pty_exec_start("echo a; exec sleep 1000", yield_time_s=0.25)
    assert started.exit_code is None
    with pytest.raises(RuntimeError, match="stdin is not available"):
        await session.pty_write_stdin(session_id=started.process_id, chars="x")
    await session.pty_terminate_all()
    with pytest.raises(PtySessionNotFoundError):
        await session.pty_write_stdin(session_id=started.process_id, chars="")
    ended = await session.pty_exec_start("printf '\\377'; exit 3", yield_time_s=30)
    assert (ended.process_id, ended.exit_code, ended.output.decode()) == (None, 3, "\ufffd")
    with pytest.raises(ExecTransportError):
        await session.pty_exec_start("/missing", shell=False)


async def test_as_many_programs_as_the_sdk_keeps(
    session: SandboxSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_agents_terminals, "PTY_PROCESSES_MAX", 9)

    async def start() -> int:
        started = await session.pty_exec_start("exec sleep 1000", yield_time_s=0)
        assert started.process_id is not None
        return started.process_id

    first = await start()
    await asyncio.gather(*(start() for _ in range(8)))
    await start()
    with pytest.raises(PtySessionNotFoundError):
        await session.pty_write_stdin(session_id=first, chars="")


async def test_resume_while_the_session_lives(shared: Supervisor) -> None:
    client = NsmSandboxClient()
    it = await client.create()
    await it.start()
    await it.exec("echo kept >/tmp/elsewhere; echo kept >here")
    saved = json.loads(json.dumps(client.serialize_session_state(it.state)))
    again = NsmSandboxClient()
    state = again.deserialize_session_state(saved)
    resumed = await again.resume(state)
    async with resumed:
        assert (await resumed.exec("cat here /tmp/elsewhere")).stdout == b"kept\nkept\n"
        assert _nsm_id(resumed) == _nsm_id(it)
    # Not started: it ends all the same.
    await again.delete(await again.resume(again.deserialize_session_state(saved)))
    assert not await resumed.running()
    with pytest.raises(ExecTransportError, match=r"ended|no session|closed"):
        await it.exec("true")


async def test_resume_from_a_snapshot(shared: Supervisor, tmp_path: Path) -> None:
    client = NsmSandboxClient()
    manifest = Manifest(entries={"temporary": File(content=b"1", ephemeral=True)})
    it = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path), manifest=manifest)
    async with it:
        await it.exec("echo kept >here; ln -s /usr/bin/env program; mkdir -p a/b; chmod +x here")
    saved = client.serialize_session_state(it.state)
    await client.delete(it)
    resumed = await client.resume(client.deserialize_session_state(saved))
    async with resumed:
        done = await resumed.exec("cat here temporary; readlink program; ls -d a/b; test -x here")
        assert done.ok()
        assert done.stdout == b"kept\n1/usr/bin/env\na/b\n"
        assert _nsm_id(resumed) != saved["nsm_session"]
    await client.delete(resumed)


async def test_a_state_leads_to_no_session_of_somebody_else(shared: Supervisor) -> None:
    with shared.client() as other, other.sandbox() as theirs:
        client = NsmSandboxClient()
        it = await client.create()
        saved = client.serialize_session_state(it.state) | {"nsm_session": theirs.id}
        resumed = await client.resume(client.deserialize_session_state(saved))
        async with resumed:
            assert _nsm_id(resumed) != theirs.id
        await client.delete(resumed)
        assert theirs.run("1").exit_code == 0


async def test_an_archive_that_leads_outside(session: SandboxSession) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))
    data.seek(0)
    with pytest.raises(WorkspaceArchiveWriteError):
        await session.hydrate_workspace(data)
    with pytest.raises(WorkspaceArchiveWriteError):
        await session.hydrate_workspace(io.BytesIO(b"no archive"))


@pytest.mark.parametrize("root", ["/srv", "/workspaces", "/usr/share/x"])
async def test_a_workspace_elsewhere(shared: Supervisor, root: str) -> None:
    client = NsmSandboxClient()
    it = await client.create(manifest=Manifest(root=root))
    with pytest.raises(WorkspaceStartError, match="give the manifest no root"):
        await it.start()
    await client.delete(it)


async def test_a_workspace_below(shared: Supervisor) -> None:
    client = NsmSandboxClient()
    it = await client.create(manifest=Manifest(root="/workspace/project"))
    async with it:
        assert (await it.exec("pwd")).stdout == b"/workspace/project\n"
    await client.delete(it)


async def test_a_manifest_with_users(shared: Supervisor) -> None:
    with pytest.raises(ValueError, match="one user"):
        await NsmSandboxClient().create(manifest=Manifest(users=[User(name="ann")]))


async def test_a_session_that_nobody_closes(shared: Supervisor) -> None:
    client = NsmSandboxClient(idle_s=60, labels={"batch": "7"})
    it = await client.create()
    await it.start()
    with shared.client() as other:
        (row,) = [each for each in other.sessions() if each.id == _nsm_id(it)]
        assert row.labels["owner"] == "openai-agents"
        assert row.labels["batch"] == "7"
        assert row.labels[LABEL] == str(it.state.session_id)
        other.kill_labelled({"owner": "openai-agents"})
    assert not await it.running()
    with pytest.raises(ExecTransportError):
        await it.exec("true")
    with pytest.raises(ExecTransportError):  # of the SDK's check of the path
        await it.write(Path("x"), io.BytesIO(b"x"))
    await client.delete(it)


async def test_closing_twice_and_using_it_then(shared: Supervisor) -> None:
    client = NsmSandboxClient()
    it = await client.create()
    await it.start()
    for _ in range(2):
        await it.aclose()
    for _ in range(2):
        await client.delete(it)
    with pytest.raises(ExecTransportError, match="closed"):
        await it.exec("true")
    await client.delete(await client.create())  # never started


async def test_many_at_once(shared: Supervisor) -> None:
    client = NsmSandboxClient(memory_mb=64)

    async def use(number: int, gate: asyncio.Semaphore) -> bytes:
        it = await client.create()
        async with gate, it:
            done = await it.exec(f"echo {number} >f; cat f")
            await client.delete(it)
            return done.stdout

    gate = asyncio.Semaphore(8)  # sessions that live at once
    results = await asyncio.gather(*(use(number, gate) for number in range(24)))
    assert results == [f"{number}\n".encode() for number in range(24)]


async def test_a_supervisor_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    with adapter_faults.own_supervisor(monkeypatch) as own:
        client = NsmSandboxClient()
        it = await client.create()
        await it.start()
        started = await it.pty_exec_start("cat", tty=True, yield_time_s=0)
        command = "touch begun; until [ -e go ]; do sleep 0.1; done; echo done"
        running = asyncio.create_task(it.exec(command))
        while not (await it.exec("test -e begun")).ok():
            pass
        adapter_faults.kill(own)
        await it.exec("touch go")
        assert (await running).stdout == b"done\n"
        update = await it.pty_write_stdin(session_id=started.process_id, chars="hi\n")
        output = update.output
        while b"hi" not in output:
            output += (await it.pty_write_stdin(session_id=started.process_id, chars="")).output
        await client.delete(it)


async def test_the_shell_tool(shared: Supervisor) -> None:
    async with NsmShellExecutor() as executor:
        call = ShellCallData(
            call_id="1",
            action=ShellActionRequest(
                ["echo 6 >f", "cat f; echo bad >&2; exit 3", "sleep 1000", "true"], timeout_ms=2000
            ),
        )
        result = await executor(ShellCommandRequest(ctx_wrapper=None, data=call))
        assert [each.exit_code for each in result.output] == [0, 3, None]
        assert (result.output[1].stdout, result.output[1].stderr) == ("6\n", "bad\n")
        assert result.output[2].status == "timeout"
        agent = Agent(name="worker", tools=[ShellTool(executor=executor)])
        shell_call = ResponseFunctionShellToolCall(
            id="2",
            call_id="2",
            type="shell_call",
            status="completed",
            action={"commands": ["cat f"]},
        )
        model = ScriptedModel([[shell_call], [assistant_message("done")]])
        config = RunConfig(model=model, tracing_disabled=True)
        assert (await Runner.run(agent, "go", run_config=config)).final_output == "done"
        assert "6" in str(model.last_call.input[-1])
    with pytest.raises(NsmError, match="closed"):
        await executor(ShellCommandRequest(ctx_wrapper=None, data=call))
