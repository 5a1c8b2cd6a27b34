"""`nsm audit` and `nsm bridge audit`: lines chosen, put into words, and followed."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from e2e_support import program, variables_for
from nsm.cli.verbs import audit
from nsmd.audit.journal import AuditFile

if TYPE_CHECKING:
    from pathlib import Path

    from cli_bench import Nsm

AT = "2026-05-04T10:11:12.000000Z"


def line(event: str = "execution", *, at: str = AT, **facts: Any) -> bytes:
    return json.dumps({"at": at, "event": event, **facts}).encode() + b"\n"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "nsm").mkdir()
    return tmp_path / "nsm" / "audit.jsonl"


def chosen(nsm: Nsm, *arguments: str) -> list[int]:
    """Numbers of the lines that a command chooses."""
    return [json.loads(line)["n"] for line in nsm("audit", "--json", *arguments).out.splitlines()]


def test_all_files_the_oldest_first(path: Path, nsm: Nsm) -> None:
    for number, suffix in ((0, ".10"), (1, ".2"), (2, ".1"), (3, "")):
        path.with_name(f"{path.name}{suffix}").write_bytes(line(n=number))
    path.with_name(f"{path.name}.bak").write_bytes(line(n=9))
    assert chosen(nsm) == [0, 1, 2, 3]
    assert chosen(nsm, "-n", "2") == [2, 3]


def test_damaged_lines_are_skipped(path: Path, nsm: Nsm) -> None:
    path.write_bytes(b'{"at": "20\n[1]\n{}\nnull\n\xff\n' + line(n=1) + b'{"at": "cut')
    assert chosen(nsm) == [1]


def test_lines_of_one_session_are_chosen(path: Path, nsm: Nsm) -> None:
    path.write_bytes(
        line(session="s-1", name="a", scope="x", n=1)
        + line(session="s-2", name="a", scope="y", n=2)
        + line("operation", arguments={"targets": ["a"]}, n=3)
        + line("operation", arguments={"target": "s-1"}, n=4)
        + line(session="s-3", n=5)
    )

    for session, numbers in (("a", [1, 2, 3]), ("s-1", [1, 4]), ("y/a", [2]), ("None", [])):
        assert chosen(nsm, "--session", session) == numbers


def test_lines_since_a_time_are_chosen(path: Path, nsm: Nsm) -> None:
    path.write_bytes(line(n=1) + line(at="2099-01-01T00:00:00.000000Z", n=2))

    for since, numbers in (
        ("2026-05-04T10:11:12", [1, 2]),
        ("2026-05-04T10:12", [2]),
        ("2026-05-04", [1, 2]),
        ("2h", [2]),
    ):
        assert chosen(nsm, "--since", since) == numbers
    assert nsm("audit", "--since", "yesterday").code == 2


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            line(
                client="ed\x1b[2J", session="s", env="bash", outcome="timeout", exit_code=124,
                duration_s=1.006, code_sha256="ab" * 32, code_bytes=7, limits=["memory"],
            ),
            (
                "2026-05-04 10:11:12Z  ed\\x1b[2J  ran abababab (7 bytes) in s, bash: timeout, "
                "exit code 124, 1.01 s, limits: memory"
            ),
        ),
        (
            line(
                "fresh", client="nsm", session="s", name="g", env="python", outcome="not-run",
                exit_code=125, code_sha256="ab" * 32, code_bytes=7, why="It is too large.",
            ),
            (
                "2026-05-04 10:11:12Z  nsm  ran abababab (7 bytes) afresh in s (g), python: "
                "not-run, exit code 125, It is too large."
            ),
        ),
        (
            line("gap", lost=3, why="disk full"),
            "2026-05-04 10:11:12Z  -  3 lines are missing here: disk full",
        ),
        (
            line("operation", client="nsm", operation="net", arguments={"hosts": ["a", "b"]}),
            '2026-05-04 10:11:12Z  nsm  asked for net hosts=["a", "b"]',
        ),
        (
            line("something_new", client="nsm", answer=42),
            "2026-05-04 10:11:12Z  nsm  something_new answer=42",
        ),
    ],
)  # fmt: skip
def test_a_line_in_words(told: bytes, words: str) -> None:
    parsed = audit.parsed(told)
    assert parsed is not None
    assert audit.words(parsed) == words


def test_an_audit_without_lines_names_its_file(path: Path, nsm: Nsm) -> None:
    assert nsm("audit") == (0, "", f"nsm: nothing is written down yet, in {path}\n")


def test_following_goes_on_across_a_rotation(tmp_path: Path) -> None:
    variables = variables_for(tmp_path)
    path = tmp_path / "state" / "nsm" / "audit.jsonl"
    path.parent.mkdir(parents=True)
    file = AuditFile(str(path), max_bytes=100, keep=5)
    file.append(line(n=0))
    command = [program("nsm"), "audit", "-f", "--json"]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        try:
            for number in range(6):  # one line fits into each
                assert json.loads(following.stdout.readline())["n"] == number
                file.append(line(n=number + 1))
        finally:
            following.terminate()
            file.close()
    assert len(os.listdir(path.parent)) == 6


# `nsm bridge audit`.


def bridge_line(event: str, call_id: str = "0123456789abcdef", **facts: Any) -> bytes:
    whose = {"client": "claude-code", "scope": "box-1", "program": "deploy"}
    at = "2026-05-04T10:11:12.000000Z"
    return json.dumps({"at": at, "event": event, "id": call_id, **whose, **facts}).encode() + b"\n"


def started(call_id: str, **changes: str) -> bytes:
    return bridge_line("start", call_id, arguments=[], **changes)


def refused(reason: str, *arguments: str, **more: Any) -> bytes:
    return bridge_line("refused", "b4", reason=reason, arguments=arguments, **more)


def ended(**changes: Any) -> bytes:
    facts: dict[str, Any] = {
        "exit_code": None,
        "signal": None,
        "why_stopped": None,
        "duration_s": 0.0,
    }
    return bridge_line("end", **{**facts, **changes})


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            bridge_line("start", "c" * 32, arguments=["a b", "-v", "\x1b[2J"]),
            "starts deploy 'a b' -v '\\x1b[2J'",
        ),
        (refused("semicolon", ";", "\udc80"), "was refused deploy ';' '\\udc80': semicolon"),
        (
            refused("too many", *"a" * 100, arguments_in_all=200),
            f"was refused deploy{' a' * 100} …: too many",
        ),
        (ended(exit_code=3, duration_s=1.255), "deploy ended: exit code 3, 1.25 s"),
        (ended(exit_code=0, left=1), "deploy ended: exit code 0, 0.00 s, 1 process goes on"),
        (ended(exit_code=None, signal=11), "deploy ended: killed by SIGSEGV, 0.00 s"),
        (
            ended(exit_code=None, signal=15, why_stopped="timeout", duration_s=300),
            "deploy ended: timed out, 300.00 s",
        ),
        (
            bridge_line("end", why_stopped="not-started", reason="changed"),
            "deploy was not started: changed",
        ),
        (b'{"at": "x", "event": "new", "id": 7}', "-: new"),
    ],
)
def test_a_line_of_the_bridge_in_words(told: bytes, words: str) -> None:
    parsed = audit.parsed(told)
    assert parsed is not None
    said = audit.bridge_words(parsed)
    assert said.split("  ", 3)[3] == words
    if parsed["id"] != 7:
        head = said.split("  ")[:3]
        assert head[0] == "2026-05-04 10:11:12Z"
        assert head[1] == f"[{parsed['id'][:8]}]"
        assert head[2] == "claude-code in box-1"


@pytest.fixture
def bridge_path(path: Path) -> Path:
    return path.with_name("audit.log")


def ids(nsm: Nsm, *arguments: str) -> list[str]:
    said = nsm("bridge", "audit", "--json", *arguments).out
    return [json.loads(line)["id"] for line in said.splitlines()]


def test_calls_of_programs_are_chosen(bridge_path: Path, nsm: Nsm) -> None:
    bridge_path.write_bytes(
        started("a1")
        + started("a2", program="restart-db")
        + started("b3", client="other")
        + refused("no")
        + b'{"at": "cut'
    )
    assert ids(nsm, "--program", "restart-db") == ["a2"]
    assert ids(nsm, "--client", "other") == ["b3"]
    assert ids(nsm, "--client", "box-1") == ["a1", "a2", "b3", "b4"]
    assert ids(nsm, "--call", "b") == ["b3", "b4"]
    assert ids(nsm, "--refused") == ["b4"]
    assert ids(nsm, "--since", "2026-05-05") == []


def test_calls_of_one_mcp_client_are_told_apart(bridge_path: Path, nsm: Nsm) -> None:
    client = "27e93f7464660a685530dcec0d0c58e6"
    bridge_path.write_bytes(started(f"{client}-2") + started(f"{client}-13") + started("f" * 32))
    said = nsm("bridge", "audit").out.splitlines()
    assert [line.split("[")[1].split("]")[0] for line in said] == [
        "27e93f74-2",
        "27e93f74-13",
        "ffffffff",
    ]
    assert ids(nsm, "--call", "27e93f74-13") == [f"{client}-13"]
    assert ids(nsm, "--call", "27e93f74") == [f"{client}-2", f"{client}-13"]
