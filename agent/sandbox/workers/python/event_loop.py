"""The asyncio loop that code awaits in, and threads and tasks that outlive their code."""

from __future__ import annotations

import os
import signal
import sys

from sandbox.linux import set_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

    from sandbox.shared_page import SharedPage
    from sandbox.workers.python.library import Library, Tracing
    from sandbox.workers.python.reporter import Outbox, Reporter


COROUTINE = 0x80
"""Flag of compiled code that awaits."""


class _Awaited:
    """Code that awaits, while it runs.

    Attributes:
        task: None before there is one.
        interrupted: it was cancelled by an interrupt.
        gone_on: the loop has gone on since.
    """

    def __init__(self, coroutine: Any) -> None:
        self.coroutine = coroutine
        self.task: Any = None
        self.interrupted = self.gone_on = False
        self._pid = os.getpid()

    def can_be_cancelled(self) -> bool:
        """False if it runs just now, has ended, was cancelled, or is a copy in a fork."""
        is_done = self.task is not None and self.task.done()
        ours = self._pid == os.getpid()
        return ours and not (is_done or self.interrupted or self.coroutine.cr_running)


class EventLoop:
    """One loop for all code of a session; it exists once code has a use for it.

    Attributes:
        page: the agent's, which is told in it whether an interrupt waits for the loop to go on.
        is_wanted: code has imported asyncio, or seems to.
        context: the context variables of all code; None as long as no code has awaited.
    """

    def __init__(
        self, library: Library, reporter: Reporter, tracing: Tracing, namespace: dict[str, Any]
    ) -> None:
        self._library = library
        self._reporter = reporter
        self._tracing = tracing
        self._namespace = namespace
        self.page: SharedPage | None = None
        self._awaited: _Awaited | None = None
        self._handler = self._interrupt  # one object, so that `is` can find it again
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

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT: stop code where it awaits, and leave other tasks alone.

        That is what `asyncio.run` does. Where code does not await just now, or was interrupted
        before, this is Python's own handler.
        """
        awaited = self._awaited
        if awaited is None or not awaited.can_be_cancelled():
            signal.default_int_handler(number, frame)
            return
        awaited.interrupted = True
        if awaited.task is None:
            return  # it is cancelled as soon as it is there
        try:
            # Before what the cancelled task does, which is not to be interrupted a second time.
            self._loop.call_soon_threadsafe(self._go_on, awaited)
        except RuntimeError:  # code has closed the loop
            signal.default_int_handler(number, frame)
        if self.page is not None:
            self.page.pending_interrupt = self.page.interruptible
        awaited.task.cancel()

    def _go_on(self, awaited: _Awaited) -> None:
        awaited.gone_on = True
        if self.page is not None:
            self.page.pending_interrupt = 0

    def run(self, pieces: list[CodeType]) -> None:
        """Run code that awaits: the loop runs from its beginning to its end."""
        asyncio = self._library.load("asyncio")
        loop = self._current()
        arguments: dict[str, Any] = {}
        if sys.version_info >= (3, 11):  # noqa: UP036  # jails may have an older one
            # A task has a context of its own. This one is that of all code from now on: what a
            # context variable is set to must be there for the next code.
            if self.context is None:
                self.context = self._library.load("contextvars").copy_context()
            arguments["context"] = self.context
        handlers = (signal.default_int_handler, self._handler)
        replaces = signal.getsignal(signal.SIGINT) in handlers
        self._awaited = awaited = _Awaited(self._in_turn(pieces))
        try:
            if replaces:
                set_handler(signal.SIGINT, self._handler)
            awaited.task = task = loop.create_task(awaited.coroutine, **arguments)
            if awaited.interrupted:
                awaited.gone_on = True
                task.cancel()
            try:
                loop.run_until_complete(task)
            except KeyboardInterrupt:
                if task.done():
                    raise
                task.cancel()
                if awaited.gone_on:  # it was cancelled before, and has gone on all the same
                    raise
                # It came in a task that keeps the loop from going on: ours is to stop, too.
                awaited.interrupted = awaited.gone_on = True
                loop.run_until_complete(task)
        except asyncio.CancelledError as error:
            if not awaited.interrupted:
                raise
            raise KeyboardInterrupt().with_traceback(error.__traceback__) from None
        except RuntimeError:
            # Code has stopped the loop: ours must not go on in a later execution.
            if awaited.task is not None:
                awaited.task.cancel()
            raise
        finally:
            self._awaited = None
            if signal.getsignal(signal.SIGINT) is self._handler:
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


class Unfinished:
    """Tells of threads and tasks that outlive their code, or ends them with a one-shot."""

    def __init__(self, out: Outbox, reporter: Reporter, loop: EventLoop) -> None:
        import _thread

        self._out = out
        self._reporter = reporter
        self._loop = loop
        self._main_thread = _thread.get_ident()
        self._thread_count = _thread._count  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        self._known: list[object] = []
        self._exit_functions = self._count_exit_functions()

    def _threads(self) -> list[Any]:
        """Threads for which Python would wait before it exits, without idle ones of pools."""
        threading = sys.modules.get("threading")
        if threading is None or not self._thread_count():
            return []
        frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

        def is_idle(thread: Any) -> bool:
            frame = frames.get(thread.ident)
            where = frame.f_code if frame is not None else None
            return where is not None and (
                where.co_name == "_worker"
                and where.co_filename.endswith(os.path.join("concurrent", "futures", "thread.py"))
            )

        return [
            thread
            for thread in threading.enumerate()
            if thread.ident != self._main_thread and not thread.daemon and not is_idle(thread)
        ]

    def note(self) -> None:
        """Add a note on threads and tasks that outlive their code, once for each."""
        try:
            threads, tasks = self._threads(), self._loop.tasks()
            if not threads and not tasks:
                self._known.clear()
                return
            known, self._known = self._known, [*threads, *tasks]
            words = [
                _counted(len(new), word)
                for things, word in ((threads, "thread"), (tasks, "asyncio task"))
                if (new := [thing for thing in things if all(thing is not old for old in known)])
            ]
            if words:
                self._out.note(
                    f"{' and '.join(words)} still under way: "
                    "what is printed there comes with the next result"
                )
        except Exception:  # noqa: S110
            pass  # code may have replaced any of it

    @staticmethod
    def _count_exit_functions() -> int:
        atexit = sys.modules.get("atexit")
        return 0 if atexit is None else atexit._ncallbacks()  # noqa: SLF001

    def end_program(self, show_figures: Callable[[], None]) -> int:
        """Do what Python does at the end of a program, since nothing comes after a one-shot.

        Cancel the tasks that are left, as `asyncio.run` does; wait for threads; display figures,
        which one of the functions of `atexit` closes; call those. Return an exit code if that went
        wrong, else 0.
        """
        tasks = self._loop.tasks()
        if tasks:
            self._out.note(
                f"{_counted(len(tasks), 'asyncio task')} cancelled, since the code had ended: "
                "await what has to finish"
            )
            self._loop.cancel(tasks)
        threads = self._threads()
        try:
            if self._thread_count() and "threading" in sys.modules:
                sys.modules["threading"]._shutdown()  # noqa: SLF001
        except KeyboardInterrupt:
            running = sum(thread.is_alive() for thread in threads)
            if not running:
                raise
            self._out.note(
                f"the code had ended, but not {_counted(running, 'thread')} that it started"
            )
            return 130
        show_figures()
        if self._count_exit_functions() != self._exit_functions:
            sys.modules["atexit"]._run_exitfuncs()  # noqa: SLF001
        return 0


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
