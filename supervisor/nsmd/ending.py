"""How the supervisor is to end, and whether it takes new work until then."""

from __future__ import annotations

from typing import Literal

import trio

How = Literal["end", "leave", "reload"]
"""End all sessions; leave them to whoever keeps their descriptors; or leave them to the program
that this process becomes."""


class Ending:
    """Asked for once or several times; the first says how, but `end` beats what keeps sessions.

    Attributes:
        how: None until it was asked for.
        draining: no new sessions, for the reason given here; empty while they may come.
    """

    def __init__(self) -> None:
        self.how: How | None = None
        self.draining = ""
        self._asked = trio.Event()

    def __repr__(self) -> str:
        return f"<Ending {self.how or 'not yet'}>"

    def ask(self, how: How) -> None:
        """The supervisor is to end. May be repeated."""
        if self.how is None or how == "end":
            self.how = how
        self._asked.set()

    async def wait(self) -> How:
        """Until it was asked for."""
        await self._asked.wait()
        assert self.how is not None
        return self.how
