"""`nsm host setup`: nsm on another machine, copied as one file with all that it needs.

The packages are those of this machine's own installation, so that the other machine needs the same
version of Python.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import sys
import tempfile
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nsm._version import COMMIT_FILE, program_commit
from nsm.hosts import installer
from nsm.hosts.place import socket_of
from nsm.hosts.ssh import connection_of, locked
from nsm.hosts.tunnel import INSTALLED, ask_ready, connect, read_answer
from nsm.wire.errors import HostError
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from nsm.hosts.address import RemoteHost
    from nsm.hosts.ssh import SshConnection
    from nsm.hosts.tunnel import HostAnswer

_DIRECTORY = INSTALLED.removesuffix("/bin/nsm")
_ARCHIVE = f"{_DIRECTORY}.$$.pyz"
"""The archive there, as a shell sees it: another laptop may copy its own at the same time."""

_EXIT_NOT_COPIED = 75

Version = tuple[int, int]

DISTRIBUTION = "nsm-sessions"

OWN = ("nsm", "nsmbox", "nsmd", "sandbox", "sandbox_agent", "sandbox_template")
"""Our own packages and modules. In a clone, no list of files has them."""

_OLDER_NAMES = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
"""Versions of glibc by the older names of platforms (PEP 600)."""

_TAG = re.compile(r"^Tag: \S+-(\S+)$", re.MULTILINE)
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_")


class SetUp(NamedTuple):
    """Outcome of a set-up: what is there now. The supervisor that runs may be an older one."""

    version: str
    directory: str
    running: bool
    has_bwrap: bool


def set_up(host: RemoteHost) -> SetUp:
    """Copy nsm to a host, and install it for the user there."""
    path = socket_of(host)
    connection = connection_of(path)
    with locked(path):
        connect(path, connection)
        program = _find_python(host, connection)
        with tempfile.TemporaryFile(prefix="nsm-host-") as archive:
            _write_archive(archive)
            archive.seek(0)
            done = connection.run(_shell(_install_script(program)), stdin=archive)
        if done.returncode == _EXIT_NOT_COPIED:
            raise HostError(
                f"nsm could not be copied to {host.name}: {_last(done.stderr)}",
                hint=f"It needs some 100 MB in ~/{_parent()} there.",
            )
        facts = read_answer(done.stdout) or {"error": _last(done.stderr)}
        if "installed" not in facts:
            raise HostError(
                f"nsm could not be installed on {host.name}: {facts.get('error')}",
                hint="What was there is as it was.",
            )
        answer: HostAnswer = ask_ready(host, connection, autostart=False)
    return SetUp(answer.version, facts["installed"], answer.running, bool(facts.get("bwrap")))


def _install_script(program: str) -> str:
    """Script that takes the archive from standard input, installs it, and leaves no part of it.

    It is one command: if the connection is lost or the user presses Ctrl-C, the part of the archive
    that has arrived is refused by Python, and removed as well.
    """
    return (
        f'archive="$HOME/{_ARCHIVE}"; trap \'rm -f "$archive"\' EXIT; '
        f'mkdir -p "$HOME/{_parent()}" && cat >"$archive" || exit {_EXIT_NOT_COPIED}; '
        f'{shlex.quote(program)} -I "$archive" "$HOME/{_DIRECTORY}"'
    )


def _find_python(host: RemoteHost, connection: SshConnection) -> str:
    major, minor = sys.version_info[:2]
    name = f"python{major}.{minor}"
    candidates = f"{name} /usr/bin/{name} /usr/local/bin/{name} python3 /usr/bin/python3"
    candidates += f' "$HOME/.local/bin/{name}"'  # where `uv python install` puts it
    test = f"import sys; sys.exit(sys.version_info[:2] != {(major, minor)})"
    found = connection.run(
        _shell(
            f'for python in {candidates}; do "$python" -I -c "{test}" 2>/dev/null && '
            'echo "nsm-python $python" && exit; done; exit 1'
        )
    )
    for line in found.stdout.decode(errors="replace").splitlines():
        if line.startswith("nsm-python "):
            return line.removeprefix("nsm-python ")
    raise HostError(
        f"there is no Python {major}.{minor} on {host.name}, as nsm has here",
        hint=f"Install it there, or nsm itself; `uv python install {major}.{minor}` needs no root.",
    )


def _parent() -> str:
    return _DIRECTORY.rpartition("/")[0]


def _shell(script: str) -> str:
    return f"exec sh -c {shlex.quote(script)}"


def _last(output: bytes) -> str:
    return " ".join(output.decode(errors="replace").strip().splitlines()[-1:]) or "no reason given"


def _write_archive(file: IO[bytes]) -> None:
    """Write the archive, for the version of Python that we have."""
    needed = _needed()
    found = dict([*(pair for each in needed for pair in _files_of(each)), *_own_files()])
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(installer.__file__, "__main__.py")
        for name, path in sorted(found.items()):
            archive.write(path, installer.PACKAGES + name)
        commit_file = f"nsm/{COMMIT_FILE}"
        if commit_file not in found and (commit := program_commit()):  # of a clone
            archive.writestr(installer.PACKAGES + commit_file, commit + "\n")
        facts = {
            "python": sys.version_info[:2],
            "machine": platform.machine(),
            "glibc": max(map(_glibc_of, needed)),
            "scripts": _scripts(),
        }
        archive.writestr(installer.FACTS, json.dumps(facts))


def _needed() -> list[Distribution]:
    """The distributions that nsm needs, without itself."""
    found: dict[str, Distribution] = {}
    wanted = [DISTRIBUTION]
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name in found:
            continue
        found[name] = _distribution(name)
        wanted += [
            requirement.name
            for requirement in map(Requirement, found[name].requires or ())
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ]
    del found[DISTRIBUTION]
    return list(found.values())


def _distribution(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise HostError(
            f"the package {name} is not installed here as nsm's own installation would have it",
            hint="Install nsm on the other machine as on this one.",
        ) from error


def _files_of(found: Distribution) -> Iterator[tuple[str, str]]:
    """The files of a distribution: name in `site-packages`, and path."""
    if found.files is None:
        raise HostError(
            f"the installation of {found.name} on this machine has no list of its files",
            hint="Install nsm on the other machine as on this one.",
        )
    for each in found.files:
        if each.parts[0] != ".." and "__pycache__" not in each.parts and not each.is_absolute():
            yield each.as_posix(), str(each.locate())


def _own_files() -> Iterator[tuple[str, str]]:
    for name in OWN:
        spec = find_spec(name)
        assert spec is not None, "it is part of this installation"
        assert spec.origin is not None, "and no namespace"
        if not spec.submodule_search_locations:
            yield f"{name}.py", spec.origin
            continue
        top = os.path.dirname(spec.origin)
        for inner, path in _files_below(top):
            yield f"{name}/{inner}", path
    for each in _distribution(DISTRIBUTION).files or ():
        if each.parts[0].endswith(".dist-info") and each.name in ("METADATA", "entry_points.txt"):
            yield each.as_posix(), str(each.locate())


def _files_below(top: str) -> Iterator[tuple[str, str]]:
    for directory, names, files in os.walk(top):
        names[:] = sorted(set(names) - {"__pycache__", "bin"})
        for name in files:
            path = os.path.join(directory, name)
            yield Path(path).relative_to(top).as_posix(), path


def _scripts() -> dict[str, str]:
    points = _distribution(DISTRIBUTION).entry_points
    return {point.name: point.value for point in points if point.group == "console_scripts"}


def _glibc_of(found: Distribution) -> Version:
    """The oldest glibc that a distribution runs with."""
    least: list[Version] = []
    for platforms in _TAG.findall(found.read_text("WHEEL") or ""):
        for tag in platforms.split("."):
            if match := _MANYLINUX.match(tag):
                least.append((int(match[1]), int(match[2])))
            elif version := _OLDER_NAMES.get(tag.partition("_")[0]):
                least.append(version)
    if least:
        return min(least)
    built_here = found.read_text("WHEEL") and "-any" not in (found.read_text("WHEEL") or "")
    return _own_glibc() if built_here else (0, 0)


def _own_glibc() -> Version:
    major, _, minor = platform.libc_ver()[1].partition(".")
    return (int(major or 0), int(minor.partition(".")[0] or 0))
