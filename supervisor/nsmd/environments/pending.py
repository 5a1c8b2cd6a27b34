"""Calls of an environment that is being made, and how long they wait for it.

A model that is told to come back later has no way to wait but to ask again and again; so calls wait
here, within what its client takes for an answer that is late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from nsm.wire.errors import EnvironmentUnavailableError, UnknownEnvironmentError

NO_ENVIRONMENT = (UnknownEnvironmentError, EnvironmentUnavailableError)
"""Worth a second look at what there is."""

PATIENCE_S = 25.0
"""Some clients give a call up after 60 s, and the code has its own time limit, 30 s mostly."""

T = TypeVar("T")


class EnvironmentPendingError(EnvironmentUnavailableError):
    """The environment is being made.

    Args:
        name: of the environment.
        what: goes on, for people.
        settled: set when that has ended, well or not; None where nobody can know.
    """

    def __init__(self, name: str, what: str, settled: trio.Event | None) -> None:
        self.settled = settled
        super().__init__(
            f"Environment {name!r} is not there yet: {what}. The code was not run.",
            hint="Try again in a minute; the other environments work meanwhile.",
        )


async def patiently(
    submit: Callable[[], T], on_cancel: Callable[[Callable[[], None]], object] | None = None
) -> T:
    """Submit something, and once more when the environment that it needs is there.

    Args:
        submit: raises `EnvironmentPendingError` where it is not.
        on_cancel: is told how to have the waiting end at once.

    Raises:
        EnvironmentPendingError: it takes longer than `PATIENCE_S`.
        NsmError: what `submit` raises otherwise.
    """
    with trio.move_on_after(PATIENCE_S) as patience:
        if on_cancel is not None:
            on_cancel(patience.cancel)
        while True:
            try:
                return submit()
            except EnvironmentPendingError as error:
                settled = error.settled
                if settled is None:
                    raise
            await settled.wait()
    return submit()
