"""Long text for a person: through the pager, in colours."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING

from nsm import paths

if TYPE_CHECKING:
    from collections.abc import Generator

_LESS = {"LESS": "FRX", "LV": "-c"}
"""Variables that nsm sets, as git does, unless they are set: less shows colours, leaves the text on
the screen, and ends by itself if the text fits one screen."""

_COLOURS = {"+": "32", "-": "31", "@": "36", "#": "33"}
_HEADING = "1"


@contextmanager
def paged() -> Generator[None]:
    """While the block lasts, send standard output through PAGER where it is a terminal.

    An empty PAGER and `cat` mean none, and so does a host without `less` and PAGER. Leaving the
    pager early ends the block, and is no error.
    """
    if not sys.stdout.isatty():
        yield
        return
    import shutil  # noqa: PLC0415  # for terminals only
    import signal  # noqa: PLC0415
    import subprocess  # noqa: PLC0415

    command, search_path = os.environ.get("PAGER", "less").strip(), paths.search_path()
    if command in ("", "cat") or (
        command == "less" and shutil.which("less", path=search_path) is None
    ):
        yield
        return

    sys.stdout.flush()
    # By a shell, as everybody runs PAGER: it may have options.
    pager = subprocess.Popen(  # noqa: S602
        command,
        shell=True,
        stdin=subprocess.PIPE,
        env={**_LESS, **os.environ, "PATH": search_path},
    )
    assert pager.stdin is not None
    ours = sys.stdout
    sys.stdout = _ToPager(pager.stdin, encoding=ours.encoding, errors="backslashreplace")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pager
    try:
        with suppress(BrokenPipeError):
            yield
    finally:
        with suppress(BrokenPipeError):
            sys.stdout.close()
        sys.stdout = ours
        pager.wait()
        signal.signal(signal.SIGINT, before)


class _ToPager(TextIOWrapper):
    """Standard output that a person reads through the pager."""

    def isatty(self) -> bool:
        """True: the pager shows it on a terminal."""
        return True


def may_colour() -> bool:
    """Tell whether standard output is for a person who wants colours (https://no-color.org)."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "dumb") != "dumb"
    )


def coloured(patch: str) -> str:
    """A patch in the colours that git has. Nothing in it may drive a terminal yet."""
    lines: list[str] = []
    inside = False
    for line in patch.split("\n"):
        inside = not line.startswith("diff --git ") and (inside or line.startswith("@@"))
        colour = _COLOURS.get(line[:1], "") if inside or line[:1] == "#" else _HEADING
        lines.append(f"\x1b[{colour}m{line}\x1b[m" if colour and line else line)
    return "\n".join(lines)
