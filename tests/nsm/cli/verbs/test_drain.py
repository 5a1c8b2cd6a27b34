"""`nsm drain` against a fake supervisor: what it says, and its exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fakesupervisor import FakeSupervisor
from nsm.cli import main as cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fakesupervisor import Exchange


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSupervisor]:
    monkeypatch.setenv("NSM_SOCKET", str(tmp_path / "control.sock"))
    with FakeSupervisor(str(tmp_path / "control.sock")) as it:
        yield it


def report(**changes: Any) -> dict[str, Any]:
    answer = {"drained": True, "left": 0, "interrupted": 0, "cancelled": False, "sessions": 2}
    return answer | changes


def progress(left: int, interrupted: int = 0, remaining_s: float | None = None) -> dict[str, Any]:
    return {"left": left, "interrupted": interrupted, "remaining_s": remaining_s}


def test_drain_tells_how_much_is_left(
    capsys: pytest.CaptureFixture[str], supervisor: FakeSupervisor
) -> None:
    def drain(exchange: Exchange) -> dict[str, Any]:
        assert exchange.args == {"timeout_s": 90.0}
        for step in (progress(2, 0, 90.0), progress(2, 0, 89.0), progress(1, 0, 30.0)):
            exchange.emit("progress", step)
        exchange.emit("progress", progress(1, 1))
        exchange.emit("progress", progress(0, 1))
        return report(interrupted=1)

    supervisor.handlers["drain"] = drain
    assert cli.main(["drain", "--timeout", "90"]) == 0
    out, err = capsys.readouterr()
    assert out == "drained: nothing runs, 2 sessions kept, 1 execution interrupted\n"
    assert err == (
        "nsm: 2 executions left, interrupted in 1m30s\n"
        "nsm: 1 execution left, interrupted in 30s\n"
        "nsm: 1 execution left, interrupted\n"
    )
