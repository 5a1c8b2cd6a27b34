"""List of a session's changes that a person sees before agreeing to them."""

from __future__ import annotations

import io
import sys
from typing import cast

import pytest

from nsm.changes import Changes
from nsm.cli.render.patch import patch_of
from nsm.cli.verbs.changes import chosen, show_patch, tell_unchanged
from nsm.wire.files import ChangeRow, Contents, FileState

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
    monkeypatch.setenv("NO_COLOR", "1")
    assert show_patch(cast("Changes", OneChange()), "work", ADDED) == ADDED
    assert "+print(1)\\x1b[8m; evil()\\x1b[0m\n+evil()\\rprint()\n" in terminal.getvalue()


def test_a_path_that_means_no_change_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    tell_unchanged([ADDED], ["setup.py", "setup"])
    assert (
        capsys.readouterr().err
        == "nsm: nothing has changed at setup (paths begin at the project)\n"
    )


def test_changes_in_a_directory_that_is_left_out_are_left_out() -> None:
    """A link out of the project is left out; what lies where it would be is not taken away."""
    folder, link = FileState("directory", 0o755, 0, ""), FileState("symlink", 0, 4, "t")
    replaced = ChangeRow("src", "changed", folder, link, "", "a link that leads out", "")
    gone = ChangeRow("src/main.py", "deleted", ADDED.after, None, "", "", "")
    beside = gone._replace(path="src.py")
    wanted, left = chosen([replaced, gone, beside], named=[], force=False)
    assert wanted == [beside]
    assert [row.path for row in left] == ["src", "src/main.py"]
    assert "left out" in left[1].problem
    assert chosen([replaced, gone], named=["src"], force=False) == ([replaced, gone], [])


def test_a_mode_that_git_does_not_know_is_said_beside_the_patch() -> None:
    before, after = FileState("file", 0o644, 2, "s"), FileState("file", 0o600, 2, "t")
    row = ChangeRow("key", "changed", before, after, "", "", "")
    words = b"# key, mode 644 becomes 600\n"
    assert patch_of(row, Contents(row, b"k\n", b"k\n")) == words
    assert patch_of(row, Contents(row, b"k\n", b"q\n")).startswith(
        words + b"diff --git a/key b/key\n--- a"
    )
