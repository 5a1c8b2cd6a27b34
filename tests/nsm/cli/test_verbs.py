"""The verbs but `run`, in this process, against a fake supervisor: output, stderr, exit code."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

import samples
from fakesupervisor import answer
from nsm._version import program_version
from nsm.cli import main as cli
from nsm.cli.top.board import ORDERS
from nsm.cli.verbs import sessions
from nsm.wire.errors import AmbiguousSessionError, OverloadedError, UnknownSessionError

if TYPE_CHECKING:
    from cli_bench import Nsm
    from fakesupervisor import Exchange, FakeSupervisor

NOT_RUNNING = "nsm: no supervisor is running\n"


@pytest.fixture(autouse=True)
def _autostart(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands start a supervisor if they want one."""
    monkeypatch.delenv("NSM_AUTOSTART", raising=False)


def test_help_and_version(nsm: Nsm) -> None:
    said = nsm("--help")
    assert said.code == 0
    assert all(f"\n  {verb} " in said.out for verb in cli.VERBS)
    assert all(f"\n{group}:\n" in said.out for group in cli.GROUPS)
    assert len(cli.VERBS) == sum(map(len, cli.GROUPS.values()))
    assert all(len(line) <= 80 for line in said.out.splitlines())
    assert nsm("help").out == said.out == nsm("-h").out
    bare = nsm()
    assert (bare.code, bare.out, bare.err) == (2, "", said.out)
    assert nsm("--version").out == f"nsm {program_version()}\n"


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help(nsm: Nsm, verb: str) -> None:
    said = nsm(verb, "--help")
    assert said.code == 0
    assert said.out.startswith(f"usage: nsm {verb}")
    assert nsm("help", verb).out == said.out
    assert all(len(line) <= 80 for line in said.out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["pss"], "nsm: unknown command 'pss'\nDid you mean `nsm ps`?"),
        (["show"], "nsm: unknown command 'show'\n`nsm --help`"),
        (["install"], "nsm: there is no command 'install': `nsm setup` gives nsm to"),
        (["--no-such"], "nsm: unknown command '--no-such'"),
        (["metrics"], "nsm: there is no command 'metrics': `nsm status metrics` prints"),
        (["stop"], "nsm: there is no command 'stop': `nsm shutdown` ends the supervisor"),
        (["stop", "w2"], "nsm: there is no command 'stop': `nsm kill w2` ends sessions\n"),
        (["fork"], "nsm: the following arguments are required: SESSION\n"),
        (["restart"], "nsm: there is no command 'restart': `nsm reload` restarts the supervisor"),
        (["ps", "--jso"], "nsm: unrecognized arguments: --jso\nRun `nsm ps --help`."),
        (["ps", "\x1b[2Jx"], "nsm: unrecognized arguments: \\x1b[2Jx"),
        (["kill"], "nsm: say which sessions"),
        (["kill", "a", "--all"], "nsm: say which sessions"),
        (["kill", "--idle", "soon"], "nsm: argument --idle: 'soon' is not a number of seconds"),
        (["kill", "--idle", "-5"], "nsm: argument --idle: "),
        (["interrupt"], "nsm: the following arguments are required: SESSION"),
        (["net", "a", "allow"], "hosts"),
        (["net", "a", "list", "x.org"], "hosts"),
        (["config"], "nsm: the following arguments are required: {check,show}"),
        (["config", "chekc"], "invalid choice: 'chekc'; did you mean 'check'? (choose from check,"),
        (["config", "check", "--json"], "nsm: --json goes with `nsm config show` only\n"),
        (["box", "--check", "--json"], "nsm: --json goes with --list only\n"),
        (["box", "--list", "x"], "nsm: --list takes no command: it lists the boxes that run\n"),
        (["setup", "claud"], "invalid choice: 'claud'; did you mean 'claude'?"),
        (["completion", "tcsh"], "nsm: argument shell: invalid choice: 'tcsh'"),
    ],
)
def test_wrong_usage(nsm: Nsm, arguments: list[str], error: str) -> None:
    said = nsm(*arguments)
    assert (said.code, said.out) == (2, "")
    assert error in said.err


def test_ps_sorted(nsm: Nsm, supervisor: FakeSupervisor) -> None:
    rows = [
        samples.session_row(id="s-1", name="b", cpu_s=1.0, memory_bytes=None),
        samples.session_row(id="s-2", name="c", cpu_s=3.0, memory_bytes=1),
        samples.session_row(id="s-3", name="a", cpu_s=None, memory_bytes=2),
    ]
    supervisor.handlers["sessions"] = answer(sessions=rows)
    for by, names in (("name", "abc"), ("cpu", "cba"), ("memory", "acb")):
        said = nsm("ps", "--json", "--sort", by)
        assert "".join(row["name"] for row in json.loads(said.out)) == names
    for by in sessions.SORTS:
        assert nsm("ps", "--sort", by).out.count("\n") == 4
    assert set(sessions.SORTS) <= set(ORDERS)


@pytest.mark.parametrize(
    ("arguments", "code", "json_out"),
    [
        (["ps"], 0, "[]\n"),
        (["kill", "a"], 0, "[]\n"),
        (["kill", "--all"], 0, "[]\n"),
        (["shutdown"], 0, "[]\n"),
        (["status"], 1, "null\n"),
        (["status", "pool"], 0, "null\n"),
        (["events"], 1, ""),
    ],
)
def test_verbs_that_start_no_supervisor(
    nsm: Nsm, path: str, arguments: list[str], code: int, json_out: str
) -> None:
    said = nsm(*arguments)
    assert (said.code, said.out, said.err) == (code, "", NOT_RUNNING)
    said = nsm(*arguments, "--json")
    assert (said.code, said.out, said.err) == (code, json_out, NOT_RUNNING)
    assert not os.path.exists(path)


def test_kill(nsm: Nsm, supervisor: FakeSupervisor) -> None:
    unknown = UnknownSessionError("No session 'b'.", hint="`nsm ps` lists the live ones.")
    ambiguous = AmbiguousSessionError("'c' is\x1b two.", hint="Say s-5 or s-6.")
    supervisor.handlers["kill"] = answer(
        killed=[{"id": "s-1", "name": "a"}],
        errors=[
            {"target": "b", "error": unknown.to_wire()},
            {"target": "c", "error": ambiguous.to_wire()},
        ],
    )
    said = nsm("kill", "a", "b", "c")
    assert said.code == 1
    assert said.out == "ended s-1 (a)\n"
    assert said.err == (
        "nsm: No session 'b'.\n`nsm ps` lists the live ones.\n"
        "nsm: 'c' is\\x1b two.\nSay s-5 or s-6.\n"
    )
    said = nsm("kill", "a", "b", "c", "--json")
    killed = [{"id": "s-1", "name": "a", "fork_of": ""}]
    assert (said.code, json.loads(said.out)) == (1, killed)


@pytest.mark.parametrize(
    ("command", "operation", "sample", "shown"),
    [
        ("status", "status", samples.status(), "process 4711"),
        ("status pool", "pool", samples.pool(), "up to 4 calls came at once"),
        ("inspect a", "inspect", samples.inspection(), "copy-on-write"),
        ("net a", "net", samples.network(), "2s ago  not-allowed  other.example:443"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_json_is_what_the_supervisor_said(
    nsm: Nsm,
    supervisor: FakeSupervisor,
    command: str,
    operation: str,
    sample: dict[str, Any],
    shown: str,
) -> None:
    supervisor.handlers[operation] = answer(**sample)
    assert shown in nsm(*command.split()).out
    told = json.loads(nsm(*command.split(), "--json").out)
    assert {**sample, **told, "session": None} == {**told, "session": None}


def test_shutdown_says_what_has_ended(nsm: Nsm, supervisor: FakeSupervisor) -> None:
    supervisor.handlers |= {"shutdown": answer(), "status": answer(**samples.status(sessions=2))}
    supervisor.hang_up_after = "shutdown"
    assert json.loads(nsm("shutdown", "--json").out) == [{"pid": 4711, "sessions": 2}]


def test_an_error_of_the_supervisor(nsm: Nsm, supervisor: FakeSupervisor) -> None:
    def refuse(_: Exchange) -> dict[str, Any]:
        raise OverloadedError("Too much\x1b.", hint="Wait.")

    supervisor.handlers["sessions"] = refuse
    said = nsm("ps")
    assert (said.code, said.out, said.err) == (1, "", "nsm: Too much\\x1b.\nWait.\n")
