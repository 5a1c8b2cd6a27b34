"""What a person sees of a session's changes before saying yes to them."""

from __future__ import annotations

import io
import sys
from typing import cast

import pytest

from nsm.changes import Changes
from nsm.cli.changed import show_patch, tell_unchanged
from nsm.wire.changes import ChangeRow, Contents, FileState

ADDED = ChangeRow("setup.py", "added", None, FileState("file", 0o644, 40, "t"), "", "", "")


class OneChange:
    def contents(self, target: str, path: str) -> Contents:
        del target, path
        return Contents(ADDED, None, b"print(1)\x1b[8m; evil()\x1b[0m\nevil()\rprint()\n")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_patch_on_a_terminal_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert show_patch(cast("Changes", OneChange()), "work", ADDED) == ADDED
    assert "+print(1)\\x1b[8m; evil()\\x1b[0m\n+evil()\\rprint()\n" in terminal.getvalue()


def test_a_path_that_means_no_change_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    tell_unchanged([ADDED], ["setup.py", "setup"])
    assert (
        capsys.readouterr().err
        == "nsm: nothing has changed at setup (paths begin at the project)\n"
    )
