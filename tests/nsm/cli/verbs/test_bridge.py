"""`nsm bridge` against a fake supervisor: what is shown, what is sent, and the exit codes."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import samples
from fakesupervisor import FakeSupervisor, answer

if TYPE_CHECKING:
    from cli_bench import Nsm
    from fakesupervisor import Exchange, Handler


@pytest.fixture(autouse=True)
def _home(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")


@pytest.fixture
def supervisor(supervisor: FakeSupervisor) -> FakeSupervisor:
    supervisor.handlers["bridge_run"] = ran()
    return supervisor


def ran(**changes: Any) -> Handler:
    return answer(**samples.program_result(**changes))


def report(*rows: dict[str, Any], **changes: Any) -> Handler:
    return answer(**{"enabled": True, "programs": list(rows), "problems": []} | changes)


def sent(supervisor: FakeSupervisor) -> dict[str, Any]:
    """The arguments of the one request, without the id that the client has made up."""
    (request,) = supervisor.requests
    args = dict(request.args)
    assert len(args.pop("call_id")) == 32
    return args


def test_ls(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    rows = [
        samples.program_row(),
        samples.program_row(name="free", max_args=None, allow_options=True, command=None),
        samples.program_row(name="none", max_args=0, allow_options=True, description="x\x1b[2J"),
        samples.program_row(name="some", max_args=3, allow_options=True, timeout_s=0.5),
    ]
    problem = {"source": "/t/\x07.md", "line": 3, "reason": "no `name`", "name": None}
    supervisor.handlers["bridge_programs"] = report(*rows, problems=[problem])
    code, out, err = nsm("bridge", "ls")
    assert code == 0
    assert out == (
        "NAME    LIMIT  ARGUMENTS             COMMAND       DESCRIPTION\n"
        "deploy  2m00s  up to 1               ~/bin/deploy  Bring the shop to one of its places.\n"
        "free    2m00s  any, options too      -             Bring the shop to one of its places.\n"
        "none    2m00s  none                  ~/bin/deploy  x\\x1b[2J\n"
        "some     0.5s  up to 3, options too  ~/bin/deploy  Bring the shop to one of its places.\n"
    )
    assert err == "nsm: /t/\\x07.md:3: no `name`\n"
    code, out, err = nsm("bridge", "ls", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["programs"] == rows
    assert json.loads(out)["problems"] == [problem]


def test_variables_that_the_supervisor_lacks_are_a_note(
    supervisor: FakeSupervisor, nsm: Nsm, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = samples.program_row(env=["A", "KEY", "HOST"], unset=["KEY", "HOST"])

    def show(_: Exchange) -> dict[str, Any]:
        return {"program": row, "documentation": "# deploy"}

    def become(_program: str, _words: list[str]) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", become)
    supervisor.handlers |= {"bridge_help": show, "bridge_programs": report(row)}
    note = (
        "nsm: deploy: the supervisor lacks variables that `env` names: KEY, HOST. "
        "docs/how-to/bridge.md says where to set it\n"
    )
    for words in (["help", "deploy"], ["ls"], ["check"]):
        code, _, err = nsm("bridge", *words)
        assert (code, err) == (0, note), words
    for words in (["help", "deploy", "--json"], ["check", "--json"]):
        assert nsm("bridge", *words)[::2] == (0, "")
    supervisor.handlers["bridge_programs"] = report(samples.program_row())
    assert nsm("bridge", "check") == (0, "", "")


@pytest.mark.parametrize(
    ("words", "arguments", "streamed"),
    [
        (["deploy"], [], True),
        (["deploy", "a b", ""], ["a b", ""], True),
        (["deploy", "--json", "-x", "--", "-h"], ["--json", "-x", "--", "-h"], True),
        (["--", "deploy", "-x"], ["-x"], True),
        (["--json", "deploy", "--json"], ["--json"], False),
        (["--json", "--", "deploy"], [], False),
        (["deploy", "$(x); `y` é"], ["$(x); `y` é"], True),  # the supervisor refuses it
    ],
)
def test_options_after_the_program_are_its_own(
    supervisor: FakeSupervisor, nsm: Nsm, words: list[str], arguments: list[str], streamed: bool
) -> None:
    assert nsm("bridge", "run", *words)[0] == 0
    stream = {"stream": True} if streamed else {}
    assert sent(supervisor) == {"program": "deploy", "arguments": arguments, **stream}


@pytest.mark.parametrize(
    ("changes", "code", "note"),
    [
        ({}, 0, ""),
        ({"exit_code": 3}, 3, ""),
        ({"exit_code": 256}, 1, ""),
        ({"exit_code": None, "signal": 11}, 139, "nsm: killed by SIGSEGV\n"),
        ({"exit_code": None, "signal": 40}, 168, "nsm: killed by signal 40\n"),
        (
            {"exit_code": None, "signal": 15, "why_stopped": "timeout"},
            124,
            "nsm: timed out after 120 s\n",
        ),
        ({"why_stopped": "cancelled"}, 130, "nsm: interrupted\n"),
        ({"why_stopped": "shutdown"}, 125, "nsm: stopped: the supervisor ends\n"),
        ({"left": 1}, 0, "nsm: 1 process that it left goes on\n"),
        ({"left": 2}, 0, "nsm: 2 processes that it left go on\n"),
    ],
)
def test_exit_codes(
    supervisor: FakeSupervisor, nsm: Nsm, changes: dict[str, Any], code: int, note: str
) -> None:
    supervisor.handlers["bridge_run"] = ran(**changes)
    assert nsm("bridge", "run", "deploy") == (code, "", note)
    told, out, err = nsm("bridge", "run", "--json", "deploy")
    assert (told, json.loads(out), err) == (code, samples.program_result(**changes), "")


def test_output_that_a_slow_reader_missed_is_said_where_it_is_missing(
    supervisor: FakeSupervisor, nsm: Nsm
) -> None:
    """And what comes after that is shown as it comes."""

    def run(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "one\n")
        exchange.emit("output", {"stream": "stdout", "text": "four\n", "skipped": 100})
        exchange.emit("output", {"stream": "stdout", "text": "", "skipped": 20})
        exchange.output("stderr", "x\n")
        exchange.output("stderr", "[... 3 lines left out ...]\n")
        exchange.output("stderr", "y\n")
        text = "one\ntw\n[... 90 bytes left out ...]\nee\nfour\n"
        return samples.program_result(stdout=text, stdout_omitted=90, stderr="x\n1\n2\n3\ny\n")

    supervisor.handlers["bridge_run"] = run
    code, out, err = nsm("bridge", "run", "deploy")
    gap, end = "[... 100 characters left out ...]\n", "[... 20 characters left out ...]\n"
    assert (code, out) == (0, f"one\n{gap}four\n{end}")
    notes = "".join(
        f"nsm: {name}: some of it is left out: it came faster than it was read; "
        "--json has its beginning and its end\n"
        for name in ("stdout", "stderr")
    )
    assert err == f"x\n[... 3 lines left out ...]\ny\n{notes}"


def test_the_end_of_a_flood_comes_with_the_result(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    def run(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "1\n")
        exchange.output("stdout", "2\n")
        exchange.output("stdout", "[... 6 lines left out ...]\n")
        text = "1\n\n[... 14 bytes left out ...]\n9\n"
        return samples.program_result(stdout=text, stdout_omitted=14)

    supervisor.handlers["bridge_run"] = run
    code, out, err = nsm("bridge", "run", "deploy")
    assert (code, out) == (0, "1\n2\n\n[... 12 bytes left out ...]\n9\n")
    assert err == "nsm: stdout: 12 bytes left out; --json has its beginning and its end\n"


def test_ctrl_c_stops_the_program_and_waits_for_what_came_of_it(
    supervisor: FakeSupervisor, nsm: Nsm
) -> None:
    def run(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "begun\n")
        os.kill(os.getpid(), signal.SIGINT)
        exchange.cancelled.wait()
        exchange.output("stdout", "cleaned up\n")
        return samples.program_result(stdout="begun\ncleaned up\n", why_stopped="cancelled")

    supervisor.handlers["bridge_run"] = run
    assert nsm("bridge", "run", "deploy") == (130, "begun\ncleaned up\n", "nsm: interrupted\n")
    assert len(supervisor.cancelled) == 1


def test_output_over_two_connections_is_shown_once(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    def second(exchange: Exchange) -> dict[str, Any]:
        assert exchange.args["again"] is True
        exchange.output("stdout", "three\n")
        return samples.program_result(stdout="one\ntwo\nthree\n")

    def first(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "one\n")
        supervisor.stop_listening()
        stack.enter_context(FakeSupervisor(supervisor.path, bridge_run=second))
        exchange.hang_up()
        return {}

    with ExitStack() as stack:
        supervisor.handlers["bridge_run"] = first
        code, out, err = nsm("bridge", "run", "deploy")
    assert (code, out) == (0, "one\ntwo\nthree\n")
    assert "the connection was lost" in err
