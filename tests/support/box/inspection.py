"""Facts that a program in a box sees: it runs there and reports everything that tests ask about.

Run as ``python -I -c SOURCE SETTING``: SETTING is JSON: `texts`, paths to read; `kinds`, paths to
tell the kind of; `writes`, directories to write to; `programs`, names to look for on PATH and paths
to execute; `ports`, of the loopback. Prints one JSON object. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _text(path: str) -> str | None:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _kind(path: str) -> str:
    try:
        mode = os.lstat(path).st_mode
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    if stat.S_ISDIR(mode):
        with contextlib.suppress(OSError):
            return "directory" if os.listdir(path) else "empty directory"
        return "closed directory"
    if stat.S_ISREG(mode):
        return "file" if os.stat(path).st_size else "empty file"
    return stat.filemode(mode)[0]


def _write(directory: str) -> str:
    path = os.path.join(directory, "written-in-the-box")
    try:
        with open(path, "w") as file:
            file.write("written\n")
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "written"


def _executed(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return f"exit {done.returncode}"


def _port(number: int) -> str:
    try:
        socket.create_connection(("127.0.0.1", number), timeout=5).close()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "connected"


def _mounts() -> dict[str, list[str]]:
    """Mount points: kind of file system, and options."""
    told: dict[str, list[str]] = {}
    for line in (_text("/proc/self/mountinfo") or "").splitlines():
        fields = line.split()
        told[fields[4]] = [fields[fields.index("-") + 1], fields[5]]
    return told


def _resolved(name: str) -> list[str]:
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(name, 80)})
    except OSError as error:
        return [str(error)]


def main() -> None:
    """Look around, and tell."""
    asked: dict[str, Any] = json.loads(sys.argv[1])
    told: dict[str, object] = {
        "variables": dict(os.environ),
        "directory": os.getcwd(),
        "ids": [os.getuid(), os.getgid()],
        "host": os.uname().nodename,
        "root": sorted(os.listdir("/")),
        "tmp": os.listdir("/tmp"),
        "devices": sorted(os.listdir("/dev")),
        "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
        "mounts": _mounts(),
        "localhost": _resolved("localhost"),
        "its own name": _resolved(socket.gethostname()),
        "certificates": len(ssl.create_default_context().get_ca_certs()),
        "texts": {path: _text(path) for path in asked.get("texts", [])},
        "kinds": {path: _kind(path) for path in asked.get("kinds", [])},
        "writes": {path: _write(path) for path in asked.get("writes", [])},
        "programs": {name: shutil.which(name) for name in asked.get("programs", [])},
        "executed": {path: _executed(path) for path in asked.get("executed", [])},
        "ports": [_port(number) for number in asked.get("ports", [])],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
