"""The events that each listener gets."""

from __future__ import annotations

from nsmd.model.events import Events, SupervisorEvent


async def test_listeners_get_the_kinds_that_they_want() -> None:
    events = Events()
    every: list[str] = []
    some: list[str] = []

    def take(event: SupervisorEvent) -> None:
        every.append(event.kind)

    def choose(event: SupervisorEvent) -> None:
        some.append(event.kind)

    events.publish("draining")  # nobody listens yet
    events.subscribe(take)
    unsubscribe = events.subscribe(choose, {"draining"})
    events.publish("draining")
    events.publish("restarted")
    assert (every, some) == (["draining", "restarted"], ["draining"])
    unsubscribe()
    unsubscribe()
    events.publish("draining")
    assert (every, some) == (["draining", "restarted", "draining"], ["draining"])
