"""Standard input of code in real sessions: through the clients, the command line, and restarts."""

from __future__ import annotations

import io
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
import trio

import nsm
from e2e_clients import Task, replaced
from e2e_support import COMMAND_TIMEOUT_S, program, run, supervisor
from nsm.wire.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from e2e_support import Supervisor

pytestmark = pytest.mark.jail

READ_ALL = {
    "python": "import sys; print(sys.stdin.read(), end='')",
    "bash": "cat",
    "node": "process.stdout.write(require('fs').readFileSync(0))",
}
NSM = ("nsm", "run")
LINE = b"one line of input\n"


def pieces(count: int) -> Iterator[bytes]:
    """Yield lines, one by one."""
    for _ in range(count):
        yield LINE


@pytest.mark.parametrize("env", READ_ALL)
def test_code_reads_what_its_call_brings(client: nsm.Client, env: str) -> None:
    for session in (None, "in"):
        assert client.run(READ_ALL[env], env=env, session=session, stdin=b"1 2").stdout == "1 2"
    assert client.run(READ_ALL[env], env=env, session="in").stdout == ""
    assert client.run(READ_ALL[env], env=env, session="in", stdin=b"").stdout == ""


def test_sources_of_input(client: nsm.Client, tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(300 * LINE)
    with client.sandbox(env="bash") as sandbox:
        with file.open("rb") as opened:
            assert sandbox.run("wc -l", stdin=opened).stdout == "300\n"
        assert sandbox.run("wc -l", stdin=io.BytesIO(300 * LINE)).stdout == "300\n"
        assert sandbox.run("wc -l", stdin=memoryview(LINE)).stdout == "1\n"
        assert sandbox.run("wc -l", stdin=pieces(300)).stdout == "300\n"
        assert sandbox.run("wc -c", stdin=[bytes(1_000_000)]).stdout == "1000000\n"
        with pytest.raises(BadRequestError, match="must be bytes, not str"):
            sandbox.run("cat", stdin="text")  # type: ignore[arg-type]
        with pytest.raises(BadRequestError, match="must be bytes, not int"):
            sandbox.run("cat", stdin=[b"ok", 3])  # type: ignore[list-item]


@pytest.mark.slow
def test_input_that_cannot_be_read(shared: Supervisor, tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as opened:
        with shared.client() as client, pytest.raises(BadRequestError, match="for writing only"):
            client.run("cat", env="bash", stdin=opened)

        async def main() -> None:
            async with shared.async_client() as client:
                with pytest.raises(BadRequestError, match="for writing only"):
                    await client.run("cat", env="bash", stdin=opened)

        trio.run(main)
        for command, why in [
            (("run", "-i", "-e", "bash", "cat"), "it is open for writing only"),
            (("exec", "work", "-e", "bash", "--", "cat"), "it is open for writing only"),
            (("run", "-e", "bash", "-"), "Bad file descriptor"),
        ]:
            done = subprocess.run(
                [program("nsm"), *command],
                env=shared.variables,
                stdin=opened,
                stderr=subprocess.PIPE,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 125
            assert why in done.stderr
            assert "Errno" not in done.stderr


def test_a_dialogue(client: nsm.Client) -> None:
    """Input comes from a thread, so it may depend on output."""
    said: queue.Queue[str] = queue.Queue()

    def answers() -> Iterator[bytes]:
        for _ in range(3):
            yield f"{int(said.get()) + 1}\n".encode()

    code = "n = 0\nfor _ in range(3):\n    print(n, flush=True)\n    n = int(input()) * 10\nn"
    result = client.run(
        code, env="python", stdin=answers(), on_output=lambda _, text: said.put(text)
    )
    assert (result.stdout, result.displays[0]["text/plain"]) == ("0\n10\n110\n", "1110")


def test_input_of_the_client_on_trio(shared: Supervisor) -> None:
    async def lines() -> AsyncIterator[bytes]:
        for each in pieces(100):
            await trio.lowlevel.checkpoint()
            yield each

    async def endless() -> AsyncIterator[bytes]:
        while True:
            await trio.lowlevel.checkpoint()
            yield bytes(100_000)

    async def broken() -> AsyncIterator[bytes]:
        yield LINE
        raise ValueError("the source")

    async def main() -> None:
        async with shared.async_client() as client, client.sandbox(env="bash") as sandbox:
            assert (await sandbox.run("wc -l", stdin=lines())).stdout == "100\n"
            assert (await sandbox.run("wc -l", stdin=pieces(9))).stdout == "9\n"
            assert (await sandbox.run("head -c 3 | wc -c", stdin=endless())).stdout == "3\n"
            with pytest.raises(ValueError, match="the source"):
                await sandbox.run("wc -l", stdin=broken())
            assert (await sandbox.run("wc -l")).stdout == "0\n"
            with trio.move_on_after(0.5) as scope:
                await sandbox.run("sleep 30", stdin=endless())
            assert scope.cancelled_caught

    trio.run(main)


def test_code_that_ends_early_and_a_source_that_fails(client: nsm.Client) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield bytes(100_000)

    def broken() -> Iterator[bytes]:
        yield LINE
        raise ValueError("the source")

    for session in (None, "early"):
        result = client.run("head -c 3 | wc -c", env="bash", session=session, stdin=endless())
        assert (result.stdout, result.notes) == ("3\n", ())
        with pytest.raises(ValueError, match="the source"):
            client.run("cat; touch end", env="bash", session=session, stdin=broken())
    assert client.run("ls", env="bash", session="early").stdout == ""


@pytest.mark.slow
def test_fifty_megabytes_through_the_command_line(shared: Supervisor, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(50_000_000))
    line = f"cat big | '{program('nsm')}' run -i -e bash 'wc -c'"
    done = subprocess.run(
        ["sh", "-c", line], env=shared.variables, cwd=tmp_path, capture_output=True, check=True
    )
    assert done.stdout == b"50000000\n"


def test_code_from_a_file_and_input_from_elsewhere(shared: Supervisor, tmp_path: Path) -> None:
    variables = shared.variables
    (tmp_path / "code.py").write_text("print(input()[::-1])\n")
    done = run(*NSM, "-i", "-f", str(tmp_path / "code.py"), variables=variables, stdin="abc\n")
    assert (done.stdout, done.returncode) == ("cba\n", 0)
    for wrong in ((), ("-",), ("-f", "-")):
        refused = run(*NSM, "-i", "-e", "bash", *wrong, variables=variables, stdin="echo hi")
        assert refused.returncode == 2
        assert "the code must come as an argument or with -f FILE" in refused.stderr
    unread = run(*NSM, "-e", "bash", "cat", variables=variables, stdin="abc\n")
    assert unread.stdout == ""
    assert "standard input was not read: `nsm run -i` gives it to the code" in unread.stderr


@pytest.mark.parametrize("env", ["python", pytest.param("bash", marks=pytest.mark.slow), "node"])
def test_ctrl_c_interrupts_code_that_waits_for_input(shared: Supervisor, env: str) -> None:
    code = {
        "python": "print('up', flush=True); input()",
        "bash": "echo up; read; echo not reached",
        "node": "console.log('up'); for await (const data of process.stdin) console.log('got');",
    }[env]
    with subprocess.Popen(
        [program("nsm"), "run", "-i", "-e", env, "-s", "waits", code],
        env=shared.variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert process.stdout.read() == b""
    assert run("nsm", "kill", "waits", variables=shared.variables).returncode == 0


def test_the_end_of_the_client_is_the_end_of_the_input(shared: Supervisor) -> None:
    program_ = (
        "import nsm, sys; nsm.Client(scope='test', autostart=False).run("
        "'import sys; print(1, flush=True); data = sys.stdin.read(); data', env='python', "
        "session='left', execution_id='left', stdin=sys.stdin.buffer, "
        "on_output=lambda _, text: print(text, flush=True))"
    )
    with (
        subprocess.Popen(
            [sys.executable, "-c", program_],
            env=shared.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process,
        shared.client() as client,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"a part")
        process.stdin.flush()
        assert process.stdout.readline() == b"1\n"
        client.run("1", env="python", session="other")
        process.kill()
        process.wait()
        result = client.result("left")
        assert result.displays[0]["text/plain"] in ("'a part'", "''")
        assert result.notes == (
            "the client that sent its standard input was gone before the end of that",
        )
        client.kill_all()


@pytest.mark.parametrize("session", [None, pytest.param("on", marks=pytest.mark.slow)])
def test_input_goes_on_when_the_supervisor_is_replaced(
    short_dir: Path, session: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSM_AUTOSTART", "0")  # the next supervisor is this test's to start
    sent = threading.Event()
    more = threading.Event()

    def source() -> Iterator[bytes]:
        yield from pieces(200)
        if session is None:
            time.sleep(2)  # a one-shot of less than a second ends with its supervisor
        sent.set()
        more.wait(60)
        yield from pieces(200)

    def call() -> nsm.RunResult:
        with nsm.Client(socket_path=first.socket, scope="test", autostart=False) as client:
            return client.run("wc -l", env="bash", session=session, stdin=source())

    with supervisor(short_dir) as first:
        task = Task(call)
        assert sent.wait(60)
        with replaced(first) as second:
            more.set()
            assert task.outcome().stdout == "400\n"
            with second.client() as other:
                other.kill_all()
