"""Sessions that a program makes for itself, and the sandbox that many parts of it share."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import nsm
from nsm.wire.errors import BadRequestError, UnknownSessionError

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor


def test_a_sandbox_from_its_beginning_to_its_end(client: nsm.Client) -> None:
    with client.sandbox(
        files={"in.txt": "6", "deep/er": b"x"},
        labels={"job": "7"},
        memory_mb=128,
        idle_s=60,
        environ={"FOO": "bar"},
        network="off",
    ) as box:
        code = "import os; print(int(open('in.txt').read()) * 7, os.environ['FOO'])"
        assert box.run(code).stdout == "42 bar\n"
        assert box.exec(["sh", "-c", "cat deep/er; echo $FOO"]).collect().stdout == b"xbar\n"
        assert box.files.read("in.txt") == b"6"
        found = client.inspect(box.id)
        assert found.session.labels == {"job": "7"}
        assert found.policy is not None
        assert found.policy["limits"]["memory_mb"] == 128
        assert found.lifetime is not None
        assert found.lifetime["idle_timeout_s"] == 60
    assert client.sessions() == []
    # Nothing is made under its name again.
    with pytest.raises(UnknownSessionError):
        box.run("1")
    with pytest.raises(UnknownSessionError):
        box.exec(["true"])
    assert client.sessions() == []


def test_the_end_of_the_block_is_its_end_whatever_happens(client: nsm.Client) -> None:
    with pytest.raises(ZeroDivisionError), client.sandbox():
        raise ZeroDivisionError
    with pytest.raises(nsm.NsmError), client.sandbox(files={"/usr/x": "1"}):
        pass
    assert client.sessions() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory_mb": 1_000_000},
        {"memory_mb": 1},
        {"idle_s": 1e9},
        {"idle_s": 0.0},
        {"labels": {"a b": "c"}},
        {"labels": {"a": "\n"}},
        {"labels": {"a": "x" * 201}},
        {"labels": {f"l{number}": "" for number in range(17)}},
        {"environ": {"A=": "c"}},
        {"environ": {"A": "x" * 200_000}},
    ],
)
def test_more_than_is_configured_is_refused(client: nsm.Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError), client.sandbox(**wrong):
        pass
    assert client.sessions() == []


def test_a_name_that_is_taken(client: nsm.Client) -> None:
    with client.sandbox(name="mine") as box:
        assert box.name == "mine"
        with (
            pytest.raises(BadRequestError, match="There is a session"),
            client.sandbox(name="mine"),
        ):
            pass
        assert box.run("print(1)").stdout == "1\n"


def test_labels_choose_sessions(shared: Supervisor, client: nsm.Client) -> None:
    for number in range(3):
        labels = {"job": str(number % 2), "owner": "me"}
        box = client.sandbox(env="bash", labels=labels)
        assert box.labels == labels
    listed = json.loads(shared.run("nsm", "ps", "--json", "--label", "job=0").stdout)
    assert [row["labels"] for row in listed] == [{"job": "0", "owner": "me"}] * 2
    chosen = ("--label", "job=0", "--label", "owner=you")
    assert json.loads(shared.run("nsm", "ps", "--json", *chosen).stdout) == []
    killed = json.loads(shared.run("nsm", "kill", "--json", "--label", "job=0").stdout)
    assert len(killed) == 2
    assert [row.labels["job"] for row in client.sessions()] == ["1"]
    assert len(client.kill_labelled({"owner": "me"}).killed) == 1
    assert shared.run("nsm", "ps", "--label", "wrong").returncode == 2


def test_sandboxes_with_variables_of_their_own_are_not_kept_ready(client: nsm.Client) -> None:
    kinds = len(client.pool().kinds)
    for number in range(3):
        with client.sandbox(environ={"SECRET": str(number)}) as box:
            assert box.run("import os; print(os.environ['SECRET'])").stdout == f"{number}\n"
    assert len(client.pool().kinds) <= kinds + 1


async def test_the_async_client(shared: Supervisor) -> None:
    async with shared.async_client() as client:
        async with client.sandbox(env="bash", files={"x": "1"}) as box:
            assert (await box.run("cat x")).stdout == "1"
            assert (await (await box.exec(["cat", "x"])).collect()).stdout == b"1"
            assert await box.files.read("x") == b"1"
        assert await client.sessions() == []


# A sandbox that is shared: from threads, from asyncio, cancelled and closed.

LARGE = b"x" * 3_000_000


@pytest.fixture
def sandbox(shared: Supervisor) -> Generator[nsm.SharedSandbox]:
    with nsm.SharedSandbox(owner="tester", socket_path=shared.socket) as it:
        yield it


def test_state_stays_and_threads_share_it(sandbox: nsm.SharedSandbox) -> None:
    sandbox.call(lambda box: box.run("n = 0"))

    def add(_: int) -> None:
        sandbox.call(lambda box: box.run("n += 1"))

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(add, range(20)))
    result = sandbox.call(lambda box: box.run("print(n)"))
    assert result.stdout == "20\n"


def test_programs_with_input_output_and_an_exit_code(sandbox: nsm.SharedSandbox) -> None:
    done = sandbox.execute(["sh", "-c", "wc -c; echo no >&2; exit 3"], stdin=LARGE)
    assert (done.stdout, done.stderr, done.exit_code) == (b"3000000\n", b"no\n", 3)
    assert sandbox.execute(["true"], stdin=LARGE).exit_code == 0
    echoed = sandbox.execute(["cat"], stdin=LARGE, max_bytes=1000)
    assert (len(echoed.output), echoed.missing) == (1000, len(LARGE) - 1000)


def test_a_program_at_its_time_limit(sandbox: nsm.SharedSandbox) -> None:
    done = sandbox.execute(["sleep", "1000"], timeout_s=0.1)
    assert (done.timed_out, done.exit_code) == (True, 124)


def test_output_is_told_as_it_comes(sandbox: nsm.SharedSandbox) -> None:
    told = bytearray()
    done = sandbox.execute(
        ["sh", "-c", "echo a; echo b >&2"], on_output=lambda c: told.extend(c.data)
    )
    assert bytes(told) == done.output
    assert sorted(done.output.split()) == [b"a", b"b"]


def jobs_that_run(sandbox: nsm.SharedSandbox, shared: Supervisor) -> list[tuple[str, ...]]:
    with shared.client() as client:
        return [job.argv for job in client.jobs(sandbox.id) if job.running]


@pytest.mark.parametrize("stdin", [b"", LARGE])
def test_an_error_of_who_takes_the_output_is_raised_as_it_is(
    sandbox: nsm.SharedSandbox, stdin: bytes
) -> None:
    def refuse(_: object) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        sandbox.execute(["sh", "-c", "echo a; exec sleep 1000"], stdin=stdin, on_output=refuse)


def test_cancelling_stops_the_program(sandbox: nsm.SharedSandbox, shared: Supervisor) -> None:
    async def main() -> None:
        printed = asyncio.Event()
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(
            sandbox.execute_async(
                ["sh", "-c", "echo here; exec sleep 1000"],
                on_output=lambda _: loop.call_soon_threadsafe(printed.set),
            )
        )
        await printed.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while jobs_that_run(sandbox, shared):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)

    asyncio.run(main())


def test_cancelling_at_once_leaves_no_program(
    sandbox: nsm.SharedSandbox, shared: Supervisor
) -> None:
    """The start may be under way: it is waited for, and what it started stopped."""

    async def main() -> None:
        for moments in range(20):
            task = asyncio.create_task(sandbox.execute_async(["sleep", f"100{moments}"]))
            for _ in range(moments):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        while jobs_that_run(sandbox, shared):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)

    asyncio.run(main())
    assert sandbox.execute(["echo", "still"]).stdout == b"still\n"


def test_cancelling_while_much_is_sent_keeps_the_connection(sandbox: nsm.SharedSandbox) -> None:
    async def main() -> None:
        for moments in range(20):
            tasks = [
                asyncio.create_task(sandbox.execute_async(["cat"], stdin=LARGE)) for _ in range(2)
            ]
            for _ in range(moments * 5):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert sandbox.execute(["echo", "still"]).stdout == b"still\n"


def test_cancelling_interrupts_code(sandbox: nsm.SharedSandbox) -> None:
    async def main() -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(
            sandbox.acall(
                lambda box: box.run(
                    "n = 1; print('begun', flush=True)\nwhile True: pass",
                    timeout_s=600,
                    on_output=lambda _stream, _text: loop.call_soon_threadsafe(begun.set),
                )
            )
        )
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        result = await sandbox.acall(lambda box: box.run("print(n)"))
        assert result.stdout == "1\n"

    asyncio.run(main())


def test_closing_twice_and_a_call_afterwards(shared: Supervisor, client: nsm.Client) -> None:
    sandbox = nsm.SharedSandbox(socket_path=shared.socket).open()
    sandbox.close()
    sandbox.close()
    with pytest.raises(nsm.NsmError, match="closed"):
        sandbox.execute(["true"])
    assert client.sessions() == []


def test_the_first_call_opens_a_sandbox(shared: Supervisor) -> None:
    sandbox = nsm.SharedSandbox(socket_path=shared.socket)
    with shared.client() as client:
        assert client.sessions() == []
    assert sandbox.execute(["echo", "made"]).stdout == b"made\n"
    sandbox.close()
    never = nsm.SharedSandbox(socket_path=shared.socket)
    never.close()
    with pytest.raises(nsm.NsmError, match="closed"):
        never.open()


def test_a_forked_process_is_refused_and_makes_its_own(
    sandbox: nsm.SharedSandbox, shared: Supervisor
) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(RuntimeError, match="forked"):
                sandbox.execute(["true"])
            with nsm.SharedSandbox(socket_path=shared.socket) as own:
                os.write(writer, own.execute(["echo", "own"]).stdout)
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        assert answer.read() == b"own\n"
    os.waitpid(child, 0)


@pytest.mark.slow
def test_a_loop_of_asyncio_is_not_blocked(shared: Supervisor) -> None:
    async def main() -> list[bytes]:
        async def one(number: int) -> bytes:
            async with nsm.SharedSandbox(socket_path=shared.socket) as own:
                return (await own.execute_async(["echo", str(number)])).stdout

        return await asyncio.gather(*map(one, range(10)))

    assert asyncio.run(main()) == [f"{number}\n".encode() for number in range(10)]
    assert [each.name for each in threading.enumerate()].count("nsm") <= 1
