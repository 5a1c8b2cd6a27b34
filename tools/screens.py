"""Capture screens of nsm's programs for the docs: real sessions, in a real tmux.

    .venv/bin/python tools/screens.py

They go into docs/pictures. A test takes them again and compares their form, see `form`.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import nsm
from nsm.wire.errors import NsmError
from private_supervisor import private_supervisor
from svgscreen import draw, plain

PICTURES = Path(__file__).resolve().parent.parent / "docs/pictures"
NSM = str(Path(sys.executable).parent / "nsm")

DEADLINE_S = 30.0
"""Time limit for anything to appear, on a machine that runs everything at once."""


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

    def screen(self, *, colours: bool = False) -> str:
        """Return the text on the screen, without spaces at the ends of lines."""
        command = "capture-pane -p -e" if colours else "capture-pane -p"
        lines = [line.rstrip() for line in self._ask(command)]
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


def captured(variables: Mapping[str, str]) -> str:
    """The screen of `nsm top`.

    Raises:
        ScreenError: something is not shown.
    """
    measured = re.compile(r"^train .* running +\S+ +\d+\.\d ", re.MULTILINE)
    with (
        sessions(variables["NSM_SOCKET"]),
        Tmux(f"{NSM} top -s name -d 0.5", variables, columns=COLUMNS, rows=12) as tmux,
    ):
        tmux.wait(lambda text: measured.search(text) is not None, "a share of the processor")
        screen = tmux.screen(colours=True)
        tmux.keys("q")
    return screen


COLUMNS = 96
"""Width of the picture in the README; GitHub makes the letters of a wider one smaller."""
CONFIGURATION = "[session]\nundo = 5\n"
RECORDED = """\
nsm run -e python -s work 'import math; radius = 2'
nsm run -e python -s work 'round(math.pi * radius ** 2, 3)'
nsm run -e bash 'rm /project/words.txt'
nsm run -e python -s work 'del radius'
nsm undo work
nsm run -e python -s work 'radius'
nsm ps
"""

READ_S = 1.5
"""Time between the output of one command and the next command."""
RUN_S = 0.6
"""Time between a command and its output, long enough to be seen."""
END_S = 5.0
"""Time for the whole screen, before the picture begins again."""


def recorded(variables: Mapping[str, str]) -> str:
    """Run the commands of a new user; return them and their output as a terminal shows both."""
    path = f"{Path(NSM).parent}:{os.environ.get('PATH', os.defpath)}"
    shown: list[str] = []
    with tempfile.TemporaryDirectory(prefix="words-") as directory:
        Path(directory).chmod(0o755)  # under root, jails run as another user
        Path(directory, "words.txt").write_text("one two three\n")
        for command in RECORDED.splitlines():
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=directory,
                env={**os.environ, **variables, "PATH": path, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            shown += [f"$ {command}", *done.stdout.splitlines()]
        with nsm.Client(socket_path=variables["NSM_SOCKET"], autostart=False) as client:
            client.kill_all()
        text = "\n".join(shown).replace(directory, "~/words")
        # The column of `nsm ps` was as wide as the directory, and PROJECT is as wide as ~/words.
        text = text.replace("PROJECT".ljust(len(directory)), "PROJECT")
    lines = (part for line in text.split("\n") for part in textwrap.wrap(line, COLUMNS) or [""])
    return "".join(
        f"\x1b[1m{line}\x1b[0m\n" if line.startswith("$ ") else f"{line}\n" for line in lines
    )


def pictures(variables: Mapping[str, str]) -> dict[str, str]:
    """The pictures by name, of a supervisor with `CONFIGURATION` and without sessions."""
    return {
        "run": _film(recorded(variables)),
        "top": draw(captured(variables), columns=COLUMNS),
    }


def _film(recording: str) -> str:
    """A picture in which commands and their output appear one after another."""
    times_s: list[float] = []
    time_s, typed = -READ_S, False  # so the first command is there at once
    for line in recording.splitlines():
        command = plain(line).startswith("$ ")
        if command or typed:
            time_s += READ_S if command else RUN_S
        typed = command
        times_s.append(time_s)
    return draw(recording, columns=COLUMNS, times_s=times_s, again_s=time_s + END_S)


def form(text: str) -> str:
    """A screen without what differs each time it is taken: numbers, ids, and space."""
    text = re.sub(r"\b[0-9a-f]{8}\b", "ID", text)
    text = re.sub(r"\b(\d+[dhms])+\b", "0s", text)
    # What keeps a session to its limits is the host's: the last column of `nsm ps`.
    text = re.sub(r"(?m)\b(cgroup|watchdog|processes)$", "LIMITS", text)
    return re.sub(r" +", " ", re.sub(r"\d[\d.]*", "0", text))


def main() -> int:
    """Write the pictures."""
    with private_supervisor("nsm-screens-", CONFIGURATION) as variables:
        drawn = pictures(variables)
    PICTURES.mkdir(exist_ok=True)
    for name, picture in drawn.items():
        (PICTURES / f"{name}.svg").write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
