"""`nsm drain` and `nsm reload` tell what they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsm.cli.verbs.supervisor import waits
from nsm.wire.messages import read
from nsm.wire.status import ReloadReport

if TYPE_CHECKING:
    from cli_bench import Nsm
    from fakesupervisor import Exchange, FakeSupervisor


def progress(left: int, interrupted: int = 0, remaining_s: float | None = None) -> dict[str, Any]:
    return {"left": left, "interrupted": interrupted, "remaining_s": remaining_s}


def test_drain_tells_how_much_is_left(nsm: Nsm, supervisor: FakeSupervisor) -> None:
    def drain(exchange: Exchange) -> dict[str, Any]:
        assert exchange.args == {"timeout_s": 90.0}
        for step in (progress(2, 0, 90.0), progress(2, 0, 89.0), progress(1, 0, 30.0)):
            exchange.emit("progress", step)
        exchange.emit("progress", progress(1, 1))
        exchange.emit("progress", progress(0, 1))
        return {"drained": True, "left": 0, "interrupted": 1, "cancelled": False, "sessions": 2}

    supervisor.handlers["drain"] = drain
    code, out, err = nsm("drain", "--timeout", "90")
    assert code == 0
    assert out == "drained: nothing runs, 2 sessions kept, 1 execution interrupted\n"
    assert err == (
        "nsm: 2 executions left, interrupted in 1m30s\n"
        "nsm: 1 execution left, interrupted in 30s\n"
        "nsm: 1 execution left, interrupted\n"
    )


def test_a_reload_names_the_programs_that_it_waits_for_and_who_asked_for_them() -> None:
    deploy = {"program": "deploy", "client": "claude-code", "scope": "box:shop"}
    restart = {**deploy, "program": "restart-db", "client": "\x1b[2Jmine"}
    told = waits(read(ReloadReport, {"waits_for": [deploy, restart], "waits_s": 10.0}))
    assert told.startswith("waiting 10 s at most for programs")
    assert "deploy (asked for by claude-code in box:shop)" in told
    assert "restart-db (asked for by \\x1b[2Jmine in box:shop)" in told
