"""Images that are made where the disk is full: nothing half-made stays, and later it works."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from image_world import Layout, file, layer, make_image, make_store
from nsm.wire.errors import PackagesFailedError
from realjail import open_directory

pytestmark = [
    pytest.mark.jail,
    pytest.mark.slow,
    pytest.mark.root,
]

FILES = 300
"""Files of the image; each takes 4 KiB of a file system in memory."""


@contextmanager
def small_disk(place: Path) -> Generator[None]:
    """A file system of 8 MiB at a directory."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0755", "none", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("not here: nothing can be mounted")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("free_kb", [0, 8, 40, 200, 700, 1100])
async def test_nothing_half_made_is_left(free_kb: int) -> None:
    with open_directory() as place:
        layout = Layout(place / "layout")
        layout.add([layer(*(file(f"data/{n}", os.urandom(1024)) for n in range(FILES)))])
        disk = place / "disk"
        disk.mkdir()
        with small_disk(disk):
            make_store(disk)
            filler = disk / "filler"
            state = os.statvfs(disk)
            filler.write_bytes(bytes(state.f_bavail * state.f_bsize - free_kb * 1024))
            image = f"oci:{layout.place}"
            with pytest.raises((PackagesFailedError, OSError)) as caught:
                await make_image(disk, image)
            assert "No space left" in str(caught.value)
            assert not [name for name in os.listdir(disk / "envs") if not name.startswith(".")]
            assert not (disk / "locks" / "web.image.txt").exists()
            filler.unlink()
            made = await make_image(disk, image)
            assert len(os.listdir(f"{made.path}/root/data")) == FILES
