"""The latest of what happened, for several readers."""

from __future__ import annotations

import trio
import trio.testing

from nsmd.model.events import Events, SupervisorEvent
from nsmd.model.values import ClientIdentity
from nsmd.telemetry import Ring


def event(number: int) -> SupervisorEvent:
    return SupervisorEvent("draining", float(number), "", {"left": number})


def test_only_the_latest_are_kept_and_all_are_numbered() -> None:
    ring = Ring(size=3)
    assert list(ring.after(0)) == []
    for number in range(1, 6):
        ring.add(event(number))
    assert [(told.number, told.facts["left"]) for told in ring.after(0)] == [(3, 3), (4, 4), (5, 5)]
    assert [told.number for told in ring.after(4)] == [5]
    assert list(ring.after(5)) == []
    assert list(ring.after(99)) == []


async def test_waiting_readers_are_woken_by_the_next_event(nursery: trio.Nursery) -> None:
    ring = Ring()
    await ring_waits_for_nothing(ring)
    seen: list[int] = []

    async def wait(number: int) -> None:
        await ring.more(number)
        seen.append(number)

    nursery.start_soon(wait, 0)
    nursery.start_soon(wait, 0)
    nursery.start_soon(wait, 1)
    await trio.testing.wait_all_tasks_blocked()
    ring.add(event(1))
    await trio.testing.wait_all_tasks_blocked()
    assert seen == [0, 0]
    ring.add(event(2))
    await trio.testing.wait_all_tasks_blocked()
    assert seen == [0, 0, 1]


async def ring_waits_for_nothing(ring: Ring) -> None:
    """Check that a ring with more already does not wait."""
    with trio.testing.assert_no_checkpoints():
        await ring.more(-1)


def test_facts_are_short_and_plain() -> None:
    ring = Ring()
    facts = {"n": 1, "f": 0.5, "t": True, "none": None, "text": "x" * 500, "list": ["y" * 500] * 99}
    ring.add(SupervisorEvent("draining", 0.0, "", facts))
    (told,) = ring.after(0)
    assert {name: told.facts[name] for name in ("n", "f", "t", "none")} == (
        {"n": 1, "f": 0.5, "t": True, "none": None}
    )
    assert len(told.facts["text"]) == 200
    assert [len(each) for each in told.facts["list"]] == [200] * 50


async def test_arguments_of_operations_are_not_told() -> None:
    """Arguments may be code, or a file."""
    events, ring = Events(), Ring()
    events.subscribe(ring.add)
    client = ClientIdentity(name="someone", scope="s")
    secret = {"code": "password", "data": b"\0" * 10}
    events.publish("operation", subject=client, op="kill", arguments=secret)
    (told,) = ring.after(0)
    assert told.facts == {"client": "someone", "op": "kill", "error": None}
    assert "password" not in repr(ring.__dict__)
