"""Says what holds in the jail that it runs in; sent there as code: it imports nothing of ours."""

from __future__ import annotations

import ctypes
import json
import locale
import os
import resource
import socket
import stat
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

POLICY_PATH = "/run/nsm/policy.json"


def unescaped(field: str) -> str:
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        field = field.replace("\\" + code, character)
    return field


def mounts() -> dict[str, list[str]]:
    """Path to kind and mode; what was mounted last at a place is what counts."""
    found: dict[str, list[str]] = {}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            kind = fields[fields.index("-") + 1]
            found[unescaped(fields[4])] = [kind, fields[5].split(",")[0]]
    return found


def attempt(function: Callable[..., Any], *arguments: Any) -> str:
    """Return the outcome: `done`, or the kernel's error."""
    try:
        result = function(*arguments)
    except OSError as error:
        return str(error.strerror)
    if isinstance(result, int) and result < 0:
        return os.strerror(ctypes.get_errno())
    return "done"


def make_file(directory: str) -> None:
    path = directory + "/.look"
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    os.unlink(path)


def open_to_write(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY))


def room(path: str) -> list[float]:
    """MiB, files."""
    found = os.statvfs(path)
    return [found.f_blocks * found.f_frsize / (1 << 20), found.f_files]


def devices() -> list[str]:
    found: list[str] = []
    for folder, folders, names in os.walk("/dev"):
        folders[:] = [name for name in folders if (folder, name) != ("/dev", "pts")]
        for path in (os.path.join(folder, name) for name in names):
            if path not in ("/dev/stdin", "/dev/stdout", "/dev/stderr") and os.path.exists(path):
                mode = os.stat(path).st_mode
                if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                    found.append(path)
    return sorted(found)


def own_files() -> list[str]:
    """Regular files that are nobody else's: on the root file system itself."""
    found: list[str] = []
    device = os.lstat("/").st_dev
    for folder, folders, names in os.walk("/"):
        folders[:] = [
            name for name in folders if os.lstat(os.path.join(folder, name)).st_dev == device
        ]
        for name in names:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if status.st_dev == device and stat.S_ISREG(status.st_mode):
                found.append(path)
    return sorted(found)


def tampering(path: str) -> dict[str, str]:
    """Every way to change a file that one owns."""
    return {
        "write": attempt(open_to_write, path),
        "chmod": attempt(os.chmod, path, 0o777),
        "unlink": attempt(os.unlink, path),
        "rename": attempt(os.rename, path, "/workspace/x"),
        "link": attempt(os.link, path, "/workspace/x"),
        "truncate": attempt(os.truncate, path, 0),
        "replace": attempt(os.rename, "/workspace/.look", path),
        "parent": attempt(os.rename, os.path.dirname(path), "/run/other"),
        "through proc": attempt(reopened, path),
        "times": attempt(os.utime, path),
    }


def reopened(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        open_to_write(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def limits() -> dict[str, list[int]]:
    kinds = {"processes": "NPROC", "descriptors": "NOFILE", "data": "DATA", "core": "CORE"}
    return {
        name: list(resource.getrlimit(getattr(resource, "RLIMIT_" + kind)))
        for name, kind in kinds.items()
    }


def look(policy_path: str) -> dict[str, Any]:
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        with open(policy_path) as file:
            policy = json.load(file)
    except FileNotFoundError:
        policy = None
    open("/workspace/.look", "w").close()
    tampered = {} if policy is None else tampering(policy_path)
    os.unlink("/workspace/.look")
    places: list[str] = [] if policy is None else [mount["path"] for mount in policy["mounts"]]
    same = None
    if policy is not None:
        with open(policy_path) as file:
            same = json.load(file) == policy
    return {
        "policy": policy,
        "still the same": same,
        "tampering": tampered,
        "mounts": mounts(),
        "room": {path: room(path) for path in places},
        "directories": {path: attempt(make_file, path) for path in places if os.path.isdir(path)},
        "files": {path: attempt(open_to_write, path) for path in places if os.path.isfile(path)},
        "own files": own_files(),
        "variables": sorted(os.environ),
        "devices": devices(),
        "limits": limits(),
        "user": [os.getuid(), os.geteuid(), os.getgid(), os.getegid()],
        "capabilities": [int(value, 16) for name, value in status.items() if name[:3] == "Cap"],
        "no_new_privs": int(status["NoNewPrivs"]),
        "filter": int(status["Seccomp"]),
        "namespaces": [attempt(libc.unshare, flag) for flag in (0x10000000, 0x40000000)],
        "time zone": time.strftime("%z"),
        "encoding of the C library": locale.getlocale(locale.LC_CTYPE),
        "interfaces": sorted(name for _, name in socket.if_nameindex()),
    }


print(json.dumps(look(POLICY_PATH)))
