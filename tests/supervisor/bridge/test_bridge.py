"""Permissions to start programs, a record of each start and end, and answers that are kept."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from bridge_bench import ANYONE, Bench
from nsm.wire.errors import (
    AuditFailedError,
    BadRequestError,
    DrainingError,
    FateUnknownError,
    InternalError,
    OverloadedError,
    ShuttingDownError,
    UnknownProgramError,
)
from nsmd.bridge import bridge as bridge_module
from nsmd.bridge import calls as call_module
from nsmd.bridge import calls as module
from nsmd.bridge import ledger as ledger_module
from nsmd.bridge.bridge import MAX_CALLS_OF_ONE, BridgeService
from nsmd.bridge.calls import MAX_KEPT, FinishedCalls, ProgramCall
from nsmd.bridge.programs import ProgramEnd, RecordedCall
from nsmd.model.settings import BridgeSettings
from nsmd.restart.drain import Draining

BOX = replace(ANYONE, scope="box:a", granted=frozenset(("restart-db", "later")))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.furnish()
    return made


def waiting(bench: Bench, name: str = "waits") -> tuple[Path, Path]:
    """A program that says when it runs, and goes on when it is told; paths of both pipes."""

    began, go = bench.home / f"{name}.began", bench.home / f"{name}.go"
    os.mkfifo(began)
    os.mkfifo(go)
    bench.script(name, f"echo begun; echo >{began}; read line <{go}; echo $line")
    return began, go


async def until_it_runs(began: Path) -> None:
    await trio.to_thread.run_sync(began.read_text)


async def test_a_client_knows_what_it_was_granted_and_no_more(bench: Bench) -> None:
    for name in ("deploy", "restart-db"):
        bench.script(name, "true")
    async with bench.open() as bridge:
        assert [each.name for each in bridge.programs(ANYONE)] == ["deploy", "restart-db"]
        assert [each.name for each in bridge.programs(BOX)] == ["restart-db"]
        with pytest.raises(UnknownProgramError) as caught:
            await bridge.submit(BOX, "deploy", []).wait()
        nobody = replace(ANYONE, granted=frozenset[str]())
        assert bridge.programs(nobody) == ()
    assert caught.value.message == "Program 'deploy' not found. Available: restart-db"
    (record,) = bench.records()
    assert (record["event"], record["decision"]) == ("refused", "refused")


async def test_a_call_that_cannot_be_recorded_is_not_started(bench: Bench) -> None:
    marker = bench.home / "it-ran"
    bench.script("deploy", f"touch {marker}")
    async with bench.open() as bridge:
        bench.ledger.unlink(missing_ok=True)
        bench.ledger.mkdir()
        with pytest.raises(AuditFailedError):
            await bridge.submit(ANYONE, "deploy", []).wait()
        assert not marker.exists()
        assert bridge.audit_problem
        with pytest.raises(AuditFailedError, match="not found"):
            await bridge.submit(ANYONE, "unknown", []).wait()
        bench.ledger.rmdir()
        await bridge.submit(ANYONE, "deploy", []).wait()
        assert marker.exists()
        assert not bridge.audit_problem


async def test_a_call_that_is_asked_for_again_is_the_same_call(bench: Bench) -> None:
    began, go = waiting(bench)
    async with bench.open() as bridge:
        first = bridge.submit(ANYONE, "waits", [], call_id="0123")
        await until_it_runs(began)
        with pytest.raises(BadRequestError):
            bridge.submit(ANYONE, "waits", [], call_id="0123")
        again = bridge.submit(ANYONE, "waits", [], call_id="0123", again=True)
        assert again is first
        await trio.to_thread.run_sync(go.write_text, "on\n")
        assert (await again.wait()).stdout == "begun\non\n"
        later = bridge.submit(ANYONE, "waits", [], call_id="0123", again=True)
        assert (await later.wait()).stdout == "begun\non\n"
        # What one client has asked for is none of another one's business.
        with pytest.raises(UnknownProgramError):
            await bridge.submit(BOX, "waits", [], call_id="89ab", again=True).wait()
    assert [record["event"] for record in bench.records()] == ["start", "end", "refused"]


async def test_a_call_of_an_earlier_supervisor_is_not_started_again(bench: Bench) -> None:
    marker = bench.home / "runs"
    bench.script("deploy", f"echo once >>{marker}")
    async with bench.open() as bridge:
        await bridge.submit(ANYONE, "deploy", [], call_id="0123").wait()
    async with bench.open() as bridge:
        with pytest.raises(FateUnknownError, match="has ended"):
            await bridge.submit(ANYONE, "deploy", [], call_id="0123", again=True).wait()
        # Of what was never started, the first attempt never came here.
        await bridge.submit(ANYONE, "deploy", [], call_id="4567", again=True).wait()
    assert marker.read_text() == "once\nonce\n"


async def test_a_call_whose_answer_is_not_kept_any_more_is_not_started_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_module, "MAX_KEPT_BYTES", 5_000)
    marker = bench.home / "runs"
    bench.script("deploy", f"echo once >>{marker}; printf %05000d 7")
    async with bench.open() as bridge:
        for number in range(2):
            await bridge.submit(ANYONE, "deploy", [], call_id=str(number)).wait()
        await bridge.submit(ANYONE, "deploy", [], call_id="1", again=True).wait()
        with pytest.raises(
            FateUnknownError, match="is lost: the program was started, and has ended"
        ):
            await bridge.submit(ANYONE, "deploy", [], call_id="0", again=True).wait()
    assert marker.read_text() == "once\nonce\n"


async def test_a_fault_of_ours_ends_one_call_and_is_written_down(bench: Bench) -> None:
    stopped = bench.home / "stopped"
    began, go = waiting(bench)
    bench.script("deploy", f"trap 'touch {stopped}; exit' TERM; echo begun; read line <{go}.not")
    os.mkfifo(f"{go}.not")

    def fails(_stream: object, _line: object) -> None:
        raise OSError("in an unexpected place")

    async with bench.open() as bridge:
        other = bridge.submit(replace(ANYONE, scope="other"), "waits", [])
        await until_it_runs(began)
        with pytest.raises(InternalError, match="nsm failed to carry out the call") as caught:
            await bridge.submit(ANYONE, "deploy", [], fails, call_id="a").wait()
        assert stopped.exists()
        assert "`nsm bridge audit`" in (caught.value.hint or "")
        assert bridge.enabled
        await trio.to_thread.run_sync(go.write_text, "on\n")
        assert (await other.wait()).stdout == "begun\non\n"
    start, end = [record for record in bench.records() if record["id"] == "a"]
    assert start["event"] == "start"
    assert (end["event"], end["why_stopped"], end["exit_code"]) == ("end", "fault", None)
    assert "nsm failed: " in end["reason"]
    assert "in an unexpected place" in end["reason"]
    assert ("program_ended", {"program": "deploy", "outcome": "fault"}) in bench.happened


async def test_a_fault_of_ours_before_the_start_is_a_refusal(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_given: object, **_more: object) -> None:
        raise RuntimeError("can't start new thread")

    bench.script("deploy", "true")
    async with bench.open() as bridge:
        with monkeypatch.context() as patched:
            patched.setattr(bridge_module, "open_command", fails)
            with pytest.raises(InternalError):
                await bridge.submit(ANYONE, "deploy", ["eu"]).wait()
        assert (await bridge.submit(ANYONE, "deploy", []).wait()).succeeded
    refused, start, end = bench.records()
    assert (refused["event"], refused["arguments"]) == ("refused", ["eu"])
    assert refused["reason"] == 'nsm failed: RuntimeError("can\'t start new thread")'
    assert (start["event"], end["event"]) == ("start", "end")


@pytest.mark.parametrize("comes_back", [True, False])
async def test_the_program_of_a_client_that_is_gone_waits_for_it_a_moment(
    bench: Bench, comes_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_module, "GRACE_S", 60.0 if comes_back else 0.0)
    began, go = waiting(bench)
    async with bench.open() as bridge:
        call = bridge.submit(ANYONE, "waits", [], call_id="0123")
        await until_it_runs(began)
        call.abandon()
        if comes_back:
            bridge.submit(ANYONE, "waits", [], call_id="0123", again=True)
            await trio.to_thread.run_sync(go.write_text, "on\n")
        ended = await call.wait()
    assert ended.why_stopped == (None if comes_back else "cancelled")


async def test_the_end_of_a_supervisor_names_running_programs(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    began, _ = waiting(bench)
    async with bench.open() as bridge, trio.open_nursery() as nursery:
        call = bridge.submit(replace(ANYONE, client="claude-code", scope="box:a"), "waits", [])
        await until_it_runs(began)
        draining = Draining(bench.events, bridge.unfinished, bench.ending, nursery)
        draining.begin("SIGTERM", timeout_s=60)
        draining.cancel()
        nursery.start_soon(bridge.finish, 60.0)
        await trio.testing.wait_all_tasks_blocked()
        bench.ending.ask("end")
        await call.wait()
    who = "programs of the bridge: 'waits' for 'claude-code' in 'box:a'"
    said = [message.partition(" ")[0] for message in caplog.messages if message.endswith(who)]
    assert said == ["of", "waiting", "stopping"]


async def test_a_call_that_comes_too_late_is_written_down_and_holds_up_nothing(
    bench: Bench,
) -> None:
    began, go = waiting(bench)
    async with bench.open() as bridge:
        call = bridge.submit(ANYONE, "waits", [])
        await until_it_runs(began)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bridge.finish, 60.0)
            await trio.testing.wait_all_tasks_blocked()
            for name, again in [("a", False), ("a", True), ("b", True)]:
                late = bridge.submit(ANYONE, "waits", ["eu"], call_id=name, again=again)
                with pytest.raises(ShuttingDownError, match="is about to end"):
                    await late.wait()
            # Where it cannot be, the client learns nevertheless that it may try again.
            bench.ledger.rename(bench.home / "aside")
            bench.ledger.mkdir()
            with pytest.raises(ShuttingDownError, match="is about to end"):
                await bridge.submit(ANYONE, "waits", [], call_id="c", again=True).wait()
            bench.ledger.rmdir()
            (bench.home / "aside").rename(bench.ledger)
            await trio.to_thread.run_sync(go.write_text, "on\n")
            assert (await call.wait()).succeeded
    assert [(each["event"], each.get("reason")) for each in bench.records()] == [
        ("start", None),
        *[("refused", "The supervisor is about to end, and starts no program.")] * 2,
        ("end", None),
    ]
    with pytest.raises(ShuttingDownError):
        bridge.submit(ANYONE, "waits", [])


async def test_refused_calls_that_wait_for_their_lines_hold_up_no_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "REFUSED_BURST_BYTES", 500)
    monkeypatch.setattr(ledger_module, "REFUSED_BYTES_PER_S", 100)
    began, go = waiting(bench)
    async with bench.open() as bridge, trio.open_nursery() as nursery:
        call = bridge.submit(ANYONE, "waits", [])
        await until_it_runs(began)
        refused = [bridge.submit(ANYONE, "waits", [";"]) for _ in range(8)]
        await trio.testing.wait_all_tasks_blocked()
        assert bridge.unfinished() == (call,)
        assert bridge.calls > 1
        nursery.start_soon(bridge.finish, 60.0)
        await trio.to_thread.run_sync(go.write_text, "on\n")
        assert (await call.wait()).succeeded
    # They are written down all the same.
    assert [each["event"] for each in bench.records()].count("refused") == len(refused)


async def test_a_user_learns_why_a_definition_is_wrong_and_a_box_does_not(bench: Bench) -> None:
    where = bench.describe("restart-db", command="/nowhere/restart-db")
    async with bench.open() as bridge:
        with pytest.raises(UnknownProgramError) as caught:
            await bridge.submit(ANYONE, "restart-db", []).wait()
        assert (caught.value.hint or "").startswith(f"{where}:4: `command`: /nowhere/restart-db: ")
        with pytest.raises(UnknownProgramError) as caught:
            await bridge.submit(BOX, "restart-db", []).wait()
        assert not caught.value.hint


async def test_a_draining_supervisor_starts_no_program(bench: Bench) -> None:
    bench.script("deploy", "true")
    async with bench.open() as bridge:
        bench.ending.draining = "by a test"
        with pytest.raises(DrainingError) as caught:  # which is for good: "later" is no advice
            await bridge.submit(ANYONE, "deploy", []).wait()
        assert "is being drained (by a test) and starts no program" in caught.value.message
        assert "`nsm drain --cancel`" in (caught.value.hint or "")
        bench.ending.then = "end"
        with pytest.raises(ShuttingDownError):
            await bridge.submit(ANYONE, "deploy", []).wait()
        bench.ending.draining, bench.ending.then = "", None
        assert (await bridge.submit(ANYONE, "deploy", []).wait()).succeeded


async def test_one_client_takes_half_of_what_may_run_at_most(bench: Bench) -> None:
    began, go = waiting(bench)
    bench.script("quick", "true")
    async with bench.open(max_running=2) as bridge:
        call = bridge.submit(ANYONE, "waits", [])
        await until_it_runs(began)
        with pytest.raises(OverloadedError):
            await bridge.submit(ANYONE, "quick", []).wait()
        assert (await bridge.submit(replace(ANYONE, scope="other"), "quick", []).wait()).succeeded
        await trio.to_thread.run_sync(go.write_text, "\n")
        assert (await call.wait()).succeeded


async def test_a_client_that_floods_is_refused_and_counted(bench: Bench) -> None:
    bench.script("quick", "true")
    async with bench.open(max_running=2) as bridge:
        calls = [bridge.submit(ANYONE, "none", []) for _ in range(MAX_CALLS_OF_ONE)]
        with pytest.raises(OverloadedError):
            bridge.submit(ANYONE, "none", [])
        # Calls that are being refused are none that run.
        assert (await bridge.submit(replace(ANYONE, scope="other"), "quick", []).wait()).succeeded
        for call in calls:
            with pytest.raises(UnknownProgramError):
                await call.wait()
        assert (await bridge.submit(ANYONE, "quick", []).wait()).succeeded
    counted = [record["calls"] for record in bench.records() if "calls" in record]
    refused = [record for record in bench.records() if record["event"] == "refused"]
    assert sum(counted) == 1
    assert len(refused) == MAX_CALLS_OF_ONE + 1


async def test_arguments_of_finished_calls_are_not_kept(bench: Bench) -> None:
    """A client may send megabytes with each, and those that are refused cost it nothing."""
    async with bench.open() as bridge:
        call = bridge.submit(ANYONE, "deploy", ["x" * 200_000])
        with pytest.raises(UnknownProgramError):
            await call.wait()
        assert call.asked.arguments == ()
        assert isinstance(call.answer, UnknownProgramError)
        assert (call.answer.__traceback__, call.answer.__context__) == (None, None)
    assert bench.records()[0]["argument_chars_in_all"] == 200_000


async def test_the_bridge_is_turned_off_and_on_while_programs_run(bench: Bench) -> None:
    began, go = waiting(bench)
    changes: list[bool] = []
    async with bench.open() as bridge:
        bridge.subscribe(lambda: changes.append(bool(bridge.programs(ANYONE))))
        call = bridge.submit(ANYONE, "waits", [])
        await until_it_runs(began)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bridge.configure, BridgeSettings(enabled=False))
            await until_off(bridge)
            with pytest.raises(BadRequestError, match="off"):
                bridge.submit(ANYONE, "waits", [])
            await trio.to_thread.run_sync(go.write_text, "on\n")
        assert (await call.wait()).succeeded
        await bridge.configure(BridgeSettings(enabled=True))
        assert [each.name for each in bridge.programs(ANYONE)] == ["waits"]
    assert changes[:2] == [False, True]
    assert bench.records()[-1]["event"] == "end"


async def until_off(bridge: BridgeService) -> None:
    off = trio.Event()
    unsubscribe = bridge.subscribe(off.set)
    if bridge.enabled:
        await off.wait()
    unsubscribe()


KEPT_OF_ONE = 100_000


def over(nursery: trio.Nursery, name: str, output: str | None) -> ProgramCall:
    """A call that is over; None: it was refused."""
    asked = RecordedCall(id=name, caller=ANYONE, program="deploy", arguments=("x" * 1000,))
    call = ProgramCall(asked, None, nursery)
    call.started = output is not None
    refused = BadRequestError("The call was refused.")
    call.settle(
        refused if output is None else ProgramEnd(exit_code=0, stdout=output, stderr=output)
    )
    return call


def key(name: object) -> tuple[str, str]:
    return "scope", str(name)


async def test_bytes_of_answers_are_bounded_and_the_oldest_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has as much as that again of its other stream, and some bytes besides."""
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 5 * KEPT_OF_ONE)
    kept = FinishedCalls()
    async with trio.open_nursery() as nursery:
        for number in range(4):
            kept.add(key(number), over(nursery, str(number), "x" * KEPT_OF_ONE))
        assert [kept.get(key(number)) is not None for number in range(4)] == [
            False,
            False,
            True,
            True,
        ]
        # By what they take in memory, and not by how many characters they are.
        kept.add(key("wide"), over(nursery, "wide", "\U0001f600" * (KEPT_OF_ONE // 4)))
        assert kept.get(key(3)) is not None
        kept.add(key("wide, too"), over(nursery, "wide", "\U0001f600" * (KEPT_OF_ONE // 4)))
        assert kept.get(key(3)) is None


async def test_a_flood_of_refused_calls_pushes_no_answer_away() -> None:
    kept = FinishedCalls()
    async with trio.open_nursery() as nursery:
        kept.add(key("deployed"), over(nursery, "deployed", "done"))
        for number in range(3 * MAX_KEPT):
            kept.add(key(number), over(nursery, str(number), None))
        assert kept.get(key("deployed")) is not None
        assert kept.get(key(3 * MAX_KEPT - 1)) is not None
        # Where there are none but answers, the newest stays nevertheless.
        for number in range(MAX_KEPT):
            kept.add(key(f"answer {number}"), over(nursery, str(number), "done"))
        kept.add(key("refused"), over(nursery, "refused", None))
    assert kept.get(key("refused")) is not None
