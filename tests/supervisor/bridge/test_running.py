"""A program's run: how it starts, what is told of it, how it ends, and what it leaves behind."""

from __future__ import annotations

import itertools
import json
import os
import pwd
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import bridge_programs
from bridge_programs import (
    LONG_S,
    OUTPUT_BYTES,
    Told,
    opened,
    outcome,
    outcome_of_shell,
    program,
    script,
)
from nsm.wire.errors import BadProgramError
from nsmd.bridge.commands import Command, open_command
from nsmd.bridge.monitor import BATCH_LINES, MAX_WAITING_LINES, PIECE_CHARS, OutputLines, Waiting
from nsmd.bridge.monitor import Told as ToldLine
from nsmd.bridge.path_walk import why_any_other
from nsmd.bridge.programs import Program, ProgramEnd
from nsmd.bridge.running import PATH, Stop, run, variables_of
from nsmd.host import child_processes
from nsmd.host.processes import children_of, processes
from processes import Watched, ending


async def run_checked(command: Command, tool: Program, *arguments: str) -> ProgramEnd:
    """Run a program whose files were checked before."""
    return await run(
        command,
        tool,
        arguments,
        variables={},
        output_bytes=OUTPUT_BYTES,
        on_line=Told(),
        stop=Stop(),
    )


SURROUNDINGS = """
import json, os, resource, signal, sys
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status"))
try:
    os.open("/dev/tty", os.O_RDWR)
except OSError as error:
    tty = error.strerror
else:
    tty = "opened"
kinds = [os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in range(3)]
del os.environ["LC_CTYPE"]
print(json.dumps({
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "kinds": kinds, "read": sys.stdin.read(), "tty": tty, "umask": os.umask(0),
    "soft": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    "own": os.getpid() == os.getsid(0) == os.getpgrp(),
    "blocked": int(status["SigBlk"], 16), "ignored": int(status["SigIgn"], 16), "cwd": os.getcwd(),
}))
"""


OF_THE_C_LIBRARY = 1 << 32 - 1 | 1 << 33 - 1
"""Signals that glibc keeps to itself, and lets nobody set: below GNU make, they are ignored."""


async def test_a_program_has_no_descriptor_terminal_or_input(tmp_path: Path) -> None:
    """No descriptor, no terminal, no input and no odd signals; whatever the supervisor has."""
    os.set_inheritable(kept := os.open("/", os.O_RDONLY), True)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        # -I: this Python ignores SIGPIPE and SIGXFSZ itself, which a shell does not.
        ended = await outcome_of_shell(
            'grep -E "^Sig(Blk|Ign)" /proc/self/status; exec "$0" -I -c "$CODE"'.replace(
                "$0", sys.executable
            ),
            variables={"CODE": SURROUNDINGS, "PATH": "/bin:/usr/bin", "LC_CTYPE": "C.UTF-8"},
            cwd=str(tmp_path),
        )
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        os.close(kept)
    blocked, ignored, rest = ended.stdout.split("\n", 2)
    assert int(blocked.split()[1], 16) == 0, ended
    assert int(ignored.split()[1], 16) & ~OF_THE_C_LIBRARY == 0, ended
    own_ignored = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    seen = json.loads(rest)
    seen["ignored"] &= ~OF_THE_C_LIBRARY
    assert seen == {
        "descriptors": [0, 1, 2],
        "kinds": ["/dev/null", "pipe", "pipe"],
        "read": "",
        "tty": os.strerror(6),
        "umask": 0o022,
        "soft": 1024,
        "own": True,
        "blocked": 0,
        "ignored": own_ignored,
        "cwd": str(tmp_path),
    }


async def test_arguments_arrive_as_they_are() -> None:
    arguments = [
        "",
        " a  b ",
        "$HOME",
        "*",
        "-e",
        "'\"\\",
        "é\U0001f600",
        "\x01",
        "; rm",
        "x" * 9000,
    ]
    ended = await outcome("/usr/bin/printf", ["%s\\0", *arguments])
    assert ended.stdout.split("\0")[:-1] == arguments


async def test_a_script_has_its_own_path(tmp_path: Path) -> None:
    path = script(tmp_path / "tool", '#!/bin/sh\ncd "$(dirname "$0")"\npwd\necho "$0 $1"\n')
    ended = await outcome(path, ["x"])
    assert ended.stdout == f"{tmp_path}\n{path} x\n"


async def test_a_script_that_was_exchanged_is_not_started(tmp_path: Path) -> None:
    path = script(tmp_path / "tool", f"#!/bin/sh\necho >{tmp_path}/started\n")
    with opened(path) as command:
        script(tmp_path / "other", f"#!/bin/sh\necho >{tmp_path}/started\n")
        (tmp_path / "other").rename(path)
        with pytest.raises(BadProgramError, match="another file than the one that was checked"):
            await run_checked(command, program(path))
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("depth", [1, 2])
async def test_an_interpreter_that_was_exchanged_is_not_started(tmp_path: Path, depth: int) -> None:
    said = f"#!/bin/sh\necho >{tmp_path}/started\n"
    inner = script(tmp_path / "inner", said)
    outer = script(tmp_path / "outer", f"#!{inner}\n" if depth > 1 else said)
    tool = program(script(tmp_path / "tool", f"#!{outer}\n"))
    with open_command(tool) as command:
        Path(script(tmp_path / "other", said)).rename(inner if depth > 1 else outer)
        assert "another file" in (why_any_other(command.ways) or "")
        with pytest.raises(BadProgramError, match="another file than the one that was checked"):
            await run_checked(command, tool)
    assert not (tmp_path / "started").exists()


async def test_a_script_that_is_exchanged_while_it_starts_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    os.mkfifo(pid)
    path = script(tmp_path / "tool", f"#!/bin/sh\necho $$ >{pid}\n")
    with opened(path) as command:
        # To the program, this path leads to the file that was checked; to its monitor, which works
        # in another directory and looks again after the start, to none.
        command.path = "/proc/self/cwd/tool"
        command.ways = ((command.path, command.ways[0][1]),)
        with pytest.raises(
            BadProgramError, match=r"not what was checked any more: No such file .*killed at once"
        ):
            await run_checked(command, program(path, cwd=str(tmp_path)))
    # It waits for a reader of its pipe, so it has not ended by itself.
    reader = os.open(pid, os.O_RDONLY | os.O_NONBLOCK)
    assert os.read(reader, 100) == b""
    os.close(reader)


@pytest.mark.parametrize("change", [{"ways": None}, {"step_s": ...}, {"ways": [["/bin/sh"]]}])
async def test_a_monitor_of_another_version_says_so(
    change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_another_version(order: dict[str, object]) -> str:
        changed = {**order, **change}
        return dumps({key: value for key, value in changed.items() if value is not ...})

    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", of_another_version)
    with pytest.raises(BadProgramError, match=r"another version of nsm is .* `nsm reload`"):
        await outcome_of_shell("echo started")


async def test_a_binary_that_was_exchanged_is_the_one_that_was_checked(tmp_path: Path) -> None:
    path = tmp_path / "tool"
    path.write_bytes(Path("/bin/echo").read_bytes())
    path.chmod(0o755)
    with opened(str(path)) as command:
        path.unlink()
        script(path, "#!/bin/sh\necho exchanged\n")
        ended = await run_checked(command, program(str(path)), "checked")
    assert ended.stdout == "checked\n"


async def test_ten_thousand_lines_are_all_told() -> None:
    told = Told()
    ended = await outcome_of_shell("seq 10000; seq 100 >&2", on_line=told)
    assert told.lines["stdout"] == [str(number) for number in range(1, 10_001)]
    assert told.lines["stderr"] == [str(number) for number in range(1, 101)]
    assert ended.stdout.startswith("1\n2\n")
    assert ended.stdout.endswith("\n9999\n10000\n")
    assert f"[... {ended.stdout_omitted} bytes left out ...]" in ended.stdout
    assert ended.stdout_omitted > 48_894 - OUTPUT_BYTES - 1


async def test_lines_are_told_as_they_come(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    seen = trio.Event()

    def on_line(_stream: str, line: str) -> None:
        assert line == "first"
        seen.set()

    stop = Stop()
    async with trio.open_nursery() as nursery:

        async def end_it() -> None:
            await seen.wait()
            stop.ask("cancelled")

        nursery.start_soon(end_it)
        ended = await outcome_of_shell(f"echo first; cat {gate}", on_line=on_line, stop=stop)
    assert (ended.why_stopped, ended.stdout) == ("cancelled", "first\n")


async def test_a_flood_is_bounded_and_counted() -> None:
    told = Told()
    count = 5_000_000
    ended = await outcome_of_shell(f"yes | head -n {count}", on_line=told)
    marks = [line for line in told.lines["stdout"] if line != "y"]
    left_out = sum(int(mark.split()[1]) for mark in marks)
    assert 1 <= len(marks) < 10, marks
    assert set(marks) == {f"[... {mark.split()[1]} lines left out ...]" for mark in marks}
    assert len(told.lines["stdout"]) - len(marks) + left_out == count
    assert ended.stdout_omitted == 2 * count - OUTPUT_BYTES


@pytest.mark.slow
async def test_a_gigabyte_on_both_outputs(tmp_path: Path) -> None:
    """The event loop does next to nothing for it, and memory grows neither here nor in the
    monitor."""
    told = Told()
    busy_s = time.process_time()
    ended = await outcome_of_shell(
        "yes | head -c 1000000000 & yes err | head -c 1000000000 >&2; wait; "
        f"grep VmHWM /proc/$PPID/status >{tmp_path}/most",
        on_line=told,
    )
    assert time.process_time() - busy_s < 0.05 * ended.duration_s + 1
    assert ended.stdout_omitted == 1_000_000_000 - OUTPUT_BYTES
    assert len(told.lines["stdout"]) + len(told.lines["stderr"]) < 1_000_000
    most_kib = int((tmp_path / "most").read_text().split()[1])  # of the monitor
    assert most_kib < 200 * 1024


async def test_a_program_that_closes_its_output_goes_on(tmp_path: Path) -> None:
    code = f"exec >&- 2>&-; head -c 1000 /dev/zero | tr '\\0' x > {tmp_path}/later; exit 7"
    ended = await outcome_of_shell(code)
    assert (ended.exit_code, ended.stdout) == (7, "")
    assert (tmp_path / "later").stat().st_size == 1000


async def test_a_run_leaves_no_descriptor() -> None:
    before = os.listdir("/proc/self/fd")
    for code in ("true", "exit 1"):
        await outcome_of_shell(code)
    with pytest.raises(BadProgramError):
        await outcome("/bin/true", cwd="/nonesuch")
    assert os.listdir("/proc/self/fd") == before


def free_numbers(taken: list[str], count: int) -> list[int]:
    """The first numbers that are no descriptors."""
    found = (number for number in itertools.count() if str(number) not in taken)
    return list(itertools.islice(found, count))


async def test_without_descriptors_a_program_runs_or_says_why_not() -> None:
    """However few there are, it runs or says why not, and none is lost."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    outcomes: list[str] = []
    with opened("/bin/echo") as command:
        before = os.listdir("/proc/self/fd")
        for free in free_numbers(before, 16):
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
            try:
                ended = await run_checked(command, program("/bin/echo"), "well")
            except BadProgramError as error:
                outcomes.append(error.message)
            else:
                outcomes.append(ended.stdout)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert os.listdir("/proc/self/fd") == before
    assert "there is no process for it: Too many open files" in outcomes[0]
    assert outcomes[-1] == "well\n"


# Variables.

MINIMUM = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG"}


def test_a_program_has_a_minimum_of_variables_and_those_that_its_definition_names() -> None:
    own = {"HOME": "/home/me", "PATH": "/opt/odd", "TOKEN": "t", "EMPTY": "", "LD_PRELOAD": "y"}
    own["USER"] = "z"
    found = variables_of(program("/x", env=()), own)
    assert found.keys() == MINIMUM
    assert (found["HOME"], found["PATH"], found["LANG"]) == ("/home/me", PATH, "C.UTF-8")
    assert found["USER"] == found["LOGNAME"] == pwd.getpwuid(os.getuid()).pw_name
    named = variables_of(program("/x", env=("TOKEN", "EMPTY", "PATH", "UNSET")), own)
    assert named.keys() == MINIMUM | {"TOKEN", "EMPTY"}
    assert (named["PATH"], named["TOKEN"], named["EMPTY"]) == ("/opt/odd", "t", "")


TEXTS = st.text(alphabet="aé\U0001f600\n\r\x00", max_size=60)


def chunks(data: bytes, sizes: list[int]) -> list[bytes]:
    found: list[bytes] = []
    for size in sizes:
        found.append(data[:size])
        data = data[size:]
    return [*found, data]


@given(text=TEXTS, sizes=st.lists(st.integers(0, 9), max_size=12))
def test_lines_are_the_same_however_bytes_are_cut(text: str, sizes: list[int]) -> None:
    lines = OutputLines()
    found = [line for data in chunks(text.encode(), sizes) for line in lines.add(data)]
    found += lines.end()
    *whole, rest = text.split("\n")
    assert found == [line.removesuffix("\r") for line in whole] + ([rest] if rest else [])


def test_skipped_lines_are_counted() -> None:
    lines = OutputLines()
    assert lines.add(b"one\ntw") == ["one"]
    assert lines.skip(b"o\nthree\nfo") == 2
    assert lines.add(b"ur\n") == ["four"]
    assert lines.skip(b"five") == 0
    assert lines.add(b"\n") == ["five"]
    assert lines.skip(b"z" * (4 * PIECE_CHARS + 1)) == 1
    assert lines.add(b"rest\n") == ["rest"]


def test_skipping_a_line_without_end_keeps_nothing_of_it() -> None:
    lines = OutputLines()
    skipped = sum(lines.skip(b"\xff" * 1000) for _ in range(1000))
    assert 100 <= skipped <= 1_000_000 // PIECE_CHARS
    assert len("".join(lines.end())) < PIECE_CHARS


def test_lines_left_out_are_counted_where_they_are_missing() -> None:
    waiting = Waiting()
    waiting.add("stdout", ["x"] * MAX_WAITING_LINES)
    assert not waiting.has_room
    waiting.leave_out("stdout", 3)
    waiting.leave_out("stdout", 4)
    while not waiting.has_room:
        assert len(waiting.batch()) == BATCH_LINES
    waiting.add("stdout", ["later"])
    waiting.leave_out("stdout", 1)
    told: list[ToldLine] = []
    while waiting:
        told += waiting.batch()
    assert told[-3:] == [("stdout", 7), ("stdout", "later"), ("stdout", 1)]
    # Once full, it has room when half of it is told: one gap, not hundreds.
    assert len(told) < MAX_WAITING_LINES // 2 + BATCH_LINES


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
