"""Memory figures, from a made-up /proc and /sys, and from this host."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from nsmd.pool.memory import PRESSURE_PAUSE_S, HostMemory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KIB, MIB = 1 << 10, 1 << 20

MEMINFO = "MemTotal:       16384 kB\nMemFree:          1 kB\nMemAvailable:    8192 kB\n"


def host(root: Path, files: Mapping[str, str]) -> HostMemory:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return HostMemory(f"{root}/")


async def test_the_host_s_memory_and_its_pressure(tmp_path: Path) -> None:
    pressure = "some avg10=12.50 avg60=1.00 avg300=0.00 total=7\nfull avg10=3.00 total=1\n"
    seen = host(tmp_path, {"proc/meminfo": MEMINFO, "proc/pressure/memory": pressure}).seen()
    assert (seen.total_bytes, seen.available_bytes) == (16 * MIB, 8 * MIB)
    assert seen.pressure_percent == 12.5


async def test_the_tightest_control_group_counts(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:memory:/old\n0::/user.slice/app.service\n",
        "sys/fs/cgroup/user.slice/app.service/memory.max": "max\n",
        "sys/fs/cgroup/user.slice/memory.max": f"{6 * MIB}\n",
        "sys/fs/cgroup/user.slice/memory.current": f"{5 * MIB}\n",
    }
    seen = host(tmp_path, files).seen()
    assert (seen.total_bytes, seen.available_bytes) == (6 * MIB, 1 * MIB)


@pytest.mark.parametrize("meminfo", ["", "MemAvailable: many kB\n", "\0\n:::"])
async def test_unreadable_memory_figures_set_no_limit(tmp_path: Path, meminfo: str) -> None:
    seen = host(tmp_path, {"proc/meminfo": meminfo, "proc/pressure/memory": "some avg10=x"}).seen()
    assert seen.available_bytes is None
    assert seen.pressure_percent is None
    assert not seen.watched


async def test_a_jail_is_all_of_its_processes(tmp_path: Path) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    memory = host(
        tmp_path,
        {
            "proc/10/task/10/children": "11 12 ",
            "proc/10/statm": "900 700 200 0 0 0 0",  # an agent, whose share may not be read
            "proc/11/smaps_rollup": "Rss:  9000 kB\nPss:   3000 kB\nPss_Dirty: 1 kB\n",
            "proc/11/task/11/children": "10",  # no loop, whatever is written there
        },
    )
    assert memory.cost_of(10) == 500 * page + 3000 * KIB
    assert memory.cost_of(99) is None


async def test_memory_of_this_host_is_read() -> None:
    memory = HostMemory()
    seen = memory.seen()
    assert seen.available_bytes is not None
    assert 0 < seen.available_bytes <= seen.total_bytes
    own = await memory.cost_bytes(os.getpid())
    assert own is not None
    assert MIB < own < seen.total_bytes
    assert memory.seen() is seen  # for a second


async def test_the_kernel_s_call_is_told_and_not_too_often(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    """A trigger is a descriptor that polls as urgent; so is a socket with urgent data."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    with sender, receiver:

        def open_trigger(_memory: HostMemory) -> int:
            return os.dup(receiver.fileno())

        monkeypatch.setattr(HostMemory, "_open_trigger", open_trigger)
        memory, told = HostMemory(), trio.Event()
        times: list[float] = []

        def tell() -> None:
            times.append(trio.current_time())
            told.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(memory.watch, tell)
            await trio.testing.wait_all_tasks_blocked()
            assert times == []
            assert memory.seen().watched
            sender.send(b"!", socket.MSG_OOB)
            await told.wait()
            await trio.sleep(2.5 * PRESSURE_PAUSE_S)  # it stays urgent
            nursery.cancel_scope.cancel()
        assert [time - times[0] for time in times] == [0, PRESSURE_PAUSE_S, 2 * PRESSURE_PAUSE_S]


async def test_a_trigger_of_this_kernel_is_quiet_and_closed_again() -> None:
    before = set(os.listdir("/proc/self/fd"))
    memory = HostMemory()
    with trio.move_on_after(0.05) as scope:
        await memory.watch(lambda: None)
    if not scope.cancelled_caught:
        pytest.skip("not here: no pressure stall information for this user")
    assert set(os.listdir("/proc/self/fd")) <= before
