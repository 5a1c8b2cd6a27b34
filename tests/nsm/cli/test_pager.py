"""Long text for a person: colours, and the pager on a real terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from nsm.cli import pager

if TYPE_CHECKING:
    from pathlib import Path

PATCH = """\
# setup.py: a mode that git does not know
diff --git a/x b/x
--- a/x
+++ b/x
@@ -1,2 +1,2 @@
 same
--- a line that begins with two dashes
+new
"""

PROGRAM = """
import sys
from nsm.cli import pager
with pager.paged():
    for number in range(int(sys.argv[1])):
        print(pager.may_colour(), number)
print("after")
"""


def test_a_patch_has_the_colours_of_git() -> None:
    lines = pager.coloured(PATCH).split("\n")
    assert [line[:5].removeprefix("\x1b") for line in lines] == [
        "[33m",
        "[1md",
        "[1m-",
        "[1m+",
        "[36m",
        " same",
        "[31m",
        "[32m",
        "",
    ]
    assert "".join(line.removesuffix("\x1b[m") for line in lines).count("\x1b") == 7


def on_terminal(lines: int, **variables: str) -> str:
    """Output of the program above on a terminal."""
    ours, its = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(lines)],
        stdout=its,
        env={**os.environ, "TERM": "xterm", **variables},
    ) as process:
        os.close(its)
        told = b""
        try:
            while piece := os.read(ours, 65536):
                told += piece
        except OSError:  # EIO: everybody has closed it
            pass
        finally:
            os.close(ours)
    assert process.returncode == 0
    return told.decode().replace("\r", "")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAGER", "NO_COLOR", "LESS"):
        monkeypatch.delenv(name, raising=False)


def test_the_pager_gets_it_on_a_terminal() -> None:
    shown = on_terminal(2, PAGER='echo "LESS=$LESS"; tr a-z A-Z')
    assert shown == "LESS=FRX\nTRUE 0\nTRUE 1\nafter\n"


def test_a_pager_that_is_left_early_is_no_error() -> None:
    assert on_terminal(200_000, PAGER="head -n 1") == "True 0\nafter\n"


@pytest.mark.parametrize("command", ["", "cat"])
def test_without_a_pager(command: str) -> None:
    assert on_terminal(1, PAGER=command) == "True 0\nafter\n"


def test_colours_are_not_for_everybody() -> None:
    assert on_terminal(1, PAGER="", NO_COLOR="1") == "False 0\nafter\n"
    assert on_terminal(1, PAGER="", TERM="dumb") == "False 0\nafter\n"


def test_a_pipe_gets_neither(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "1"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PAGER": f"touch {tmp_path}/paged", "TERM": "xterm"},
    )
    assert (done.stdout, os.listdir(tmp_path)) == ("False 0\nafter\n", [])


def test_a_checkout_brings_no_pager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "less").write_text("#!/bin/sh\necho brought\n")
    (tmp_path / "less").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert "brought" not in on_terminal(1, PATH=f".::{os.environ['PATH']}")
    assert "brought" not in on_terminal(1, PATH=".", PAGER="less")
