"""How a program is ended, with all it started; and what it may leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

import bridge_programs
from bridge_programs import LONG_S, outcome_of_shell
from nsm.wire.errors import BadProgramError
from nsmd.bridge.programs import ProgramEnd
from nsmd.bridge.running import Stop
from nsmd.host import child_processes
from nsmd.host.processes import children_of, processes
from processes import Watched, ending

SOON_S = 0.05
"""A step of the ladder in tests of programs that heed nothing."""


class Gate:
    """A pipe that opens when all of a program is up; it tells the numbers of its processes.

    Args:
        path: where to make it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    async def pids(self) -> list[int]:
        async with await trio.open_file(self.path) as file:
            return [int(word) for word in (await file.read()).split()]


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


async def ended_by(gate: Gate, code: str, why: Any = "cancelled", **more: Any) -> ProgramEnd:
    """Run a piece of code that tells processes through the gate; have it stopped; all are gone."""
    stop = Stop()
    found: list[ProgramEnd] = []

    async def run() -> None:
        found.append(await outcome_of_shell(code, stop=stop, **more))

    with trio.fail_after(LONG_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            with Watched(await gate.pids()) as watched:
                stop.ask(why)
                await watched.all_ended()
    return found[0]


TIDY = """
import os, signal, sys
def tidy(*_):
    print("tidied", file=open(sys.argv[2], "w"), flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, tidy)
print("begun", flush=True)
print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
signal.pause()
"""
TIDIES = f"'{sys.executable}' -I -S -c '{TIDY}'"


@pytest.mark.parametrize("why", ["cancelled", "shutdown"])
async def test_a_program_is_asked_to_end_first(gate: Gate, why: str) -> None:
    ended = await ended_by(gate, f"exec {TIDIES} {gate.path} /dev/stdout", why)
    assert (ended.exit_code, ended.why_stopped) == (5, why)
    assert ended.stdout == "begun\ntidied\n"
    assert ended.left == 0


async def test_a_program_has_a_limit_of_time() -> None:
    ended = await outcome_of_shell("sleep 100", timeout_s=0.1)
    assert (ended.why_stopped, ended.signal) == ("timeout", signal.SIGTERM)
    assert 0.1 <= ended.duration_s < LONG_S


async def test_a_program_that_has_ended_is_not_stopped() -> None:
    """Asked for while something that it has left holds its output open."""
    stop = Stop()

    def on_line(_stream: str, _line: str) -> None:
        stop.ask("cancelled")

    code = "(while kill -0 $$; do sleep 0.01; done; echo there; sleep 0.5) 2>/dev/null & exit 0"
    ended = await outcome_of_shell(code, on_line=on_line, stop=stop)
    assert (ended.exit_code, ended.why_stopped) == (0, None)


async def test_a_program_that_heeds_no_signal_is_killed(gate: Gate) -> None:
    code = f"trap '' TERM INT HUP; (sleep 100 & echo $$ $! >{gate.path}; wait); sleep 100"
    ended = await ended_by(gate, code, step_s=SOON_S)
    assert (ended.signal, ended.why_stopped, ended.left) == (signal.SIGKILL, "cancelled", 0)


LEAVES = (
    "trap '' TERM; setsid sh -c "
    "'(sleep 100 3>&- & echo $$ $! >&3); exec 3>&-; kill -STOP $$' & sleep 100 3>&- & "
)
"""A session and a group of its own, an orphan, deaf, and stopped."""


async def test_processes_in_another_session_are_killed(gate: Gate) -> None:
    code = f"exec 3>{gate.path}; {LEAVES} exec 3>&-; wait"
    ended = await ended_by(gate, code, step_s=SOON_S)
    assert (ended.why_stopped, ended.left) == ("cancelled", 0)


CHAIN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
"""
"""Another process each time that one looks, and an orphan of another session."""

HYDRA = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
heads = 0
while True:
    if os.fork():
        heads += 1
        if heads == 20:
            print(os.getpid(), file=open(sys.argv[1], "w"))
        if heads >= 20:
            os.wait()
    else:
        os.setsid()
        signal.pause()
"""
"""Starts another for each that ends."""


async def test_processes_that_start_others_all_the_time_are_killed(gate: Gate) -> None:
    python = f"'{sys.executable}' -I -S -c"
    code = f"{python} '{CHAIN}' & {python} '{HYDRA}' {gate.path} & wait"
    ended = await ended_by(gate, code, step_s=SOON_S)
    assert (ended.why_stopped, ended.left) == ("cancelled", 0)


async def test_children_have_time_to_tidy_up(gate: Gate, tmp_path: Path) -> None:
    """Also when the program itself has ended at once, and the other has left its group."""
    await ended_by(gate, f"setsid {TIDIES} {gate.path} {tmp_path}/tidied & sleep 100")
    assert (tmp_path / "tidied").read_text() == "tidied\n"


async def test_cancelling_leaves_nothing(gate: Gate) -> None:
    code = f"exec 3>{gate.path}; {LEAVES} exec 3>&-; wait"
    with trio.fail_after(LONG_S):
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                await outcome_of_shell(code, step_s=SOON_S)

            nursery.start_soon(run)
            with Watched(await gate.pids()) as watched:
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await watched.all_ended()


async def test_a_process_that_a_program_leaves_behind_goes_on(gate: Gate, tmp_path: Path) -> None:
    """`restart-db`: the database goes on, and has the program's output for as long as it lives."""
    written, go = tmp_path / "written", tmp_path / "go"
    os.mkfifo(go)
    database = f"echo $$ >{gate.path}; cat {go}; head -c 300000 /dev/zero; echo $? >{written}"
    found: list[ProgramEnd] = []

    async def run() -> None:
        found.append(await outcome_of_shell(f"(setsid sh -c '{database}' &) ; echo up; exit 0"))

    with trio.fail_after(LONG_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            (pid,) = await gate.pids()
            with Watched([pid]) as watched:
                while not found:
                    await trio.lowlevel.checkpoint()
                assert (found[0].exit_code, found[0].stdout) == (0, "up\n")
                assert 1 <= found[0].left <= 2  # the shell, and its `cat` if that is there by now
                assert watched.alive == 1
                with Watched([reader_of(pid)]) as reader:
                    # More than a pipe holds: with nobody to read, it would not end, or by SIGPIPE.
                    go.write_text("")
                    await watched.all_ended()
                    await reader.all_ended()
    assert written.read_text() == "0\n"


def reader_of(pid: int) -> int:
    """Find the process that reads the output of another once nobody waits for it."""
    pipe = os.readlink(f"/proc/{pid}/fd/1")
    found: list[int] = []
    for process in processes():
        try:
            descriptors = list(os.scandir(f"/proc/{process.pid}/fd"))
            held = {entry.name for entry in descriptors if os.readlink(entry.path) == pipe}
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:
            continue
        if held and b"nsmd.bridge.monitor" in command:
            found.append(process.pid)
    (reader,) = found
    return reader


async def test_a_killed_monitor_takes_its_program_along(gate: Gate) -> None:
    """The program, by the kernel; those in its session by the supervisor."""
    code = f"sleep 100 & echo $$ $! >{gate.path}; wait"
    found: list[ProgramEnd] = []

    async def run() -> None:
        found.append(await outcome_of_shell(code))

    with trio.fail_after(LONG_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            pids = await gate.pids()
            with Watched(pids) as watched:
                (monitor,) = [
                    pid for pid in children_of(os.getpid()) if pids[0] in children_of(pid)
                ]
                os.kill(monitor, signal.SIGKILL)
                await watched.all_ended()
    assert (found[0].exit_code, found[0].signal, found[0].why_stopped) == (None, 9, None)
    assert "watched it ended unexpectedly" in found[0].stderr


KILLED_AT_ITS_REPORT = """
import os, signal, sys
from nsmd.bridge.monitor import ProgramMonitor
send = ProgramMonitor.send
def killed(self, report):
    if {after}:
        send(self, report)
    os.symlink(os.readlink(f"/proc/{{self.pid}}/exe"), {seen!r})
    os.kill(os.getpid(), signal.SIGKILL)
ProgramMonitor.send = killed
"""


@pytest.mark.parametrize("after", [False, True])
async def test_a_program_does_not_run_before_its_monitor_has_reported_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Otherwise nobody knows the session of a killed monitor's program."""
    begin, end = child_processes.START.split("from {}")
    killed = KILLED_AT_ITS_REPORT.format(after=after, seen=str(tmp_path / "seen"))
    code = f"exec({killed!r})".replace("{", "{{").replace("}", "}}")
    monkeypatch.setattr(child_processes, "START", f"{begin}{code}; from {{}}{end}")
    ended: ProgramEnd | None = None
    with suppress(BadProgramError):
        ended = await outcome_of_shell(f"echo >{tmp_path}/run")
    assert (tmp_path / "seen").resolve() == Path("/proc/self/exe").resolve()
    assert not (tmp_path / "run").exists()
    assert (ended is not None) == after
    if ended is not None:
        assert (ended.signal, ended.why_stopped) == (signal.SIGKILL, None)


async def test_a_monitor_that_its_program_has_stopped_ends_it_nevertheless(gate: Gate) -> None:
    code = (
        f"exec 3>{gate.path}; setsid sleep 100 3>&- & kill -STOP $PPID; echo $$ $! >&3; "
        "exec 3>&-; wait"
    )
    ended = await ended_by(gate, code, step_s=SOON_S)
    assert (ended.signal, ended.why_stopped) == (signal.SIGTERM, "cancelled")


SUPERVISOR = """
import sys, trio
from bridge_programs import outcome_of_shell

async def main(code):
    await outcome_of_shell(code, step_s=0.05)

trio.run(main, sys.argv[1])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_nothing_outlives_a_killed_supervisor(gate: Gate, number: signal.Signals) -> None:
    code = f"exec 3>{gate.path}; {LEAVES} echo $$ >&3; exec 3>&-; wait"
    tests = str(Path(bridge_programs.__file__).parent)
    command = [sys.executable, "-c", SUPERVISOR, code]
    paths = [tests, *sys.path]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    process = subprocess.Popen(command, env=variables)  # noqa: ASYNC220 - quick
    with ending(process) as supervisor:
        with Watched(await gate.pids()) as watched:
            supervisor.send_signal(number)
            await watched.all_ended()
        assert len(watched.pidfds) == 3


async def test_a_monitor_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BadProgramError, match="is to watch it ended unexpectedly"):
        await outcome_of_shell("true")
    monkeypatch.setattr(sys, "executable", "/nonesuch")
    with pytest.raises(BadProgramError, match="no process for it: No such file"):
        await outcome_of_shell("true")
