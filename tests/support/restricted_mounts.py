"""Starts a program where directories are small, cannot be written to, or have other content.

Run as a program: ``restricted_mounts.py [tmpfs:BYTES:DIR | ro:DIR | bind:DIR:PLACE |
dev:NAME,NAME:DIR]... -- COMMAND...``; the last one has DIR, which it fills, as /dev. The mounts
are in a namespace of the command's own, whose view is ``/proc/PID/root``. The command keeps this
program's process id. An ordinary user makes them in a user namespace, in which nobody is root.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

NEWNS, NEWUSER = 0x0002_0000, 0x1000_0000
RDONLY, REMOUNT, BIND, REC, PRIVATE = 1, 32, 4096, 16384, 1 << 18


def command(*places: str) -> list[str]:
    """Words to put in front of a command."""
    return [sys.executable, "-I", "-S", __file__, *places, "--"]


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags))
    if libc.mount(*arguments, data.encode() or None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def _enter() -> None:
    """A mount namespace of our own."""
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEWNS | (NEWUSER if uid else 0)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _mount("none", "/", "none", REC | PRIVATE)


def _show_devices(names: str, directory: str) -> None:
    """Show the usual devices and made-up ones, which lead to /dev/null, as /dev."""
    usual = ("null", "zero", "full", "random", "urandom", "tty")
    for name in (*usual, *names.split(",")):
        Path(directory, name).touch()
        source = name if name in usual else "null"
        _mount(f"/dev/{source}", f"{directory}/{name}", "none", BIND)
    for name in ("pts", "shm"):
        Path(directory, name).mkdir()
        _mount(f"/dev/{name}", f"{directory}/{name}", "none", BIND | REC)
    for name in ("ptmx", "fd", "stdin", "stdout", "stderr"):
        target = "pts/ptmx" if name == "ptmx" else f"/proc/self/fd/{'' if name == 'fd' else 0}"
        Path(directory, name).symlink_to(target)
    _mount(directory, "/dev", "none", BIND | REC)


def main() -> None:
    """Make the places, and become the command."""
    end = sys.argv.index("--")
    _enter()
    for place in sys.argv[1:end]:
        kind, _, rest = place.partition(":")
        if kind == "tmpfs":
            size, _, directory = rest.partition(":")
            mode = f"{Path(directory).stat().st_mode & 0o777:o}"
            _mount("tmpfs", directory, "tmpfs", 0, f"size={size},mode={mode}")
        elif kind == "bind":
            source, _, directory = rest.partition(":")
            _mount(source, directory, "none", BIND)
        elif kind == "dev":
            _show_devices(*rest.split(":"))
        else:
            _mount(rest, rest, "none", BIND)
            _mount("none", rest, "none", BIND | REMOUNT | RDONLY)
    os.execv(sys.argv[end + 1], sys.argv[end + 1 :])


if __name__ == "__main__":
    main()
