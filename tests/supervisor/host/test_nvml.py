"""Use of GPUs as NVIDIA's library tells it, here a made-up one."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from fake_nvml import GIB, NVMLError, fake_nvml
from nsmd.host.nvml import (
    HANGS,
    READ_TIMEOUT_S,
    GpuReader,
    GpuReading,
    GpuState,
    GpuUse,
    read_gpus,
    uses_below,
)
from processes import ending


def read(nvml: SimpleNamespace) -> GpuReading:
    return read_gpus(lambda: nvml)


def test_use_of_processes_on_all_gpus() -> None:
    nvml = fake_nvml(
        {"number": 1, "processes": [(300, 2 * GIB, 40), (301, GIB, None)]},
        {"number": 0, "processes": [(300, GIB, 5)]},
    )
    found = read(nvml)
    assert found.problem == ""
    assert found.gpus == (
        GpuState(
            number=1, name="NVIDIA Test 1", memory_bytes=80 * GIB, used_bytes=3 * GIB, percent=40
        ),
        GpuState(number=0, name="NVIDIA Test 0", memory_bytes=80 * GIB, used_bytes=GIB, percent=5),
    )
    assert found.processes == {
        300: GpuUse(memory_bytes=3 * GIB, percent=45),
        301: GpuUse(memory_bytes=GIB),
    }
    with pytest.raises(AssertionError):  # it was closed again: a driver can be upgraded
        nvml.nvmlDeviceGetHandleByIndex(0)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (9, "not loaded"),
        (12, "no libnvidia-ml.so.1"),
        (18, "were upgraded and the kernel still runs the older module"),
        (999, "NVIDIA's driver says 'Unknown Error'"),
    ],
)
def test_errors_say_what_to_do(code: int, told: str) -> None:
    assert told in read(fake_nvml(init=NVMLError(code))).problem


def test_a_gpu_that_falls_off_does_not_hide_the_others() -> None:
    found = read(
        fake_nvml(
            {"number": 0, "error": NVMLError(15, "GPU is lost"), "processes": []},
            {"number": 1, "processes": [(300, GIB, 1)]},
        )
    )
    assert found.gpus[0] == GpuState(
        number=0, problem="the GPU has fallen off its bus: restart the machine"
    )
    assert found.gpus[1].problem == ""
    assert found.processes[300].memory_bytes == GIB


async def test_a_driver_that_hangs_holds_up_nobody(autojump_clock: trio.testing.MockClock) -> None:
    go_on, answered = threading.Event(), GpuReading(gpus=(GpuState(number=0),))

    def hanging() -> GpuReading:
        assert go_on.wait(60)
        return answered

    reader = GpuReader(hanging)
    began_s = trio.current_time()
    assert (await reader.read()).problem == HANGS
    assert (await reader.read()).problem == HANGS  # no second thread waits
    assert trio.current_time() - began_s == 2 * READ_TIMEOUT_S
    go_on.set()


def test_a_session_is_all_below_its_first_process() -> None:
    """Processes of others, and those that are gone, belong to none."""
    shell = ["sh", "-c", "sleep 1000 & echo $!; wait"]
    with ending(
        subprocess.Popen(shell, stdout=subprocess.PIPE, text=True, start_new_session=True)
    ) as root:
        assert root.stdout is not None
        child = int(root.stdout.readline())
        used = {
            root.pid: GpuUse(memory_bytes=1, percent=10),
            child: GpuUse(memory_bytes=2),
            os.getpid(): GpuUse(memory_bytes=4),
            2**22 + 1: GpuUse(memory_bytes=8),
        }
        found = uses_below(GpuReading(processes=used), [root.pid, 2**22 + 2])
        os.killpg(root.pid, signal.SIGKILL)
    assert found == {root.pid: GpuUse(memory_bytes=3, percent=10)}
