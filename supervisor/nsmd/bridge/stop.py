"""Request to stop a running program."""

from __future__ import annotations

from typing import Literal

import trio

Why = Literal["cancelled", "shutdown"]


class Stop:
    """Request to stop, made once or several times; the first one has the reason.

    Attributes:
        why: reason; None until the first request.
    """

    def __init__(self) -> None:
        self.why: Why | None = None
        self._asked = trio.Event()

    def __repr__(self) -> str:
        return f"<Stop {self.why or 'not yet'}>"

    def ask(self, why: Why) -> None:
        """Ask the program to end."""
        if self.why is None:
            self.why = why
        self._asked.set()

    async def wait(self) -> Why:
        """Wait for the request."""
        await self._asked.wait()
        assert self.why is not None
        return self.why
