"""Code that an interpreter runs before any other: `setup` of the protocol."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_process import AgentProcess, direct_agent

TOKEN = "ab" * 16

LONG_GRACE_S = 60.0
"""Time for the first interrupt to be enough: half of it is more than any machine takes."""


def set_up(
    agent: AgentProcess,
    *steps: str,
    interpreter: str = "bash",
    timeout_s: float = 10.0,
    grace_s: float = LONG_GRACE_S,
    limits: Mapping[str, int] | None = None,
) -> None:
    """Say hello with these steps; they are called `step 1` and so on."""
    named = [{"name": f"step {number}", "code": code} for number, code in enumerate(steps, 1)]
    setup = {"interpreter": interpreter, "steps": named, "timeout_s": timeout_s, "grace_s": grace_s}
    agent.send(type="hello", protocol=1, token=TOKEN, setup=setup, limits=limits or {})


@pytest.fixture
def bash(tmp_path: Path) -> Generator[AgentProcess]:
    """An agent whose shell is up already."""
    with direct_agent(tmp_path, "--prestart", "bash") as process:
        yield process


@pytest.fixture(params=["up", "not up"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[AgentProcess]:
    """The same, and one whose shell is not."""
    arguments = ["--prestart", "bash"] if request.param == "up" else []
    with direct_agent(tmp_path, *arguments) as process:
        yield process


def test_everything_of_it_is_the_sessions_own(either: AgentProcess) -> None:
    steps = (
        "exported=one; export exported; plain='two words'; list=(a 'b c'); declare -A map=([k]=v)",
        "alias hi='echo hello'; greet() { echo greet $1; }",
        "set -o pipefail; cd /; shopt -s nullglob",
    )
    set_up(either, *steps)
    seen = 'echo $exported "$plain" "${list[1]}" ${map[k]}; sh -c "echo \\$exported-\\$plain"'
    assert either.bash(seen).stdout == "one two words b c v\none-\n"
    reply = either.bash("hi; greet you; false | true; echo $? $PWD no*such")
    assert (reply.stdout, reply.stderr) == ("hello\ngreet you\n1 /\n", "")
    assert not reply.interpreter_restarted


def test_output_of_the_set_up_is_dropped(bash: AgentProcess) -> None:
    set_up(bash, "echo welcome; echo to the shell >&2; true", "echo again; false")
    reply = bash.bash("echo mine")
    assert (reply.stdout, reply.stderr, reply.exit_code) == ("mine\n", "", 0)


def test_a_failure_is_told_once(either: AgentProcess) -> None:
    set_up(either, "x=1; mkdir /proc/no; y=$?; ls /no/such", "z=3")
    reply = either.bash("echo $x $z")
    assert (reply.stdout, reply.exit_code) == ("1 3\n", 0)
    first, *words = reply.stderr.splitlines()
    assert first == "[nsm: step 1 of this environment's set-up failed with exit code 2]"
    assert any("/no/such" in line for line in words)
    assert either.bash("true").stderr == ""
    either.bash("exit 4")
    again = either.bash("echo $x $z")
    assert (again.stdout, again.stderr) == ("1 3\n", "")
    assert again.interpreter_restarted


HARMLESS = {
    # code: how it is told
    "a=${a-}1\nif then": "failed with exit code 2",
    "a=${a}2; PATH= no-such-command": "failed with exit code 127",
    "a=${a}3; UID=7; a=never": "failed with exit code 1",
    "a=${a}4; set -u; : $no_such; a=never": "failed with exit code 1",
    "set +u; a=${a}5; sleep 60; a=never": "was interrupted after 1.5 s",
}
FATAL = {
    "exit 3": "is left out from now on: bash exited with status 3",
    "exec true": "is left out from now on: bash exited with status 0",
    "kill -9 $$": "is left out from now on: bash was killed by SIGKILL",
    "trap '' INT URG; while :; do :; done": (
        "is left out from now on: bash did not stop within 0.2 s"
    ),
    'for fd in 230 231 232 233; do eval "exec $fd>&-"; done': (
        "is left out from now on: bash lost descriptors"
    ),
}


def complaints(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("[nsm: ")]


def told(failures: Mapping[str, str]) -> list[str]:
    """How steps after the first are told to have failed."""
    return [
        f"[nsm: step {number} of this environment's set-up {how}"
        for number, how in enumerate(failures.values(), 2)
    ]


def test_a_failure_ends_its_own_step_only(bash: AgentProcess) -> None:
    set_up(bash, "before=b", *HARMLESS, "after=c", timeout_s=1.5)
    reply = bash.bash("echo $before $after $a; set +eu")
    assert (reply.stdout, reply.interpreter_restarted) == ("b c 12345\n", False)
    said = complaints(reply.stderr)
    assert [f"{how}]" for how in told(HARMLESS)] == said


@pytest.mark.slow
def test_a_step_that_ends_the_shell_is_left_out_the_next_time(bash: AgentProcess) -> None:
    set_up(bash, "before=b", *FATAL, "after=c", timeout_s=1.5, grace_s=0.2)
    reply = bash.bash("echo $before $after")
    assert (reply.stdout, reply.interpreter_restarted) == ("b c\n", False)
    for how, line in zip(told(FATAL), complaints(reply.stderr), strict=True):
        assert line.startswith(how)
    bash.bash("exit 1")
    again = bash.bash("echo $before $after")
    assert (again.stdout, again.stderr) == ("b c\n", "")


def test_set_up_is_run_again_after_a_kill(either: AgentProcess) -> None:
    set_up(either, "times=$((${times:-0} + 1)); echo x >>times; kept=yes")
    assert either.bash("echo $kept; kept=changed").stdout == "yes\n"
    stuck = either.bash(
        "echo before; trap '' INT URG; while :; do :; done", timeout_s=1.0, grace_s=0.1
    )
    assert (stuck.stdout, stuck.timed_out) == ("before\n", True)
    reply = either.bash("echo $kept $times; wc -l <times")
    assert reply.stdout == "yes 1\n2\n"
    assert reply.interpreter_restarted


def test_late_output_of_the_interpreter_before_is_not_lost(bash: AgentProcess) -> None:
    set_up(bash, "echo noise")
    bash.bash("mkfifo go; { read <go; echo late; } & exec 9<>go")
    bash.send(type="execute", id="end", interpreter="bash", code="echo >go; exit 7")
    ended = bash.result("end")
    reply = bash.bash("echo now")
    assert "noise" not in ended.stdout + reply.stdout
    assert reply.stdout.endswith("now\n")


def test_an_execution_can_be_interrupted_while_it_waits(
    either: AgentProcess, tmp_path: Path
) -> None:
    # Not by a program: bash may go on behind one that an interrupt meets while it starts.
    os.mkfifo(tmp_path / "hook")
    hook = f"read <'{tmp_path}/hook'; reached=yes"
    set_up(either, hook, "after=c", timeout_s=30.0)
    waiting = either.begin("echo never", "bash")
    assert either.status()["running"] == waiting
    either.send(type="interrupt", id=waiting)
    reply = either.result(waiting)
    assert (reply.stdout, reply.exit_code, reply.interrupted) == ("", 130, True)
    after = either.bash("echo ${reached-no} $after")
    assert after.stdout == "no c\n"
    assert after.stderr.startswith("[nsm: step 1 of this environment's set-up was interrupted]")


def test_an_execution_that_waits_for_the_set_up_is_the_one_that_runs(bash: AgentProcess) -> None:
    set_up(bash, "read x </dev/zero & mkfifo hook; read <hook", timeout_s=1.5)
    assert bash.status()["running"] is None
    bash.send(type="interrupt", id="e1")
    assert bash.expect("idle")["id"] == "e1"
    first = bash.begin("echo first", "bash")
    bash.send(type="execute", id="other", interpreter="bash", code="echo second")
    assert bash.expect("error")["id"] == "other"
    bash.send(type="stream", id=first)
    assert ("stdout", "first\n") in bash.result(first).outputs


def test_a_flood_is_bounded_and_leaves_no_file(bash: AgentProcess) -> None:
    set_up(bash, "head -c 30000000 /dev/zero | tr '\\0' e >&2; false")
    reply = bash.bash("ls -A")
    assert reply.stdout == ""
    assert len(reply.stderr) < 5000
    assert "bytes left out" in reply.stderr


def test_output_streams_after_the_set_up_only(bash: AgentProcess) -> None:
    set_up(bash, "echo noise; echo bad >&2; false")
    reply = bash.bash("echo mine", stream=True)
    streamed = "".join(text for stream, text in reply.outputs if stream == "stdout")
    complaint = "".join(text for stream, text in reply.outputs if stream == "stderr")
    assert (streamed, complaint) == ("mine\n", reply.stderr)
    assert "bad" in complaint


def test_the_time_limit_of_code_begins_with_the_code(bash: AgentProcess) -> None:
    limit_s = 1.5  # it is long, so that a busy machine runs `echo` within it
    set_up(bash, f"sleep {limit_s + 0.1}")
    reply = bash.bash("echo done", timeout_s=limit_s)
    assert (reply.stdout, reply.timed_out) == ("done\n", False)
    assert reply.duration_s < limit_s


def test_new_limits_do_not_lose_it(bash: AgentProcess) -> None:
    set_up(bash, "kept=yes", limits={"descriptors": 512})
    assert bash.bash("echo $kept; ulimit -n").stdout == "yes\n512\n"


def test_python_is_set_up_as_well(tmp_path: Path) -> None:
    with direct_agent(tmp_path, "--prestart", "python") as agent:
        set_up(agent, "import os\nx = 41\nos.environ['K'] = 'v'\nx", interpreter="python")
        reply = agent.python("print(x + 1, os.environ['K'])")
        assert (reply.stdout, reply.displays) == ("42 v\n", [])
        agent.python("os._exit(3)")
        assert agent.python("print(x)").stdout == "41\n"


BAD: list[Any] = [
    {"steps": [], "timeout_s": 1},
    {"interpreter": "perl", "steps": [], "timeout_s": 1},
    {"interpreter": "bash", "steps": "true", "timeout_s": 1},
    {"interpreter": "bash", "steps": [{"name": "x"}], "timeout_s": 1},
    {"interpreter": "bash", "steps": ["true"], "timeout_s": 1},
    {"interpreter": "bash", "steps": [{"name": "x", "code": "true"}] * 17, "timeout_s": 1},
    {"interpreter": "bash", "steps": [], "timeout_s": "1"},
]


@pytest.mark.parametrize("setup", BAD, ids=str)
def test_nonsense_is_refused(setup: Any, shared: AgentProcess) -> None:
    shared.send(type="hello", protocol=1, setup=setup)
    assert "hello is not valid" in shared.expect("error")["message"]


def test_only_the_first_one_counts(bash: AgentProcess) -> None:
    set_up(bash, "x=first")
    set_up(bash, "x=second")
    assert bash.bash("echo $x").stdout == "first\n"
