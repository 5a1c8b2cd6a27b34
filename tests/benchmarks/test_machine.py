"""Usage and cores, as the kernel tells them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import machine

MEGABYTES = 32
FORK = f"""
import os
if os.fork():
    os._exit(0)  # and nobody of ours waits for the other
memory = bytearray({MEGABYTES} << 20)
os.write(1, b".")
"""


@pytest.fixture
def counters() -> machine.Counters:
    try:
        return machine.Counters()
    except machine.CountersMissingError as error:
        pytest.skip(str(error))


def test_processes_that_nobody_waits_for_are_counted(counters: machine.Counters) -> None:
    with counters:
        before = counters.usage()
        ran = subprocess.run([sys.executable, "-c", FORK], stdout=subprocess.PIPE, check=True)
        after = counters.usage()
    assert ran.stdout == b"."
    used = after - before
    assert used.faults >= (MEGABYTES << 20) / os.sysconf("SC_PAGE_SIZE")
    assert used.cpu_s > 0


def test_the_whole_machine_uses_more_than_we_do() -> None:
    before = machine.usage_of_machine()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    assert (machine.usage_of_machine() - before).faults > 0


def test_threads_have_processor_time_each() -> None:
    assert machine.threads_cpu_s([os.getpid()])[os.getpid()] >= 0


def test_processes_that_start_on_some_cores_stay_there() -> None:
    usual = os.sched_getaffinity(0)
    ask = [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"]
    with machine.on_cores(1):
        assert subprocess.check_output(ask) == b"1\n"
    assert os.sched_getaffinity(0) == usual


def test_the_machine_is_named() -> None:
    here = str(machine.machine())
    assert here.startswith(f"{machine.cores()} cores of ")
    assert sys.version.split()[0] in here
