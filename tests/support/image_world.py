"""Container images for tests, made here: OCI layouts, and archives as of `docker save`."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nsmd.jail import BwrapLauncher
from nsmd.jail.host import GitSettings
from nsmd.model.packages import WantedPackages
from nsmd.model.settings import DEFAULT_JAIL_UID, Defaults, EnvironmentSettings
from nsmd.model.values import Environment
from nsmd.packages.images.unpack import architecture
from nsmd.packages.package_builds import Installed
from package_world import Workshop, installation
from realjail import SYSTEM_PATH, new_launcher

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def file(name: str, content: bytes | str = b"", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    """Make a regular file of a layer."""
    member = tarfile.TarInfo(name)
    data = content.encode() if isinstance(content, str) else content
    member.size, member.mode = len(data), mode
    return member, data


def folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    """Make a directory of a layer."""
    return other(name, tarfile.DIRTYPE, mode=mode)


def symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    """Make a symbolic link of a layer."""
    return other(name, tarfile.SYMTYPE, target)


def named_launcher(home: Path) -> BwrapLauncher:
    """Make a launcher for jails in which git knows its user's name."""
    (home / ".gitconfig").write_text("[user]\nname = Ada\n")
    launcher = new_launcher()
    launcher.git = GitSettings(SYSTEM_PATH, {"HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"})
    return launcher


def hardlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    """Make a hard link of a layer."""
    return other(name, tarfile.LNKTYPE, target)


def other(
    name: str, kind: bytes, target: str = "", mode: int = 0o644
) -> tuple[tarfile.TarInfo, bytes]:
    """Make something else of a layer."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, target, mode
    return member, b""


def layer(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Make a layer, uncompressed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def configuration(layers: Iterable[bytes], **config: Any) -> dict[str, Any]:
    """Make an image's configuration."""
    return {
        "architecture": architecture(),
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [digest(each) for each in layers]},
    }


def digest(data: bytes) -> str:
    """Digest of some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def libraries_of(program: str) -> list[str]:
    """Paths of the libraries and the loader that a program needs."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [word for word in told.split() if word.startswith("/")]


def copied(*programs: str) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Copies of the host's programs, with the libraries and the loader that they need."""
    made: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    for program in programs:
        for path in (program, *libraries_of(program)):
            name = path.lstrip("/")
            made[name] = file(name, Path(path).read_bytes(), 0o755)
    return list(made.values())


def programs_layer(*names: str) -> bytes:
    """Make a layer with programs of the host's PATH, which are in `/bin`, too."""
    found = {name: os.path.realpath(str(shutil.which(name))) for name in names}
    members = {each[0].name: each for each in copied(*found.values())}
    for name, path in found.items():
        members[f"bin/{name}"] = file(f"bin/{name}", members[path.lstrip("/")][1], 0o755)
    return layer(*members.values())


class Layout:
    """An OCI layout."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "blobs" / "sha256").mkdir(parents=True)
        (place / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self.index: list[dict[str, Any]] = []

    def blob(self, data: bytes, kind: str = "") -> dict[str, Any]:
        """Add a blob, and return its descriptor."""
        (self.place / "blobs" / "sha256" / digest(data)[7:]).write_bytes(data)
        return {"mediaType": kind, "digest": digest(data), "size": len(data)}

    def add(
        self,
        layers: Sequence[bytes],
        tag: str = "latest",
        *,
        compress: bool = True,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> str:
        """Add an image; return its digest."""
        blobs = [
            self.blob(
                gzip.compress(each, 1, mtime=0) if compress else each,
                f"application/vnd.oci.image.layer.v1.tar{'+gzip' if compress else ''}",
            )
            for each in layers
        ]
        config = configuration(layers, **settings) if config is None else config
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.blob(
                json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"
            ),
            "layers": blobs,
        }
        return self.add_manifest(manifest, tag)

    def add_manifest(self, manifest: Mapping[str, Any], tag: str) -> str:
        """Add a manifest; return its digest."""
        found = self.blob(json.dumps(manifest).encode(), str(manifest.get("mediaType", MANIFEST)))
        found["annotations"] = {"org.opencontainers.image.ref.name": tag}
        self.index.append(found)
        self.write_index()
        return str(found["digest"])

    def write_index(self) -> None:
        """Write the list of images."""
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": self.index}
        (self.place / "index.json").write_text(json.dumps(index))


def docker_archive(path: Path, layers: Sequence[bytes], tag: str, **settings: Any) -> None:
    """Write an archive as `docker save` does."""
    config = json.dumps(configuration(layers, **settings)).encode()
    name = f"{digest(config)[7:]}.json"
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": names}]
    with tarfile.open(path, "w") as archive:
        for each, data in [
            (name, config),
            *zip(names, layers, strict=True),
            ("manifest.json", json.dumps(manifest).encode()),
        ]:
            member, content = file(each, data)
            archive.addfile(member, io.BytesIO(content))


def make_store(place: Path) -> None:
    """Make a store that is not for root alone, if the tests are root's."""
    (place / "envs").mkdir()
    (place / "envs").chmod(0o755)


async def make_image(
    place: Path, image: str, name: str = "web", *, refresh: bool = False, **wanted: Any
) -> Installed:
    """Make an environment of an image in the store of a directory."""
    return await Workshop(place).build(WantedPackages(image=image, **wanted), name, refresh=refresh)


def environment_of(place: Path, made: Installed, image: str, **wanted: Any) -> Environment:
    """Describe that environment."""
    packages = WantedPackages(image=image, **wanted)
    return installation(place).environment(
        made.path, "web", packages, Defaults(), EnvironmentSettings()
    )


def give_to_jails(root: Path) -> None:
    """Give an image's files to the jails' user, for which a supervisor of root has mounts."""
    if os.geteuid() == 0:
        for folder_path, folders, names in os.walk(root):
            for path in (folder_path, *(f"{folder_path}/{each}" for each in folders + names)):
                os.chown(path, DEFAULT_JAIL_UID, DEFAULT_JAIL_UID, follow_symlinks=False)


def python_layer(*modules: tuple[str, str]) -> bytes:
    """Make a layer with this Python at `/opt/python`, and modules beside its own.

    Args:
        modules: names of files below the directory of its own modules, and their contents.
    """
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = Path(sys.base_prefix, "lib", version)
    place = f"opt/python/lib/{version}"
    program = os.path.realpath(os.path.join(sys.base_prefix, "bin", version))
    parts = sorted((library / "lib-dynload").glob("*.so"))
    # A shared libpython lies at the place that the program names.
    needed = copied(program, *map(str, parts))
    left_out = {"test", "tests", "idlelib", "lib2to3", "ensurepip", "site-packages", "turtledemo"}
    found = [
        file(f"{place}/{path.relative_to(library)}", path.read_bytes())
        for path in sorted(library.rglob("*.py"))
        if not left_out.intersection(path.relative_to(library).parts)
    ]
    return layer(
        *needed,
        file("opt/python/bin/python3", Path(program).read_bytes(), 0o755),
        *found,
        *(file(f"{place}/lib-dynload/{path.name}", path.read_bytes(), 0o755) for path in parts),
        *(file(f"{place}/{name}", text) for name, text in modules),
    )
