"""Devices and images that a valid configuration names, and this machine lacks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fake_nvml import NVMLError, fake_nvml
from gpu_world import GpuWorld, nvidia_world
from nsm.checks import HostCheck
from nsmd.doctor.configured import check_devices, why_unusable
from nsmd.doctor.trials import LimitsTrial, check_limits
from nsmd.host.nvml import GpuReader, read_gpus
from nsmd.model.settings import EnvironmentSettings, Settings
from nsmd.model.values import Enforcement


def lines(world: GpuWorld, search_path: str = "", **settings: object) -> list[str]:
    entries = {"web": EnvironmentSettings(**settings), "python": EnvironmentSettings()}  # type: ignore[arg-type]
    return list(why_unusable(Settings(environments=entries), search_path, world.host))


def test_devices(tmp_path: Path) -> None:
    world = nvidia_world(tmp_path)
    assert lines(world, preset="python", devices=("nvidia:0", "nvidia:1")) == []
    (line,) = lines(world, preset="python", devices=("nvidia:0", "nvidia:7"))
    assert line == (
        "environments.web.devices: nvidia:0, nvidia:7: there is no /dev/nvidia7; "
        "there is nvidia:0, nvidia:1"
    )


def test_images(tmp_path: Path) -> None:
    world = GpuWorld(tmp_path / "host")
    folder = tmp_path / "bin"
    folder.mkdir()
    (line,) = lines(world, str(folder), image="docker://python:3.13-slim")
    assert line.startswith("environments.web.image: to fetch it, nsm needs skopeo: ")
    (folder / "skopeo").touch(mode=0o755)
    assert lines(world, str(folder), image="docker://python:3.13-slim") == []
    place = tmp_path / "saved.tar"
    (line,) = lines(world, image=f"docker-archive:{place}:web")
    assert line == f"environments.web.image: {place} is missing or cannot be read"
    place.touch()
    assert lines(world, image=f"docker-archive:{place}:web") == []


# Rows about GPUs; the host and NVIDIA's library are made up.


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


def test_devices_and_libraries_of_a_gpu_are_told(tmp_path: Path) -> None:
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


def test_missing_parts_of_a_gpu_are_told(tmp_path: Path) -> None:
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


# Findings of the doctor about limits.


GROUPS = Enforcement(memory="cgroup", processes="cgroup", cpu="cgroup")
NONE = Enforcement(memory="watchdog", processes="rlimit", cpu="none", why="cgroup v2 is absent")


def limit_rows(seen: LimitsTrial, release: str = "6.1.0") -> dict[str, HostCheck]:
    return {check.name: check for check in check_limits(seen, release)}


def test_groups() -> None:
    found = limit_rows(LimitsTrial(enforcement=GROUPS, where="/sys/fs/cgroup/a"))
    assert [check.status for check in found.values()] == ["ok", "ok", "ok"]
    assert "below /sys/fs/cgroup/a, read back" in found["memory limit"].detail


def test_none() -> None:
    found = limit_rows(LimitsTrial(enforcement=NONE, fix="Boot otherwise."))
    assert [check.status for check in found.values()] == ["warn", "ok", "warn"]
    assert "cgroup v2 is absent. Instead, a watchdog" in found["memory limit"].detail
    assert found["memory limit"].fix == "Boot otherwise."
    assert found["processor share"].fix == "As for the memory limit."


def test_older_kernels_count_a_users_processes_together() -> None:
    assert limit_rows(LimitsTrial(enforcement=NONE), "5.10.0-1")["process limit"].status == "warn"
    assert limit_rows(LimitsTrial(enforcement=NONE), "5.14.0")["process limit"].status == "ok"


def test_a_controller_that_is_not_delegated() -> None:
    kept = Enforcement(memory="cgroup", processes="cgroup", cpu="none", why="not delegated: cpu")
    found = limit_rows(LimitsTrial(enforcement=kept, where="/x"))
    assert found["memory limit"].status == "ok"
    assert "Have the cpu controller delegated" in found["processor share"].fix
