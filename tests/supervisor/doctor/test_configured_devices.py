"""Rows about GPUs; the host and NVIDIA's library are made up."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fake_nvml import NVMLError, fake_nvml
from gpu_world import GpuWorld, nvidia_world
from nsm.checks import HostCheck
from nsmd.doctor.configured import check_devices
from nsmd.host.nvml import GpuReader, read_gpus
from nsmd.model.settings import EnvironmentSettings, Settings

GPU_ROW = {"number": 0, "processes": [(300, 1 << 30, 7)]}


def rows(world: GpuWorld, *devices: str, error: NVMLError | None = None) -> list[HostCheck]:
    settings = Settings(
        environments={
            "ml": EnvironmentSettings(preset="python", devices=devices),
            "plain": EnvironmentSettings(preset="python"),
        }
    )
    reader = GpuReader(partial(read_gpus, lambda: fake_nvml(GPU_ROW, init=error)))
    return list(check_devices(settings, world.host, reader))


def test_what_was_found(tmp_path: Path) -> None:
    world = nvidia_world(tmp_path)
    world.write("/usr/bin/gcc", "").chmod(0o755)
    environment, use, compiler = rows(world, "nvidia:0")
    assert (environment.name, environment.status) == ("ml", "ok")
    assert environment.detail == (
        "nvidia:0: /dev/nvidia-uvm, /dev/nvidia-uvm-tools, /dev/nvidia0, /dev/nvidiactl; the "
        "driver's libraries are in /opt/nvidia/lib64"
    )
    assert use.detail == "/dev/nvidia0: NVIDIA Test 0, 1024 of 81920 MiB in use"
    assert compiler.detail == "/usr/bin/gcc, for `torch.compile`"


def test_what_is_missing(tmp_path: Path) -> None:
    world = nvidia_world(tmp_path)
    _, use, compiler = rows(world, "nvidia", error=NVMLError(18))
    assert (use.status, "older module" in use.detail) == ("warn", True)
    assert "none in /usr/bin" in compiler.detail
    world.path("/dev/nvidia-uvm").unlink()
    (environment,) = rows(world, "nvidia")
    assert (environment.status, "no /dev/nvidia-uvm" in environment.detail) == ("warn", True)


def test_gpus_that_no_environment_has(tmp_path: Path) -> None:
    (row,) = rows(nvidia_world(tmp_path))
    assert (row.status, row.detail) == (
        "ok",
        "an NVIDIA GPU is here, and no environment has it (docs/how-to/images.md)",
    )
    assert rows(GpuWorld(tmp_path / "none")) == []
