"""Interrupt, timeout and what dies with an interpreter: the ladder of the agent protocol."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_process import GET, SET, AgentProcess, Interpreter, Reply, becomes_true
from sandbox.interpreters.base import CurrentExecution
from sandbox.processes import Process, read_process
from sandbox.stopping import Stopper
from selection import one_in

GRACE_S = 6.0
"""Long enough for a loaded machine; half of it passes where an interrupt hits the moment between
two steps of the code, as Ctrl-C may too."""

PRINTS_S = 1.0
"""A limit of time within which code begins and prints, also on a loaded machine."""

LONG_GRACE_S = 60.0
"""Time for the first interrupt to be enough: half of it is more than any machine takes."""

BUSY: dict[Interpreter, str] = {
    "python": "print('up')\nwhile True: pass",
    "bash": "echo up; while :; do :; done",
    "node": "console.log('up'); while (true) {}",
}

SHELL = {
    "sleep": "echo up; sleep 60; echo not reached",
    "busy": "echo up; while :; do :; done",
    "nested": "f() { while true; do sleep 60; done; }; echo up; f; echo not reached",
    "substitution": "echo up; x=$(sleep 60); echo not reached",
    "pipeline": "{ echo up; sleep 60; } | cat; echo not reached",
    "subshell": "echo up; (while :; do :; done); echo not reached",
    "wait": "sleep 60 & echo up; wait; echo not reached",
    "python": "python3 -c 'print(\"up\", flush=True); import time; time.sleep(60)'",
    "output": "echo up; yes",
    "job control": "set -m; echo up; sleep 60; echo not reached",
}


def wait_for_a_child(agent: AgentProcess) -> None:
    """Wait until the running code has started a process."""
    while True:
        status = agent.status()
        if status["background"]:
            return
        assert status["running"] is not None, "the code has ended, and started none"


def interrupted(
    agent: AgentProcess,
    code: str,
    meanwhile: Callable[[], object] | None = None,
    *,
    up: str = "up\n",
    child: bool = False,
    grace_s: float = LONG_GRACE_S,
    **options: Any,
) -> Reply:
    """Interrupt Bash code once it has printed a line; its result.

    Args:
        child: wait until the code has started a process, too.
        meanwhile: happens once the interrupt was taken; the code does not end before.
    """
    request = agent.begin(code, "bash", stream=True, timeout_s=60, grace_s=grace_s, **options)
    agent.running(up)
    if child:
        wait_for_a_child(agent)
    agent.send(type="interrupt", id=request)
    if meanwhile is not None:
        agent.status()
        meanwhile()
    return agent.result(request)


def ended_at_the_first_interrupt(reply: Reply) -> None:
    assert (reply.exit_code, reply.interrupted) == (130, True)
    assert "ran on" not in reply.stdout
    assert reply.duration_s < LONG_GRACE_S / 2, "the first interrupt is enough"
    assert not reply.interpreter_restarted


@pytest.mark.parametrize("interpreter", ["python", "bash", "node"])
def test_a_timeout_is_an_interrupt(shared: AgentProcess, interpreter: Interpreter) -> None:
    code = BUSY[interpreter]
    shared.run(SET[interpreter], interpreter)
    reply = shared.run(code, interpreter, timeout_s=PRINTS_S, grace_s=GRACE_S)
    assert reply.timed_out
    assert not reply.interrupted
    assert reply.exit_code == 124
    assert reply.stdout == "up\n"
    assert not reply.interpreter_restarted
    assert reply.duration_s >= PRINTS_S
    assert shared.run(GET[interpreter], interpreter).stdout == "5\n"


CATCHES = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
print("up", flush=True)
signal.pause()
"""
"""Handles an interrupt and exits as if nothing had been, like test runners and `ping`."""

GOES_ON = {
    "list": "python3 catches; echo ran on",
    "lines": "python3 catches\necho ran on",
    "and": "python3 catches && echo ran on",
    "if": "if python3 catches; then echo ran on; fi",
    "loop": "for i in 1 2 3; do python3 catches; done; echo ran on",
    "function": "f() { python3 catches; echo ran on; }; f; echo ran on",
    "pipeline": "python3 catches | cat; echo ran on",
    "substitution": "{ x=$(python3 catches >&3); } 3>&1; echo ran on",
    "eval": "eval 'python3 catches; echo ran on'; echo ran on",
    "wait": "python3 catches & wait; echo ran on",
    "under set -e": "set -e; python3 catches; echo ran on",
    "under set -e in a function": "f() { python3 catches; echo ran on; }; set -e; f; echo ran on",
    "under set -eu": "set -eu; echo up; sleep 60; echo ran on",
    "under set -u": "set -u\npython3 catches\necho ran on",
    "under set -x": "{ set -x; python3 catches; echo ran on; } 2>/dev/null",
    "with a trap for another signal": "trap 'echo t' USR1; python3 catches; echo ran on",
    "opening a queue": "mkfifo q; echo up; read x < q; echo ran on",
    "reading a queue": "exec 7<> <(:); echo up; read -u 7 x; echo ran on",
    "read with a limit": "exec 7<> <(:); echo up; read -t 60 -u 7 x; echo ran on",
    "select": "exec 7<> <(:); echo up; select x in a b; do :; done <&7 2>&1; echo ran on",
    "here-document": "cat <<EOF\n$(echo up >&2; sleep 60)\nEOF\necho ran on",
    "coproc": "coproc sleep 60; echo up; wait $COPROC_PID; echo ran on",
    "sleep twice": "echo up; sleep 60; sleep 60; echo ran on",
    "exit trap": "trap 'echo ran on' EXIT; python3 catches; echo ran on",
}


@pytest.mark.parametrize("one_shot", [False, True])
@pytest.mark.parametrize("name", one_in(6, GOES_ON))
def test_nothing_more_of_a_shells_code_runs_after_an_interrupt(
    agent: AgentProcess, name: str, one_shot: bool
) -> None:
    (agent.workspace / "catches").write_text(CATCHES)
    code = GOES_ON[name]
    if one_shot:  # whose EXIT trap runs
        code = code.replace("trap 'echo ran on' EXIT", "trap 'echo cleaned' EXIT")
    else:
        agent.bash(SET["bash"])
    reply = interrupted(agent, code, one_shot=one_shot)
    ended_at_the_first_interrupt(reply)
    assert ("cleaned" in reply.stdout) == (one_shot and name == "exit trap")
    if not one_shot:
        after = agent.bash("trap - EXIT; set +eux; " + GET["bash"])
        assert (after.stdout, after.exit_code, after.interrupted) == ("5\n", 0, False)


HOLDS = "trap '' INT; echo up >&2; read x < go"
"""Ignores an interrupt, and ends when it is told to."""


def test_a_one_shot_is_interrupted_again_if_it_looks_for_traps_no_more(agent: AgentProcess) -> None:
    """Bash expands the words of `read` between its last look for traps and the wait."""
    (agent.workspace / "holds").write_text(HOLDS)
    code = "mkfifo go; exec 7<> <(:); read -u 7 $(bash holds); echo ran on"
    go = partial((agent.workspace / "go").write_text, "\n")
    ended_at_the_first_interrupt(interrupted(agent, code, go, one_shot=True))


def test_a_shell_that_has_missed_an_interrupt_gets_another_where_it_reads(
    agent: AgentProcess,
) -> None:
    agent.bash(SET["bash"])
    misses = "trap '' INT; sleep 0.1; echo up; read x < go; trap - INT"
    code = f"mkfifo go; exec 7<> <(:); {misses}; read -u 7 x; echo ran on"  # no early repeat
    go = partial((agent.workspace / "go").write_text, "\n")
    ended_at_the_first_interrupt(interrupted(agent, code, go))
    assert agent.bash(GET["bash"]).stdout == "5\n"


def test_a_one_shots_own_trap_of_an_interrupt_runs_once(agent: AgentProcess) -> None:
    """Even while it reads, where a trap of ours could have been missed."""
    code = (
        "trap 'echo clean; read -t 1 -u 7 x; echo done; exit 3' INT\n"
        "exec 7<> <(:); sleep 0.1; echo up; read -u 7 x"  # not so early that all is repeated
    )
    reply = interrupted(agent, code, grace_s=20, one_shot=True)
    assert reply.stdout == "up\nclean\ndone\n"


@pytest.mark.parametrize(
    "code", one_in(2, ["sleep 60", "(sleep 60)", "trap 'sleep 60' ERR; false"])
)
def test_set_e_stops_code_after_an_interrupt_too(agent: AgentProcess, code: str) -> None:
    """The trap of ERR is not left in a state in which bash runs it no more."""
    agent.bash(SET["bash"])
    for _ in range(2):
        reply = interrupted(agent, f"set -e; echo up; {code}", child=True)
        assert not reply.interpreter_restarted
        assert agent.bash("set +e; trap - ERR").exit_code == 0
        agent.seen.clear()
    assert agent.bash("set -e; echo before; false; echo after").stdout == "before\n"
    assert agent.bash("set +e; " + GET["bash"]).stdout == "5\n"


def test_a_failure_before_does_not_let_code_go_on_after_an_interrupt(agent: AgentProcess) -> None:
    """An interrupted program that ends well by itself ends the code that started it, too."""
    (agent.workspace / "catches").write_text(CATCHES)
    agent.bash("set -e")
    code = "set +e; false; set -e; echo up; python3 catches; echo went on; sleep 20"
    assert "went on" not in interrupted(agent, code, child=True).stdout


@pytest.mark.parametrize("code", one_in(3, ["sleep 60", "python3 catches", "sleep 60 & wait"]))
def test_the_exit_trap_of_an_interrupted_one_shot_runs_to_its_end(
    agent: AgentProcess, code: str
) -> None:
    (agent.workspace / "catches").write_text(CATCHES)
    trap = "set -x; trap 'echo a; sleep 0.05; echo b' EXIT; echo up; "
    reply = interrupted(agent, trap + code + "; echo ran on", one_shot=True)
    assert reply.stdout.replace("up\n", "") == "a\nb\n"
    assert reply.stderr.endswith("+ echo a\n+ sleep 0.05\n+ echo b\n")
    assert "130" not in reply.stderr, "the driver is not traced"


JOBS = {
    "started": ("set -m; sleep 61 & echo up; sleep 60", "[1]+  Running                 sleep 61 &"),
    "pipeline": ("set -m; echo up; sleep 60 | cat", ""),
    "resumed": ("fg %1", ""),
    "waited for": ("set -m; sleep 61 & echo up; wait", "[1]+  Running                 sleep 61 &"),
}


@pytest.mark.parametrize("name", JOBS)
def test_an_interrupt_reaches_the_job_in_the_foreground_and_no_other(
    agent: AgentProcess, name: str
) -> None:
    code, jobs = JOBS[name]
    if name == "resumed":
        agent.bash("set -m; sleep 62 &")
    up = "sleep 62\n" if name == "resumed" else "up\n"
    ended_at_the_first_interrupt(interrupted(agent, code + "; echo ran on", up=up, child=True))
    assert agent.bash("jobs").stdout.strip() == jobs


def test_a_job_is_left_alone_while_the_shell_has_not_come_to_its_interrupt() -> None:
    """A busy machine may not run the shell for a while; a stopped one stands for that here."""
    code = "set -m; sh -c 'echo $$; exec sleep 60' & read; wait"
    looks: list[Callable[[], None]] = []

    def note(_name: str, _when: float, look: Callable[[], None]) -> None:
        looks.append(look)

    def has_started(_row: object) -> bool:
        return True

    poller: Any = SimpleNamespace(at=note)
    with subprocess.Popen(
        ["/bin/bash", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdout is not None
        job = int(shell.stdout.readline())
        interpreter = SimpleNamespace(pid=shell.pid, resumes_jobs=True)
        execution: Any = SimpleNamespace(interpreter=interpreter, has_started=has_started)
        try:
            shell.send_signal(signal.SIGSTOP)
            becomes_true(lambda: state(shell.pid) == b"T", "stopped")
            Stopper(poller, lambda: None).signal_job(execution)
            looks.pop()()
            shell.send_signal(signal.SIGCONT)
            becomes_true(lambda: state(shell.pid) == b"S", "asleep")
            looks.pop()()
            assert state(job) != b"Z", "the shell's messages are read before the next look"
            looks.pop()()
            becomes_true(lambda: state(job) in (None, b"Z"), "interrupted")
            assert not looks
        finally:
            shell.kill()


@pytest.mark.parametrize(
    ("pid", "tick", "is_its_own"),
    [(32_760, 0, False), (32_762, 0, True), (300, 0, True), (32_762, -1, False), (5, 1, True)],
)
def test_a_process_belongs_to_the_execution_that_started_it(
    pid: int, tick: int, is_its_own: bool
) -> None:
    """Also where process ids have begun again within a tick of the clock."""
    interpreter: Any = None
    execution = CurrentExecution("a", 1, interpreter, GRACE_S, 32_761)
    numbers = [b"0"] * 52
    numbers[0], numbers[19] = b"S", b"%d" % (execution.started_ticks + tick)
    row = Process(pid, b"%d (sleep) " % pid + b" ".join(numbers))
    assert execution.has_started(row) is is_its_own
    after = CurrentExecution("b", 2, interpreter, GRACE_S, 301)
    numbers[19] = b"%d" % after.started_ticks
    old = Process(32_765, b"1 (sleep) " + b" ".join(numbers))
    assert not after.has_started(old)


def state(pid: int) -> bytes | None:
    row = read_process(pid)
    return None if row is None else row.state


@pytest.mark.parametrize("name", one_in(5, SHELL))
def test_a_one_shot_is_interrupted_as_early_as_one_likes(agent: AgentProcess, name: str) -> None:
    code = SHELL[name]
    for milliseconds in (0, 1, 2, 4, 8):
        reply = agent.bash(code, timeout_s=milliseconds / 1000, grace_s=GRACE_S, one_shot=True)
        assert (reply.exit_code, reply.restart_reason) == (124, "")
        assert "not reached" not in reply.stdout


FORKING = {
    "commands": "while :; do /bin/true; done",
    "subshells": "f() { (/bin/true); x=$(/bin/true); /bin/true | /bin/true; }; while f; do :; done",
    "process substitutions": "while :; do read -t 0.001 x <> <(:); done",
    "here-documents": "while :; do cat <<EOF >/dev/null\n$(:)\nEOF\ndone",
}


@pytest.mark.parametrize("name", one_in(2, FORKING))
def test_a_shell_that_does_nothing_but_fork_is_interrupted(agent: AgentProcess, name: str) -> None:
    """Whatever the moment: a fork that is interrupted too early takes itself for the shell.

    Bash itself fails in 1 of some 2,500 such interrupts: it waits for a child that has ended, with
    SIGCHLD blocked, for good. Then it is killed at the end of the grace, and the result says so.
    """
    agent.bash(SET["bash"])
    killed = 0
    for milliseconds in range(1, 21):
        reply = agent.bash(FORKING[name], timeout_s=milliseconds / 1000, grace_s=GRACE_S)
        # Where the shell had not begun yet, it may take the second interrupt.
        assert reply.exit_code == 124
        if "did not stop within" in reply.restart_reason:
            killed += 1
            agent.bash(SET["bash"])
        else:
            assert reply.restart_reason == ""
        after = agent.bash(GET["bash"])
        assert (after.stdout, after.stderr, after.interrupted) == ("5\n", "", False)
    assert killed <= 1


@pytest.mark.parametrize("interpreter", ["python", "bash", "node"])
def test_an_idle_session_cannot_be_interrupted(
    shared: AgentProcess, interpreter: Interpreter
) -> None:
    shared.run(SET[interpreter], interpreter)
    shared.send(type="interrupt", id="e1")
    assert shared.receive() == {"type": "idle", "id": "e1"}
    assert shared.run(GET[interpreter], interpreter).stdout == "5\n"


def test_another_executions_interrupt_is_not_taken(agent: AgentProcess) -> None:
    request = agent.begin("print('up'); import time; time.sleep(60)", stream=True, grace_s=GRACE_S)
    agent.running("up\n")
    agent.send(type="interrupt", id="other")
    assert agent.expect("idle")["id"] == "other"
    agent.send(type="interrupt", id=request)
    assert agent.result(request).interrupted


@pytest.mark.parametrize("interpreter", ["python", "bash", "node"])
def test_an_interrupt_at_once_is_not_lost(agent: AgentProcess, interpreter: Interpreter) -> None:
    """Sent before the interpreter has begun, or even exists."""
    code = BUSY[interpreter]
    for _ in range(5):
        request = agent.begin(code, interpreter, grace_s=GRACE_S)
        agent.send(type="interrupt", id=request)
        reply = agent.result(request)
        assert (reply.exit_code, reply.interrupted) == (130, True)
        assert not reply.interpreter_restarted


@pytest.mark.parametrize("interpreter", ["python", "bash", "node"])
def test_interrupts_racing_with_the_end_never_hit_the_next(
    agent: AgentProcess, interpreter: Interpreter
) -> None:
    code = {"python": "pass", "bash": ":", "node": "0"}[interpreter]
    agent.run(SET[interpreter], interpreter)
    for _ in range(25):
        request = agent.begin(code, interpreter, grace_s=GRACE_S)
        agent.send(type="interrupt", id=request)
        agent.result(request)
        if agent.seen[-1]["type"] != "idle" and not agent.seen[-1]["interrupted"]:
            agent.expect("idle")
        after = agent.run(GET[interpreter], interpreter)
        assert (after.stdout, after.exit_code, after.interrupted) == ("5\n", 0, False)


def test_a_zero_timeout_answers(agent: AgentProcess) -> None:
    reply = agent.python("while True: pass", timeout_s=0, grace_s=GRACE_S)
    assert reply.exit_code == 124


# Whose processes die.


def pids_of(marker: str) -> list[int]:
    """Processes that have this in their environment."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"MARK={marker}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


DAEMONS = {
    "child": "MARK={mark} sleep 600 &",
    "own session": "MARK={mark} setsid sleep 600 &",
    "orphan": "(MARK={mark} sleep 600 &)",
    "orphan in a session of its own": "(MARK={mark} setsid sh -c 'sleep 600 & sleep 600 & wait' &)",
    "deep": "sh -c 'sh -c \"MARK={mark} setsid sleep 600 &\" &' &",
}


@pytest.mark.parametrize("kind", one_in(2, DAEMONS))
def test_background_processes_live_on_until_their_interpreter_ends(
    agent: AgentProcess, kind: str
) -> None:
    mark = f"{os.getpid()}-{kind.replace(' ', '-')}"
    other = mark + "-python"
    agent.bash(DAEMONS[kind].format(mark=mark))
    agent.python(f"import os\n_ = os.system({DAEMONS[kind].format(mark=other)!r})")
    becomes_true(lambda: pids_of(mark) and pids_of(other), "both run")
    assert not agent.bash("sleep 60", timeout_s=0.2, grace_s=GRACE_S).interpreter_restarted
    assert agent.python("1").exit_code == 0
    assert pids_of(mark)
    assert agent.bash("exit").interpreter_restarted
    becomes_true(lambda: not pids_of(mark), "bash's processes are gone")
    assert pids_of(other)
    agent.python("import os; os._exit(0)")
    becomes_true(lambda: not pids_of(other), "python's processes are gone")


def test_an_interrupt_spares_what_runs_in_the_background(agent: AgentProcess) -> None:
    mark = f"{os.getpid()}-spared"
    agent.python(
        f"import os, subprocess\nos.environ['MARK'] = '{mark}'\n"
        "p = subprocess.Popen(['sleep', '600'])"
    )
    begun = time.monotonic()
    becomes_true(
        lambda: time.monotonic() > begun + 0.02, "the kernel's start times tell them apart"
    )
    reply = agent.python("os.system('sleep 60')", timeout_s=0.3, grace_s=GRACE_S)
    assert reply.exit_code == 124
    assert agent.python("p.poll() is None").shown == ["True"]
    assert pids_of(mark)


def test_everything_ends_with_the_agent(agent: AgentProcess) -> None:
    mark = f"{os.getpid()}-ends"
    for command in DAEMONS.values():
        agent.bash(command.format(mark=mark))
    # The orphan in a session of its own is three. What is forked while all are killed may live on:
    # here is no PID namespace that ends with the agent.
    becomes_true(lambda: len(pids_of(mark)) >= len(DAEMONS) + 2, "all run")
    agent.send(type="shutdown")
    assert agent.wait() == 0
    becomes_true(lambda: not pids_of(mark), "all are gone")


def test_status_counts_background_processes(agent: AgentProcess) -> None:
    assert agent.status() == {"type": "status", "running": None, "background": 0}
    agent.bash("sleep 600 & setsid sleep 600 & (sleep 600 &)")
    agent.python("1")
    assert agent.status() == {"type": "status", "running": None, "background": 3}
    request = agent.begin("print('up'); import time; time.sleep(60)", stream=True, grace_s=GRACE_S)
    agent.running("up\n")
    assert agent.status() == {"type": "status", "running": request, "background": 3}
    agent.send(type="interrupt", id=request)
    agent.result(request)


@pytest.mark.parametrize(
    ("interpreter", "code"),
    [
        ("python", "import os; print(os.getpid())"),
        pytest.param("bash", "echo $$", marks=pytest.mark.slow),
        pytest.param("node", "console.log(process.pid)", marks=pytest.mark.slow),
    ],
)
def test_the_kill_of_an_idle_interpreter_is_told(
    agent: AgentProcess, interpreter: Interpreter, code: str
) -> None:
    """The sockets close a moment before it can be reaped."""
    for _ in range(5):
        pid = int(agent.run(code, interpreter).stdout)
        os.kill(pid, 9)
        becomes_true(partial(_is_gone, pid), "it is reaped")
        reply = agent.run(code, interpreter)
        assert reply.interpreter_restarted
        assert "was killed by SIGKILL" in reply.restart_reason


def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()
