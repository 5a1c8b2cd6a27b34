"""Clients carry on when their supervisor is killed: each call is answered, once, by the next."""

from __future__ import annotations

import io
import os
import subprocess
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import trio

import nsm
from e2e_clients import Mcp, Task, replaced
from e2e_support import END_TIMEOUT_S, program, supervisor
from nsm.wire.errors import FateUnknownError, ShuttingDownError

if TYPE_CHECKING:
    from pathlib import Path

    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, pytest.mark.usefixtures("no_autostart")]

CODE = """\
import os, time
print('up', flush=True)
while not os.path.exists('/workspace/go'):
    time.sleep(0.01)
n = n + 1
print(n)
"""


async def on_trio(it: Supervisor, begun: threading.Barrier) -> tuple[str, str]:
    """Two calls at once."""
    told: dict[str, str] = {}
    both = trio.Event()
    seen: set[str] = set()

    async def run(client: nsm.AsyncClient, name: str) -> None:
        def note(_stream: str, _text: str) -> None:
            seen.add(name)
            if len(seen) == 2:
                both.set()

        told[name] = (await client.run(CODE, env="python", session=name, on_output=note)).stdout

    async with (
        nsm.AsyncClient(socket_path=it.socket, scope="test", autostart=False) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(run, client, "b")
        nursery.start_soon(run, client, "c")
        await both.wait()
        await trio.to_thread.run_sync(begun.wait)
    return told["b"], told["c"]


def test_every_kind_of_client_gets_its_answer_once(short_dir: Path) -> None:
    names = ("a", "b", "c")
    begun = threading.Barrier(3)
    with ExitStack() as stack:
        first = stack.enter_context(supervisor(short_dir))
        with first.client() as client:
            for name in names:
                client.run("n = 0", env="python", session=name)
        mcp = Mcp(first, stack)
        mcp.run("n = 0", 1)
        mcp.answer()

        def blocking() -> str:
            waited: list[int] = []

            def note(_stream: str, _text: str) -> None:
                if not waited:
                    waited.append(begun.wait())

            with first.client() as client:
                return client.run(CODE, env="python", session="a", on_output=note).stdout

        tasks = [Task(blocking), Task(lambda: trio.run(on_trio, first, begun))]
        mcp.run(CODE, 2)
        mcp.run("n = 0\n" + CODE, 3, session="t")  # to be taken back
        while len(mcp.tokens) < 2:
            mcp.next()
        nsm_run = stack.enter_context(
            subprocess.Popen(
                [program("nsm"), "run", "-e", "python", "-s", "d", "n = 0\n" + CODE],
                env=first.variables | {"NSM_AUTOSTART": "0"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd="/",
            )
        )
        assert nsm_run.stdout is not None
        assert nsm_run.stderr is not None
        assert nsm_run.stdout.readline() == "up\n", nsm_run.stderr.read()
        logs = stack.enter_context(
            subprocess.Popen(
                [program("nsm"), "logs", "-f", "test/a"],
                env=first.variables | {"NSM_AUTOSTART": "0"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
        assert logs.stdout is not None
        while logs.stdout.readline() != "  up\n":
            pass
        begun.wait(60)
        with replaced(first) as it, it.client() as client:
            rows = client.sessions()
            assert {row.state for row in rows} <= {"running", "idle"}
            for row in rows:
                if row.name == "t":
                    continue
                client.files(row.id).write_from("/workspace/go", io.BytesIO().read)
            assert tasks[0].outcome() == "up\n1\n"
            assert tasks[1].outcome() == ("up\n1\n", "up\n1\n")
            mcp.send("notifications/cancelled", {"requestId": 3})
            assert mcp.text().split() == ["up", "1"]
            assert nsm_run.stdout.read() == "1\n"
            assert "the supervisor was replaced" in nsm_run.stderr.read()
            for name in names:
                assert client.run("print(n)", env="python", session=name).stdout == "1\n"
            mcp.run("print(n)", 4)
            assert mcp.text().split() == ["1", "[exit", "code", "0]"]
            mcp.run("print('interrupted', n)", 5, session="t")
            assert mcp.text() == "interrupted 0"
            mcp.end()
            assert [answer["id"] for answer in mcp.answers] == [0, 1, 2, 4, 5]
            for token in mcp.tokens:
                reported = [seconds for each, seconds in mcp.progress if each == token]
                assert reported == sorted(set(reported))
            client.kill_all()
            told = logs.stdout.read()
            assert told.count("  1\n") == 2  # what ran meanwhile, and what asked for it


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a", None], ids=["session", "one-shot"])
def test_code_of_unknown_fate_is_not_run_a_second_time(short_dir: Path, name: str | None) -> None:
    """The session dies with its supervisor, and so does whatever could tell."""
    with supervisor(short_dir) as first:
        up = threading.Event()
        with first.client() as client:
            client.run("pass", env="python")  # the next one starts at once

        def work() -> object:
            with first.client() as client:
                return client.run(
                    "n = 0\n" + CODE,
                    env="python",
                    session=name,
                    on_output=lambda _stream, _text: up.set(),
                )

        task = Task(work)
        assert up.wait(60)
        with first.client() as client:
            pids = [row.pid for row in client.sessions() if row.name is not None]
        first.process.send_signal(19)  # it must not see the session go
        for pid in pids:
            os.kill(pid, 9)
        with replaced(first) as it, it.client() as client:
            told = task.outcome()
            assert isinstance(told, FateUnknownError), told
            assert "is unknown" in str(told)
            assert client.sessions() == []


@pytest.mark.slow
def test_nobody_replaces_a_supervisor_that_was_told_to_end(short_dir: Path) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(supervisor(short_dir))
        mcp = Mcp(first, stack)
        mcp.run("n = 0\n" + CODE, 1)
        up = threading.Event()

        def work() -> object:
            with nsm.Client(socket_path=first.socket, scope="test") as client:
                return client.run(
                    "n = 0\n" + CODE,
                    env="python",
                    session="a",
                    on_output=lambda _stream, _text: up.set(),
                )

        task = Task(work)
        while not mcp.progress:
            mcp.next()
        assert up.wait(60)
        with first.client() as client:
            client.shutdown()
        assert first.process.wait(END_TIMEOUT_S) == 0
        told = task.outcome()
        assert isinstance(told, ShuttingDownError), told
        assert "is unknown" in mcp.text()
        mcp.end()
        assert not (short_dir / "control.sock").exists()
