"""Asks for the end of a program that runs."""

from __future__ import annotations

from typing import Literal

import trio

Why = Literal["cancelled", "shutdown"]


class Stop:
    """Asked for once or several times; the first says why.

    Attributes:
        why: None until it was asked for.
    """

    def __init__(self) -> None:
        self.why: Why | None = None
        self._asked = trio.Event()

    def __repr__(self) -> str:
        return f"<Stop {self.why or 'not yet'}>"

    def ask(self, why: Why) -> None:
        """The program is to end."""
        if self.why is None:
            self.why = why
        self._asked.set()

    async def wait(self) -> Why:
        """Until it was asked for."""
        await self._asked.wait()
        assert self.why is not None
        return self.why
