"""Threads and tasks that outlive their code."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sandbox.workers.python.event_loop import EventLoop
    from sandbox.workers.python.outbox import Outbox
    from sandbox.workers.python.reporter import Reporter


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

        Cancel the tasks that are left, as `asyncio.run` does; wait for threads; call the functions
        of `atexit`.

        Args:
            show_figures: displays matplotlib's figures. One of these functions closes them.

        Returns:
            An exit code if that went wrong, else 0.
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
