"""GPUs: their nodes, their libraries, and what becomes of them when devices come and go."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from gpu_world import GpuWorld, nvidia_world
from nsmd.environments.devices.equipment import (
    DeviceFinder,
    binds_in_image,
    equip,
    find_equipment,
    find_libraries,
)
from nsmd.environments.devices.nodes import DeviceError, find_nodes
from nsmd.host import event_loop
from nsmd.host.source_watcher import open_source_watcher
from nsmd.model.values import Environment, ImageRoot


def environment(*devices: str, memory_mb: int = 512, image: bool = False) -> Environment:
    return Environment(
        name="ml",
        interpreter="python",
        program="/usr/bin/python3",
        devices=devices,
        memory_mb=memory_mb,
        image=ImageRoot(directory="/image", python=("/lib/ld.so",)) if image else None,
        variables=(("LD_LIBRARY_PATH", "/image/lib"),) if image else (),
    )


def test_the_loader_is_told_where_it_does_not_know(tmp_path: Path) -> None:
    world = GpuWorld(tmp_path)
    world.add_devices("nvidiactl", "nvidia-uvm", "nvidia0")
    world.add_driver("/opt/nvidia/lib", cached=False)
    finder = DeviceFinder(world.host)
    assert dict(finder.equip(environment("nvidia")).variables) == {
        "LD_LIBRARY_PATH": "/opt/nvidia/lib",
        "TRITON_LIBCUDA_PATH": "/opt/nvidia/lib",
    }
    in_image = finder.equip(environment("nvidia", image=True))
    assert dict(in_image.variables) == {
        "LD_LIBRARY_PATH": "/run/nsm/gpu:/image/lib",
        "TRITON_LIBCUDA_PATH": "/run/nsm/gpu",
    }
    assert all(bind.target.startswith("/run/nsm/gpu/lib") for bind in in_image.binds)


def test_sysfs_of_a_gpu_is_shown(tmp_path: Path) -> None:
    world = GpuWorld(tmp_path)
    world.add_devices("kfd")
    world.add_render_node("renderD128", "amdgpu")
    world.write("/sys/devices/virtual/kfd/kfd/topology/nodes/0/gpu_id", "1\n")
    equipped = equip(environment("amd"), find_equipment(("amd",), world.host))
    assert [bind.target for bind in equipped.binds] == [
        "/sys/devices/pci0000:00/0000:03:00.0",
        "/sys/devices/virtual/kfd",
    ]
    there = "/sys/devices/pci0000:00/0000:03:00.0/drm/renderD128"
    assert dict(equipped.links) == {
        "/sys/class/drm/renderD128": there,
        "/sys/class/kfd/kfd": "/sys/devices/virtual/kfd/kfd",
        "/sys/dev/char/1:3": there,
    }


def test_no_silent_processor_in_the_place_of_a_gpu(tmp_path: Path) -> None:
    world = nvidia_world(tmp_path)
    world.path("/dev/nvidia-uvm").unlink()
    equipped = DeviceFinder(world.host).equip(environment("nvidia"))
    assert equipped.problem is not None
    assert equipped.problem.startswith("its devices (nvidia): there is no /dev/nvidia-uvm")
    assert equipped.shown_devices is None


async def test_a_search_for_devices_that_hangs_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "WAIT_S", 0.01)
    answers = threading.Event()
    world = nvidia_world(tmp_path)

    def can_use(_path: str) -> bool:
        return answers.wait()

    host = dataclasses.replace(world.host, can_use=can_use)
    finder = DeviceFinder(host)
    problem = finder.equip(environment("nvidia")).problem
    assert problem == "its devices (nvidia): the search for them takes too long"
    found = trio.Event()
    finder.changed = found.set
    async with open_source_watcher() as watching:
        finder.watch(watching)
        answers.set()
        await found.wait()
    assert finder.equip(environment("nvidia")).problem is None


def found(world: GpuWorld, *words: str) -> list[str]:
    """Paths of the nodes, without /dev."""
    return [node.path.removeprefix("/dev/") for node in find_nodes(words, world.host)]


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
        ("amd", kfd_alone, "no /dev/dri/renderD* of the module amdgpu"),
        ("dri", as_it_is, "no /dev/dri/renderD*"),
    ],
)
def test_a_missing_device_is_told(
    words: str, change: Callable[[GpuWorld], None], told: str, tmp_path: Path
) -> None:
    world = nvidia_world(tmp_path)
    change(world)
    with pytest.raises(DeviceError) as error:
        find_nodes([words], world.host)
    assert told in str(error.value)


def shown(world: GpuWorld) -> list[tuple[str, str]]:
    """Paths on the made-up host and in the jail."""
    binds = find_libraries(world.host).binds
    return [(bind.source.removeprefix(str(world.root)), bind.target) for bind in binds]


def test_targets_of_links_to_libraries_are_shown(tmp_path: Path) -> None:
    world = GpuWorld(tmp_path)
    world.write("/srv/driver/580/libcuda.so.580", "")
    world.add_driver("/opt/nvidia/lib64", cached=True)
    link = world.path("/opt/nvidia/lib64/libcuda.so.1")
    link.unlink()
    link.symlink_to("../../../srv/driver/580/libcuda.so.580")
    assert [target for _, target in shown(world)] == ["/opt/nvidia/lib64", "/srv/driver/580"]


def test_on_nixos_the_store_is_shown(tmp_path: Path) -> None:
    world = GpuWorld(tmp_path)
    world.add_driver("/nix/store/abc-nvidia-x11/lib", cached=False)
    library = world.path("/nix/store/def-drivers/lib/libcuda.so.1")
    library.symlink_to("../../abc-nvidia-x11/lib/libcuda.so.1")
    world.path("/run/opengl-driver").symlink_to("../nix/store/def-drivers")
    found = find_libraries(world.host)
    assert (found.directory, found.known) == ("/run/opengl-driver/lib", False)
    assert dict.fromkeys(shown(world)) == dict.fromkeys(
        [("/nix/store", "/nix/store"), ("/nix/store/def-drivers/lib", "/run/opengl-driver/lib")]
    )


@pytest.mark.parametrize("directory", ["/home/ada", "/home/ada/.ssh/lib", "/etc/nvidia"])
def test_private_places_are_not_shown(directory: str, tmp_path: Path) -> None:
    world = GpuWorld(tmp_path)
    world.add_driver(directory, cached=True)
    with pytest.raises(DeviceError, match="the driver's libraries lie in"):
        find_libraries(world.host)


def test_an_image_gets_the_driver_and_nothing_else(tmp_path: Path) -> None:
    world = GpuWorld(tmp_path)
    world.add_driver("/usr/lib/x86_64-linux-gnu", cached=True)
    for name in ("libc.so.6", "libcudart.so.12", "libnvidia-ptxjitcompiler.so.1", "libssl.so.3"):
        world.write(f"/usr/lib/x86_64-linux-gnu/{name}", "")
    binds = binds_in_image(find_libraries(world.host), world.host)
    assert [bind.target.removeprefix("/run/nsm/gpu/") for bind in binds] == [
        "libcuda.so.1",
        "libcuda.so.580.95.05",
        "libnvidia-ml.so.1",
        "libnvidia-ml.so.580.95.05",
        "libnvidia-ptxjitcompiler.so.1",
    ]
    assert all(Path(bind.source).is_file() for bind in binds)
