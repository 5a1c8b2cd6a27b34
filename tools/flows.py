"""Count how much of our code one call passes.

    .venv/bin/python tools/flows.py [FOLDER]

A supervisor of its own counts the calls of our functions in its process, from the request until the
answer is there. Of several requests the one with the fewest calls counts, since timers may come in
between. Comprehensions, lambdas and imports are left out; so are coroutines that had begun before
(the loop that serves a connection), and what trio itself asks of our clock and instruments. With an
argument it writes each flow as a list of calls, indented by their depth, into that folder.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from inspect import CO_COROUTINE
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from private_supervisor import END_TIMEOUT_S, end, private_supervisor, start

ROOT = Path(__file__).resolve().parent.parent
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

AT_ONCE = "NSM_FLOWS_AT_ONCE"
"""Variable that has a supervisor count from its start."""

KEEPING = ("nsmd/restart/", "nsmd/fdstore/")
"""Packages that take up the sessions of an earlier supervisor; all else is as for new ones."""

REPEATS = 5

SETTLE_S = 0.5
"""Time for what the request before has left to do, such as a new spare."""

HEAD = """\
| flow | calls | functions | files |
| --- | --- | --- | --- |
"""


class Call(NamedTuple):
    """A call of a function, as `file:name`, below so many others of ours."""

    function: str
    depth: int


class Count(NamedTuple):
    """One request: its calls, in their order."""

    calls: list[Call]

    @property
    def functions(self) -> set[str]:
        return {call.function for call in self.calls}

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(call.function.partition(":")[0] for call in self.calls))


# In the supervisor.


class Counter:
    """Counts calls between two signals, and writes them into a file."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._counts = False

    def toggle(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """Begin to count, or end."""
        self._counts = not self._counts
        if self._counts:
            self._calls = []
            sys.setprofile(self._count_call)
            return
        sys.setprofile(None)
        path = Path(os.environ[COUNTS])
        path.with_suffix(".new").write_text(json.dumps(self._calls))
        path.with_suffix(".new").rename(path)

    def _count_call(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or frame.f_code.co_name.startswith("<") or goes_on(frame):
            return
        if (name := named(frame)) is not None and not is_asked_by_trio(frame):
            depth, around = 0, frame.f_back
            while around is not None:
                if named(around) is not None:
                    depth += 1
                    if is_asked_by_trio(around):
                        return
                around = around.f_back
            self._calls.append(Call(name, depth))


def named(frame: FrameType) -> str | None:
    """The function of a frame, if it is ours."""
    code = frame.f_code
    for source, name in SOURCES.items():
        if code.co_filename.startswith(source):
            return f"{name}/{code.co_filename[len(source) :]}:{code.co_qualname}"
    return None


def goes_on(frame: FrameType) -> bool:
    """Return whether the frame is of a coroutine that has waited."""
    # The instruction is RESUME, and its argument says after what: 0 is the beginning.
    return frame.f_code.co_code[frame.f_lasti + 1] != 0


def is_asked_by_trio(frame: FrameType) -> bool:
    """Return whether the function is one of the clock's, or of an instrument."""
    by = frame.f_back
    module = "" if by is None else by.f_globals.get("__name__", "")
    return module.startswith("trio.") and not frame.f_code.co_flags & CO_COROUTINE


def supervise(arguments: list[str]) -> int:
    """Run the supervisor with a counter."""
    from nsmd.app.main import main  # noqa: PLC0415  # in that process only

    counter = Counter()
    signal.signal(signal.SIGUSR1, counter.toggle)
    if AT_ONCE in os.environ:
        counter.toggle()
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
        return min((self._count(request) for _ in range(times)), key=lambda count: len(count.calls))

    def _count(self, request: Callable[[], object]) -> Count:
        time.sleep(SETTLE_S)
        signal.pidfd_send_signal(self._pidfd, signal.SIGUSR1)
        request()
        return self._counted(self._pidfd)

    def _counted(self, pidfd: int) -> Count:
        signal.pidfd_send_signal(pidfd, signal.SIGUSR1)
        while not self._counts.exists():
            time.sleep(0.01)
        calls = json.loads(self._counts.read_text())
        self._counts.unlink()
        return Count([Call(*call) for call in calls])

    def reattachment(self, more: Mapping[str, str], program: Sequence[str]) -> Count:
        """Kill the supervisor, and start one that takes up its session; returns what passed there
        of the code that is for that alone.
        """
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        select.select([self._pidfd], [], [], END_TIMEOUT_S)
        variables = {**self._variables, **more, AT_ONCE: "1"}
        process, reading = start(variables, self._counts.with_suffix(".log"), program)
        try:
            with open(reading, "rb") as ready:
                ready.readline()
            while not any(each["name"] == "s" for each in json.loads(self.nsm("ps", "--json"))):
                time.sleep(0.1)
            calls = self._counted(os.pidfd_open(process.pid)).calls
        finally:
            end(process)
        return Count([call for call in calls if call.function.startswith(KEEPING)])

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
            place.nsm("run", "-e", "python", "-s", "s", "1")
            found["reattachment of a session"] = place.reattachment(more, program)
            return found


def table(found: Mapping[str, Count]) -> str:
    """Return the table; of a reattachment only calls in `restart` and `fdstore` count."""
    rows = "".join(
        f"| {flow} | {len(count.calls)} | {len(count.functions)} | {len(count.files)} |\n"
        for flow, count in found.items()
    )
    return HEAD + rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--supervise"]:
        sys.exit(supervise(sys.argv[2:]))
    measured = measure()
    sys.stdout.write(table(measured))
    for number, (flow, count) in enumerate(measured.items()):
        sys.stdout.write(f"\n{flow}: {', '.join(count.files)}\n")
        for folder in sys.argv[1:]:
            lines = ["  " * call.depth + call.function + "\n" for call in count.calls]
            Path(folder, f"flow{number}.txt").write_text("".join(lines))
