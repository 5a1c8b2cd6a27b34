"""Files of a control group: each takes or gives one short text (cgroups(7), cgroup-v2.rst)."""

from __future__ import annotations

import os
from collections.abc import Mapping

_READ_BYTES = 65536


def read(directory: str, name: str) -> str:
    """Read the text of a file."""
    fd = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _READ_BYTES).decode(errors="replace")
    finally:
        os.close(fd)


def write(directory: str, name: str, text: str) -> None:
    """Write a text; OSError if the kernel refuses it."""
    fd = os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def make(directory: str) -> None:
    """Make a group; the kernel puts its files into it."""
    os.mkdir(directory)


def remove(directory: str) -> None:
    """Remove a group, which must have no processes and no groups below."""
    os.rmdir(directory)


def words(directory: str, name: str) -> frozenset[str]:
    """Read the words of a file; empty if it cannot be read."""
    try:
        return frozenset(read(directory, name).split())
    except OSError:
        return frozenset()


def number(directory: str, name: str) -> int | None:
    """Read the number in a file; None if there is none, as with `max`."""
    try:
        text = read(directory, name).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def counters(directory: str, name: str) -> Mapping[str, int]:
    """Read a flat keyed file, ``KEY NUMBER`` in lines; empty if it cannot be read."""
    try:
        lines = read(directory, name).splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
