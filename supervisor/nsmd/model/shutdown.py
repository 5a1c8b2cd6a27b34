"""How the supervisor is to end, and whether it takes new work until then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import trio

from nsm.wire.errors import DrainingError, NsmError, ShuttingDownError

How = Literal["end", "leave", "reload"]
"""End all sessions; leave them to whoever keeps their descriptors; or leave them to the program
that this process becomes."""


class Shutdown:
    """Asked for once or several times; the first says how, but `end` beats what keeps sessions.

    Attributes:
        how: None until it was asked for.
        draining: nothing new, for the reason given here; empty while there may be.
        then: what follows the drain; None for nothing.
    """

    def __init__(self) -> None:
        self.how: How | None = None
        self.draining = ""
        self.then: How | None = None
        self._asked, self._end_asked = trio.Event(), trio.Event()

    def __repr__(self) -> str:
        return f"<Ending {self.how or 'not yet'}>"

    def ask(self, how: How) -> None:
        """The supervisor is to end. May be repeated."""
        if self.how is None or how == "end":
            self.how = how
        self._asked.set()
        if how == "end":
            self._end_asked.set()

    def refusal(self, *, live: bool) -> NsmError | None:
        """Why code is not taken at this moment; None where it is. Nothing of it was run.

        Args:
            live: it is for a session that is there. Where sessions outlive this process, their
                code does, too.
        """
        if not self.draining or (live and self.then == "leave"):
            return None
        if self.then is not None:
            return ShuttingDownError(
                "The supervisor is about to end, and takes nothing new; the code was not run.",
                hint="Try again in a moment: the next call starts a new supervisor.",
            )
        return DrainingError(
            f"The supervisor is being drained ({self.draining}) and takes nothing new; the code "
            "was not run.",
            hint="Sessions are as they were. `nsm drain --cancel` has it take work again.",
        )

    async def wait(self) -> How:
        """Until it was asked for."""
        await self._asked.wait()
        assert self.how is not None
        return self.how

    async def wait_for_end(self, then: Callable[[], object]) -> None:
        """Until all sessions are to end, too; and have that done then."""
        await self._end_asked.wait()
        then()
