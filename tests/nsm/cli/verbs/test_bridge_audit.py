"""`nsm bridge audit`: lines chosen and put into words, and followed across rotations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from nsm.cli import main
from nsm.cli.verbs import audit

if TYPE_CHECKING:
    from pathlib import Path


def line(event: str, call_id: str = "0123456789abcdef", **facts: Any) -> bytes:
    whose = {"client": "claude-code", "scope": "box-1", "program": "deploy"}
    at = "2026-05-04T10:11:12.000000Z"
    return json.dumps({"at": at, "event": event, "id": call_id, **whose, **facts}).encode() + b"\n"


def started(call_id: str, **changes: str) -> bytes:
    return line("start", call_id, arguments=[], **changes)


def refused(reason: str, *arguments: str, **more: Any) -> bytes:
    return line("refused", "b4", reason=reason, arguments=arguments, **more)


def ended(**changes: Any) -> bytes:
    facts: dict[str, Any] = {
        "exit_code": None,
        "signal": None,
        "why_stopped": None,
        "duration_s": 0.0,
    }
    return line("end", **{**facts, **changes})


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            line("start", "c" * 32, arguments=["a b", "-v", "\x1b[2J"]),
            "starts deploy 'a b' -v '\\x1b[2J'",
        ),
        (line("start", "c" * 32, arguments=["x" * 400]), f"starts deploy {'x' * 299} …"),
        (
            line("end", why_stopped="fault", reason="nsm failed: OSError(5)."),
            "deploy ended: nsm failed: OSError(5).",
        ),
        (
            refused("semicolon", ";", "\udc80"),
            "was refused deploy ';' '\\udc80': semicolon",
        ),
        (
            refused("too many", *"a" * 100, arguments_in_all=200),
            f"was refused deploy{' a' * 100} …: too many",
        ),
        (ended(exit_code=3, duration_s=1.255), "deploy ended: exit code 3, 1.25 s"),
        (ended(exit_code=0, left=1), "deploy ended: exit code 0, 0.00 s, 1 process goes on"),
        (ended(exit_code=0, left=2), "deploy ended: exit code 0, 0.00 s, 2 processes go on"),
        (ended(exit_code=None, signal=11), "deploy ended: killed by SIGSEGV, 0.00 s"),
        (ended(exit_code=None, signal=99), "deploy ended: killed by signal 99, 0.00 s"),
        (
            ended(exit_code=None, signal=15, why_stopped="timeout", duration_s=300),
            "deploy ended: timed out, 300.00 s",
        ),
        (
            line("end", why_stopped="not-started", reason="changed"),
            "deploy was not started: changed",
        ),
        (b'{"at": "x", "event": "new", "id": 7}', "-: new"),
    ],
)
def test_words(told: bytes, words: str) -> None:
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
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "nsm").mkdir()
    return tmp_path / "nsm" / "audit.log"


def ids(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main.main(["bridge", "audit", "--json", *arguments]) == 0
    return [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]


def test_lines_are_chosen(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(
        started("a1")
        + started("a2", program="restart-db")
        + started("b3", client="other")
        + refused("no")
        + b'{"at": "cut'
    )
    assert ids(capsys, "--program", "restart-db") == ["a2"]
    assert ids(capsys, "--client", "other") == ["b3"]
    assert ids(capsys, "--client", "box-1") == ["a1", "a2", "b3", "b4"]
    assert ids(capsys, "--call", "b") == ["b3", "b4"]
    assert ids(capsys, "--refused") == ["b4"]
    assert ids(capsys, "--since", "2026-05-05") == []


def test_calls_of_one_mcp_client_are_told_apart(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = "27e93f7464660a685530dcec0d0c58e6"
    path.write_bytes(started(f"{client}-2") + started(f"{client}-13") + started("f" * 32))
    assert main.main(["bridge", "audit"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split("[")[1].split("]")[0] for line in said] == [
        "27e93f74-2",
        "27e93f74-13",
        "ffffffff",
    ]
    assert ids(capsys, "--call", "27e93f74-13") == [f"{client}-13"]
    assert ids(capsys, "--call", "27e93f74") == [f"{client}-2", f"{client}-13"]
