"""Libraries of the driver in all the places where they lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_world import GpuWorld, nvidia_world
from nsmd.environments.devices.equipment import binds_in_image, find_libraries
from nsmd.environments.devices.nodes import DeviceError


def shown(world: GpuWorld) -> list[tuple[str, str]]:
    """Paths on the made-up host and in the jail."""
    binds = find_libraries(world.host).binds
    return [(bind.source.removeprefix(str(world.root)), bind.target) for bind in binds]


@pytest.mark.parametrize("directory", ["/usr/lib/x86_64-linux-gnu", "/usr/lib/wsl/lib"])
def test_below_usr_every_jail_shows_them(directory: str, tmp_path: Path) -> None:
    world = GpuWorld(tmp_path)
    world.add_driver(directory, cached=True)
    assert shown(world) == []
    assert find_libraries(world.host).known is True


def test_elsewhere_their_directory_is_shown(tmp_path: Path) -> None:
    """The loader's cache has a library of another kind of processor as well, and first."""
    world = nvidia_world(tmp_path)
    assert find_libraries(world.host).directory == "/opt/nvidia/lib64"
    assert shown(world) == [("/opt/nvidia/lib64", "/opt/nvidia/lib64")]


def test_where_links_lead_is_shown_too(tmp_path: Path) -> None:
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


def test_without_any_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"no libcuda\.so\.1.*ldconfig -p.*Debian: libcuda1"):
        find_libraries(GpuWorld(tmp_path).host)


def test_a_stale_cache_is_not_believed(tmp_path: Path) -> None:
    world = nvidia_world(tmp_path)
    world.path("/opt/nvidia/lib64/libcuda.so.1").unlink()
    with pytest.raises(DeviceError):
        find_libraries(world.host)


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
