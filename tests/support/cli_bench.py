"""`nsm` as tests run it: in this process, and as a program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from nsm.cli import main

if TYPE_CHECKING:
    import pytest

NSM = [sys.executable, "-m", "nsm.cli"]
"""The command as a program."""

TIMEOUT_S = 120
"""Time limit of a process under test; each takes a fraction of a second."""


class Said(NamedTuple):
    """Exit code of a command, and what it printed."""

    code: int
    out: str
    err: str


Nsm: TypeAlias = Callable[..., Said]


def in_this_process(capture: pytest.CaptureFixture[bytes], *arguments: str) -> Said:
    """Run a command here; `capture` is what takes its output."""
    try:
        code = main.main(list(arguments))
    except SystemExit as end:  # argparse
        code = end.code if isinstance(end.code, int) else -1
    said = capture.readouterr()
    return Said(code, said.out.decode(), said.err.decode())
