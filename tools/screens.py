"""Capture what `nsm top` shows into docs/how-to/operations.md: real sessions, in a real tmux.

    .venv/bin/python tools/screens.py

A block that follows the comment ``<!-- screen NAME -->`` is replaced by that screen. A test takes
the screens again and compares their form, see `form`.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import nsm
from nsm.wire.errors import NsmError
from private_supervisor import private_supervisor

PAGE = Path(__file__).resolve().parent.parent / "docs/how-to/operations.md"
NSM = str(Path(sys.executable).parent / "nsm")
BLOCK = re.compile(r"^<!-- screen ([\w-]+) -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)

DEADLINE_S = 30.0
"""For anything to appear, on a machine that runs everything at once."""


_WORK = "import time\nwhile True:\n    sum(range(10**5))\n    time.sleep(0.01)"


class ScreenError(Exception):
    """The expected text did not appear; the message says what is shown instead."""


class Tmux:
    """One program in a terminal of tmux's, driven through its control mode: it tells of output.

    Use it as a context manager: at the end the terminal and its program are gone.
    """

    def __init__(self, command: str, variables: Mapping[str, str], *, columns: int, rows: int):
        self._directory = tempfile.mkdtemp(prefix="nsm-tmux-")
        self._base = ["tmux", "-S", f"{self._directory}/s", "-f", os.devnull]
        inherited = {name: value for name, value in os.environ.items() if name != "TMUX"}
        self._variables = {**inherited, **variables, "LC_ALL": "C.UTF-8"}
        self._process = subprocess.Popen(
            [*self._base, "-C", "new-session", "-x", str(columns), "-y", str(rows), command],
            env=self._variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(
            [*self._base, "kill-server"],
            env=self._variables,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        self._process.communicate(timeout=DEADLINE_S)
        shutil.rmtree(self._directory)

    def keys(self, *keys: str) -> None:
        """Press keys, by tmux's names."""
        for key in keys:
            self._ask(f"send-keys -- '{key}'")

    def resize(self, columns: int, rows: int) -> None:
        """Make the window larger or smaller."""
        self._ask(f"resize-window -x {columns} -y {rows}")

    def screen(self) -> str:
        """Return the text on the screen, without spaces at the ends of lines."""
        lines = [line.rstrip() for line in self._ask("capture-pane -p")]
        return "\n".join(lines).rstrip("\n") + "\n"

    def wait(self, condition: Callable[[str], bool], what: str) -> str:
        """The screen as soon as it fulfils a condition.

        Raises:
            ScreenError: that has not come.
        """
        deadline = time.monotonic() + DEADLINE_S
        while not condition(screen := self.screen()):
            while not (line := self._line(deadline)).startswith(b"%output"):
                if not line or line.startswith(b"%exit"):
                    raise ScreenError(f"{what} has not come; tmux shows:\n{screen}")
        return screen

    def _ask(self, command: str) -> list[str]:
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        deadline = time.monotonic() + DEADLINE_S
        answer: list[str] | None = None
        while line := self._line(deadline):
            if line.startswith(b"%begin"):
                # The last field is 1 for what a control client has asked for (tmux(1)).
                answer = [] if line.endswith(b" 1") else None
            elif line.startswith((b"%end", b"%error")) and answer is not None:
                return answer
            elif answer is not None:
                answer.append(line.decode())
            elif line.startswith(b"%exit"):
                break
        raise ScreenError(f"tmux has not answered {command!r}")

    def _line(self, deadline: float) -> bytes:
        """The next line; empty when the time is over or there is none."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            ready, _, _ = select.select([descriptor], [], [], max(0, deadline - time.monotonic()))
            data = os.read(descriptor, 65536) if ready else b""
            if not data:
                return b""
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line or b" "  # an empty line of a screen is a line all the same


@contextmanager
def sessions(socket_path: str) -> Generator[None]:
    """Some sessions of some programs; one of them is busy as long as the block lasts."""

    def client(name: str) -> nsm.Client:
        return nsm.Client(socket_path=socket_path, autostart=False, name=name)

    def busy() -> None:
        with client("cursor") as cursor:
            cursor.run(_WORK, env="python", session="train")

    with client("claude-code") as claude, client("zed") as zed:
        for code in ("rows = list(range(10**6))", "sum(rows)", "max(rows)"):
            claude.run(code, env="python", session="analysis")
        claude.run("cd /tmp && ls", env="bash", session="shell")
        zed.run("import json", env="python", session="tests")
        working = threading.Thread(target=busy)
        working.start()
        try:
            yield
        finally:
            while working.is_alive():
                try:
                    zed.interrupt("train")
                except NsmError:
                    break  # it has not begun, and will be interrupted by the end of its session
                working.join(1)
            zed.kill_all()
            working.join()


def captured(variables: Mapping[str, str]) -> dict[str, str]:
    """The screens by name.

    Raises:
        ScreenError: something is not shown.
    """
    screens: dict[str, str] = {}
    measured = re.compile(r"^train .* running +\S+ +\d+\.\d ", re.MULTILINE)
    with (
        sessions(variables["NSM_SOCKET"]),
        Tmux(f"{NSM} top -s name -d 0.5", variables, columns=96, rows=12) as tmux,
    ):
        screens["top"] = tmux.wait(
            lambda text: measured.search(text) is not None, "a share of the processor"
        )
        tmux.keys("/", "c", "l", "a", "u", "d", "e", "Enter", "Down", "k")
        tmux.resize(74, 10)
        screens["top-kill"] = tmux.wait(
            lambda text: "End session shell" in text and "AGE" not in text and "zed" not in text,
            "a question",
        )
        tmux.keys("n", "q")
    return screens


def form(text: str) -> str:
    """A screen without what differs each time it is taken: numbers, ids, and space."""
    text = re.sub(r"\b[0-9a-f]{8}\b", "ID", text)
    text = re.sub(r"\b(\d+[dhms])+\b", "0s", text)
    return re.sub(r" +", " ", re.sub(r"\d[\d.]*", "0", text))


def main() -> int:
    """Put the screens into the page."""
    with private_supervisor("nsm-screens-") as variables:
        screens = captured(variables)
    text, places = BLOCK.subn(
        lambda found: f"<!-- screen {found[1]} -->\n```text\n{screens[found[1]]}```",
        PAGE.read_text(),
    )
    PAGE.write_text(text)
    print(f"{places} screens in {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
