"""How the supervisor will end, and whether it accepts new work until then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import trio

from nsm.wire.errors import DrainingError, NsmError, ShuttingDownError

How = Literal["end", "leave", "reload"]
"""Ways to end: end all sessions; leave them to the holder of their descriptors; or leave them to
the program that this process becomes.
"""


class Shutdown:
    """Request to end, made once or several times. The first one counts, but `end` beats the ways
    that keep sessions.

    Attributes:
        draining: why nothing new is accepted; empty while it is.
    """

    def __init__(self) -> None:
        self.how: How | None = None
        self.draining = ""
        self.then: How | None = None
        self._asked, self._end_asked = trio.Event(), trio.Event()

    def __repr__(self) -> str:
        return f"<Shutdown {self.how or 'not yet'}>"

    def ask(self, how: How) -> None:
        """Ask the supervisor to end. May be repeated."""
        if self.how is None or how == "end":
            self.how = how
        self._asked.set()
        if how == "end":
            self._end_asked.set()

    def refusal(self, *, live: bool) -> NsmError | None:
        """Why code is refused now; None if it is accepted. None of it was run."""
        if not self.draining or (live and self.then == "leave"):
            return None
        if self.then is not None:
            return ShuttingDownError(
                "The supervisor is about to end, and accepts nothing new; the code was not run.",
                hint="Try again in a moment: the next call starts a new supervisor.",
            )
        return DrainingError(
            f"The supervisor is being drained ({self.draining}) and accepts nothing new; the code "
            "was not run.",
            hint="Sessions are as they were. `nsm drain --cancel` lets it accept work again.",
        )

    async def wait(self) -> How:
        """Wait for a request."""
        await self._asked.wait()
        assert self.how is not None
        return self.how

    async def wait_for_end(self, then: Callable[[], object]) -> None:
        """Wait until all sessions must end, too; then call a function."""
        await self._end_asked.wait()
        then()
