"""`nsm.SharedSandbox` with a real supervisor: from threads, from asyncio, cancelled and closed."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import nsm

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor

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
