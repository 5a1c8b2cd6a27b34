"""Standard streams of code."""

from __future__ import annotations

import io
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class WholeWriter(io.FileIO):
    """Python's own unbuffered stream loses the rest where a signal cuts a write short or a child
    process has made the shared pipe non-blocking; this one writes all."""

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            written = super().write(view[done:])
            if written is None:
                select.select([], [self.fileno()], [])
            done += written or 0
        return done


def open_streams() -> None:
    for name, fd, errors in (
        ("stdout", 1, "surrogateescape"),
        ("stderr", 2, "backslashreplace"),
    ):
        raw = WholeWriter(fd, "w", closefd=False)
        raw.name = f"<{name}>"  # as Python names them
        stream: Any = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)
        stream.mode = "w"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    open_stdin(stdin_file())


def stdin_file() -> io.FileIO:
    file = io.FileIO(0, closefd=False)
    file.name = "<stdin>"
    return file


def open_stdin(binary: Any) -> None:
    stream: Any = io.TextIOWrapper(binary, encoding="utf-8", errors="surrogateescape")
    stream.mode = "r"
    sys.stdin = sys.__stdin__ = stream  # type: ignore[misc]


def is_open(stream: Any) -> bool:
    try:
        return stream is not None and not getattr(stream, "closed", False)
    except ValueError:  # its buffer has been detached
        return False
