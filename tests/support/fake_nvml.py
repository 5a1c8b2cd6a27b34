"""A stand-in for nvidia-ml-py with made-up GPUs. Its names and errors are the real module's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


class NVMLError(Exception):
    """Error of the library."""

    def __init__(self, value: int, text: str = "Unknown Error") -> None:
        super().__init__(text)
        self.value = value


def fake_nvml(
    *gpus: Mapping[str, Any],
    init: NVMLError | None = None,
    on_init: Callable[[], None] = lambda: None,
) -> SimpleNamespace:
    """Make the module.

    Args:
        gpus: of each `number`, `processes` (process id, bytes, percent), and `error` instead.
        init: error of nvmlInit.
        on_init: called by it.
    """
    opened: list[bool] = []

    def initialize() -> None:
        on_init()
        if init is not None:
            raise init
        opened.append(True)

    def handle(index: int) -> Mapping[str, Any]:
        assert opened, "nvmlInit comes first"
        if (error := gpus[index].get("error")) is not None:
            raise error
        return gpus[index]

    def processes(gpu: Mapping[str, Any]) -> Sequence[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size, _ in gpu["processes"]]

    def shares(gpu: Mapping[str, Any], since_us: int) -> Sequence[SimpleNamespace]:
        assert since_us > 1e15, "microseconds since 1970"
        if gpu.get("divided"):
            raise NVMLError(3, "Not Supported")
        found = [(pid, percent) for pid, _, percent in gpu["processes"] if percent is not None]
        if not found:
            raise NVMLError(6, "Not Found")
        return [SimpleNamespace(pid=pid, smUtil=percent) for pid, percent in found]

    def utilization(gpu: Mapping[str, Any]) -> SimpleNamespace:
        if gpu.get("divided"):
            raise NVMLError(3, "Not Supported")
        return SimpleNamespace(gpu=sum(percent or 0 for _, _, percent in gpu["processes"]))

    def number(gpu: Mapping[str, Any]) -> int:
        return int(gpu["number"])

    def name(gpu: Mapping[str, Any]) -> str:
        return f"NVIDIA Test {gpu['number']}"

    def memory(gpu: Mapping[str, Any]) -> SimpleNamespace:
        used = sum(int(size or 0) for _, size, _ in gpu["processes"])
        return SimpleNamespace(total=80 * GIB, used=used)

    def none(_: Mapping[str, Any]) -> Sequence[SimpleNamespace]:
        return ()

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_ERROR_DRIVER_NOT_LOADED=9,
        NVML_ERROR_LIBRARY_NOT_FOUND=12,
        NVML_ERROR_GPU_IS_LOST=15,
        NVML_ERROR_LIB_RM_VERSION_MISMATCH=18,
        nvmlInit=initialize,
        nvmlShutdown=opened.clear,
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetMinorNumber=number,
        nvmlDeviceGetName=name,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetComputeRunningProcesses=processes,
        nvmlDeviceGetGraphicsRunningProcesses=none,
        nvmlDeviceGetUtilizationRates=utilization,
        nvmlDeviceGetProcessUtilization=shares,
    )
