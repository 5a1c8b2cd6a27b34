"""Write docs/contributing/flows.md: how much of our code one call passes.

    .venv/bin/python tools/flows.py

A supervisor of its own counts the calls of our functions in its process, from the request until the
answer is there. Of several requests the one with the fewest calls counts, since timers may come in
between. Comprehensions, lambdas and imports are left out. It prints the files of each.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from private_supervisor import private_supervisor

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/contributing/flows.md"
SOURCES = {
    str(ROOT / folder) + "/": name
    for folder, name in (
        ("supervisor/nsmd", "nsmd"),
        ("clients/nsm", "nsm"),
        ("agent/sandbox", "sandbox"),
    )
}
COUNTS = "NSM_FLOWS_COUNTS"
"""Variable with the path of the file into which the supervisor writes what it has counted."""

REPEATS = 5

SETTLE_S = 0.5
"""Time for what the request before has left to do, such as a new spare."""

HEAD = """\
# Flows

How many calls of our functions, and how many of our files, one request passes in the supervisor.
`tools/flows.py` writes this page: `.venv/bin/python tools/flows.py`.

| flow | calls | functions | files |
| --- | --- | --- | --- |
"""


class Count(NamedTuple):
    """One request: calls by function, as `file:name`."""

    functions: dict[str, int]

    @property
    def calls(self) -> int:
        return sum(self.functions.values())

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(name.partition(":")[0] for name in self.functions))


# In the supervisor.


class Counter:
    """Counts calls between two signals, and writes them into a file."""

    def __init__(self) -> None:
        self._frames: set[FrameType] = set()
        self._functions: dict[str, int] = {}
        self._counts = False

    def toggle(self, _number: int, _frame: FrameType | None) -> None:
        """Begin to count, or end."""
        self._counts = not self._counts
        if self._counts:
            self._frames, self._functions = set(), {}
            sys.setprofile(self._count_call)
            return
        sys.setprofile(None)
        path = Path(os.environ[COUNTS])
        path.with_suffix(".new").write_text(json.dumps(self._functions))
        path.with_suffix(".new").rename(path)

    def _count_call(self, frame: FrameType, event: str, _argument: object) -> None:
        # A coroutine that goes on is the same frame once more.
        if event != "call" or frame in self._frames or frame.f_code.co_name.startswith("<"):
            return
        self._frames.add(frame)
        for source, name in SOURCES.items():
            if frame.f_code.co_filename.startswith(source):
                path = f"{name}/{frame.f_code.co_filename[len(source) :]}"
                key = f"{path}:{frame.f_code.co_qualname}"
                self._functions[key] = self._functions.get(key, 0) + 1
                return


def supervise(arguments: list[str]) -> int:
    """Run the supervisor with a counter."""
    from nsmd.app.main import main  # noqa: PLC0415  # in that process only

    signal.signal(signal.SIGUSR1, Counter().toggle)
    return main(arguments)


# The requests.


class Place:
    """A supervisor that counts.

    Args:
        variables: lead nsm's programs to it.
        counts: file with what it has counted.
    """

    def __init__(self, variables: dict[str, str], counts: Path) -> None:
        self._variables = {**os.environ, **variables}
        self._counts = counts
        self._pidfd = os.pidfd_open(json.loads(self.nsm("status", "--json"))["pid"])

    def nsm(self, *arguments: str) -> str:
        """Run a command of nsm; returns what it prints."""
        command = [sys.executable, "-P", "-m", "nsm.cli", *arguments]
        return subprocess.run(
            command, env=self._variables, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    def fewest(self, request: Callable[[], object], times: int = REPEATS) -> Count:
        """Make a request several times; returns what passed the fewest calls."""
        return min((self._count(request) for _ in range(times)), key=lambda count: count.calls)

    def _count(self, request: Callable[[], object]) -> Count:
        time.sleep(SETTLE_S)
        signal.pidfd_send_signal(self._pidfd, signal.SIGUSR1)
        request()
        signal.pidfd_send_signal(self._pidfd, signal.SIGUSR1)
        while not self._counts.exists():
            time.sleep(0.01)
        count = Count(json.loads(self._counts.read_text()))
        self._counts.unlink()
        return count

    @contextmanager
    def shim(self) -> Generator[Callable[[str, dict[str, Any]], object]]:
        """Start an editor's shim; yields a function that asks it."""
        command = [sys.executable, "-P", "-m", "nsm.shim"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, env=self._variables, text=True, **pipes) as process:
            numbers = itertools.count(1)

            def ask(method: str, parameters: dict[str, Any]) -> object:
                number = next(numbers)
                asked = {"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(json.dumps(asked) + "\n")
                process.stdin.flush()
                while (answer := json.loads(process.stdout.readline())).get("id") != number:
                    pass
                return answer["result"]

            client = {"name": "flows", "version": "1"}
            ask(
                "initialize",
                {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client},
            )
            yield ask
            process.terminate()


def wheel(folder: Path) -> None:
    """Write a wheel, for an environment that needs no network."""
    info = "demo-1.0.dist-info"
    files = {
        "demo.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in files)
    with zipfile.ZipFile(folder / "demo-1.0-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def measure() -> dict[str, Count]:
    """Make all requests."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        folder.chmod(0o755)  # root's jails run as another user
        wheel(folder)
        more = {
            COUNTS: str(folder / "counts"),
            "XDG_DATA_HOME": str(folder),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": directory,
        }
        program = (__file__, "--supervise")
        with private_supervisor("nsm-flows-", more=more, program=program) as variables:
            place = Place(variables, folder / "counts")
            call = {"name": "run", "arguments": {"env": "python", "session": "s", "code": "1"}}
            with place.shim() as ask:
                ask("tools/call", call)
                found = {
                    "MCP `run` in a live session": place.fewest(lambda: ask("tools/call", call))
                }
            place.nsm("run", "-e", "python", "1")
            found["a one-shot, `nsm run`"] = place.fewest(
                lambda: place.nsm("run", "-e", "python", "1")
            )
            found["`nsm env add`, one package"] = place.fewest(
                lambda: place.nsm("env", "add", "demo", "--pip", "demo"), 1
            )
            return found


def page(found: Mapping[str, Count]) -> str:
    """Make the page."""
    rows = "".join(
        f"| {flow} | {count.calls} | {len(count.functions)} | {len(count.files)} |\n"
        for flow, count in found.items()
    )
    return HEAD + rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--supervise"]:
        sys.exit(supervise(sys.argv[2:]))
    measured = measure()
    PAGE.write_text(page(measured))
    for flow, count in measured.items():
        sys.stdout.write(f"\n{flow}: {', '.join(count.files)}\n")
