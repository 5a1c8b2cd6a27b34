"""Loader that a program asks the kernel for. Pure: the first bytes of the file are given."""

from __future__ import annotations

import struct

HEADER_BYTES = 4096
"""How much of a file has to be read: linkers put the program headers and this name in front."""

_PT_INTERP = 3


def interpreter(start: bytes) -> str:
    """The path of the dynamic loader that an ELF program names.

    elf(5): the segment PT_INTERP, in files of 64 bits in the byte order of the kernels on which nsm
    runs.

    Args:
        start: the first `HEADER_BYTES` of the file.

    Returns:
        "" of a static program, and of what is none of these files.
    """
    if start[:6] != b"\x7fELF\x02\x01" or len(start) < 64:
        return ""
    (offset,) = struct.unpack_from("<Q", start, 32)
    size, count = struct.unpack_from("<HH", start, 54)
    for number in range(count):
        header = offset + number * size
        if header + 40 > len(start):
            return ""
        (kind,) = struct.unpack_from("<I", start, header)
        if kind == _PT_INTERP:
            (place,) = struct.unpack_from("<Q", start, header + 8)
            (length,) = struct.unpack_from("<Q", start, header + 32)
            return start[place : place + length].rstrip(b"\0").decode("utf-8", "surrogateescape")
    return ""


def shebang(start: bytes) -> tuple[str, ...]:
    """The interpreter of a script and its argument, as execve(2) splits its first line.

    Returns:
        () of what is no script.
    """
    if not start.startswith(b"#!"):
        return ()
    line = start[2:].split(b"\n", 1)[0].strip()
    return tuple(line.decode("utf-8", "surrogateescape").split(None, 1))
