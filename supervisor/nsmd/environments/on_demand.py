"""Environments on demand: looked for again when somebody asks, and waited for while they are built.

A model that is told to come back later can only ask again and again. So calls wait here, as long as
their clients accept a late answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

import trio

from nsm.wire.errors import EnvironmentUnavailableError, UnknownEnvironmentError
from nsmd.model.values import ClientIdentity, Sources

NO_ENVIRONMENT = (UnknownEnvironmentError, EnvironmentUnavailableError)
"""Errors after which a second look at the environments is worthwhile."""

PATIENCE_S = 25.0
"""Longest wait: some clients give up a call after 60 s, and the code has its own time limit, mostly
30 s.
"""

T = TypeVar("T")


class EnvironmentSearch:
    """Search for environments, for everybody or for one client; the catalog has what is found.

    Args:
        again: look again, for a client's environments or for all.
        announced: called with a client's sources; what they return lasts as long as the client.
    """

    def __init__(
        self,
        again: Sequence[Callable[[ClientIdentity | None], Awaitable[None]]] = (),
        announced: Sequence[Callable[[Sources | None], AbstractAsyncContextManager[None]]] = (),
    ) -> None:
        self._again = again
        self._announced = announced

    async def search_again(self, client: ClientIdentity | None = None) -> None:
        """Look again, because somebody asks for an environment that is unknown or unusable."""
        for search in self._again:
            await search(client)

    @asynccontextmanager
    async def opened(self, sources: Sources | None) -> AsyncGenerator[None]:
        """Announce a client with these sources of its own while the block lasts. They have been
        searched when it begins.
        """
        async with AsyncExitStack() as stack:
            for announced in self._announced:
                await stack.enter_async_context(announced(sources))
            yield


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
