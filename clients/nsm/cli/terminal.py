"""Writing to people and to the programs that read us, and asking people."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

from nsm.cli.render import formats
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from io import TextIOWrapper


_EXIT_FAILED = 1  # as in `options`: `claudebox` has none, and does not load what parses them


def set_up() -> None:
    """Make the standard streams safe to write to, whatever they are."""
    for name in ("stdout", "stderr"):
        stream = cast("TextIOWrapper | None", getattr(sys, name))
        if stream is None:  # closed by whoever started us; see `sys.stdout`
            null = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(null, "w", encoding="utf-8"))
        else:
            stream.reconfigure(errors="backslashreplace")  # a locale that lacks a character


def out(text: str) -> None:
    """Write one text and a newline to stdout. An empty text writes nothing."""
    if text:
        sys.stdout.write(text + "\n")


def width(stream: TextIO | None = None) -> int | None:
    """Columns of the terminal that a stream (standard output) is; None where it is none: what goes
    to files and programs is not cut."""
    try:
        size = os.get_terminal_size((stream or sys.stdout).fileno())
    except (OSError, ValueError):
        return None
    return size.columns or 80


def out_json(value: Any) -> None:
    """Write one value as JSON, in ASCII: a terminal never sees its control characters."""
    import json  # noqa: PLC0415  # 2 ms that only --json pays

    out(json.dumps(_plain(value), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    """The same with maps for named tuples, which JSON would have as lists."""
    as_map = getattr(value, "_asdict", None)
    if as_map is not None:
        value = as_map()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in cast("Sequence[Any]", value)]
    return value


def answer(options: argparse.Namespace, value: Any, text: Callable[[], str]) -> None:
    """Write what a verb answers: as JSON where its options ask for that, else for people."""
    if options.json:
        out_json(value)
    else:
        out(text())


def note(text: str) -> None:
    """Tell something beside the output, on stderr."""
    sys.stderr.write(f"nsm: {text}\n")


def report(error: NsmError | OSError, code: int = _EXIT_FAILED) -> int:
    """Tell an error and what to do next; returns the code."""
    if isinstance(error, NsmError):
        note(formats.error(error.message, error.hint))
    else:
        note(formats.os_error(error, "standard output" if _stdout_fails() else ""))
    return code


def _stdout_fails() -> bool:
    """Return whether what is buffered for standard output cannot be written; then drop it, as it
    would fail once more at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        drop_stdout()
        return True
    return False


def drop_stdout() -> None:
    """Let what is buffered for who cannot take it go nowhere, else Python complains at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def may_ask() -> bool:
    """Tell whether there is somebody to ask."""
    return bool(sys.stdin) and sys.stdin.isatty()


def choice(question: str) -> str:
    """Ask; the answer in lower case, empty for nothing."""
    sys.stdout.write(f"{question} ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower()


def agreed(question: str, choices: str = "[y]es, [N]o") -> bool:
    """Ask a question that is answered by yes or no."""
    return choice(f"{question} {choices}") in ("y", "yes")


def draw(line: str) -> None:
    """Draw a line on stderr over the one that was drawn before; empty takes it away."""
    # Back to the line's beginning, and what was behind it is erased (ECMA-48, EL).
    sys.stderr.write(f"\r{line}\x1b[K")
    sys.stderr.flush()
