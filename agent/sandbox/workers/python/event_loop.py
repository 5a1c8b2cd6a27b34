"""The asyncio loop that code awaits in."""

from __future__ import annotations

import signal
import sys

from sandbox.linux import set_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

    from sandbox.workers.python.library import Library
    from sandbox.workers.python.reporter import Reporter
    from sandbox.workers.python.tracing import Tracing


COROUTINE = 0x80
"""Flag of compiled code that awaits."""


class EventLoop:
    """One loop for all code of a session; it exists once code has a use for it.

    Args:
        put_off: called with whether an interrupt waits for the loop to go on.

    Attributes:
        is_wanted: code has imported asyncio, or seems to.
        context: the context variables of all code; None as long as no code has awaited.
    """

    def __init__(
        self,
        library: Library,
        reporter: Reporter,
        tracing: Tracing,
        namespace: dict[str, Any],
        put_off: Callable[[bool], None],
    ) -> None:
        self._library = library
        self._reporter = reporter
        self._tracing = tracing
        self._namespace = namespace
        self._put_off = put_off
        self._loop: Any = None
        self.context: Any = None
        # A template has asyncio already, and a loop takes memory and descriptors.
        self.is_wanted = "asyncio" not in sys.modules

    def _current(self) -> Any:
        asyncio = self._library.load("asyncio")
        if self._loop is None:
            self._loop = self._made()
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        return self._loop

    def adopt(self) -> None:
        """Once code has imported asyncio there is a loop for it, current in the main thread.

        A loop that code made by asking for the current one becomes ours, so that the tasks it
        holds run while the session idles.
        """
        asyncio = sys.modules.get("asyncio")
        if asyncio is None or not hasattr(asyncio, "set_event_loop"):
            return
        if self._loop is None and not self.is_wanted and self._made() is None:
            return
        try:
            self._current()
        except Exception as error:
            self._reporter.report(error)

    @staticmethod
    def _made() -> Any:
        """The loop that code made by asking for the current one; before Python 3.10 events and
        locks do that, too."""
        policy = getattr(sys.modules.get("asyncio.events"), "_event_loop_policy", None)
        return getattr(getattr(policy, "_local", None), "_loop", None)

    def renew(self) -> None:
        """Give the loop descriptors of its own, in a copy of the process that it was made in."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            loop._close_self_pipe()  # noqa: SLF001
            selector = loop._selector  # noqa: SLF001
            own = type(selector)()
            for key in list(selector.get_map().values()):
                own.register(key.fileobj, key.events, key.data)
            selector.close()
            loop._selector = own  # noqa: SLF001
            loop._make_self_pipe()  # noqa: SLF001
            if loop._signal_handlers:  # noqa: SLF001
                signal.set_wakeup_fd(loop._csock.fileno())  # noqa: SLF001
        except Exception as error:  # a loop of another make
            self._reporter.report(error)

    def wait_for(self, fd: int) -> bool:
        """Run the loop until a descriptor can be read; False if there is no loop."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return False

        def readable() -> None:
            # Once: another loop's `stop` may work twice, the second time in the code's await.
            loop.remove_reader(fd)
            loop.stop()

        try:
            loop.add_reader(fd, readable)
            try:
                loop.run_forever()
            finally:
                loop.remove_reader(fd)
        except BaseException as error:
            self._reporter.report(error)
        return True

    async def _in_turn(self, pieces: list[CodeType]) -> None:
        try:
            self._tracing.resume()
            for piece in pieces:
                if piece.co_flags & COROUTINE:
                    await eval(piece, self._namespace)
                else:
                    exec(piece, self._namespace)
        finally:
            self._tracing.suspend()

    def run(self, pieces: list[CodeType]) -> None:
        """Run code that awaits: the loop runs from its beginning to its end."""
        asyncio = self._library.load("asyncio")
        loop = self._current()
        if sys.version_info >= (3, 11):  # noqa: UP036  # jails may have an older one
            # A task has a context of its own. This one is that of all code from now on: what a
            # context variable is set to must be there for the next code.
            if self.context is None:
                self.context = self._library.load("contextvars").copy_context()
            task = loop.create_task(self._in_turn(pieces), context=self.context)
        else:
            task = loop.create_task(self._in_turn(pieces))
        cancelled = False

        def interrupt(number: int, frame: FrameType | None) -> None:
            """Stop our task where it awaits, and leave others alone, as `asyncio.run` does."""
            nonlocal cancelled
            if cancelled or task.done() or task.get_coro().cr_running:
                signal.default_int_handler(number, frame)
            cancelled = True
            task.cancel()
            self._put_off(True)
            loop.call_soon_threadsafe(self._put_off, False)

        replaces = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        try:
            if replaces:
                set_handler(signal.SIGINT, interrupt)
            try:
                loop.run_until_complete(task)
            except KeyboardInterrupt:
                if task.done():
                    raise
                # It came in a task that keeps the loop from going on: ours is to stop, too.
                cancelled = True
                task.cancel()
                loop.run_until_complete(task)
        except asyncio.CancelledError as error:
            if not cancelled:
                raise
            raise KeyboardInterrupt().with_traceback(error.__traceback__) from None
        except RuntimeError:
            # Code has stopped the loop: ours must not go on in a later execution.
            task.cancel()
            raise
        finally:
            if signal.getsignal(signal.SIGINT) is interrupt:
                set_handler(signal.SIGINT, signal.default_int_handler)

    def tasks(self) -> list[Any]:
        """Tasks of our loop that are not done."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return []
        return list(sys.modules["asyncio"].all_tasks(loop))

    def cancel(self, tasks: list[Any]) -> None:
        asyncio, loop = sys.modules["asyncio"], self._loop
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self._reporter.report(error)
