"""The control server over a socket pair: answers, events, cancels, rights, garbage."""

from __future__ import annotations

import gc
import logging
import os
import weakref
from typing import TYPE_CHECKING

import cbor2
import pytest
import trio
import trio.testing

from control_bench import Peer, bench
from nsm.wire import frames
from nsm.wire.errors import NsmError, OverloadedError, SessionEndedError
from nsm.wire.frames import MAX_FRAME_BYTES
from nsm.wire.messages import Cancel, Failure, Request, Result, read
from nsm.wire.telemetry import PoolReport
from nsmd.control import outgoing
from nsmd.control.call import ALL_RIGHTS
from nsmd.control.connection import HELLO_TIMEOUT_S
from nsmd.control.ops import run
from nsmd.host import logs
from nsmd.manager import run_service
from virtual_time import virtual_time

if TYPE_CHECKING:
    from collections.abc import Generator

    from fakes import FakeAgent, FakeJail
    from nsmd.sessions.execution import Execution

pytestmark = virtual_time


async def test_a_session_that_ends_while_its_output_streams_is_told() -> None:
    async with bench() as it:
        peer = await it.connect()
        id_ = await peer.start("run", env="python", code="wait", session="a", stream=True)
        await trio.testing.wait_all_tasks_blocked()
        it.run_service.find("a").end("test")
        with pytest.raises(SessionEndedError, match="test"):
            await peer.answer(id_)


async def test_a_cancel_right_behind_its_request_is_not_lost() -> None:
    async with bench() as it:
        peer = await it.connect()
        await peer.call("run", env="python", code="1", session="a")
        id_ = peer.connection.new_id()
        args = {"env": "python", "code": "wait", "session": "a"}
        request = peer.connection.send(Request(id_, "run", args))
        await peer.stream.send_all(request + peer.connection.send(Cancel(id_)))
        assert (await peer.answer(id_))["interrupted"] is True


async def test_interrupt_ends_the_named_execution_and_no_other() -> None:
    async with bench() as it:
        peer, other = await it.connect(), await it.connect()
        args = {"env": "python", "code": "wait", "session": "a"}
        first = await peer.start("run", execution_id="first", **args)
        await trio.testing.wait_all_tasks_blocked()
        second = await peer.start("run", execution_id="second", **args)
        await trio.testing.wait_all_tasks_blocked()
        answer = await other.call("interrupt", target="a", execution_id="gone")
        assert not answer["interrupted"]
        answer = await other.call("interrupt", target="a", execution_id="second")
        assert answer["interrupted"]
        assert (await peer.answer(second))["stderr"] == "interrupted before it began\n"
        assert (await other.call("interrupt", target="a", execution_id="first"))["interrupted"]
        assert (await peer.answer(first))["interrupted"]


async def test_a_client_that_vanishes_takes_its_one_shot_with_it() -> None:
    async with bench() as it:
        peer = await it.connect()
        await peer.start("run", env="python", code="wait")
        await peer.start("run", env="python", code="wait", stream=True)
        await peer.start("run", env="python", code="wait", session="kept", execution_id="k")
        await trio.testing.wait_all_tasks_blocked()
        await peer.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert [s.name for s in it.run_service.live_sessions()] == ["kept"]
        other = await it.connect()
        await other.call("interrupt", target="kept")
        assert (await other.call("result", execution_id="k"))["interrupted"] is True


async def test_more_sessions_than_a_frame_has_room_for_are_listed_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "MAX_ITEMS", 200)
    monkeypatch.setattr(run_service, "ROWS_AT_ONCE", 3)
    async with bench() as it:
        peer = await it.connect()
        names = [f"s{number}" for number in range(8)]
        for name in names:
            await peer.call("run", env="python", code="1", session=name)
        with pytest.raises(NsmError, match="larger than the limit"):
            await peer.call("sessions")
        answer = await peer.call("sessions", stream=True)
        assert answer == {"sessions": []}
        parts = [event.data["sessions"] for event in peer.events]
        assert [len(part) for part in parts] == [3, 3, 2]
        assert [row["name"] for part in parts for row in part] == names


async def test_the_pool_and_why_it_is_so() -> None:
    async with bench(max_spares=3) as it:
        peer = await it.connect()
        assert (await peer.call("pool"))["kinds"] == []
        for _ in range(2):
            await peer.call("run", env="python", code="x")
            await trio.sleep(1)
        await peer.call("run", env="bash", code="x")
        await trio.sleep(1)
        answer = await peer.call("pool")
        bash, python = answer["kinds"]  # the last one used comes first
        assert (bash["env"], bash["wanted"], bash["ready"]) == ("bash", 2, 2)
        assert bash["why"] == "the least of a kind in use"
        assert (python["hits"], python["misses"], python["wanted"]) == (1, 1, 1)
        assert "max_spares = 3" in python["why"]
        assert python["refill_p50_s"] >= 0
        assert answer["totals"] == {"ready": 3, "starting": 0, "wanted": 3, "hits": 1, "misses": 2}
        read(PoolReport, answer)


async def test_a_program_that_comes_again_finds_a_session_ready() -> None:
    async with bench(max_spares=3) as it:
        await (await it.connect()).call("run", env="python", code="x")
        await trio.sleep(1000)  # nothing is kept any more
        assert it.run_service.session_manager.pool.spares == 0
        peer = await it.connect()
        await trio.sleep(1)
        assert it.run_service.session_manager.pool.spares == 1
        await peer.call("run", env="python", code="x")
        assert it.run_service.session_manager.pool.hits == 1


async def test_shutdown_is_answered_first() -> None:
    async with bench() as it:
        peer = await it.connect()
        assert await peer.call("shutdown") == {}
        await trio.testing.wait_all_tasks_blocked()
        assert it.ending.how == "end"


async def test_requests_that_fail_are_answered_and_the_connection_lives() -> None:
    async with bench() as it:
        peer = await it.connect()
        large = "x" * (8 * 1024 * 1024 + 1)
        await peer.call("run", env="python", code="x", session="a")
        for op, args, code in (
            ("fly", {}, "unknown-operation"),
            ("run", {}, "bad-request"),
            ("run", {"env": "python", "code": "x", "project": {"path": "/"}}, "bad-project"),
            ("run", {"env": "ruby", "code": "x"}, "unknown-environment"),
            ("run", {"env": "node", "code": "x"}, "environment-unavailable"),
            ("kill", {}, "bad-request"),
            ("kill", {"all": True, "targets": ["a"]}, "bad-request"),
            ("interrupt", {"target": "nobody"}, "unknown-session"),
            ("logs", {"target": "nobody"}, "unknown-session"),
            ("run_in", {"target": "nobody", "code": "x"}, "unknown-session"),
            ("run_in", {"target": "a", "code": large}, "code-too-large"),
            ("run_in", {"target": "a", "code": "x", "timeout_s": 0}, "bad-request"),
            ("complete", {"target": "a", "code": "x", "cursor": 2}, "bad-request"),
            ("result", {"execution_id": "none"}, "unknown-execution"),
        ):
            with pytest.raises(NsmError) as error:
                await peer.call(op, **args)
            assert error.value.code == code, op
            assert await peer.call("ping", unknown="field") == {}


async def test_a_fault_of_nsm_is_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as it:
        monkeypatch.setattr(it.run_service.catalog, "listed", lambda: 1 / 0)
        peer = await it.connect()
        with pytest.raises(NsmError, match="failed inside the supervisor"):
            await peer.call("envs")
        assert await peer.call("ping") == {}


async def test_an_answer_that_cannot_be_sent_is_told() -> None:
    async def odd(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        await agent.answer(await agent.receive(), displays=[{"application/json": 10**30}])

    async with bench(odd) as it:
        peer = await it.connect()
        with pytest.raises(NsmError, match="cannot be sent: an integer does not fit"):
            await peer.call("run", env="python", code="1")
        assert await peer.call("ping") == {}


async def test_an_error_that_cannot_be_sent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NsmError("x" * MAX_FRAME_BYTES)

    async with bench() as it:
        monkeypatch.setattr(it.run_service.catalog, "listed", fail)
        peer = await it.connect()
        with pytest.raises(NsmError, match="error cannot be sent"):
            await peer.call("envs")
        assert await peer.call("ping") == {}


# Not by a call in the test: trio wraps what is raised there, and the reason is lost.
@pytest.mark.skipif(os.getuid() == 0, reason="not here: root may connect to everybody's supervisor")
async def test_another_user_is_refused() -> None:
    async with bench() as it:
        peer = Peer(it.raw(it.make_server(ALL_RIGHTS, os.getuid() + 1)))
        with pytest.raises(NsmError, match="another user"):
            await peer.answer(1)


GARBAGE = [
    b"\xff\xff\xff\xff",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x00\x00\x00\x01\xff",
    b"\x00\x00\x00\x04null",
    b"\x00\x00\x00\x00",
    b"\x00\x00\x00\x03" + cbor2.dumps([1, 2]),
]


@pytest.mark.parametrize("data", GARBAGE)
async def test_garbage_ends_its_own_connection_with_a_reason(data: bytes) -> None:
    async with bench() as it:
        good = await it.connect()
        bad = Peer(it.raw())
        await bad.stream.send_all(data)
        await bad.stream.send_eof()
        with pytest.raises(NsmError) as error:
            await bad.answer(1)
        assert error.value.message
        assert await good.call("ping") == {}


@pytest.fixture
def bounded() -> Generator[None]:
    """The log as a supervisor has it."""
    before = {name: list(logging.getLogger(name).filters) for name in logs.LOGGERS}
    logs.limit_floods()
    yield
    for name, filters in before.items():
        logging.getLogger(name).filters[:] = filters


async def test_garbage_does_not_fill_the_log_nor_hide_what_others_do(
    bounded: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def garbage(peer: Peer) -> None:
        await peer.stream.send_all(GARBAGE[0])
        with pytest.raises(NsmError):
            await peer.answer(1)

    async with bench() as it:
        one, other = (
            it.make_server(frozenset({"run"}), os.getuid(), scope) for scope in ("one", "other")
        )
        for _ in range(100):
            await garbage(Peer(it.raw(one)))
        flooded = [record.getMessage() for record in caplog.records]
        await garbage(Peer(it.raw(other)))
        await garbage(Peer(it.raw()))
    assert logs.FULL < len(flooded) < logs.FULL + 8
    assert "(74 like it in " in flooded[-1]
    assert len(caplog.records) == len(flooded) + 2


async def test_silent_connections_are_closed() -> None:
    async with bench() as it:
        silent, half = Peer(it.raw()), Peer(it.raw())
        await half.stream.send_all(b"\x00\x00\x00\x50partial")
        start = trio.current_time()
        with pytest.raises(EOFError):
            await silent.next()
        with pytest.raises(EOFError):
            await half.next()
        assert trio.current_time() - start == pytest.approx(HELLO_TIMEOUT_S)


async def test_a_client_that_vanishes_while_it_is_sent_output_is_no_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def flood(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        frame = await agent.receive()
        while True:
            await agent.send(
                {"type": "output", "id": frame["id"], "stream": "stdout", "text": "x" * 65536}
            )
            await trio.sleep(0.01)

    async with bench(flood) as it:
        for _ in range(6):  # who notices first is up to the scheduler
            peer = await it.connect()
            await peer.start("run", env="python", code="x", stream=True)
            await trio.sleep(1)
            await peer.stream.aclose()
            await trio.sleep(1)
            assert it.run_service.live_sessions() == []
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_client_that_reads_nothing_has_bounded_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages that wait for it are bounded, its requests are carried out, and nobody else
    notices."""
    monkeypatch.setattr(outgoing, "MAX_WAITING_BYTES", 4_000_000)
    everybody_runs = trio.Event()

    async def large(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        while True:
            frame = await agent.receive()
            await everybody_runs.wait()
            await agent.answer(frame, stdout=frame["code"] * 1_000_000)

    async with bench(large) as it:
        deaf, other = await it.connect(), await it.connect()
        asked = [
            await deaf.start("run", env="python", code="x", session=f"s{n}", execution_id=f"e{n}")
            for n in range(20)
        ]
        await trio.testing.wait_all_tasks_blocked()
        everybody_runs.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (
            len((await other.call("run", env="python", code="y", session="s"))["stdout"]) == 10**6
        )
        answers = [await deaf.next() for _ in asked]
        results = [answer.result for answer in answers if isinstance(answer, Result)]
        errors = [answer.error for answer in answers if isinstance(answer, Failure)]
        assert 3 <= len(results) <= 6
        assert all(len(result["stdout"]) == 10**6 for result in results)
        assert len(errors) == 20 - len(results)
        assert all(isinstance(error, OverloadedError) for error in errors)
        left_out = errors[-1].data["execution_id"]
        assert left_out in errors[-1].hint
        kept = await deaf.call("result", execution_id=left_out)
        assert len(kept["stdout"]) == 10**6


async def test_a_client_that_streams_and_reads_nothing_has_bounded_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers wait there for output that is not read; those left out are held by nothing."""
    monkeypatch.setattr(run, "MAX_WAITING_BYTES", 4_000_000)
    everybody_runs = trio.Event()
    ended: list[weakref.ref[Execution]] = []

    async def large(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        while True:
            frame = await agent.receive()
            await everybody_runs.wait()
            text = frame["code"] * 1_000_000
            await agent.send(
                {"type": "output", "id": frame["id"], "stream": "stdout", "text": text}
            )
            await agent.answer(frame, stdout=text)

    async with bench(large) as it:
        deaf = await it.connect()
        ids = [f"e{n}" for n in range(20)]
        for n, execution_id in enumerate(ids):
            args = {"session": f"s{n}", "execution_id": execution_id, "stream": True}
            await deaf.start("run", env="python", code="x", **args)
        await trio.testing.wait_all_tasks_blocked()
        ended = [weakref.ref(it.run_service.execution(execution_id)) for execution_id in ids]
        monkeypatch.setattr("nsmd.sessions.execution.MAX_RESULTS", 0)
        gc.disable()
        try:
            everybody_runs.set()
            await trio.testing.wait_all_tasks_blocked()
            assert 1 <= sum(execution() is not None for execution in ended) <= 6
        finally:
            gc.enable()
        answers: list[Result | Failure] = []
        while len(answers) < len(ids):
            message = await deaf.next()
            if isinstance(message, Result | Failure):
                answers.append(message)
        errors = [answer.error for answer in answers if isinstance(answer, Failure)]
        assert 1 <= len(ids) - len(errors) <= 6
        assert all(isinstance(error, OverloadedError) for error in errors)
