"""Becomes a command in a world of its own: other mounts, another user, the same process.

Run as a program: ``enter.py WORLD -- COMMAND...``, with WORLD as `main` takes it. The mounts are in
a namespace of the command's own; its process id is this one's, so that signals, exit codes and a
terminal are the command's. Started by root, the command is an ordinary user's; started by an
ordinary user, it is in a user namespace in which that user is the only one, and nobody is root.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

NEWNS, NEWUSER = 0x0002_0000, 0x1000_0000
BIND, REC, PRIVATE = 4096, 16384, 1 << 18


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags))
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


def _bind(held: int, target: str, *, directory: bool) -> None:
    """Show what a descriptor leads to; the mount point is made if it is missing."""
    if not os.path.lexists(target):
        Path(target if directory else os.path.dirname(target)).mkdir(parents=True, exist_ok=True)
        if not directory:
            Path(target).touch()
    _mount(f"/proc/self/fd/{held}", target, "none", BIND | REC)


def _shadow(directory: str, without: list[str]) -> None:
    """A directory that can be added to: memory, and in it all that was there but some names."""
    held: list[tuple[str, int, bool]] = []
    links: list[tuple[str, str]] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name in without:
                continue
            if entry.is_symlink():
                links.append((entry.name, os.readlink(entry.path)))
            else:
                path = os.open(entry.path, os.O_PATH | os.O_NOFOLLOW)
                held.append((entry.name, path, entry.is_dir()))
    _mount("tmpfs", directory, "tmpfs", 0, "mode=755")
    for name, to in links:
        os.symlink(to, os.path.join(directory, name))
    for name, path, is_directory in held:
        _bind(path, os.path.join(directory, name), directory=is_directory)
        os.close(path)


def main() -> None:
    """Make the world, and become the command.

    The first argument is JSON: `uid` and `gid` of the command; `shadow`: names that are left out,
    by directory that becomes one of the world's own; `cover`: directories that become empty ones;
    `show`: [path on the host, path in the world], each seen as it was before; `directory`: where
    the command begins.
    """
    end = sys.argv.index("--")
    world: dict[str, Any] = json.loads(sys.argv[1])
    _enter()
    shown = [
        (os.open(source, os.O_PATH), target, Path(source).is_dir())
        for source, target in world["show"]
    ]
    for directory, without in world["shadow"].items():
        _shadow(directory, without)
    for directory in world["cover"]:
        _mount("tmpfs", directory, "tmpfs", 0, "mode=755")
    for held, target, is_directory in shown:
        _bind(held, target, directory=is_directory)
        os.close(held)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(world["gid"], world["gid"], world["gid"])
        os.setresuid(world["uid"], world["uid"], world["uid"])
    os.chdir(world["directory"])
    os.execvp(sys.argv[end + 1], sys.argv[end + 1 :])


if __name__ == "__main__":
    main()
