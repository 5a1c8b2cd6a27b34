"""Environments with devices, and what becomes of them when devices come and go."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest
import trio

from gpu_world import GpuWorld, nvidia_world
from nsmd.environments.catalog import Catalog, EnvironmentSource, Rank
from nsmd.environments.devices.equipment import DeviceFinder, equip, find_equipment
from nsmd.host import event_loop
from nsmd.host.source_watcher import open_source_watcher
from nsmd.model.values import ClientIdentity, Environment, ImageRoot, SessionLimits

ADA = ClientIdentity(name="nsm", scope="ada")


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


def test_memory_of_one_process(tmp_path: Path) -> None:
    world = nvidia_world(tmp_path)
    for memory_mb, least in ((512, 4096), (8192, 8192)):
        equipped = DeviceFinder(world.host).equip(environment("nvidia", memory_mb=memory_mb))
        assert equipped.memory_mb == memory_mb
        assert SessionLimits().of_interpreters(equipped)["data_bytes"] == least << 20


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


def test_what_drivers_read_of_sysfs(tmp_path: Path) -> None:
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


async def test_devices_come_go_and_get_another_driver(tmp_path: Path) -> None:
    world = nvidia_world(tmp_path)
    finder = DeviceFinder(world.host)
    source = EnvironmentSource(rank=Rank.BUILT)
    catalog = Catalog((), equip=finder.equip)
    catalog.put(source, [environment("nvidia")])
    first = catalog.find(ADA, "ml")
    finder.changed = catalog.equip_again
    changed = trio.Event()

    def note() -> None:
        changed.set()

    catalog.subscribe(note)
    async with open_source_watcher() as watching:
        finder.watch(watching)
        await watching.first_look(("devices", ("nvidia",)))
        assert not changed.is_set()

        async def next_change() -> Environment:
            nonlocal changed
            with trio.fail_after(60):
                await changed.wait()
            changed = trio.Event()
            return catalog.environments(ADA)[0]

        world.path("/dev/nvidia1").unlink()
        fallen = await next_change()
        assert fallen.shown_devices is not None
        assert len(fallen.shown_devices.nodes) == 4
        for name in ("nvidia0", "nvidiactl"):
            world.path(f"/dev/{name}").unlink()
        assert "there is no /dev/nvidiactl" in ((await next_change()).problem or "")
        world.add_devices("nvidia1", "nvidia0", "nvidiactl")
        assert await next_change() == first
        library = world.path("/opt/nvidia/lib64/libcuda.so.1")
        world.write("/opt/nvidia/lib64/libcuda.so.590.1", "newer")
        library.with_name("new").symlink_to("libcuda.so.590.1")
        library.with_name("new").rename(library)
        upgraded = await next_change()
    assert upgraded.binds == first.binds
    assert upgraded.shown_devices is not None
    assert first.shown_devices is not None
    assert upgraded.shown_devices.nodes == first.shown_devices.nodes
    assert upgraded.shown_devices.driver != first.shown_devices.driver
