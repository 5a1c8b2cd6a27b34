"""The wall clock jumps by years, both ways: nobody waits by it, and what is shown stands it."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from control_bench import bench
from fake_programs import FakePrograms
from fake_runner import FakeRunner, echo
from nsm.cli.verbs.audit import files
from nsmd.audit.journal import Journal
from nsmd.bridge.ledger import Ledger, ended
from nsmd.bridge.programs import Caller, ProgramEnd, RecordedCall
from nsmd.http.asgi_app import SESSION_IDLE_S, open_front
from nsmd.mcp.attachment import TAKEN_BACK, Attach
from nsmd.model.limits import ClientLimits
from nsmd.model.values import NetworkRule

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsm.http.connection import Application, Message


YEAR_S = 366 * 86400.0

JUMPS = (0.0, 10 * YEAR_S, -40 * YEAR_S, 5000 * YEAR_S, -60 * YEAR_S, 1.0)
"""On top of the year 2026: the last but one is before 1970."""


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", jumps())


async def test_sessions_live_by_the_monotonic_clock(
    jumping: None, autojump_clock: trio.abc.Clock
) -> None:
    async with bench(idle_timeout_s=100) as it:
        peer = await it.connect()
        begun_s = trio.current_time()
        for number in range(2 * len(JUMPS)):
            result = await peer.call("run", env="python", code=str(number), session="a")
            assert (result["stdout"], result["session"]["created"]) == (str(number), number == 0)
            (row,) = (await peer.call("sessions"))["sessions"]
            assert 0 <= row["age_s"] <= trio.current_time() - begun_s + 1
        end = await peer.call("logs", target="a")
        assert end["executions"] == 2 * len(JUMPS)
        times = [event.data["started_at"] for event in peer.events if "started_at" in event.data]
        assert min(times) < 0 < max(times), "the clock did jump"
        await trio.sleep(99)
        assert [session.name for session in it.run_service.live_sessions()] == ["a"]
        await trio.sleep(2)
        assert it.run_service.live_sessions() == []


def jumps() -> Callable[[], float]:
    offsets = itertools.cycle(JUMPS)
    return lambda: 1_780_000_000.0 + next(offsets)


async def test_the_audit_of_the_bridge_is_in_the_order_of_what_happened(tmp_path: Path) -> None:
    """Files that are set aside are numbered, and not named by a time."""
    path = str(tmp_path / "audit.log")

    caller = Caller(client="claude-code", scope="box-1", way="mcp", peer=(77, 1000))
    expected: list[tuple[str, str]] = []
    for life in ("a", "b"):  # of a supervisor each
        journal = Journal(path, max_mb=1, keep=None, wall=jumps())
        journal.file.max_bytes = 1500
        written = Ledger(journal)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            for number in range(4 * len(JUMPS)):
                call = RecordedCall(
                    id=f"{life}{number}", caller=caller, program="deploy", arguments=()
                )
                await written.begin(call)
                await written.end(call, ended(ProgramEnd(exit_code=0, duration_s=1.0)))
                expected += [("start", call.id), ("end", call.id)]
            assert await written.fate("a0", "box-1") == "ended"
            nursery.cancel_scope.cancel()
        await journal.close()
    aside = sorted(int(name.rpartition(".")[2]) for name in numbered(tmp_path))
    assert aside == [*range(1, len(aside) + 1)]
    assert len(aside) > len(JUMPS)
    found = [
        json.loads(line)
        for each in files(path, counting_up=True)
        for line in Path(each).read_text().splitlines()
    ]
    assert [(line["event"], line["id"]) for line in found] == expected
    times = [line["at"] for line in found]
    assert times != sorted(times), "the clock did jump"


def numbered(directory: Path) -> list[str]:
    names = [each.name for each in directory.iterdir()]
    return [name for name in names if name.rpartition(".")[2].isdecimal()]


async def test_clients_over_http_keep_their_sessions(
    jumping: None, autojump_clock: trio.abc.Clock
) -> None:
    client_limits = ClientLimits(
        scope="http", directory=None, project=None, network=NetworkRule(mode="off"), programs=()
    )
    attach = Attach().kept_to(client_limits, confined=True)
    opened = open_front(
        attach,
        FakeRunner(echo).service,
        FakePrograms().service,
        max_result_chars=1000,
        max_body_bytes=100_000,
    )
    async with opened as front:
        params = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        }
        begun = await ask(front, method="initialize", params=params)
        assert begun["status"] == 200
        session = dict(begun["headers"])[b"mcp-session-id"]
        for _ in range(2 * len(JUMPS)):
            await trio.sleep(SESSION_IDLE_S - 1)
            assert (await ask(front, session, method="ping"))["status"] == 200
        await trio.sleep(SESSION_IDLE_S + 1)
        assert (await ask(front, session, method="ping"))["status"] == 404


async def ask(front: Application, session: bytes = b"", **body: Any) -> Message:
    """The beginning of an answer."""
    headers = [
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
        *([(b"mcp-session-id", session)] if session else []),
    ]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        TAKEN_BACK: lambda: True,
    }
    sent: list[Message] = []
    asked = [{"type": "http.request", "body": json.dumps({"jsonrpc": "2.0", "id": 1, **body})}]

    async def receive() -> Message:
        if not asked:
            await trio.sleep_forever()
        message = asked.pop()
        return {**message, "body": message["body"].encode()}

    async def send(message: Message) -> None:
        sent.append(message)

    await front(scope, receive, send)
    return sent[0]
