"""The environment of an unpacked image, with the host's Python for its agent.

An image may have no C library, or another one. So these jails show the host's files below
`HOST_TREE`, and the agent's Python is started by the host's loader, which is told to take libraries
from there and from nowhere else.

The image's own Python as agent would start faster, but a hostile one could leave out the filter of
system calls. Each entry of the image's root is a mount of its own, and its links are made again in
the session's: nothing on the host follows an image's link, and bwrap makes no mount point in it.
Layers are unpacked into one directory; as overlays they would need a mount each in every template.
"""

from __future__ import annotations

import os
import shlex
import struct
import subprocess
from collections.abc import Mapping, Sequence

from nsm.dataclass import dataclass
from nsmd.host.paths import is_within
from nsmd.jail.arguments import IMAGE_PLACES
from nsmd.model.policy import JAIL_VARIABLES
from nsmd.model.values import IMAGE_PLACE, ImageRoot, Interpreter, Links, ReadOnlyBind, SetupStep
from nsmd.packages.package_builds import InstallError
from nsmd.packages.store import EnvironmentDetails, ImageFacts

HOST_TREE = "/run/nsm/host"
"""Place of the host's files in these jails."""

_TIMEOUT_S = 20.0
"""Time limit of a Python that tells its libraries, which takes 50 ms."""

_TELL_LIBRARIES = """
import _socket, bz2, ctypes, fcntl, hashlib, json, lzma, math, mmap, resource, select, tarfile, zlib
with open("/proc/self/maps") as file:
    print("\\n".join({line.split(None, 5)[5].strip() for line in file if ".so" in line}))
"""

_PT_INTERP = 3
_MAX_PATH_BYTES = 4096


class HostPythonError(Exception):
    """A Python of the host cannot be used in an image's jail; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPython:
    """A Python of the host for jails whose root is an image's."""

    command: tuple[str, ...]
    binds: tuple[ReadOnlyBind, ...]


def host_python(program: str, prefixes: Sequence[str]) -> HostPython:
    """Find what a Python needs in such a jail. Blocks for 50 ms.

    Args:
        program: its absolute path.

    Raises:
        HostPythonError: it cannot be used.
    """
    program = os.path.realpath(program)
    try:
        loader = os.path.realpath(_loader_of(program))
        answer = subprocess.run(
            [program, "-I", "-S", "-B", "-c", _TELL_LIBRARIES],
            capture_output=True,
            env={},
            cwd="/",
            timeout=_TIMEOUT_S,
            check=True,
            text=True,
        ).stdout
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise HostPythonError(f"{program} does not list its libraries: {error}") from error
    folders = dict.fromkeys(os.path.dirname(path) for path in answer.splitlines())
    roots = [path for path in ("/usr", "/lib", "/lib64") if not os.path.islink(path)]
    roots = [path for path in (*roots, *prefixes) if os.path.isdir(path)]
    outermost = [
        path
        for path in dict.fromkeys(roots)
        if not any(other != path and path.startswith(f"{other}/") for other in roots)
    ]
    for path in (program, loader, *folders):
        if not any(path == root or path.startswith(f"{root}/") for root in outermost):
            raise HostPythonError(f"{program} needs {path}, which no jail shows")
    libraries = ":".join(HOST_TREE + folder for folder in folders)
    return HostPython(
        # Nothing of the image: neither its loader's cache nor its libraries.
        command=(
            *(HOST_TREE + loader, "--inhibit-cache", "--library-path", libraries),
            HOST_TREE + program,
        ),
        binds=tuple(ReadOnlyBind(source=path, target=HOST_TREE + path) for path in outermost),
    )


def _loader_of(program: str) -> str:
    """Path of a program's loader, as its ELF header says (elf(5))."""
    with open(program, "rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02" or head[5] != 1:
            raise ValueError("it is not an ELF program of 64 bits")
        (start,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        for number in range(count):
            file.seek(start + number * size)
            kind, _, offset, _, _, length = struct.unpack("<IIQQQQ", file.read(40))
            if kind == _PT_INTERP:
                file.seek(offset)
                return os.fsdecode(file.read(min(length, _MAX_PATH_BYTES)).rstrip(b"\0"))
    raise ValueError("it has no loader")


ROOT = "root"
"""Directory of the image's files in its environment's directory."""

MAX_SHOWN = 200
"""Most files and directories in the image's root directory; each is a mount."""

_NOT_TAKEN = {"LD_AUDIT", "LD_PRELOAD", *JAIL_VARIABLES} - {"LANG"}
"""Variables of images that sessions do not have: their own, and those by which the host's loader
would load an image's libraries into the agent.
"""

_GO_THERE: Mapping[Interpreter, str] = {
    "python": "__import__('os').chdir({!r})",
    "bash": "cd -- {}",
    "node": "process.chdir({})",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownImage:
    """Mounts and links by which a jail shows an image.

    Attributes:
        image: as in `Environment`.
        binds, links: as in `Environment`.
    """

    image: ImageRoot
    binds: tuple[ReadOnlyBind, ...]
    links: Links


def shown_image(
    made: str, agent_python: str, prefixes: tuple[str, ...], *, writable: bool = False
) -> ShownImage:
    """Find what a jail shows of an unpacked image, and of the host for the agent. Blocks.

    Each entry of the image's root directory is a mount of its own: where links lead is for the
    jail to find out, and nothing is ever made in the image's directories.

    Args:
        writable: sessions may change the files, each in an overlay of its own.

    Raises:
        OSError: it is not there.
    """
    try:
        host = host_python(agent_python, prefixes)
    except HostPythonError as error:
        raise InstallError(
            f"There is no Python for the agent: {error}", "`nsm doctor` says what nsm needs."
        ) from error
    root = os.path.join(made, ROOT)
    if writable:
        return ShownImage(
            image=ImageRoot(directory=root, python=host.command, writable=True),
            binds=(ReadOnlyBind(source=root, target=IMAGE_PLACE), *host.binds),
            links=(),
        )
    binds: list[ReadOnlyBind] = []
    links: list[tuple[str, str]] = []
    with os.scandir(root) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            target = f"/{entry.name}"
            if any(is_within(place, target) for place in IMAGE_PLACES):
                continue
            if entry.is_symlink():
                links.append((target, os.readlink(entry.path)))
            else:
                binds.append(ReadOnlyBind(source=entry.path, target=target))
    if len(binds) + len(links) > MAX_SHOWN:
        raise InstallError(f"Its root directory has more than {MAX_SHOWN} entries")
    return ShownImage(
        image=ImageRoot(directory=root, python=host.command),
        binds=(*binds, *host.binds),
        links=tuple(links),
    )


def variables_of(facts: ImageFacts) -> dict[str, str]:
    """Variables of an image that its sessions have."""
    return {name: value for name, value in facts.variables.items() if name not in _NOT_TAKEN}


def setup_of(details: EnvironmentDetails, facts: ImageFacts) -> tuple[SetupStep, ...]:
    """Steps that bring code to the image's working directory."""
    folder = facts.working_directory
    if not folder or not details.program:
        return ()
    quoted = shlex.quote(folder) if details.interpreter == "bash" else folder
    if details.interpreter == "node":
        import json  # noqa: PLC0415  # rarely needed

        quoted = json.dumps(folder)
    code = _GO_THERE[details.interpreter].format(quoted)
    return (SetupStep(name="the image's working directory", code=code),)
