"""Devices and images that a valid configuration names, and this machine lacks."""

from __future__ import annotations

from pathlib import Path

from gpu_world import GpuWorld, nvidia_world
from nsmd.doctor.configured import why_unusable
from nsmd.model.settings import EnvironmentSettings, Settings


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
