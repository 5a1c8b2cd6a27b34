"""Images as umoci unpacks them, and from a real registry; where these programs are."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from image_world import Layout, file, folder, hardlink, layer, symlink
from nsm.wire.errors import PackagesFailedError
from nsmd.host.command_monitor import CommandProgress
from nsmd.model.packages import WantedPackages
from nsmd.packages.images.unpack import unpack
from package_world import installation
from realjail import open_directory
from registry_world import running_registry

pytestmark = pytest.mark.slow


def _needs(*programs: str) -> pytest.MarkDecorator:
    missing = [name for name in programs if shutil.which(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not here: no {', '.join(missing)}")


LAYERS = (
    layer(
        folder("usr/bin"),
        symlink("bin", "usr/bin"),
        file("bin/tool", "#!/bin/sh\n", 0o4755),
        hardlink("usr/bin/again", "usr/bin/tool"),
        *(file(f"opt/kept/{number}", str(number)) for number in range(50)),
        file("opt/gone/deep/file"),
        file("opt/opaque/old"),
        file("etc/one", "1"),
        symlink("abs", "/usr/bin"),
        symlink("loop", "loop"),
        file("turns/into/file"),
        file("becomes-a-directory"),
    ),
    layer(
        file("opt/.wh.gone"),
        file("opt/opaque/.wh..wh..opq"),
        file("opt/opaque/new", "new"),
        file("bin/more", "through the link"),
        file("opt/kept/7", "changed"),
        file("turns/.wh.into"),
        file("turns/into", "now a file"),
        folder("becomes-a-directory"),
        file("becomes-a-directory/x"),
        file("abs2/x"),
    ),
    layer(file(".wh.abs2"), symlink("abs2", "opt"), file("etc/two", "2")),
)


def _described(root: Path) -> dict[str, tuple[object, ...]]:
    """Describe all that is below a directory, without owners and without bits that nsm changes."""
    found: dict[str, tuple[object, ...]] = {}
    for path in root.rglob("*"):
        status = path.lstat()
        name = str(path.relative_to(root))
        if stat.S_ISLNK(status.st_mode):
            found[name] = "link", os.readlink(path)
        elif stat.S_ISDIR(status.st_mode):
            found[name] = ("directory",)
        else:
            runs = bool(status.st_mode & 0o111)
            found[name] = "file", path.read_bytes(), runs, status.st_nlink, int(status.st_mtime)
    return found


@_needs("umoci")
def test_umoci_unpacks_the_same(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    layout.add(LAYERS)
    bundle = tmp_path / "bundle"
    command = ["umoci", "unpack", "--rootless", "--image", f"{layout.place}:latest", str(bundle)]
    subprocess.run(command, check=True, capture_output=True)
    ours = tmp_path / "ours"
    ours.mkdir()
    unpack(
        {
            "image": str(layout.place),
            "tag": "latest",
            "is_layout": False,
            "root": str(ours),
            "digest": "",
            "files": {},
            "left_out": (),
            "programs": (),
            "max_files": 999,
            "max_bytes": 1 << 20,
        }
    )
    assert _described(ours) == _described(bundle / "rootfs")


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a directory that the jails' user reaches."""
    with open_directory() as directory:
        yield directory


@pytest.fixture
def registry(place: Path) -> Iterator[str]:
    """Return the address of a registry without TLS, which the user's configuration allows."""
    with running_registry(place) as address:
        yield address


def _ignore(progress: CommandProgress, log_bytes: int) -> None:
    """Take the progress of a build, which nobody watches."""


async def _make(
    place: Path, image: str, *, refresh: bool = False, timeout_s: float = 120.0
) -> tuple[str, str]:
    """Make the environment; return the path of the image's files, and the pinned digest."""
    with (place / "log").open("wb") as log:
        made = await installation(place, timeout_s=timeout_s).make(
            "web",
            WantedPackages(image=image),
            refresh=refresh,
            on_progress=_ignore,
            log_fd=log.fileno(),
        )
    return f"{made.path}/root", Path(made.lock).read_text().splitlines()[2]


def _push(place: Path, layout: Layout, name: str) -> None:
    command = ["skopeo", "copy", "--dest-tls-verify=false"]
    subprocess.run(
        [*command, f"oci:{layout.place}:latest", f"docker://{name}"],
        check=True,
        capture_output=True,
        env={**os.environ, "HOME": str(place / "home")},
    )


@pytest.mark.jail
@_needs("skopeo", "docker-registry")
async def test_an_image_of_a_registry(place: Path, registry: str) -> None:
    layout = Layout(place / "layout")
    layout.add(LAYERS)
    name = f"{registry}/team/web:1"
    _push(place, layout, name)
    root, digest = await _make(place, f"docker://{name}")
    assert Path(root, "opt/opaque/new").read_text() == "new"
    # The tag means another image now, and the pinned one is used until somebody asks for it.
    other = Layout(place / "other")
    newer = other.add([*LAYERS, layer(file("newer"))])
    _push(place, other, name)
    assert await _make(place, f"docker://{name}") == (root, digest)
    root, digest = await _make(place, f"docker://{name}", refresh=True)
    assert (Path(root, "newer").is_file(), digest) == (True, newer)


@pytest.mark.jail
@_needs("skopeo", "docker-registry")
async def test_a_registry_that_has_not_what_it_should(place: Path, registry: str) -> None:
    with pytest.raises(PackagesFailedError, match=r"skopeo cannot fetch it: .*manifest unknown"):
        await _make(place, f"docker://{registry}/team/none:1")
    layout = Layout(place / "layout")
    layout.add(LAYERS)
    _push(place, layout, f"{registry}/team/web:1")
    for blob in place.glob("registry/docker/registry/v2/blobs/sha256/*/*/data"):
        if blob.read_bytes()[:2] == b"\x1f\x8b":  # a layer
            blob.write_bytes(b"\x1f\x8b" + bytes(100))
    with pytest.raises(PackagesFailedError, match="skopeo cannot fetch it"):
        await _make(place, f"docker://{registry}/team/web:1")
    assert not [name for name in os.listdir(place / "envs") if not name.startswith(".")]


@pytest.mark.jail
@_needs("skopeo")
async def test_a_registry_that_hangs_is_given_up(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        name = f"127.0.0.1:{silent.getsockname()[1]}/team/web:1"
        with pytest.raises(PackagesFailedError, match="was stopped after 2 s"):
            await _make(place, f"docker://{name}", timeout_s=2)
    assert not [name for name in os.listdir(place / "envs") if not name.startswith(".")]
