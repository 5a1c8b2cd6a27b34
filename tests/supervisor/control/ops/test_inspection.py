"""History of a session as `inspect` reports it over the control socket."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from control_bench import Peer, bench
from fakes import spec
from nsm.wire.errors import NsmError
from nsm.wire.inspection import Inspection
from nsm.wire.messages import read
from nsm.wire.operation import Right
from nsmd.control.ops import inspection
from nsmd.control.ops.inspection import KernelFacts, contradictions, kernel_facts, weaker
from nsmd.model.policy import policy_of
from nsmd.model.values import Enforcement, SessionLimits

RUN: frozenset[Right] = frozenset({"run"})


async def inspected(peer: Peer, target: str) -> Inspection:
    return read(Inspection, await peer.call("inspect", target=target))


async def test_inspect_tells_running_and_waiting_code() -> None:
    async with bench() as it:
        peer = await it.connect()
        first = await peer.start("run", env="python", code="wait", session="a")
        await peer.start("run", env="python", code="two", session="a")
        while "a" not in [session.name for session in it.run_service.live_sessions()]:
            await trio.testing.wait_all_tasks_blocked()
        while not (runs := it.run_service.find("a").runs).waiting or runs.running is None:
            await trio.testing.wait_all_tasks_blocked()
        other = await it.connect()
        found = await inspected(other, "a")
        assert found.session.state == "running"
        assert found.session.running_s is not None
        assert 0 <= found.session.running_s <= found.session.age_s
        assert found.session.queued == 1
        (run,) = found.executions
        assert (run.outcome, run.exit_code, run.duration_s) == ("running", None, None)
        await other.call("kill", targets=["a"])
        with pytest.raises(NsmError, match="killed by test"):
            await peer.answer(first)
        gone = await inspected(other, "a")
        assert gone.session.state == "ended"
        assert gone.end_reason == "killed by test"
        assert [each.outcome for each in gone.executions] == ["lost", "lost"]
        assert "killed by test" in gone.executions[0].why
        assert gone.policy is None


async def test_the_right_to_run_does_not_show_lives() -> None:
    async with bench() as it:
        peer = await it.connect(it.make_server(RUN, it.uid, "box"))
        result = await peer.call("run", env="python", code="x", session="a")
        found = await inspected(peer, "a")
        assert (found.start, found.processes, found.executions) == (None, (), ())
        assert found.lifetime is not None
        person = await it.connect()
        await person.call("kill", targets=["a"])
        with pytest.raises(NsmError, match="No session"):
            await inspected(peer, "a")
        with pytest.raises(NsmError, match="No session"):
            await inspected(peer, result["session"]["id"])


async def test_the_right_to_read_does_not_show_code() -> None:
    async with bench() as it:
        person, peer = await it.connect(), Peer(it.raw())
        await peer.hello("read")
        result = await person.call("run", env="python", code="secret", session="a")
        found = await inspected(peer, "a")
        assert found.start is not None
        assert (found.processes, found.executions, found.decisions) == ((), (), ())
        await person.call("kill", targets=["a"])
        with pytest.raises(NsmError, match="No session"):
            await inspected(peer, result["session"]["id"])
        assert (await inspected(person, result["session"]["id"])).executions[0].code == "secret"


KEPT = KernelFacts(
    uid=1001, capabilities="0" * 16, no_new_privs=True, system_call_filter=True, cgroup=""
)

POLICY = policy_of(spec(), SessionLimits(), "cold")


def test_sets_are_taken_together(tmp_path: Path) -> None:
    sets = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16)
    sets["CapBnd"] = "0000000000000400"
    lines = [f"{name}:\t{value}" for name, value in sets.items()]
    lines += ["Uid:\t0\t1001\t0\t0", "NoNewPrivs:\t0", "Seccomp:\t2"]
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("\n".join(lines))
    (tmp_path / "7" / "cgroup").write_text("3:cpu:/x\n0::/user.slice/s\n")
    assert kernel_facts(7, str(tmp_path)) == KernelFacts(
        uid=1001,
        capabilities="0000000000000400",
        no_new_privs=False,
        system_call_filter=True,
        cgroup="/user.slice/s",
    )


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    assert kernel_facts(7, str(tmp_path)) is None


def test_facts_as_the_policy_says_are_no_contradiction() -> None:
    assert list(contradictions(POLICY, KEPT)) == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(KEPT, capabilities="0000000000000400"), "capabilities"),
        (replace(KEPT, no_new_privs=False), "gain privileges"),
        (replace(KEPT, system_call_filter=False), "not filtered"),
        (replace(KEPT, uid=0), "root"),
    ],
)
def test_facts_against_the_policy_are_told(facts: KernelFacts, words: str) -> None:
    (said,) = contradictions(POLICY, facts)
    assert words in said
    assert list(contradictions(replace(POLICY, complete=False), facts)) == []


def test_a_limit_that_something_else_keeps_is_said() -> None:
    kept = SessionLimits().enforcement
    assert list(weaker(POLICY, kept)) == []
    (said,) = weaker(POLICY, kept._replace(processes="none", why="no group"))
    assert said == ("The limit on processes is kept by none, and should be by rlimit: no group.")
    grouped = SessionLimits(
        enforcement=Enforcement(memory="cgroup", processes="cgroup", cpu="cgroup")
    )
    assert len(list(weaker(policy_of(spec(), grouped, "cold"), kept))) == 3


@pytest.mark.parametrize(("jail", "taken_up", "said"), [(object(), 1, True), (None, 1, False)])
def test_a_policy_that_cannot_be_read_is_said(jail: object, taken_up: int, said: bool) -> None:
    found: Any = SimpleNamespace(policy=None, confinement=None, jail=jail, taken_up=taken_up)
    told = inspection._contradictions(found, None)  # pyright: ignore[reportPrivateUsage]
    assert any("policy cannot be read" in each for each in told) is said
