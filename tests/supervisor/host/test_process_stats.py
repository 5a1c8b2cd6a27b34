"""Memory and CPU time of a tree of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nsmd.host.processes import JailProcess, Usage, UsageReader, processes_of, usage_of
from processes import ending

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


def process(
    proc: Path,
    pid: int,
    *,
    resident: int = 0,
    shared: int = 0,
    ticks: Sequence[int] = (0, 0, 0, 0),
    children: Sequence[Sequence[int]] = ((),),
    name: str = "python3",
    parent: int = 1,
    faults: int = 10**6,
) -> None:
    """Put a process into a made-up /proc; `children` by thread, memory in pages."""
    base = proc / str(pid)
    base.mkdir()
    fields = ["S", str(parent), *["0"] * 5, str(faults // 2), "7", str(faults - faults // 2), "7"]
    fields += [*map(str, ticks), "20", "0", str(len(children)), *["0"] * 30]
    (base / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (base / "statm").write_text(f"999 {resident} {shared} 0 0 0 0\n")
    for thread, pids in enumerate(children):
        task = base / "task" / str(pid + thread)
        task.mkdir(parents=True)
        (task / "children").write_text(" ".join(map(str, pids)))


def test_a_tree_is_summed(tmp_path: Path) -> None:
    process(tmp_path, 10, resident=30, shared=10, ticks=(1, 2, 3, 4), children=[[11], [12]])
    process(tmp_path, 11, resident=5, shared=5, ticks=(100, 0, 0, 0), children=[[13]])
    process(tmp_path, 12, resident=7, shared=0)
    process(tmp_path, 13, resident=1, shared=0, ticks=(0, 50, 0, 0))
    process(tmp_path, 99, resident=1000, ticks=(9, 9, 9, 9))
    usage = usage_of([10], str(tmp_path))[10]
    assert usage.memory_bytes == (20 + 0 + 7 + 1) * PAGE
    assert usage.cpu_s == pytest.approx((10 + 100 + 50) / TICKS)
    assert usage.processes == 4


@pytest.mark.parametrize(
    ("resident", "faults", "told"),
    [
        (3700, 1000, 1000),  # shares most of what it was given
        (3700, 10**6, 3700),  # has used much and given it back: no more than there is
        (20_000, 1000, 16_300),  # huge pages: what its parent never had
        (80, 600, 80),  # has become another program
    ],
)
def test_memory_shared_with_a_template_is_not_counted(
    resident: int, faults: int, told: int, tmp_path: Path
) -> None:
    process(tmp_path, 5, resident=3700)
    process(tmp_path, 10, resident=resident, faults=faults, parent=5)
    assert usage_of([10], str(tmp_path))[10].memory_bytes == told * PAGE


def test_a_forked_process_takes_what_it_has_written() -> None:
    """The real kernel's counters, with the fork as the root."""
    program = (
        "import os, sys\n"
        "held = bytearray(b'x' * (64 << 20))\n"
        "sys.stdout.flush()\n"
        "if not os.fork():\n"
        "    held[: 8 << 20] = b'y' * (8 << 20)\n"
        "    print(os.getpid(), flush=True)\n"
        "    sys.stdin.read()\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    with ending(
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        usage = usage_of([child])[child]
        parent.communicate()
    assert 8 << 20 <= usage.memory_bytes < 40 << 20


def test_jails_that_have_not_run_are_not_measured_again() -> None:
    program = (
        "import sys\n"
        "for line in sys.stdin:\n    held = bytearray(int(line))\n    print('up', flush=True)\n"
    )
    reader = UsageReader()
    with ending(
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    ) as process:
        small = grown(reader, process, 1)
        assert reader.usage_of([process.pid])[process.pid] is small
        large = grown(reader, process, 32 << 20)
        assert large.memory_bytes > small.memory_bytes + (31 << 20)
        assert reader.usage_of([process.pid])[process.pid] is large
        process.send_signal(signal.SIGCONT)
        process.communicate()
    assert reader.usage_of([process.pid]) == {}


def grown(reader: UsageReader, process: subprocess.Popen[bytes], size: int) -> Usage:
    """Have a process take memory, stop it, and measure it."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.send_signal(signal.SIGCONT)
    process.stdin.write(b"%d\n" % size)
    process.stdin.flush()
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    return reader.usage_of([process.pid])[process.pid]


def in_jail(proc: Path, pid: int, inside: int, command: bytes = b"") -> None:
    """Write the kernel's facts about a process besides its figures."""
    (proc / str(pid) / "status").write_text(f"Name:\tx\nNSpid:\t{pid}\t7\t{inside}\nThreads:\t1\n")
    (proc / str(pid) / "cmdline").write_bytes(command)


def test_each_process_of_a_jail_is_told(tmp_path: Path) -> None:
    process(tmp_path, 10, resident=30, shared=10, ticks=(1, 2, 90, 90), children=[[12, 11]])
    process(tmp_path, 11, name="a) S (b", children=[[13]])
    process(tmp_path, 12, resident=7)
    process(tmp_path, 13)
    in_jail(tmp_path, 10, 1, b"python3\0-I\0\0")
    in_jail(tmp_path, 11, 2, b"\xff" * 9000)
    in_jail(tmp_path, 12, 3)
    found = processes_of(10, 100, str(tmp_path))
    assert found[0] == JailProcess(
        pid=10,
        inside=1,
        name="python3",
        command="python3 -I",
        state="S",
        memory_bytes=20 * PAGE,
        cpu_s=3 * (1 / TICKS),
        threads=1,
    )
    # 13 has no status any more: it went meanwhile.
    assert [(each.pid, each.inside) for each in found] == [(10, 1), (11, 2), (12, 3)]
    assert found[1].name == "a) S (b"
    assert 0 < len(found[1].command) <= 300
    assert [each.pid for each in processes_of(10, 2, str(tmp_path))] == [10, 11]
    assert processes_of(0, 9) == processes_of(99, 9, str(tmp_path)) == []
