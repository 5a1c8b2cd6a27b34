"""The operations on programs of the host, over a socket pair, with real programs."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from bridge_bench import Bench as Programs
from control_bench import Bench, Peer, bench
from nsm.wire.errors import BadRequestError, ForbiddenError, UnknownProgramError
from nsm.wire.frames import MAX_FRAME_BYTES
from nsm.wire.messages import Cancel
from nsm.wire.operation import Right
from nsmd.control import outgoing
from nsmd.control.call import ALL_RIGHTS
from nsmd.control.ops import bridge

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

IN_A_BOX: frozenset[Right] = frozenset({"run", "bridge"})
FACTS = {
    "name": "restart-db",
    "description": "Does restart-db.",
    "timeout_s": 300.0,
    "max_args": None,
    "allow_options": False,
}
CALL = "0123456789abcdef"


class Place:
    """A server with a bridge that is on."""

    def __init__(self, it: Bench, programs: Programs) -> None:
        self.it = it
        self.programs = programs

    async def script(self, name: str, body: str) -> None:
        """A program that has just come, and is seen."""
        self.programs.script(name, body)
        await self.it.bridge.read_definitions()

    async def person(self) -> Peer:
        return await self.it.connect(self.it.make_server(ALL_RIGHTS, os.getuid()))

    async def box(self, *programs: str) -> Peer:
        server = self.it.make_server(IN_A_BOX, os.getuid(), "box", programs=programs)
        return await self.it.connect(server)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncGenerator[Place]:
    async with opened(tmp_path) as place:
        yield place


@asynccontextmanager
async def opened(directory: Path) -> AsyncGenerator[Place]:
    programs = Programs(directory)
    programs.furnish()
    programs.script("deploy", 'echo "to $1"; echo careful >&2; exit 3', env=["KEY"], max_args=1)
    programs.script("restart-db", "true")
    (directory / "tools" / "bad.md").write_text("nothing\n")
    async with programs.open() as bridge, bench() as it:
        it.bridge = bridge
        yield Place(it, programs)


async def test_a_person_is_told_of_all_and_of_what_is_wrong(place: Place) -> None:
    peer = await place.person()
    answer = await peer.call("bridge_programs")
    home = place.programs.home
    assert answer["enabled"] is True
    deploy, restart = answer["programs"]
    assert restart == {
        **FACTS,
        "command": str(home / "bin" / "restart-db"),
        "cwd": None,
        "env": [],
        "unset": [],
        "source": str(home / "tools" / "restart-db.md"),
    }
    assert (deploy["name"], deploy["env"], deploy["max_args"]) == ("deploy", ["KEY"], 1)
    assert deploy["unset"] == ["KEY"]
    (problem,) = answer["problems"]
    assert (problem["source"], problem["line"]) == (str(home / "tools" / "bad.md"), 1)
    assert set(problem) == {"source", "line", "reason", "name"}


async def test_a_box_is_told_of_its_own_and_nothing_of_the_host(place: Place) -> None:
    peer = await place.box("restart-db", "later")
    answer = await peer.call("bridge_programs")
    assert answer == {"enabled": True, "programs": [FACTS], "problems": []}
    answer = await peer.call("bridge_help", program="restart-db")
    assert answer == {"program": FACTS, "documentation": "How to use restart-db."}
    for op in ("bridge_help", "bridge_run"):
        with pytest.raises(UnknownProgramError) as refused:
            await peer.call(op, program="deploy")
        assert refused.value.message == "Program 'deploy' not found. Available: restart-db"
    assert (await peer.call("bridge_run", program="restart-db"))["exit_code"] == 0


async def test_calls_of_a_box_without_programs_are_refused_and_written_down(place: Place) -> None:
    server = place.it.make_server(frozenset({"run"}), os.getuid(), "box")
    peer = await place.it.connect(server)
    for op in ("bridge_programs", "bridge_help", "bridge_run"):
        with pytest.raises(ForbiddenError) as caught:
            await peer.call(op, program="deploy", arguments=["eu"])
        assert "`nsm box --bridge NAME,...`" in (caught.value.hint or "")
    await place.it.bridge.close()  # which waits for its line
    (record,) = place.programs.records()
    assert (record["event"], record["client"], record["scope"]) == ("refused", "test", "box")
    assert (record["program"], record["arguments"]) == ("deploy", ["eu"])
    assert "needs the right 'bridge'" in record["reason"]


async def test_a_long_line_can_be_put_together(place: Place) -> None:
    await place.script("long", "printf '%20000d\\n%8192d\\n'")
    peer = await place.person()
    answer = await peer.call("bridge_run", program="long", stream=True)
    assert [len(each.data["text"]) for each in peer.events] == [8192, 8192, 3617, 8192, 1]
    assert "".join(each.data["text"] for each in peer.events) == answer["stdout"]


async def test_an_answer_fits_into_a_frame(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2 * bridge.MAX_STREAM_BYTES < MAX_FRAME_BYTES - 64 * 1024
    monkeypatch.setattr(bridge, "MAX_STREAM_BYTES", 10_000)
    await place.script("long", "printf '%30000d'; printf '%20000d' >&2; exit 1")
    peer = await place.person()
    answer = await peer.call("bridge_run", program="long")
    assert (answer["stdout_omitted"], answer["stderr_omitted"]) == (20_000, 10_000)
    assert answer["stdout"].endswith("0")
    assert "\n[... 20000 bytes left out ...]\n" in answer["stdout"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"program": "deploy", "arguments": ["a;b"]}, "semicolon"),
        ({"program": "deploy", "arguments": "a"}, "list"),
        ({"program": "deploy", "arguments": [1]}, "text"),
        ({"program": "deploy", "arguments": ["-a"]}, "hyphen"),
        ({"program": "deploy", "arguments": ["a", "b"]}, "Too many"),
        ({"program": ["deploy"]}, "`program`"),
        ({}, "`program`"),
        ({"program": "deploy", "call_id": ""}, "`call_id`"),
        ({"program": "deploy", "call_id": "x" * 65}, "`call_id`"),
        ({"program": "deploy", "call_id": "\n"}, "`call_id`"),
        ({"program": "deploy", "call_id": 7}, "'call_id'"),
        ({"program": "deploy", "again": 1}, "'again'"),
        ({"program": "deploy", "stream": 1}, "'stream'"),
    ],
)
async def test_every_refused_call_is_written_down(
    place: Place, arguments: dict[str, Any], message: str
) -> None:
    peer = await place.person()
    with pytest.raises(BadRequestError, match=message):
        await peer.call("bridge_run", **arguments)
    (record,) = place.programs.records()
    assert (record["event"], record["client"], record["scope"]) == ("refused", "test", "here")
    assert message in record["reason"]


async def test_a_client_that_cancels_is_answered(place: Place) -> None:
    await place.script("waits", "trap 'echo bye; exit 7' TERM; echo begun; while :; do :; done")
    peer = await place.person()
    id_ = await peer.start("bridge_run", program="waits", stream=True)
    assert await peer.next_event() == {"stream": "stdout", "text": "begun\n"}
    await peer.send(Cancel(id_))
    answer = await peer.answer(id_)
    assert (answer["why_stopped"], answer["exit_code"]) == ("cancelled", 7)
    assert answer["stdout"] == "begun\nbye\n"
    assert [each.data["text"] for each in peer.events] == ["bye\n"]


async def test_a_client_that_comes_back_finds_its_call(place: Place) -> None:
    began, go = place.programs.home / "began", place.programs.home / "go"
    os.mkfifo(began)
    os.mkfifo(go)
    await place.script("waits", f"echo begun; echo >{began}; read line <{go}; echo $line")
    first = await place.person()
    await first.start("bridge_run", program="waits", call_id=CALL, stream=True)
    await trio.to_thread.run_sync(began.read_text)
    await first.stream.aclose()
    second = await place.person()
    id_ = await second.start("bridge_run", program="waits", call_id=CALL, again=True, stream=True)
    await trio.testing.wait_all_tasks_blocked()
    await trio.to_thread.run_sync(go.write_text, "on\n")
    answer = await second.answer(id_)
    assert (answer["call_id"], answer["stdout"]) == (CALL, "begun\non\n")
    assert "on\n" in [each.data["text"] for each in second.events]
    third = await place.person()
    kept = await third.call("bridge_run", program="waits", call_id=CALL, again=True, stream=True)
    assert (kept, third.events) == (answer, [])
    assert [each["event"] for each in place.programs.records()] == ["start", "end"]


async def test_lines_for_a_client_that_does_not_read_are_bounded(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 1900 lines has a kilobyte: all of them are told when the program has ended."""
    monkeypatch.setattr(outgoing, "MAX_PENDING_CHARS", 64 * 1024)
    lines = 1900
    await place.script("floods", f"yes {'x' * 1023} | head -n {lines}")
    peer = await place.person()
    id_ = await peer.start("bridge_run", program="floods", call_id=CALL, stream=True)
    await peer.next_event()
    other = await place.person()
    await other.call("bridge_run", program="floods", call_id=CALL, again=True)  # until its end
    answer = await peer.answer(id_)
    told = 1024 + sum(len(each.data["text"]) for each in peer.events)
    skipped = sum(each.data.get("skipped", 0) for each in peer.events)
    assert skipped > 0
    assert told + skipped == lines * 1024
    assert answer["stdout_omitted"] > 0
