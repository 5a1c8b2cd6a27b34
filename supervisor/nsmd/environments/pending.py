"""Calls that wait for an environment that is being built.

A model that is told to come back later can only ask again and again. So calls wait here, as long as
their clients accept a late answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from nsm.wire.errors import EnvironmentUnavailableError, UnknownEnvironmentError

NO_ENVIRONMENT = (UnknownEnvironmentError, EnvironmentUnavailableError)
"""Errors after which a second look at the environments is worthwhile."""

PATIENCE_S = 25.0
"""Longest wait: some clients give up a call after 60 s, and the code has its own time limit, mostly
30 s.
"""

T = TypeVar("T")


class EnvironmentPendingError(EnvironmentUnavailableError):
    """The environment is being built.

    Args:
        settled: set when the build has ended, successful or not; None if nobody can know.
    """

    def __init__(self, name: str, what: str, settled: trio.Event | None) -> None:
        self.settled = settled
        super().__init__(
            f"Environment {name!r} is not ready yet: {what}. The code was not run.",
            hint="Try again in a minute; the other environments work meanwhile.",
        )


async def patiently(
    submit: Callable[[], T], on_cancel: Callable[[Callable[[], None]], object] | None = None
) -> T:
    """Submit something, and once more when its environment is ready.

    Args:
        submit: raises `EnvironmentPendingError` if it is not ready.
        on_cancel: gets a function that ends the waiting at once.

    Raises:
        EnvironmentPendingError: it takes longer than `PATIENCE_S`.
        NsmError: other errors of `submit`.
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
