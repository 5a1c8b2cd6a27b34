"""Calls with every outcome, without jails."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fakes import FakeAgent, FakeJail


async def outcomes(agent: FakeAgent, jail: FakeJail) -> None:
    """An agent whose code says what becomes of it; `die` is the end of the jail."""
    del jail
    await agent.be_ready()
    while True:
        frame = await agent.receive()
        if frame["type"] != "execute":
            continue
        match frame["code"]:
            case "die":
                return
            case "error":
                await agent.answer(frame, exit_code=1)
            case "timeout":
                await agent.answer(frame, exit_code=124, timed_out=True)
            case "interrupted":
                await agent.answer(frame, exit_code=130, interrupted=True)
            case code:
                await agent.answer(frame, stdout=code)
