"""Very many jobs, and very much output: what nsm's processes take stays bounded."""

from __future__ import annotations

import faulthandler
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

import nsm
from e2e_support import supervisor
from soak.load import scaled

if TYPE_CHECKING:
    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, pytest.mark.slow]

AT_ONCE = 200
AGENT_MB = 64
SUPERVISOR_MB = 160
"""Most memory that they may ever have had: the supervisor keeps 64 MB of transcripts at most."""

FLOOD_MB = 5 * 1024


def peak_mb(pid: int) -> int:
    """Largest resident memory of a process so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise AssertionError("a process has no memory")


def check_memory(it: Supervisor, session: str) -> None:
    with it.client() as client:
        agent = next(row.pid for row in client.sessions() if row.name == session)
    peaks = peak_mb(agent), peak_mb(it.pid)
    print(f"agent {peaks[0]} MB, supervisor {peaks[1]} MB")
    assert peaks[0] < AGENT_MB
    assert peaks[1] < SUPERVISOR_MB


def test_ten_thousand_short_programs_have_their_output_and_code() -> None:
    faulthandler.cancel_dump_traceback_later()  # pytest's; this takes its time
    count = scaled(10_000)

    async def run_all(it: Supervisor) -> None:
        limiter = trio.CapacityLimiter(AT_ONCE)

        async def run_one(client: nsm.AsyncClient, number: int) -> None:
            async with limiter:
                line = f"echo {number}; exit {number % 7}"
                job = await client.exec("many", ["sh", "-c", line], env="bash")
                result = await job.collect()
            assert result.stdout == b"%d\n" % number
            assert result.exit_code == number % 7

        async with it.async_client() as client, trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(run_one, client, number)

    with supervisor() as it:
        trio.run(run_all, it)
        check_memory(it, "many")
        with it.client() as client:
            assert not any(job.running for job in client.jobs("many"))
            client.kill_all()


def test_output_that_nobody_reads_is_bounded() -> None:
    faulthandler.cancel_dump_traceback_later()  # pytest's; this takes its time
    with supervisor() as it, it.client() as client:
        job = client.exec("flood", ["head", "-c", f"{FLOOD_MB}M", "/dev/zero"], env="bash")
        info = job.wait()
        assert (info.exit_code, info.output_bytes) == (0, FLOOD_MB << 20)
        used = client.exec("flood", ["df", "--output=used", "-BM", "/tmp"]).collect().stdout
        assert int(used.split()[1].removesuffix(b"M")) <= 65
        read = job.read()
        assert read.missing + len(read.data) <= FLOOD_MB << 20
        assert read.data
        check_memory(it, "flood")
        client.kill_all()
