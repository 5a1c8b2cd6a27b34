"""`nsm logs` and `nsm ps --all`, in this process and as programs, against a fake supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import samples
from cli_bench import NSM, TIMEOUT_S
from fakesupervisor import FakeSupervisor
from nsm.cli.render.formats import short_time
from processes import ending

if TYPE_CHECKING:
    from cli_bench import Nsm
    from fakesupervisor import Exchange, FakeSupervisor


@pytest.fixture
def supervisor(supervisor: FakeSupervisor) -> FakeSupervisor:
    supervisor.handlers["logs"] = logs
    return supervisor


def logs(exchange: Exchange) -> dict[str, Any]:
    """One execution, and with `follow` another that goes on until the client has enough."""
    exchange.emit("session", samples.session_start())
    exchange.emit("execution", samples.execution_start())
    exchange.emit("news", {"of": "a later version"})
    exchange.emit("output", {"execution_id": "x-1", "stream": "stdout", "text": "1\x1b[2J\n"})
    exchange.emit("finished", samples.execution_end())
    if exchange.args.get("follow"):
        exchange.emit("execution", samples.execution_start(number=2))
        exchange.emit("output", {"execution_id": "x-1", "stream": "stdout", "text": "begun"})
        exchange.cancelled.wait(TIMEOUT_S)
    return samples.log_end(state="ended", end_reason="killed")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_following_until_ctrl_c(supervisor: FakeSupervisor, more: list[str]) -> None:
    with ending(
        subprocess.Popen(
            [*NSM, "logs", "-f", "a", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    ) as process:
        assert process.stdout is not None
        seen = b""
        while b"begun" not in seen:
            seen += os.read(process.stdout.fileno(), 65536)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (0, b"")
    assert b"killed" in out
    assert supervisor.cancelled == [2]


def test_a_reader_that_has_enough(supervisor: FakeSupervisor) -> None:
    def endless(exchange: Exchange) -> dict[str, Any]:
        exchange.emit("session", samples.session_start())
        while not exchange.cancelled.is_set():
            exchange.emit("execution", samples.execution_start())
            exchange.emit("finished", samples.execution_end())
        return samples.log_end()

    supervisor.handlers["logs"] = endless
    with ending(
        subprocess.Popen([*NSM, "logs", "a"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"session a")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT_S) == 141


def test_ps_all(nsm: Nsm, supervisor: FakeSupervisor) -> None:
    live, over = samples.session_row(), samples.ended_row(reason="killed\x1b", name=None)

    def sessions(exchange: Exchange) -> dict[str, Any]:
        more = {"ended": [over]} if exchange.args.get("all") else {}
        return {"sessions": [live], **more}

    supervisor.handlers["sessions"] = sessions
    code, out, err = nsm("ps", "--all")
    assert (code, err) == (0, "")
    tables = out.split("\n\n")
    assert tables[0] == nsm("ps")[1].rstrip()
    header, row = tables[1].splitlines()
    assert header.split() == ["ID", "NAME", "ENV", "CLIENT", "LIVED", "ENDED", "RUNS", "REASON"]
    assert row.split() == ["s-0", "-", "bash", "nsm", "1m01s", "12s", "ago", "4", "killed\\x1b"]
    both = json.loads(nsm("ps", "-a", "--json")[1])
    assert both == {"sessions": [live], "ended": [over]}
    over.clear()
    supervisor.handlers["sessions"] = lambda _: {"sessions": [], "ended": []}
    assert nsm("ps", "--all")[1] == "No sessions.\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_following_goes_on_at_the_next_supervisor(
    nsm: Nsm, supervisor: FakeSupervisor, as_json: bool
) -> None:
    def again(exchange: Exchange) -> dict[str, Any]:
        exchange.args.pop("follow")
        logs(exchange)
        exchange.emit("execution", samples.execution_start(execution_id="x-9", code="later()"))
        return samples.log_end(state="ended", end_reason="killed")

    def first(exchange: Exchange) -> dict[str, Any]:
        exchange.args.pop("follow")
        logs(exchange)
        supervisor.stop_listening()
        stack.enter_context(FakeSupervisor(supervisor.path, logs=again))
        exchange.hang_up()
        return {}

    with ExitStack() as stack:
        supervisor.handlers["logs"] = first
        code, out, err = nsm("logs", "a", "-f", *(["--json"] if as_json else []))
    assert code == 0
    assert out.count("later()") == 1
    assert out.count("begun") == 0
    if as_json:
        events = [json.loads(line)["event"] for line in out.splitlines()]
        first_events = ["session", "execution", "news", "output", "finished"]
        assert events == [*first_events, "news", "execution", "end"]
    else:
        assert out.count("session a") == 1
        assert "the supervisor was replaced" in err


# `nsm events`, `nsm status times` and `nsm status metrics`.


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0us"),
        (0.00006, "60us"),
        (0.000994, "994us"),
        (0.000996, "1.0ms"),
        (0.0994, "99.4ms"),
        (0.0996, "100ms"),
        (0.9994, "999ms"),
        (0.9996, "1.0s"),
        (59.9, "59.9s"),
        (61, "1m01s"),
    ],
)
def test_short_times(seconds: float | None, text: str) -> None:
    assert short_time(seconds) == text


def tell(exchange: Exchange) -> dict[str, Any]:
    exchange.emit("event", samples.occurrence())
    exchange.emit("missed", {"count": 12})
    facts = {"why": "it \x1b[2J ended", "took": None, "sessions": ["a", "b"]}
    exchange.emit("event", samples.occurrence(session=None, kind="draining", facts=facts))
    return {"number": 3}


def test_events(nsm: Nsm, supervisor: FakeSupervisor) -> None:
    supervisor.handlers["events"] = tell
    said = nsm("events", "-f", "-n", "5", "--session", "work")
    assert said.code == 0
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1_777_888_999.5))
    assert said.out.splitlines() == [
        f"{when}  27bcf03a  execution_finished     env=python outcome=ok duration_s=1.2ms",
        "(12 events were dropped meanwhile)",
        f"{when}  -         draining               why='it \\x1b[2J ended' took=- sessions=a,b",
    ]
    assert supervisor.requests[0].args == {"follow": True, "last": 5, "session": "work"}


def test_events_for_programs(nsm: Nsm, supervisor: FakeSupervisor) -> None:
    supervisor.handlers["events"] = tell
    lines = [json.loads(line) for line in nsm("events", "--json").out.splitlines()]
    assert lines[0] == samples.occurrence()
    assert lines[1] == {"kind": "missed", "count": 12}
    assert len(lines) == 3
    assert supervisor.requests[0].args == {"follow": False}
