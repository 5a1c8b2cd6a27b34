"""`nsm bridge` against a fake supervisor: what is shown, what is sent, and the exit codes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import samples
from fakesupervisor import Exchange, FakeSupervisor
from nsm.cli import main as cli
from nsm.wire.errors import BadRequestError, UnknownProgramError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeAlias

    from fakesupervisor import Handler

    Nsm: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSupervisor]:
    path = str(tmp_path / "control.sock")
    monkeypatch.setenv("NSM_SOCKET", path)
    monkeypatch.setenv("HOME", "/home/me")
    with FakeSupervisor(path, bridge_run=answer()) as supervisor:
        yield supervisor


@pytest.fixture
def nsm(capfdbinary: pytest.CaptureFixture[bytes]) -> Nsm:
    """Run a command; its exit code and what it said."""

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code = cli.main(["bridge", *arguments])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else -1
        said = capfdbinary.readouterr()
        return code, said.out.decode(), said.err.decode()

    return run


def answer(**changes: Any) -> Handler:
    def handler(_: Exchange) -> dict[str, Any]:
        return samples.program_result(**changes)

    return handler


def report(*rows: dict[str, Any], **changes: Any) -> Handler:
    def handler(_: Exchange) -> dict[str, Any]:
        return {"enabled": True, "programs": list(rows), "problems": []} | changes

    return handler


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
    code, out, err = nsm("ls")
    assert code == 0
    assert out == (
        "NAME    LIMIT  ARGUMENTS             COMMAND       DESCRIPTION\n"
        "deploy  2m00s  up to 1               ~/bin/deploy  Bring the shop to one of its places.\n"
        "free    2m00s  any, options too      -             Bring the shop to one of its places.\n"
        "none    2m00s  none                  ~/bin/deploy  x\\x1b[2J\n"
        "some     0.5s  up to 3, options too  ~/bin/deploy  Bring the shop to one of its places.\n"
    )
    assert err == "nsm: /t/\\x07.md:3: no `name`\n"
    code, out, err = nsm("ls", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["programs"] == rows
    assert json.loads(out)["problems"] == [problem]


def test_ls_of_nothing_says_what_to_do(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    supervisor.handlers["bridge_programs"] = report()
    assert "~/.config/nsm/tools" in nsm("ls")[1]
    supervisor.handlers["bridge_programs"] = report(enabled=False)
    assert "`[bridge] enabled = true`" in nsm("ls")[1]


def test_help_is_the_documentation(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    body = "\n# deploy PLACE\n\nA \x1b]0;x\x07 place.\n"

    def show(_: Exchange) -> dict[str, Any]:
        return {"program": samples.program_row(), "documentation": body}

    supervisor.handlers["bridge_help"] = show
    assert nsm("help", "deploy") == (0, "# deploy PLACE\n\nA \\x1b]0;x\\x07 place.\n", "")
    assert json.loads(nsm("help", "deploy", "--json")[1])["documentation"] == body
    body = ""
    assert nsm("help", "deploy")[1] == "Bring the shop to one of its places.\n"


def test_what_the_supervisor_does_not_have_is_a_note(
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
        "nsm: deploy: `env` names what the supervisor does not have: KEY, HOST. "
        "docs/how-to/bridge.md says where to set it\n"
    )
    for words in (["help", "deploy"], ["ls"], ["check"]):
        code, _, err = nsm(*words)
        assert (code, err) == (0, note), words
    for words in (["help", "deploy", "--json"], ["check", "--json"]):
        assert nsm(*words)[::2] == (0, "")
    supervisor.handlers["bridge_programs"] = report(samples.program_row())
    assert nsm("check") == (0, "", "")


def test_a_check_needs_no_supervisor_and_starts_none(
    nsm: Nsm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def become(_program: str, _words: list[str]) -> None:
        raise SystemExit(1)

    monkeypatch.setattr(os, "execv", become)
    monkeypatch.setenv("NSM_SOCKET", str(tmp_path / "none.sock"))
    assert nsm("check") == (1, "", "")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_program(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    def fail(_: Exchange) -> dict[str, Any]:
        raise UnknownProgramError("Program 'x' not found. Available: deploy, restart_db")

    supervisor.handlers |= {"bridge_help": fail, "bridge_run": fail}
    said = "nsm: Program 'x' not found. Available: deploy, restart_db\n"
    assert nsm("help", "x") == (1, "", said)
    assert nsm("run", "x") == (125, "", said)


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
def test_what_follows_the_program_is_its_own(
    supervisor: FakeSupervisor, nsm: Nsm, words: list[str], arguments: list[str], streamed: bool
) -> None:
    assert nsm("run", *words)[0] == 0
    stream = {"stream": True} if streamed else {}
    assert sent(supervisor) == {"program": "deploy", "arguments": arguments, **stream}


@pytest.mark.parametrize("words", [[], ["run"], ["run", "--json"], ["run", "-x", "a"], ["help"]])
def test_wrong_usage(supervisor: FakeSupervisor, nsm: Nsm, words: list[str]) -> None:
    code, out, err = nsm(*words)
    assert (code, out) == (2, "")
    assert "--help" in err
    assert not supervisor.requests


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
    supervisor.handlers["bridge_run"] = answer(**changes)
    assert nsm("run", "deploy") == (code, "", note)
    told, out, err = nsm("run", "--json", "deploy")
    assert (told, json.loads(out), err) == (code, samples.program_result(**changes), "")


def test_an_error_is_125(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    def fail(_: Exchange) -> dict[str, Any]:
        raise BadRequestError("Invalid character in argument: semicolon (;) not allowed")

    supervisor.handlers["bridge_run"] = fail
    said = "nsm: Invalid character in argument: semicolon (;) not allowed\n"
    assert nsm("run", "deploy", ";") == (125, "", said)


def test_an_argument_that_is_no_text(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    code, _, err = nsm("run", "deploy", "\udcff")
    assert code == 125
    assert "argument 1 is not UTF-8 text" in err
    assert not supervisor.requests


def test_output_is_shown_once_though_it_comes_twice(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    def run(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "one\n")
        exchange.output("stderr", "careful\n")
        exchange.output("stdout", "last\n")  # had no end
        return samples.program_result(stdout="one\nlast", stderr="careful\n")

    supervisor.handlers["bridge_run"] = run
    assert nsm("run", "deploy") == (0, "one\nlast\n", "careful\n")


def test_what_a_slow_reader_missed_is_said_where_it_is_missing(
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
    code, out, err = nsm("run", "deploy")
    gap, end = "[... 100 characters left out ...]\n", "[... 20 characters left out ...]\n"
    assert (code, out) == (0, f"one\n{gap}four\n{end}")
    notes = "".join(
        f"nsm: {name}: some of it is left out: it came faster than it was read; "
        "--json has its beginning and its end\n"
        for name in ("stdout", "stderr")
    )
    assert err == f"x\n[... 3 lines left out ...]\ny\n{notes}"


def test_an_end_that_was_not_told_comes_with_the_result(
    supervisor: FakeSupervisor, nsm: Nsm
) -> None:
    def run(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "one\n")
        exchange.emit("output", {"stream": "stdout", "text": "", "skipped": 20})
        return samples.program_result(stdout="one\r\ntwo\r\n", stderr="[nsm: killed]")

    supervisor.handlers["bridge_run"] = run
    assert nsm("run", "deploy") == (0, "one\ntwo\n", "[nsm: killed]")


def test_a_long_output_is_not_shown_again(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    def run(exchange: Exchange) -> dict[str, Any]:
        for number in range(100):
            exchange.output("stdout", f"{number}\n")
        text = "0\r\n1\r\n\n[... 290 bytes left out ...]\n98\r\n99\r\n"
        return samples.program_result(stdout=text, stdout_omitted=290)

    supervisor.handlers["bridge_run"] = run
    assert nsm("run", "deploy") == (0, "".join(f"{number}\n" for number in range(100)), "")


def test_the_end_of_a_flood_comes_with_the_result(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    def run(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "1\n")
        exchange.output("stdout", "2\n")
        exchange.output("stdout", "[... 6 lines left out ...]\n")
        text = "1\n\n[... 14 bytes left out ...]\n9\n"
        return samples.program_result(stdout=text, stdout_omitted=14)

    supervisor.handlers["bridge_run"] = run
    code, out, err = nsm("run", "deploy")
    assert (code, out) == (0, "1\n2\n\n[... 12 bytes left out ...]\n9\n")
    assert err == "nsm: stdout: 12 bytes left out; --json has its beginning and its end\n"


def test_a_gap_within_a_line_has_a_line_of_its_own(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    def run(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "x" * 8192)
        exchange.output("stdout", "[... 1 line left out ...]\n")
        exchange.output("stdout", "y\n")
        return samples.program_result()

    supervisor.handlers["bridge_run"] = run
    assert nsm("run", "deploy")[1] == "x" * 8192 + "\n[... 1 line left out ...]\ny\n"


def test_a_line_that_came_in_pieces_is_one(supervisor: FakeSupervisor, nsm: Nsm) -> None:
    def run(exchange: Exchange) -> dict[str, Any]:
        for text in ("x" * 8192, "x" * 8192, "y\n", "z\n"):
            exchange.output("stdout", text)
        return samples.program_result(stdout="x" * 16384 + "y\nz\n")

    supervisor.handlers["bridge_run"] = run
    assert nsm("run", "deploy") == (0, "x" * 16384 + "y\nz\n", "")


def test_it_streams(supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is on stdout, flushed, while the program still runs."""
    read_end, write_end = os.pipe()
    seen = threading.Event()

    def run(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "first\n")
        assert os.read(read_end, 100) == b"first\n"
        seen.set()
        return samples.program_result(stdout="first\n")

    supervisor.handlers["bridge_run"] = run
    with os.fdopen(write_end, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert cli.main(["bridge", "run", "deploy"]) == 0
    os.close(read_end)
    assert seen.is_set()


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
    assert nsm("run", "deploy") == (130, "begun\ncleaned up\n", "nsm: interrupted\n")
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
        code, out, err = nsm("run", "deploy")
    assert (code, out) == (0, "one\ntwo\nthree\n")
    assert "the connection was lost" in err


def test_of_run_the_program_alone_must_be_there(nsm: Nsm) -> None:
    code, out, err = nsm("run")
    assert (code, out) == (2, "")
    assert err.startswith("nsm: the following arguments are required: PROGRAM\n")


def test_check_where_there_is_only_a_client(
    nsm: Nsm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check in the conditions of a box."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def nothing(_name: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", nothing)
    for action in ("check", "audit"):  # of which the trail is on the host
        code, out, err = nsm(action)
        assert (code, out) == (1, "")
        assert "not installed here. In a box it never is" in err


def test_check_is_the_supervisors_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verb needs no running supervisor: this process becomes one."""
    became: list[list[str]] = []

    def become(_program: str, words: list[str]) -> None:
        became.append(words)
        raise SystemExit(1)

    monkeypatch.setattr(os, "execv", become)
    for words in (["check"], ["check", "--json"]):
        with pytest.raises(SystemExit):
            cli.main(["bridge", *words])
    assert [words[-2:] for words in became] == [
        ["nsmd", "--check-bridge"],
        ["--check-bridge", "--json"],
    ]
