"""Make the clone ready: `.venv` with nsm and its tools in exact versions, and bubblewrap.

`tools/setup.sh` starts this with a Python that works. Standard library only. A second run takes a
few milliseconds: `.venv/nsm-setup.json` records what the environment was made from.

Nothing is written outside the clone, except what the package managers do: pip's own cache, and
bubblewrap or python3-venv where they are missing and may be installed.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = "nsm-setup.json"
EXTRAS = {
    "bench": ("benchmarks/constraints.txt", "the peers that `make bench` compares with"),
    "docs": ("docs/constraints.txt", "the programs that build the docs"),
    "tools": ("tools/constraints.txt", "the programs for coverage, releases and installations"),
}
"""Optional groups of packages: file with their pins, and what they are."""


class SetupError(Exception):
    """The machine lacks something that we may not install; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageManager:
    """A system package manager: commands that install, in order, without questions."""

    program: str
    refresh: tuple[str, ...]
    install: tuple[str, ...]

    def commands(self, *packages: str) -> list[list[str]]:
        """Build the commands that install `packages`; the first may refresh the index."""
        steps = [list(self.refresh)] if self.refresh else []
        return [*steps, [*self.install, *packages]]


MANAGERS = (
    PackageManager(
        program="apt-get",
        refresh=("apt-get", "update", "-qq"),
        install=("apt-get", "install", "-y", "-qq", "--no-install-recommends"),
    ),
    PackageManager(program="dnf", refresh=(), install=("dnf", "install", "-y", "-q")),
    PackageManager(
        program="pacman", refresh=(), install=("pacman", "-Sy", "--noconfirm", "--needed")
    ),
    PackageManager(program="zypper", refresh=(), install=("zypper", "-n", "-q", "install")),
    PackageManager(program="apk", refresh=(), install=("apk", "add", "-q")),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Set up, or find that nothing is to be done. Returns 1 when the user has to act."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for extra, (_, what) in EXTRAS.items():
        parser.add_argument(f"--{extra}", action="store_true", help=f"also {what}")
    parser.add_argument("--tests", action="store_true", help="also what tests need of the system")
    options = parser.parse_args(argv)
    extras = [extra for extra in EXTRAS if getattr(options, extra)]
    # A private __pycache__ is worth having even where the user's shell switches it off: the
    # shim's start-up time is mostly compiling otherwise.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    os.environ["PIP_ROOT_USER_ACTION"] = "ignore"
    lock = os.open(ROOT, os.O_RDONLY)  # two makes at once: the second waits, then finds it done
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ensure_bubblewrap()
        ensure_environment(extras)
        if options.tests:
            ensure_test_packages()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"setup: this failed: {shlex.join(error.cmd)}", file=sys.stderr)
        return 1
    finally:
        os.close(lock)
    return 0


# What the system has to bring


def ensure_bubblewrap() -> None:
    """Have `bwrap` on PATH, or stop with the command that installs it."""
    if shutil.which("bwrap") is None:
        install_system_package("bubblewrap", why="sessions run in its jails")


# What only tests need of the system: Nix, and what its stand-in for a binary cache is made of. By
# the names of Debian's packages; elsewhere the tests use what is there.
TEST_PROGRAMS = {
    "nix": "nix-bin",
    "jq": "jq",
    "tree": "tree",
    "file": "file",
    "bc": "bc",
    "gawk": "gawk",
}
SSH_PROGRAMS = {"/usr/sbin/sshd": "openssh-server", "ssh": "openssh-client"}
"""The same for sessions on other machines."""

RUNNING_SYSTEMD = "/run/systemd/system"
"""Debian's openssh-server lets systemd start a server for everybody: where systemd runs, only a
person may want that."""

NOT_INSTALLED = "nsm-setup-not-installed.json"


def ensure_test_packages() -> None:
    """Have what tests need, if Debian offers it and it may be installed; tests skip what is not.

    What could not be installed is not tried again for this `.venv`: where packages cannot be
    fetched, every run of the tests would wait for that.
    """
    programs = TEST_PROGRAMS | ({} if os.path.isdir(RUNNING_SYSTEMD) else SSH_PROGRAMS)
    wanted = [package for name, package in programs.items() if shutil.which(name) is None]
    if not wanted or not_installed() or not may_install_test_packages():
        return
    try:
        install_system_package(*wanted, why="tests need it")
    except (SetupError, subprocess.CalledProcessError):
        (VENV / NOT_INSTALLED).write_text(json.dumps(wanted) + "\n", encoding="utf-8")
        say(f"could not install {', '.join(wanted)}; tests that need it are skipped")


def not_installed() -> list[str]:
    """Packages that were tried in vain."""
    try:
        return cast("list[str]", json.loads((VENV / NOT_INSTALLED).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return []


def may_install_test_packages() -> bool:
    """Return whether this system has them and lets us install them."""
    return shutil.which("apt-get") is not None and root_prefix() is not None


def install_system_package(*packages: str, why: str) -> None:
    """Install packages of the system's.

    Raises:
        SetupError: not allowed without a password, or no package manager that we know.
    """
    package = ", ".join(packages)
    manager = next((known for known in MANAGERS if shutil.which(known.program)), None)
    if manager is None:
        raise SetupError(f"{package} is missing ({why}); install it with the system's packages")
    prefix = root_prefix()
    if prefix is None:
        by_hand = " && ".join(shlex.join(["sudo", *step]) for step in manager.commands(*packages))
        raise SetupError(f"{package} is missing ({why}); install it and try again:\n  {by_hand}")
    say(f"installing {package} with {manager.program}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in manager.commands(*packages):
        run([*prefix, *step], environment=environment)


def root_prefix() -> list[str] | None:
    """Return the words to put before a command so that it runs as root; None if we may not."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") is None:
        return None
    allowed = subprocess.run(
        ["sudo", "-n", "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return ["sudo", "-n"] if allowed.returncode == 0 else None


# The virtual environment


@dataclass(frozen=True, slots=True)
class Stamp:
    """Inputs that an environment was made from; equal stamps mean nothing to do.

    Attributes:
        base: packages, Python and place: a difference means making it again (a virtual
            environment cannot be moved, and packages that are no longer wanted would stay).
        project: nsm's own metadata: a difference means installing nsm again, which is quick.
        extras: the pins of each optional group that is installed, by name.
    """

    base: str
    project: str
    extras: Mapping[str, str]

    @classmethod
    def read(cls) -> Stamp | None:
        """The stamp of the environment that is there, if any."""
        try:
            fields = json.loads((VENV / STAMP).read_text(encoding="utf-8"))
            return cls(fields["base"], fields["project"], dict(fields.get("extras", {})))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self) -> None:
        """Record it, last of all, so that a set-up that was cut short counts for nothing."""
        fields = {"base": self.base, "project": self.project, "extras": self.extras}
        (VENV / STAMP).write_text(json.dumps(fields) + "\n", encoding="utf-8")


def wanted_stamp(extras: Collection[str] = ()) -> Stamp:
    """The stamp of an environment made from the files as they are now."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    # Settings of linters in the same file are no reason to install again.
    parts = {key: project[key] for key in ("build-system", "project")}
    parts["hatch"] = project["tool"]["hatch"]
    version_file = ROOT / project["tool"]["hatch"]["version"]["path"]
    return Stamp(
        # Not the whole version: a virtual environment outlives security updates of its Python.
        base=digest(
            file_bytes("constraints.txt"), str(sys.version_info[:2]), base_python(), str(ROOT)
        ),
        project=digest(json.dumps(parts, sort_keys=True), version_file.read_bytes()),
        extras={extra: digest(file_bytes(EXTRAS[extra][0])) for extra in extras},
    )


def ensure_environment(extras: Collection[str]) -> None:
    """Make `.venv`, or the part of it that is out of date."""
    want, have = wanted_stamp(extras), Stamp.read()
    if have and (have.base, have.project) == (want.base, want.project) and venv_runs():
        if want.extras.items() <= have.extras.items():
            return
    elif not (have and have.base == want.base and venv_runs()):
        say(f"making .venv with Python {sys.version.split()[0]}; this takes a minute")
        make_venv()
        pip_install("--requirement", "constraints.txt", "--require-hashes")
        have = None
    if have is None or have.project != want.project:
        # hatchling is in constraints.txt, so nothing is fetched here.
        pip_install("--no-build-isolation", "--no-deps", "--editable", ".")
    kept: Mapping[str, str] = have.extras if have else {}
    for extra in sorted(name for name, _ in want.extras.items() - kept.items()):
        pins, what = EXTRAS[extra]
        say(f"installing {what}")
        pip_install("--requirement", pins, "--require-hashes", "--no-deps")
    Stamp(want.base, want.project, {**kept, **want.extras}).write()


def make_venv() -> None:
    """Create an empty `.venv` with pip in it, by whatever this machine has for that."""
    shutil.rmtree(VENV, ignore_errors=True)
    if has_ensurepip():
        run([base_python(), "-m", "venv", str(VENV)])
        return
    if (uv := shutil.which("uv")) is not None:
        run([uv, "venv", "--quiet", "--seed", "--python", base_python(), str(VENV)])
        return
    # Debian and Ubuntu keep ensurepip in a package of its own.
    minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if base_python().startswith("/usr/bin/") and shutil.which("apt-get"):
        install_system_package(f"{minor}-venv", why="it makes virtual environments")
        run([base_python(), "-m", "venv", str(VENV)])
        return
    raise SetupError(
        f"{base_python()} cannot make virtual environments (no ensurepip); install its venv"
        " package, or uv, or name another one: make run PYTHON=/path/to/python3"
    )


def venv_runs() -> bool:
    """Return whether `.venv`'s Python still starts (its base Python may have been removed)."""
    try:
        done = subprocess.run(
            [str(VENV / "bin/python"), "-I", "-c", "import nsm"], capture_output=True, check=False
        )
    except OSError:
        return False
    return done.returncode == 0


def pip_install(*options: str) -> None:
    """Run the environment's pip in the clone; only its errors show."""
    run([str(VENV / "bin/python"), "-m", "pip", "install", "-qq", *options])


# Small things


def base_python() -> str:
    """The interpreter itself, also when this one runs in a virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def has_ensurepip() -> bool:
    """Return whether `python -m venv` works: Debian drops the module, others the wheels."""
    command = [base_python(), "-I", "-c", "import ensurepip; ensurepip.version()"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    """Run a command in the clone; output goes to our stderr, failure raises."""
    subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=2, check=True
    )


def say(text: str) -> None:
    """One line for the person who waits."""
    print(f"setup: {text}", file=sys.stderr, flush=True)


def file_bytes(relative: str) -> bytes:
    """A file of the clone; absent is empty."""
    path = ROOT / relative
    return path.read_bytes() if path.exists() else b""


def digest(*parts: str | bytes) -> str:
    """A short name for the parts' content."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "big") + data)
    return state.hexdigest()[:20]


if __name__ == "__main__":
    sys.exit(main())
