"""Memory and use of NVIDIA's GPUs, by its management library (NVML).

nvidia-ml-py, of the extra `nsm-sessions[gpu]`, is imported when somebody asks. The library is
opened for each reading and closed after it: a driver can be upgraded only while nobody has its
devices open.
"""

from __future__ import annotations

import importlib
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import trio

from nsm.dataclass import dataclass, field
from nsmd.host.processes import read_process

MODULE = "pynvml"

MISSING = "nvidia-ml-py is missing: install nsm-sessions[gpu]"

READ_TIMEOUT_S = 3.0
"""Time for one reading, which takes some 20 ms. A driver may hang if a GPU falls off its bus."""

HANGS = (
    f"the driver has not answered for {READ_TIMEOUT_S:g} s; a GPU may have fallen off its bus "
    "(`sudo dmesg | grep -i nvrm`)"
)

_SAMPLE_US = 1_000_000
"""Use is that of the last second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Use of GPUs by a process, or by all processes of a session.

    Attributes:
        percent: share of their time in the last second, of one GPU at most 100; None likewise.
    """

    memory_bytes: int | None = None
    percent: int | None = None

    def plus(self, other: GpuUse) -> GpuUse:
        """Return the sum, in which an unknown part counts as nothing."""
        return GpuUse(
            memory_bytes=_sum(self.memory_bytes, other.memory_bytes),
            percent=_sum(self.percent, other.percent),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU.

    Attributes:
        number: that of /dev/nvidiaNUMBER.
        memory_bytes, used_bytes, percent: of all programs of the machine; None if unknown.
        problem: why it cannot be read; empty if it can.
    """

    number: int
    name: str = ""
    memory_bytes: int | None = None
    used_bytes: int | None = None
    percent: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """All GPUs at one moment.

    Attributes:
        processes: use by process id on the host.
        problem: why nothing could be read; empty if something could.
    """

    gpus: tuple[GpuState, ...] = ()
    processes: Mapping[int, GpuUse] = field(default_factory=dict[int, GpuUse])
    problem: str = ""


def load_nvml() -> Any:
    """Import nvidia-ml-py. Raises `ImportError`."""
    return importlib.import_module(MODULE)


def read_gpus(load: Callable[[], Any] = load_nvml) -> GpuReading:
    """Read all GPUs. Blocks; the first time takes 0.2 s more."""
    try:
        nvml = load()
    except ImportError:
        return GpuReading(problem=MISSING)
    try:
        with _opened(nvml):
            uses: defaultdict[int, GpuUse] = defaultdict(GpuUse)
            gpus = [_read_gpu(nvml, index, uses) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        return GpuReading(problem=_explained(nvml, error))
    return GpuReading(gpus=tuple(gpus), processes=uses)


class GpuReader:
    """Reader of GPUs that never waits for a driver that hangs."""

    def __init__(self, read: Callable[[], GpuReading] = read_gpus) -> None:
        self._read = read
        self._limiter = trio.CapacityLimiter(1)

    async def read(self) -> GpuReading:
        """Read all GPUs. While the driver hangs, only one thread waits for it."""
        if self._limiter.available_tokens < 1:
            # Others may be reading, which takes a moment.
            with trio.move_on_after(READ_TIMEOUT_S):
                async with self._limiter:
                    pass
        if self._limiter.available_tokens < 1:
            return GpuReading(problem=HANGS)
        with trio.move_on_after(READ_TIMEOUT_S):
            return await trio.to_thread.run_sync(
                self._read, abandon_on_cancel=True, limiter=self._limiter
            )
        return GpuReading(problem=HANGS)


def uses_below(reading: GpuReading, roots: Sequence[int], proc: str = "/proc") -> dict[int, GpuUse]:
    """Sum up the use of all processes at or below some others: the first processes of jails."""
    wanted = set(roots)
    sums: dict[int, GpuUse] = {}
    for pid, use in reading.processes.items():
        root = _root_of(pid, wanted, proc)
        if root is not None:
            sums[root] = sums[root].plus(use) if root in sums else use
    return sums


def _root_of(pid: int, wanted: set[int], proc: str) -> int | None:
    while pid > 1:
        if pid in wanted:
            return pid
        process = read_process(pid, proc)
        if process is None:
            return None
        pid = process.parent
    return None


@contextmanager
def _opened(nvml: Any) -> Generator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _read_gpu(nvml: Any, index: int, uses: defaultdict[int, GpuUse]) -> GpuState:
    """Read one GPU, and add the use of its processes."""
    number = index
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        number = int(nvml.nvmlDeviceGetMinorNumber(handle))
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        name = nvml.nvmlDeviceGetName(handle)
        for function in (
            nvml.nvmlDeviceGetComputeRunningProcesses,
            nvml.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            for process in function(handle):
                uses[process.pid] = uses[process.pid].plus(
                    GpuUse(memory_bytes=process.usedGpuMemory)
                )
    except nvml.NVMLError as error:
        return GpuState(number=number, problem=_explained(nvml, error))
    percent = None
    # A GPU that is divided says neither.
    with suppress(nvml.NVMLError):
        percent = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    with suppress(nvml.NVMLError):
        since_us = int(time.time() * 1e6) - _SAMPLE_US
        latest: dict[int, int] = {}
        for sample in nvml.nvmlDeviceGetProcessUtilization(handle, since_us):
            latest[sample.pid] = int(sample.smUtil)
        for pid, share in latest.items():
            uses[pid] = uses[pid].plus(GpuUse(percent=share))
    return GpuState(
        number=number,
        name=name if isinstance(name, str) else name.decode(errors="replace"),
        memory_bytes=int(memory.total),
        used_bytes=int(memory.used),
        percent=percent,
    )


def _explained(nvml: Any, error: Exception) -> str:
    """Say what an error of the library means, and what to do."""
    code: object = getattr(error, "value", None)
    if code == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return (
            "the driver's libraries were upgraded and the kernel still runs the older module: "
            "restart the machine, or unload the module while nobody uses a GPU"
        )
    if code == nvml.NVML_ERROR_GPU_IS_LOST:
        return "the GPU has fallen off its bus: restart the machine"
    if code == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "there is no libnvidia-ml.so.1: install the driver's libraries"
    if code == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return "NVIDIA's driver is not loaded (`sudo modprobe nvidia`)"
    return f"NVIDIA's driver says {str(error)!r:.200}"


def _sum(one: int | None, other: int | None) -> int | None:
    known = [number for number in (one, other) if number is not None]
    return sum(known) if known else None
