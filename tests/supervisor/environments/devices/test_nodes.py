"""Device nodes of made-up hosts: which are shown, and what is said of those that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_world import NVIDIA, GpuWorld, nvidia_world
from nsmd.environments.devices.nodes import DeviceError, find_nodes
from nsmd.model.packages import why_no_devices


def found(world: GpuWorld, *words: str) -> list[str]:
    """Paths of the nodes, without /dev."""
    return [node.path.removeprefix("/dev/") for node in find_nodes(words, world.host)]


def test_all_of_nvidias_or_some(tmp_path: Path) -> None:
    world = nvidia_world(tmp_path)
    world.add_devices("nvidia-modeset", "dri/card0", "dri/renderD128")
    assert found(world, "nvidia") == sorted(NVIDIA)
    assert found(world, "nvidia:1") == sorted({*NVIDIA} - {"nvidia0"})
    assert found(world, "nvidia:1", "nvidia:0") == sorted(NVIDIA)
    assert found(world, "nvidia:0", "dri") == sorted({*NVIDIA, "dri/renderD128"} - {"nvidia1"})
    node = find_nodes(["nvidia"], world.host)[0]
    assert (node.source, node.number) == (f"{tmp_path}/dev/nvidia-uvm", (1, 3))


def test_parts_of_a_divided_gpu(tmp_path: Path) -> None:
    """Only those that everyone may read: the others are for dividing GPUs."""
    world = nvidia_world(tmp_path)
    capabilities = "/proc/driver/nvidia/capabilities"
    world.write(f"{capabilities}/gpu0/mig/gi1/access", "DeviceFileMinor: 12\nDeviceFileMode: 292\n")
    world.write(f"{capabilities}/gpu1/mig/gi1/access", "DeviceFileMinor: 21\nDeviceFileMode: 292\n")
    world.write(f"{capabilities}/mig/config", "DeviceFileMinor: 1\nDeviceFileMode: 256\n")
    world.add_devices(*(f"nvidia-caps/nvidia-cap{minor}" for minor in (1, 12, 21)))
    parts = [name for name in found(world, "nvidia") if name.startswith("nvidia-caps/")]
    assert parts == ["nvidia-caps/nvidia-cap12", "nvidia-caps/nvidia-cap21"]
    assert "nvidia-caps/nvidia-cap12" not in found(world, "nvidia:1")


def test_amds_and_every_render_node(tmp_path: Path) -> None:
    world = GpuWorld(tmp_path)
    world.add_devices("kfd", "dri/card0")
    world.add_render_node("renderD128", "amdgpu")
    world.add_render_node("renderD129", "i915", "0000:00:02.0")
    assert found(world, "amd") == ["dri/renderD128", "kfd"]
    assert found(world, "dri") == ["dri/renderD128", "dri/renderD129"]


def test_windows_gpus(tmp_path: Path) -> None:
    world = GpuWorld(tmp_path)
    world.add_devices("dxg")
    assert found(world, "nvidia") == ["dxg"]
    with pytest.raises(DeviceError, match="all GPUs of Windows"):
        find_nodes(["nvidia:0"], world.host)


def without(*names: str) -> Callable[[GpuWorld], None]:
    def remove(world: GpuWorld) -> None:
        for name in names:
            world.path(f"/dev/{name}").unlink()

    return remove


def closed(path: str) -> Callable[[GpuWorld], None]:
    return lambda world: world.closed.add(path)


def unloaded(world: GpuWorld) -> None:
    without("nvidiactl")(world)
    world.path("/proc/driver/nvidia/version").unlink()


def as_it_is(_: GpuWorld) -> None:
    """Change nothing."""


def kfd_alone(world: GpuWorld) -> None:
    world.add_devices("kfd")


def not_a_device(world: GpuWorld) -> None:
    without("nvidia-uvm")(world)
    world.write("/dev/nvidia-uvm", "")


@pytest.mark.parametrize(
    ("words", "change", "told"),
    [
        ("nvidia", without("nvidia-uvm"), "no /dev/nvidia-uvm, and without it CUDA silently uses"),
        ("nvidia", not_a_device, "no /dev/nvidia-uvm"),
        (
            "nvidia",
            without("nvidia0", "nvidia1"),
            "no /dev/nvidia0: `sudo nvidia-modprobe -c 0 -u`",
        ),
        (
            "nvidia",
            without("nvidiactl"),
            "driver is loaded (NVRM version: Kernel Module  580.95.05)",
        ),
        ("nvidia", unloaded, "driver is not installed, or its module is not loaded"),
        ("nvidia:7", as_it_is, "no /dev/nvidia7; there is nvidia:0, nvidia:1"),
        ("nvidia", closed("/dev/nvidia1"), "/dev/nvidia1 (mode 0666, owner 0, group 0) is closed"),
        ("amd", as_it_is, "no /dev/kfd"),
        (
            "amd",
            kfd_alone,
            "no /dev/dri/renderD* of the module amdgpu",
        ),
        ("dri", as_it_is, "no /dev/dri/renderD*"),
    ],
)
def test_what_is_missing_is_told(
    words: str, change: Callable[[GpuWorld], None], told: str, tmp_path: Path
) -> None:
    world = nvidia_world(tmp_path)
    change(world)
    with pytest.raises(DeviceError) as error:
        find_nodes([words], world.host)
    assert told in str(error.value)


def test_a_gpu_that_is_not_asked_for_may_be_closed(tmp_path: Path) -> None:
    world = nvidia_world(tmp_path)
    world.closed |= {"/dev/nvidia1", "/dev/nvidia-uvm-tools"}
    assert found(world, "nvidia:0") == ["nvidia-uvm", "nvidia0", "nvidiactl"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nvidia",), None),
        (("nvidia:0", "nvidia:12", "amd", "dri"), None),
        (("nvidia:00",), "allowed"),
        (("nvidia:-1",), "allowed"),
        (("nvidia0",), "allowed"),
        (("/dev/nvidia0",), "allowed"),
        (("nvidia:0/../../mem",), "allowed"),
        (("nvidia", "nvidia:0"), "Remove one"),
    ],
)
def test_words_of_the_configuration(words: tuple[str, ...], told: str | None) -> None:
    why = why_no_devices(words)
    assert why is None if told is None else told in (why or "")
