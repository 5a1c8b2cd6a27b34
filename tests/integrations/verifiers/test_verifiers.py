"""Runtime of verifiers, with the package itself, whose programs are in an image."""

# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes.subprocess import SubprocessConfig, SubprocessRuntime

import adapter_faults
import host_attacks
import nsm
from image_world import Layout, programs_layer, python_layer
from nsm.integrations.verifiers import NsmImageConfig, NsmImageRuntime, provision

if TYPE_CHECKING:
    from e2e_support import Supervisor

PROGRAMS = (
    "base64", "bash", "cat", "head", "mktemp", "rm", "sh", "sleep", "touch", "true", "wc",
)  # fmt: skip


@pytest.fixture(scope="module")
def image(shared: Supervisor) -> str:
    """An image with Python and a few of the host's programs."""
    layout = Layout(shared.directory / "images")
    layout.add([programs_layer(*PROGRAMS), python_layer()], Env=["PATH=/bin:/opt/python/bin"])
    return f"oci:{layout.place}"


def test_programs_and_files(shared: Supervisor, image: str) -> None:
    async def main() -> None:
        config = NsmImageConfig(image=image, workdir="/srv", memory=0.5)
        async with provision(config, name="mine", env={"TASK": "hello"}) as runtime:
            with nsm.Client() as client:
                (row,) = client.sessions()
            assert runtime.info.id == row.id
            assert row.labels["runtime"] == "mine"
            words = ["sh", "-c", 'echo "$PWD $TASK $MORE"; echo no >&2; exit 3']
            done = await runtime.run(words, {"MORE": "yes"})
            assert (done.exit_code, done.stdout, done.stderr) == (3, "/srv hello yes\n", "no\n")
            assert (await runtime.run(["no-such"], {})).exit_code == 127
            # As root, which is the session's own user, code writes anywhere in its copy.
            assert (await runtime.run(["touch", "/bin/new"], {})).exit_code == 0
            await runtime.write("deep/data", b"\xff\x00data")
            assert await runtime.read("/srv/deep/data") == b"\xff\x00data"
            assert await runtime.read("deep/data", max_bytes=6) == b"\xff\x00data"
            for path, limit in (("deep/data", 5), ("none", 5), ("none", None)):
                with pytest.raises(SandboxError):
                    await runtime.read(path, max_bytes=limit)
            assert await runtime.alive()
        assert runtime.stopped
        assert not await runtime.alive()
        with pytest.raises(SandboxError, match="closed"):
            await runtime.run(["true"], {})

    asyncio.run(main())
    with nsm.Client() as client:
        assert client.sessions() == []


def test_fresh_programs_of_all_runtimes(shared: Supervisor, image: str) -> None:
    program = "import os; print(os.getcwd()); assert not os.path.exists('left'); open('left', 'w')"

    async def grade() -> None:
        async with provision(NsmImageConfig(image=image, fresh=True)) as runtime:
            for _ in range(2):
                done = await runtime.run(["python3", "-c", program], {})
                assert (done.exit_code, done.stderr) == (0, "")
                assert done.stdout.startswith("/workspace/.fresh/")
            assert (await runtime.run(["python3", "-c", "1/0"], {})).exit_code == 1

    async def main() -> None:
        await asyncio.gather(*(grade() for _ in range(5)))
        with nsm.Client() as client:
            assert len(client.sessions()) == 1
        async with provision(NsmImageConfig(image=image, fresh=True)) as runtime:
            await runtime.write("/srv/given", b"for itself")
            words = ["python3", "-c", "print(open('/srv/given').read())"]
            assert (await runtime.run(words, {})).stdout == "for itself\n"

    asyncio.run(main())
    with nsm.Client() as client:
        client.kill([row.id for row in client.sessions()])


def test_a_live_process(shared: Supervisor, image: str) -> None:
    async def main() -> None:
        async with provision(NsmImageConfig(image=image)) as runtime:
            assert runtime.supports_live_processes
            words = ["sh", "-c", 'read line; echo "$line"; echo "no $line" >&2; exec sleep 1000']
            process = await runtime.open_process(words, {})
            await process.write(b"hello\n")
            streams = [anext(process.stdout), anext(process.stderr)]
            assert await asyncio.gather(*streams) == [b"hello\n", b"no hello\n"]
            assert await process.poll() is None
            await process.terminate()
            assert await process.wait() == 128 + 15
            assert [each async for each in process.stdout] == []
            assert await process.poll() == 128 + 15
            words = ["sh", "-c", "trap '' INT TERM; echo ready; exec sleep 1000"]
            other = await runtime.open_process(words, {})
            assert await anext(other.stdout) == b"ready\n"
            await other.kill()
            assert await other.wait() == 128 + 9

    asyncio.run(main())


def test_a_server_in_the_background(shared: Supervisor, image: str) -> None:
    server = (
        "import http.server as s, os, sys; print('serving', flush=True)\n"
        "it = s.ThreadingHTTPServer(('0.0.0.0', 8000), s.SimpleHTTPRequestHandler)\n"
        "os.close(os.open('up', os.O_CREAT))\n"
        "it.serve_forever()"
    )

    async def main() -> None:
        async with provision(NsmImageConfig(image=image, workdir="/srv")) as runtime:
            await runtime.run_background(["python3", "-c", server], {}, "log")
            await runtime.run(["sh", "-c", "until [ -e up ]; do sleep 0.05; done"], {})
            url = await runtime.expose(8000)

            def get() -> bytes:
                with urlopen(f"{url}/log") as answer:
                    return answer.read()

            assert (await asyncio.to_thread(get)).startswith(b"serving\n")

    asyncio.run(main())


def test_what_a_session_does_not_have(shared: Supervisor, image: str) -> None:
    with pytest.raises(ValueError, match="another user"):
        NsmImageRuntime(NsmImageConfig(image=image)).with_user("agent")
    for config in (NsmImageConfig(image=image, gpu="A100"), NsmImageConfig(image="oci:/none")):
        with pytest.raises(SandboxError):
            asyncio.run(NsmImageRuntime(config).start())
    with nsm.Client() as client:
        assert client.sessions() == []


class TestFaults(adapter_faults.AsyncFaults):
    owner = "verifiers"
    refusal = SandboxError

    @pytest.fixture(autouse=True)
    def use_image(self, image: str) -> None:
        self.image = image

    def open(self, **_: Any) -> NsmImageRuntime:
        """Make a runtime; there is no setting for its idle time."""
        runtime = NsmImageRuntime(NsmImageConfig(image=self.image, workdir="/srv"))
        asyncio.run(runtime.start())
        return runtime

    async def arun(self, box: NsmImageRuntime, command: str) -> str:
        return (await box.run(["bash", "-c", command], {})).stdout

    def attack_locally(self, target: host_attacks.Target) -> str:
        async def main() -> str:
            runtime = SubprocessRuntime(SubprocessConfig())
            await runtime.start()
            done = await runtime.run(target.argv, {})
            await runtime.stop()
            return done.stdout

        return asyncio.run(main())

    def run_for(self, box: NsmImageRuntime, command: str, seconds: float) -> None:
        """Cancel it, as verifiers does at a limit of its own."""

        async def run() -> None:
            await asyncio.wait_for(box.run(["bash", "-c", command], {}), seconds)

        with pytest.raises(TimeoutError):
            asyncio.run(run())

    def close(self, box: NsmImageRuntime) -> None:
        asyncio.run(box.stop())
