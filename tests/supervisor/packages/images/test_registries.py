"""Images as umoci unpacks them, and from real registries, where these programs are."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from image_world import Layout, file, folder, hardlink, layer, make_image, symlink
from nsm.wire.errors import PackagesFailedError
from nsmd.model.packages import WantedPackages
from nsmd.packages.images.unpack import unpack
from package_world import Workshop
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


async def _make(
    place: Path, image: str, *, refresh: bool = False, timeout_s: float = 120.0
) -> tuple[str, str]:
    """Make the environment; return the path of the image's files, and the pinned digest."""
    wanted = WantedPackages(image=image)
    made = await Workshop(place).build(wanted, "web", refresh=refresh, timeout_s=timeout_s)
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


USER, PASSWORD = "reader", "open sesame"
HASHED = "$2b$04$1Nu8lD9NqSnyRnJ0z0c49.RH/ghfG3HSnYLfs4MuwOJb4Ta3DqF16"
"""The password as htpasswd has it (bcrypt)."""
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@contextmanager
def closed_registry(place: Path) -> Generator[str]:
    """A registry with a password and the image `team/web:1`; yields its address."""
    (place / "htpasswd").write_text(f"{USER}:{HASHED}\n")
    settings = f"auth: {{htpasswd: {{realm: tests, path: {place}/htpasswd}}}}\n"
    with running_registry(place, settings) as address:
        push(place, address)
        yield address


def push(place: Path, address: str) -> None:
    layout = Layout(place / "layout")
    layout.add([layer(file("data", "of the image"))])
    words = ["skopeo", "copy", "--dest-tls-verify=false", f"--dest-creds={USER}:{PASSWORD}"]
    subprocess.run(
        [*words, f"oci:{layout.place}:latest", f"docker://{address}/team/web:1"],
        check=True,
        capture_output=True,
        env={**os.environ, "HOME": str(place / "home")},
    )


def log_in(place: Path, address: str, where: str, login: str = BASIC) -> None:
    """Write a login as docker or skopeo keep it."""
    path = place / "home" / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"auths": {address: {"auth": login}}}))


@pytest.mark.jail
@_needs("skopeo", "docker-registry")
@pytest.mark.parametrize("where", [".docker/config.json", ".config/containers/auth.json"])
async def test_the_users_login_opens_it(place: Path, where: str) -> None:
    with closed_registry(place) as address:
        log_in(place, address, where)
        made = await make_image(place, f"docker://{address}/team/web:1")
    assert Path(made.path, "root", "data").read_text() == "of the image"
    # Neither what sessions see nor what people are shown has it.
    left = [path for path in (place / "envs").rglob("*") if path.is_file()]
    for path in (*left, Path(made.lock), place / "log"):
        content = path.read_bytes()
        assert BASIC.encode() not in content
        assert PASSWORD.encode() not in content


@pytest.mark.jail
@_needs("skopeo", "docker-registry")
async def test_without_the_right_login_it_stays_closed(place: Path) -> None:
    wrong = base64.b64encode(b"reader:wrong").decode()
    with closed_registry(place) as address:
        for login in ("", wrong):
            if login:
                log_in(place, address, ".docker/config.json", login)
            with pytest.raises(PackagesFailedError, match="skopeo cannot fetch it") as caught:
                await make_image(place, f"docker://{address}/team/web:1")
            assert "skopeo login" in caught.value.hint
            assert wrong not in f"{caught.value} {(place / 'log').read_text()}"
    assert not [name for name in os.listdir(place / "envs") if not name.startswith(".")]
