"""Many sessions at once, in real jails: what they cost, and what happens where there is no room.

`tests/soak/test_thousand.py` does it with a thousand.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from e2e_clients import Mcp
from e2e_support import holder_pid, program, supervisor
from nsm.wire.errors import NsmError, SessionLimitError, StartFailedError
from nsmd.host.descriptors import share_out

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor

pytestmark = pytest.mark.jail

MOST = 30


async def open_sessions(it: Supervisor, names: list[str]) -> dict[str, NsmError]:
    """Ask for sessions all at once, each with a variable of its own; returns what failed."""
    failed: dict[str, NsmError] = {}

    async def ask(name: str) -> None:
        try:
            await client.run(f"mine = {name!r}", env="python", session=name)
        except NsmError as error:
            failed[name] = error

    async with it.async_client() as client, trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(ask, name)
    return failed


def assert_each_has_its_variable(it: Supervisor, names: list[str]) -> None:
    with it.client() as client:
        for name in names:
            assert client.run("print(mine)", env="python", session=name).stdout == f"{name}\n"


def descriptors(it: Supervisor) -> int:
    return len(os.listdir(f"/proc/{it.pid}/fd"))


@pytest.fixture(scope="module")
def limited() -> Generator[Supervisor]:
    """A supervisor for few sessions, without spares."""
    config = f"[session]\nmax_sessions = {MOST}\n[pool]\nmax_spares = 0\n"
    with supervisor(config=config) as it:
        yield it


async def test_more_at_once_than_there_may_be(limited: Supervisor) -> None:
    it = limited
    assert await open_sessions(it, ["first"]) == {}
    before = descriptors(it)
    names = [f"s{number}" for number in range(2 * MOST)]
    failed = await open_sessions(it, names)
    served = [name for name in names if name not in failed]
    assert len(served) == MOST - 1  # and the first
    assert all(isinstance(error, SessionLimitError) for error in failed.values())
    assert all("nsm kill" in error.hint for error in failed.values())
    assert_each_has_its_variable(it, ["first", *served])
    with it.client() as client:
        rows = client.sessions()
        assert {row.name for row in rows} == {"first", *served}
        assert all(row.memory_bytes and row.pid for row in rows)
        assert {row.state for row in rows} == {"idle"}
        if not any(row.cold_start for row in client.envs()):  # each is a fork
            assert descriptors(it) - before <= 2 * len(served) + 2
        report = client.kill_all()
    assert len(report.killed) == MOST
    assert report.errors == ()
    assert descriptors(it) <= before


@pytest.mark.slow
async def test_no_descriptor_for_another_jail_costs_that_jail_only(limited: Supervisor) -> None:
    """Starts fail halfway if the plan fails, and they are reported; nobody else notices."""
    it = limited
    assert await open_sessions(it, ["first"]) == {}
    usual = resource.prlimit(it.pid, resource.RLIMIT_NOFILE)
    room = descriptors(it) + 8
    resource.prlimit(it.pid, resource.RLIMIT_NOFILE, (room, usual[1]))
    try:
        names = [f"s{number}" for number in range(10)]
        failed = await open_sessions(it, names)
        served = [name for name in names if name not in failed]
        assert served
        assert failed
        assert {type(error) for error in failed.values()} == {StartFailedError}
        assert all("ulimit" in error.hint for error in failed.values())
        assert_each_has_its_variable(it, ["first", *served])
        with it.client() as client:
            client.kill(served[0])
        assert await open_sessions(it, [next(iter(failed))]) == {}
    finally:
        resource.prlimit(it.pid, resource.RLIMIT_NOFILE, usual)
    assert_each_has_its_variable(it, ["first", *served[1:]])


async def test_few_descriptors_are_a_limit_that_is_told(short_dir: Path) -> None:
    """Sessions are refused before anybody misses a descriptor."""
    with supervisor(short_dir, config="[pool]\nmax_spares = 1\n", limits="-n 240") as it:
        names = [f"s{number}" for number in range(20)]
        failed = await open_sessions(it, names)
        served = [name for name in names if name not in failed]
        assert len(served) == share_out(240).sessions - 1
        assert all(isinstance(error, SessionLimitError) for error in failed.values())
        assert all("ulimit -Hn" in error.hint for error in failed.values())
        assert_each_has_its_variable(it, served)


@pytest.mark.slow
def test_fifty_one_shots_at_once_where_ten_sessions_may_be() -> None:
    answers: dict[int, str] = {}

    async def burst() -> None:
        async def one(number: int) -> None:
            result = await client.run(f"echo {number}; ls /workspace", env="bash")
            answers[number] = result.stdout

        async with it.async_client() as client, trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(one, number)

    with supervisor(config="[session]\nmax_sessions = 10\n") as it:
        trio.run(burst)
        assert answers == {number: f"{number}\n" for number in range(50)}
        with it.client() as client:
            (kind,) = client.pool().kinds
            # The first ten; the others waited for their turn.
            assert (kind.env, kind.hits + kind.misses) == ("bash", 10)
            assert kind.wanted > 2
            assert kind.memory_bytes is None or kind.memory_bytes > 100_000


@pytest.mark.slow
@pytest.mark.parametrize("soft", [1024, 256])
def test_a_soft_limit_of_a_desktop_is_enough(short_dir: Path, soft: int) -> None:
    """The supervisor and its holder raise it to the hard limit; nsm and nsm-mcp live with it."""
    with supervisor(short_dir, limits=f"-Sn {soft}") as it:
        limited = ["/bin/sh", "-c", f'ulimit -Sn {soft} && exec "$@"', "sh"]
        ran = subprocess.run(
            [*limited, program("nsm"), "run", "-e", "python", "-s", "kept", "print(6 * 7)"],
            env=it.variables,
            cwd=short_dir,
            capture_output=True,
            timeout=60,
            check=True,
        )
        assert ran.stdout == b"42\n"
        with ExitStack() as stack:
            mcp = Mcp(it, stack, command=[*limited, program("nsm-mcp")])
            mcp.run("print('it is', 6 * 7)", 1)
            assert mcp.text().startswith("it is 42")
            mcp.end()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            holder = holder_pid(link, it.directory)
        for pid in (it.pid, holder):
            now, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            assert now == hard > soft
