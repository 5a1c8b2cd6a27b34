"""The host's Python with its own loader and libraries, for jails whose root is an image's.

An image may have no C library, or another one. So these jails show the host's files below
`HOST_TREE`, and the agent's Python is started by the host's loader, which is told to take libraries
from there and from nowhere else.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Sequence

from nsm.dataclass import dataclass
from nsmd.model.values import ReadOnlyBind

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
    """A Python of the host for jails whose root is an image's.

    Attributes:
        command: starts it.
        binds: what the jail shows for it.
    """

    command: tuple[str, ...]
    binds: tuple[ReadOnlyBind, ...]


def host_python(program: str, prefixes: Sequence[str]) -> HostPython:
    """Find what a Python needs in such a jail. Blocks for 50 ms.

    Args:
        program: its absolute path.
        prefixes: host directories that it needs besides the base system.

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
    """Path of a program's loader, as its ELF header says (elf(5)).

    Raises:
        OSError, ValueError: it is no such program, or has none.
    """
    with open(program, "rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02" or head[5] != 1:
            raise ValueError("it is no ELF program of 64 bits")
        (start,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        for number in range(count):
            file.seek(start + number * size)
            kind, _, offset, _, _, length = struct.unpack("<IIQQQQ", file.read(40))
            if kind == _PT_INTERP:
                file.seek(offset)
                return os.fsdecode(file.read(min(length, _MAX_PATH_BYTES)).rstrip(b"\0"))
    raise ValueError("it has no loader")
