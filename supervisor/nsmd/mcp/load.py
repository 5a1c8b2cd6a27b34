"""Import of the `mcp` package when nobody waits for it.

The import takes 1 to 2 s, and slows the event loop meanwhile. The daemon listens first, starts
`EndpointLoader.run` in a task, and attachments wait for that; meanwhile the control socket answers.
Without an attachment the import begins when the first calls are over, since the supervisor was
started for these.
"""

from __future__ import annotations

import gc
import importlib
import logging
from typing import Protocol, cast

import trio

from nsm.wire.errors import InternalError
from nsmd.mcp.attach import Attach
from nsmd.mcp.interfaces import HostPrograms, Runner

log = logging.getLogger(__name__)

LOAD_AFTER_S = 10.0
"""Time from the start to the import if nobody attaches before: longer than most programs that start
a supervisor use it, shorter than a person needs to open the next one.
"""


class ServeClient(Protocol):
    """`nsmd.mcp.endpoint.serve`."""

    async def __call__(
        self,
        stream: trio.abc.Stream,
        first_bytes: bytes,
        attach: Attach,
        runner: Runner,
        *,
        max_result_chars: int,
        programs: HostPrograms | None,
    ) -> None:
        """Serve one client until it is gone."""


class EndpointLoader:
    """Loads the endpoint once, for all attachments.

    Args:
        serve: the function itself if it is already loaded, as in tests.
    """

    def __init__(self, serve: ServeClient | None = None) -> None:
        self._wanted = trio.Event()
        self._done = trio.Event()
        self._serve = serve
        if serve is not None:
            self._done.set()

    def __repr__(self) -> str:
        state = "loading" if not self._done.is_set() else "ready" if self._serve else "failed"
        return f"<EndpointLoader {state}>"

    async def run(self) -> None:
        """Import in a thread, for the first attachment or when the first calls are over.

        Cancellation: the thread is left behind; it holds nothing.
        """
        with trio.move_on_after(LOAD_AFTER_S):
            await self._wanted.wait()
        began = trio.current_time()
        try:
            self._serve = await trio.to_thread.run_sync(_import_serve, abandon_on_cancel=True)
        except Exception:
            # A third-party package may raise anything while it is imported: the control socket
            # works without it, and each attachment gets the error.
            log.exception("the mcp package cannot be imported; MCP clients are refused")
        else:
            log.info("MCP endpoint ready after %.1f s", trio.current_time() - began)
        self._done.set()

    async def serve(self) -> ServeClient:
        """The loaded function; waits for it.

        Raises:
            InternalError: the import failed.
        """
        self._wanted.set()
        await self._done.wait()
        if self._serve is None:
            raise InternalError(
                "The supervisor cannot import the Python package `mcp`.",
                hint="Install nsm again; the supervisor's log says what is missing.",
            )
        return self._serve


def _import_serve() -> ServeClient:
    serve = cast("ServeClient", importlib.import_module("nsmd.mcp.endpoint").serve)
    # A quarter of a million objects that stay for good. Scanning them again and again cost a tenth
    # of all calls; each time one call waited for 50 ms.
    gc.freeze()
    return serve
