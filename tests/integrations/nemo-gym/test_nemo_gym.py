"""Sandbox provider of NeMo Gym, with the package itself, whose sandboxes use it."""

# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from nemo_gym.sandbox import AsyncSandbox, Sandbox, SandboxSpec
from nemo_gym.sandbox.providers import list_providers
from nemo_gym.sandbox.providers.base import SandboxCreateError, SandboxStatus

import adapter_faults
import nsm
from image_world import Layout, programs_layer

if TYPE_CHECKING:
    from e2e_support import Supervisor

PROGRAMS = ("cat", "sh", "sleep", "touch")
"""Programs of the image, with no Bash among them."""


@pytest.fixture(scope="module")
def image(shared: Supervisor) -> str:
    """An image with a few of the host's programs."""
    layout = Layout(shared.directory / "images")
    layout.add([programs_layer(*PROGRAMS)], Env=["PATH=/bin"])
    return f"oci:{layout.place}"


def test_a_task_in_its_image(shared: Supervisor, image: str, tmp_path: Path) -> None:
    """NeMo Gym finds the provider by its name."""
    assert "nsm" in list_providers()
    spec = SandboxSpec(
        image=image,
        workdir="/srv",
        env={"TASK": "hello"},
        files={"/srv/deep/given.txt": "of the task"},
        metadata={"batch": "7"},
        resources={"memory_mib": 512},
    )

    async def main() -> None:
        async with AsyncSandbox({"nsm": {"labels": {"of": "provider"}}}) as sandbox:
            await sandbox.start(spec)
            with nsm.Client() as client:
                (row,) = client.sessions()
            assert (row.labels["of"], row.labels["batch"]) == ("provider", "7")
            command = 'echo "$PWD $TASK $MORE"; cat deep/given.txt; echo no >&2; exit 3'
            done = await sandbox.exec(command, env={"MORE": "yes"})
            assert (done.stdout, done.stderr) == ("/srv hello yes\nof the task", "no\n")
            assert (done.return_code, done.error_type) == (3, None)
            # As root, which is the session's own user, code writes anywhere in its copy.
            assert (await sandbox.exec("touch /bin/new", user="root")).return_code == 0
            (tmp_path / "up").write_bytes(b"\xff\x00up")
            await sandbox.upload(tmp_path / "up", "/other/place/up")
            await sandbox.download("/other/place/up", tmp_path / "out" / "down")
            assert (tmp_path / "out" / "down").read_bytes() == b"\xff\x00up"
            assert await sandbox.status() is SandboxStatus.RUNNING
        assert await sandbox.status() is SandboxStatus.STOPPED

    asyncio.run(main())
    with nsm.Client() as client:
        assert client.sessions() == []


def test_fresh_programs_of_all_sandboxes(shared: Supervisor) -> None:
    provider = {"nsm": {"env": "python", "fresh": True}}
    program = "import os; print(os.getcwd()); assert not os.path.exists('left'); open('left', 'w')"

    async def main() -> None:
        for number in range(3):
            async with AsyncSandbox(provider) as sandbox:
                await sandbox.start(SandboxSpec(metadata={"number": str(number)}))
                done = await sandbox.exec(shlex.join(["python3", "-c", program]))
                assert (done.return_code, done.stderr) == (0, "")
                assert (done.stdout or "").startswith("/workspace/.fresh/")
                late = await sandbox.exec("python3 -c 'while True: pass'", timeout_s=0.5)
                assert late.error_type == "timeout"
                assert await sandbox.status() is SandboxStatus.RUNNING
        with nsm.Client() as client:
            assert len(client.sessions()) == 1
        async with AsyncSandbox(provider) as sandbox:
            await sandbox.start(SandboxSpec(files={"/workspace/given": "for itself"}))
            assert (await sandbox.exec("python3 -c 'print(open(\"given\").read())'")).stdout == (
                "for itself\n"
            )

    asyncio.run(main())
    with nsm.Client() as client:
        client.kill([row.id for row in client.sessions()])
    with pytest.raises(SandboxCreateError, match="not one of Python"):
        asyncio.run(AsyncSandbox({"nsm": {"env": "bash", "fresh": True}}).start(SandboxSpec()))
    with nsm.Client() as client:
        client.kill([row.id for row in client.sessions()])


def test_errors_of_commands_and_a_session_that_is_ended(shared: Supervisor, image: str) -> None:
    with Sandbox({"nsm": {}}, SandboxSpec(image=image)) as sandbox:
        sandbox.start()
        late = sandbox.exec("sleep 1000", timeout_s=1)
        assert (late.return_code, late.error_type) == (125, "timeout")
        assert "stopped after 1 s" in (late.stderr or "")
        other = sandbox.exec("true", user="agent")
        assert (other.return_code, other.error_type) == (125, "sandbox")
        assert "one user" in (other.stderr or "")
        with nsm.Client() as client:
            client.kill([row.id for row in client.sessions()])
        assert sandbox.status() is SandboxStatus.STOPPED
        assert sandbox.exec("true").error_type == "sandbox"


def test_what_a_session_does_not_have(shared: Supervisor, image: str) -> None:
    for spec in (
        SandboxSpec(image=image, resources={"gpu": 1}),
        SandboxSpec(image="oci:/none"),
        SandboxSpec(image=image, files={"/bin/sh/file": "no directory"}),
    ):
        with pytest.raises((SandboxCreateError, OSError)):
            asyncio.run(AsyncSandbox({"nsm": {}}).start(spec))
    with nsm.Client() as client:
        assert client.sessions() == []


class TestFaults(adapter_faults.AsyncFaults):
    """The shared faults, in an environment that has no image."""

    owner = "nemo-gym"
    refusal = SandboxCreateError

    def open(self, **settings: Any) -> AsyncSandbox:
        sandbox = AsyncSandbox({"nsm": {"env": "python", **settings}}, SandboxSpec())
        return asyncio.run(sandbox.start())

    async def arun(self, box: AsyncSandbox, command: str) -> str:
        return (await box.exec(command)).stdout or ""

    def run_for(self, box: AsyncSandbox, command: str, seconds: float) -> None:
        assert asyncio.run(box.exec(command, timeout_s=seconds)).error_type == "timeout"

    def close(self, box: AsyncSandbox) -> None:
        asyncio.run(box.stop())
