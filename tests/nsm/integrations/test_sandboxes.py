"""Sandbox that adapters share, without a framework."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

import nsm
from e2e_support import end_supervisor, supervisor, variables_for
from nsm.client.shared_sandbox import BACKGROUND
from nsm.integrations.sandboxes import PIECE_CHARS, AdapterSandbox, merged_shell, python_code
from nsm.wire.errors import BadRequestError, UnknownSessionError
from processes import ending

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor

pytestmark = pytest.mark.jail


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[Supervisor]:
    with supervisor(tmp_path_factory.mktemp("s")) as it:
        yield it


@pytest.fixture
def sandbox(running: Supervisor) -> Generator[AdapterSandbox]:
    it = AdapterSandbox("test", socket_path=running.socket)
    yield it
    it.close()


def run(sandbox: AdapterSandbox, command: str) -> nsm.CommandResult:
    return sandbox.execute(["sh", "-c", command])


def labelled(running: Supervisor, framework: str) -> list[nsm.SessionRow]:
    with running.client() as client:
        return [row for row in client.sessions() if row.labels.get("owner") == framework]


@pytest.mark.parametrize("wait_s", [0.0, 30.0], ids=["started", "starting"])
def test_a_program_that_is_started_for_nobody_is_stopped(
    running: Supervisor, sandbox: AdapterSandbox, wait_s: float
) -> None:
    """The caller is cancelled while, or after, the program's start is answered."""

    async def main() -> None:
        await sandbox.execute_async(["mkfifo", "lives"])
        argv = ["sh", "-c", "exec 3<>lives; echo >&3; exec sleep 1000"]
        task = asyncio.create_task(sandbox.ado(sandbox.start, argv, wait_s=wait_s))
        await sandbox.execute_async(["head", "-c1", "lives"])
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if not task.cancelled():
            await sandbox.ado(sandbox.stop, task.result())

    asyncio.run(main())
    assert sandbox.session is not None
    with running.client() as client:
        for row in client.jobs(sandbox.session):
            assert not client.job(sandbox.session, row.id).wait(60).running, row


def test_a_long_command_runs_from_a_file_that_is_gone_then(sandbox: AdapterSandbox) -> None:
    command = f": {'x' * 10 * PIECE_CHARS}\necho done; ls /tmp; exit 5"
    done = sandbox.execute(merged_shell(command))
    assert (done.exit_code, done.stdout) == (5, b"done\n")


WAITS = "trap 'echo stopped >ended' EXIT; echo $$ >pid; while :; do sleep 0.1; done"
GONE = "while kill -0 $(cat pid) 2>/dev/null; do sleep 0.05; done"


def test_cancelling_in_trio_stops_the_program(sandbox: AdapterSandbox) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: sandbox.execute_async(["sh", "-c", WAITS]))
            wait = "while ! [ -s pid ]; do sleep 0.05; done"
            await sandbox.execute_async(["sh", "-c", wait])
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert run(sandbox, GONE).exit_code == 0


def test_a_hundred_programs_at_once(sandbox: AdapterSandbox) -> None:
    async def main() -> list[nsm.CommandResult]:
        programs = (["sh", "-c", f"echo {number}; cat"] for number in range(100))
        return await asyncio.gather(*(sandbox.execute_async(each) for each in programs))

    found = [int(each.stdout) for each in asyncio.run(main())]
    assert found == list(range(100))


def test_concurrent_first_calls_make_one_session(running: Supervisor) -> None:
    sandbox = AdapterSandbox("many", socket_path=running.socket)

    async def main() -> None:
        await asyncio.gather(*(sandbox.execute_async(["true"]) for _ in range(8)))

    asyncio.run(main())
    assert len(labelled(running, "many")) == 1
    sandbox.close()
    assert not labelled(running, "many")


def test_a_sandbox_under_asyncio_finds_the_next_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        for name, value in variables_for(Path(path)).items():
            monkeypatch.setenv(name, value)
        with supervisor(Path(path), keep=True) as it:

            async def main() -> None:
                sandbox = AdapterSandbox("test")
                await sandbox.execute_async(["true"])
                it.process.kill()
                it.process.wait()
                assert (await sandbox.execute_async(["sh", "-c", "exit 7"])).exit_code == 7
                await sandbox.aclose()

            asyncio.run(main())
        end_supervisor(it.socket)


def test_the_end_of_a_sandbox_starts_no_supervisor() -> None:
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        with supervisor(Path(path)) as it:
            sandbox = AdapterSandbox("late", socket_path=it.socket)
            run(sandbox, "true")
        sandbox.close()
        assert not Path(it.socket).exists()


def test_another_one_attaches_to_the_session(running: Supervisor, sandbox: AdapterSandbox) -> None:
    run(sandbox, "echo a >f")
    other = AdapterSandbox("test", session=sandbox.session, socket_path=running.socket)
    assert run(other, "cat f").stdout == b"a\n"
    sandbox.close()
    with pytest.raises(nsm.NsmError):
        run(other, "true")
    third = AdapterSandbox("test", session=sandbox.session, socket_path=running.socket)
    with pytest.raises(UnknownSessionError):
        run(third, "true")
    third.close()
    other.close()


@pytest.mark.parametrize(
    ("argv", "stdin", "code"),
    [
        (["python3", "-c", "x"], None, "x"),
        (["python", "-c", "x"], b"", "x"),
        (["python3", "-"], b"x", "x"),
        (["bash", "--login", "-c", "python3 -"], b"x", "x"),
        (["sh", "-c", "python3 -c 'print(\"$HOME\")'"], None, 'print("$HOME")'),
        (["sh", "-c", 'python3 -c "$HOME"'], None, None),
        (["sh", "-c", "python3 -c 'x'; ls"], None, None),
        (["sh", "-c", "python3 -c 'x"], None, None),
        (["sh", "-c", "python3 -c 'x y'", "sh"], None, None),
        (["python3", "-c", "x"], b"input", None),
        (["python3", "-c", "x", "word"], None, None),
        (["python3", "-I", "-c", "x"], None, None),
        (["python3", "-"], None, None),
        (["/bin/python3", "-c", "x"], None, None),
        ([], None, None),
    ],
)
def test_python_that_needs_nothing_but_its_code(
    argv: list[str], stdin: bytes | None, code: str | None
) -> None:
    assert python_code(argv, stdin) == code


def test_fresh_programs_share_a_session_until_more_is_done(running: Supervisor) -> None:
    look = ["python3", "-c", "import os; print(os.getcwd(), os.listdir('.')); open('left', 'w')"]

    def sandbox(**more: Any) -> AdapterSandbox:
        given = {"socket_path": running.socket, "labels": {"of": str(more)}, **more}
        return AdapterSandbox("grader", fresh=True, **given).open()

    made = [sandbox(), sandbox(), sandbox(environ={"A": "b"})]
    for each in made[:2] * 2:
        cwd, _, found = each.execute(look).stdout.decode().partition(" ")
        assert (cwd.rpartition("/")[0], found) == ("/workspace/.fresh", "[]\n")
        assert each.session is None
    assert (
        made[2].execute(["sh", "-c", "python3 -c 'import os; print(os.environ[\"A\"])'"]).stdout
        == b"b\n"
    )
    shared = labelled(running, "grader")
    assert len(shared) == 2  # for each kind of settings
    own, other, _ = made
    # A file, a directory, a variable or another program: each needs a session of its own.
    own.do(own.write, "given", b"")
    assert own.execute(look).stdout == b"/workspace ['given']\n"
    assert other.execute(look, cwd="/tmp").stdout.startswith(b"/tmp ")
    assert other.session not in {row.id for row in shared}
    for each in made:
        each.close()
        with pytest.raises(UnknownSessionError):
            each.execute(look)
    assert {row.id for row in labelled(running, "grader")} == {row.id for row in shared}


def test_ends_of_fresh_programs(running: Supervisor) -> None:
    sandbox = AdapterSandbox("ends", fresh=True, socket_path=running.socket)

    def end(code: str, **more: Any) -> nsm.CommandResult:
        return sandbox.execute(["python3", "-c", code], **more)

    done = end("import sys; print(1); 2; print('no', file=sys.stderr); sys.exit(3)")
    assert (done.exit_code, done.stdout, done.stderr, done.missing) == (3, b"1\n", b"no\n", 0)
    assert end("1/0").stderr.endswith(b"ZeroDivisionError: division by zero\n")
    late = end("while True: pass", timeout_s=0.3)
    assert (late.exit_code, late.timed_out) == (124, True)
    assert end("print('é' * 10**6)").missing > 10**6
    (shared,) = labelled(running, "ends")
    with running.client() as client:
        client.kill(shared.id)
    assert end("print(2)").stdout == b"2\n"
    (another,) = labelled(running, "ends")
    assert another.id != shared.id
    assert sandbox.session is None


def test_fresh_programs_need_an_environment_of_python(running: Supervisor) -> None:
    for _ in range(2):
        with pytest.raises(BadRequestError, match="'bash' is not one of Python"):
            AdapterSandbox("shells", fresh=True, env="bash", socket_path=running.socket).open()


def wait_ended(running: Supervisor, session: str) -> None:
    with running.client() as client, suppress(UnknownSessionError):
        client.logs(session, follow=True, on_entry=lambda _: None)


class Cycle:
    """An object that has itself, so that the collector takes it with all that it alone has."""

    def __init__(self, held: object) -> None:
        self.held = (self, held)


@pytest.mark.parametrize("collected", [False, True], ids=["last reference", "collector"])
def test_a_sandbox_that_nobody_closed_ends(running: Supervisor, collected: bool) -> None:
    sandbox = AdapterSandbox("forgotten", socket_path=running.socket)
    run(sandbox, "true")
    session = sandbox.session
    if collected:
        Cycle(sandbox)
    del sandbox
    gc.collect()
    assert session is not None
    wait_ended(running, session)
    assert not labelled(running, "forgotten")


KILLED = """
import os, signal, sys, nsm
from nsm.integrations.sandboxes import AdapterSandbox
made = [AdapterSandbox("killed"), nsm.SharedSandbox(owner="killed").open()]
made[0].open()
if not os.fork():
    print(flush=True)
    sys.stdin.read()
    os._exit(0)
signal.pause()
"""


def test_sessions_end_with_a_program_that_is_killed(running: Supervisor) -> None:
    """Also while a process that it has forked goes on."""
    with ending(
        subprocess.Popen(
            [sys.executable, "-P", "-c", KILLED],
            env=running.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    ) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"\n"
        rows = labelled(running, "killed")
        assert len(rows) == 2
        killed.kill()
        assert killed.wait() == -signal.SIGKILL
        for row in rows:
            wait_ended(running, row.id)


def test_a_sandbox_with_a_name_outlives_its_client(running: Supervisor) -> None:
    for sandbox in (
        AdapterSandbox("named", name="a", socket_path=running.socket),
        nsm.SharedSandbox(owner="named", name="b", socket_path=running.socket).open(),
    ):
        if isinstance(sandbox, AdapterSandbox):
            run(sandbox, "true")
        client = sandbox._client  # pyright: ignore[reportPrivateUsage]
        del sandbox
        BACKGROUND.blocking(client.aclose)
    rows = labelled(running, "named")
    assert {row.name for row in rows} == {"a", "b"}
    with running.client() as own:
        own.kill([row.id for row in rows])


PROGRAM = """
import nsm
from nsm.integrations.sandboxes import AdapterSandbox
left = [AdapterSandbox("left", keep=keep, lasting=keep > 1) for keep in (0, 0, 1, 2)]
for each in left:
    each.execute(["true"])
lasting, kept = left[3].session, left[2].session
del each, left
with nsm.Client(scope="left") as client:
    print(lasting, kept, *(row.id for row in client.sessions() if row.labels))
"""


def test_sessions_end_with_the_program_unless_they_are_kept(running: Supervisor) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=running.variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    (row,) = labelled(running, "left")
    lasting, kept, *before = done.stdout.split()
    assert row.id == lasting
    assert kept in before
    assert row.labels["pid"].isdigit()
    with running.client() as client:
        client.kill(row.id)
