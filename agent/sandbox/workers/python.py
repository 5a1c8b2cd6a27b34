"""The Python worker: runs code in the process of a Python interpreter."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import signal
import sys

from sandbox.displays import DISPLAY_BYTES, DISPLAY_LEFT_OUT, PLACE
from sandbox.fields import as_object
from sandbox.framing import READ_BYTES, FrameReader, encode_frame, from_json, to_json
from sandbox.limits import apply_limits
from sandbox.linux import dup_high, identity_of, set_handler
from sandbox.shared_page import INTERRUPT
from sandbox.workers.completion import PythonCompleter
from sandbox.workers.hints import hint_for
from sandbox.workers.pretty import PrettyPrinter

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _ast
    from collections.abc import Callable, Mapping
    from types import CodeType, TracebackType
    from typing import Any, NoReturn

    from sandbox.shared_page import SharedPage


DISARM_ATTEMPTS = 100
"""Interrupts that may come while the Python worker puts its own handler in place."""


def python_worker(control_fd: int, page: SharedPage) -> NoReturn:
    """Runs code from `control_fd` in a `__main__` module of its own until end-of-file."""
    try:
        PythonWorker(control_fd, page).serve()
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        os._exit(1)


NO_SHOW: Any = re.compile("FigureCanvas.* is non-interactive")


class WholeWriter(io.FileIO):
    """Python's own unbuffered stream loses the rest where a signal cuts a write short or a child
    process has made the shared pipe non-blocking; this one writes all."""

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            written = super().write(view[done:])
            if written is None:
                select.select([], [self.fileno()], [])
            done += written or 0
        return done


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _own_files() -> frozenset[str]:
    """Files that the agent's code says it is from: one in a bundle, else many."""
    files = {_own_files.__code__.co_filename}
    modules = [each for name, each in sys.modules.items() if f"{name}.".startswith("sandbox.")]
    files.update(str(each.__file__) for each in modules)
    return frozenset(files)


OWN_FILES = _own_files()
"""Found before any fork: looking through all modules there would copy the memory of their names."""


class PythonWorker:
    """The interpreter's side: namespace, event loop, displays, tracebacks.

    Everything here shares a process with user code, so nothing is defended against it; what must
    hold against hostile code is the agent's business.
    """

    FUTURE_FLAGS = 0xFFF0000
    COROUTINE = 0x80
    TOP_LEVEL_AWAIT = 0x2000
    ONLY_AST = 0x400
    SOURCES = 500
    """Executions whose source text is kept for tracebacks and `inspect`."""

    def __init__(self, control_fd: int, page: SharedPage) -> None:
        import _ast
        import _thread
        import builtins
        import linecache
        from types import ModuleType

        # What a call needs is at hand: code may have replaced it.
        self._expression, self._interactive = _ast.Expr, _ast.Interactive

        self._pid = os.getpid()
        self._control_fd = control_fd
        self._page = page
        self._out_fd, self._err_fd = dup_high(1), dup_high(2)
        self._null_fd = dup_high(0)
        self._private = {
            fd: identity_of(os.fstat(fd))
            for fd in (control_fd, self._out_fd, self._err_fd, self._null_fd)
        }
        self._reader = FrameReader()
        self._poll = select.poll()
        self._poll.register(control_fd, select.POLLIN)
        self._lock = _thread.allocate_lock()
        self._get_ident = _thread.get_ident
        self._main_thread = _thread.get_ident()
        self._linecache = linecache
        self._sources: list[str] = []
        self._flags: int = 0
        self._loop: Any = None
        self._context: Any = None
        self._known: list[object] = []
        self._images = 0
        self._thread_count = _thread._count  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        # A template has asyncio already, and a loop takes memory and descriptors.
        self._wants_loop = "asyncio" not in sys.modules
        self._handler: Any = signal.default_int_handler
        self._held = b""
        self._agent_module = sys.modules.get("__main__")  # its globals live as long as this does
        module = ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = module
        self._namespace = module.__dict__
        self._builtins = builtins.__dict__
        self._builtins["display"] = self.display
        sys.argv = [""]
        self._path = list(sys.path)
        sys.path.insert(0, "")
        sys.displayhook = self._display_hook
        self._open_streams()
        self._ignoring = self._ignore  # one object, to be told from others
        set_handler(signal.SIGINT, self._ignoring)
        set_handler(INTERRUPT, self._interrupt)
        os.register_at_fork(after_in_child=self._after_fork)
        import faulthandler

        faulthandler.enable(2)
        self._silence_show()
        self._tracing = [self._hide_from("trace"), self._hide_from("profile")]
        self._tracers: list[Any] = [None, None]
        self._exit_functions = self._count_exit_functions()
        random = sys.modules.get("numpy.random")
        if random is not None:  # a fork of a template would share the stream with its siblings
            random.seed()

    @staticmethod
    def _silence_show() -> None:
        """Figures are displayed anyway, so matplotlib's warning that it can't show them is wrong.

        The list is that of the `warnings` module, which is not imported for this.
        """
        import _warnings

        _warnings.filters.insert(0, ("ignore", NO_SHOW, UserWarning, None, 0))

    def _hide_from(self, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        """Keeps frames of this file from the functions that code gives to `sys.settrace` or
        `sys.setprofile`, e.g. those below `print`.

        Returns:
            Python's own functions, to get and to set.
        """
        original_set: Any = getattr(sys, f"set{name}")
        original_get: Any = getattr(sys, f"get{name}")

        def set_function(function: Any, /) -> None:
            if function is None:
                original_set(None)
                return

            def filtered(frame: Any, event: str, argument: Any) -> Any:
                if frame.f_code.co_filename in OWN_FILES:
                    return None
                return function(frame, event, argument)

            setattr(filtered, "given", function)  # noqa: B010  # a function has no such field
            original_set(filtered)

        def get_function() -> Any:
            function = original_get()
            return getattr(function, "given", function)

        setattr(sys, f"set{name}", set_function)
        setattr(sys, f"get{name}", get_function)
        return original_get, original_set

    def _resume_tracing(self) -> None:
        for (_, set_function), function in zip(self._tracing, self._tracers):
            if function is not None:
                set_function(function)

    def _suspend_tracing(self) -> None:
        """Between two executions nothing of what runs is code's.

        Tracers and profilers in C, which did not come through `sys`, cannot be set again, and stay.
        """
        found = [get_function() for get_function, _ in self._tracing]
        self._tracers = [each if hasattr(each, "given") else None for each in found]
        for (_, set_function), function in zip(self._tracing, self._tracers):
            if function is not None:
                set_function(None)

    # Control socket.

    def serve(self) -> NoReturn:
        """Runs what the agent sends, one piece after another."""
        while True:
            message = self._reader.next_message()
            if message is None:
                self._wait()
            elif message["type"] == "limits":
                apply_limits(message["limits"])
            elif message["type"] == "complete":
                self._complete(message)
            elif message["type"] == "run":
                number = message["id"]
                one_shot = message.get("one_shot") is True
                exit_code = self._run(number, message["code"], one_shot=one_shot)
                if os.getpid() != self._pid:
                    os._exit(exit_code)  # code forked and its child got to the end
                if not self._is_intact():
                    os._exit(exit_code)  # nobody can be told: the exit status says it
                done = {"type": "done", "id": number, "token": message["token"]}
                held, self._held = self._held, b""
                self._write(held + encode_frame({**done, "exit_code": exit_code}))

    def _complete(self, message: Mapping[str, Any]) -> None:
        answer: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            completer = PythonCompleter(self._namespace, self._builtins)
            prefix, matches = completer.complete(message["before"], message["next"])
            answer = {"prefix": prefix, "matches": matches}
        self._send({"type": "answer", "id": message["id"], **answer})

    def _wait(self) -> None:
        """Takes more bytes from the agent; the event loop, if there is one, runs meanwhile."""
        loop = self._loop
        if loop is not None and not loop.is_closed():

            def readable() -> None:
                # Once: another loop's `stop` may work twice, the second time in the code's await.
                loop.remove_reader(self._control_fd)
                loop.stop()

            try:
                loop.add_reader(self._control_fd, readable)
                try:
                    loop.run_forever()
                finally:
                    loop.remove_reader(self._control_fd)
            except BaseException as error:
                self._report(error)
            if not self._poll.poll(0):
                return
        data = os.read(self._control_fd, READ_BYTES)
        if not data:
            os._exit(0)
        self._reader.receive_data(data)

    def _send(self, message: Mapping[str, Any]) -> None:
        """Sends a frame whole: an interrupt in the middle of it waits until after it."""
        data = encode_frame(message)
        if self._get_ident() != self._main_thread:
            self._write(data)
            return
        data, self._held = self._held + data, b""
        late: list[int] = []

        def note(number: int, _frame: object) -> None:
            late.append(number)

        previous = set_handler(signal.SIGINT, note)
        try:
            self._write(data)
        finally:
            set_handler(signal.SIGINT, previous)
        if late and callable(previous):
            previous(signal.SIGINT, None)

    def _write(self, data: bytes) -> None:
        with self._lock:
            while data:
                data = data[os.write(self._control_fd, data) :]

    def _is_intact(self) -> bool:
        try:
            for fd, known in self._private.items():
                if identity_of(os.fstat(fd)) != known:
                    return False
        except OSError:
            return False
        return True

    def _after_fork(self) -> None:
        """Runs in a child that user code has forked: what is the agent's stays with the parent."""
        for fd in self._private:
            with contextlib.suppress(OSError):
                os.close(fd)

    # Descriptors and signals.

    def _open_streams(self) -> None:
        for name, fd, errors in (
            ("stdout", 1, "surrogateescape"),
            ("stderr", 2, "backslashreplace"),
        ):
            raw = WholeWriter(fd, "w", closefd=False)
            raw.name = f"<{name}>"  # as Python names them
            stream: Any = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)
            stream.mode = "w"
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        empty = io.FileIO(0, closefd=False)
        empty.name = "<stdin>"
        stdin: Any = io.TextIOWrapper(empty, encoding="utf-8")
        stdin.mode = "r"
        sys.stdin = sys.__stdin__ = stdin  # type: ignore[misc]

    def _restore_descriptors(self) -> None:
        for fd, saved in ((0, self._null_fd), (1, self._out_fd), (2, self._err_fd)):
            os.dup2(saved, fd)
        for name in ("stdin", "stdout", "stderr"):
            if not self._is_open(getattr(sys, name, None)):
                if not self._is_open(getattr(sys, f"__{name}__", None)):
                    self._open_streams()
                setattr(sys, name, getattr(sys, f"__{name}__"))

    @staticmethod
    def _is_open(stream: Any) -> bool:
        try:
            return stream is not None and not getattr(stream, "closed", False)
        except ValueError:  # its buffer has been detached
            return False

    def _ignore(self, *_: object) -> None:
        """Handles an interrupt that comes when no code runs."""

    def _interrupt(self, _number: int, frame: Any) -> None:
        """Does what SIGINT would do if nobody outside of Python ignored it.

        The agent's word for it waits in the control socket; without, it is a signal of code's own.
        """
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and self._poll.poll(0):
            handler(signal.SIGINT, frame)

    def _arm(self, number: int) -> None:
        """From now on an interrupt reaches the code."""
        set_handler(signal.SIGINT, self._handler)
        self._page.interruptible = number
        if self._page.awaited == number:  # one has come too early
            self._send({"type": "started", "id": number})

    def _disarm(self) -> None:
        handler = None
        for _ in range(DISARM_ATTEMPTS):
            try:
                handler = set_handler(signal.SIGINT, self._ignoring)
                break
            except BaseException:  # noqa: S112
                continue  # the last interrupt, on the way out
        else:
            # Not interrupts, then: code has taken away what Python's own library needs.
            os._exit(1)
        if handler is not self._ignoring:
            self._handler = handler

    # Running code.

    def _run(self, number: int, code: str, *, one_shot: bool = False) -> int:
        """Runs a piece of code; returns its exit code. Never raises."""
        name = f"<exec {number}>"
        code = code.removeprefix("\ufeff")  # as a file's would be
        self._wants_loop = self._wants_loop or "asyncio" in code
        try:
            if number:  # else it is the rehearsal, of which nothing stays
                self._remember_source(name, code)
            self._namespace.pop("__warningregistry__", None)
            for finder in list(sys.path_importer_cache.values()):
                # Modules written since the last look, within the time stamp's resolution.
                invalidate = getattr(finder, "invalidate_caches", None)
                if invalidate is not None:
                    invalidate()
        except Exception:  # noqa: S110
            pass  # all this belongs to code, and may be anything
        exit_code = 1
        self._images = 0
        try:
            try:
                self._restore_descriptors()
                self._arm(number)
                try:
                    self._execute(name, code)
                    exit_code = 0
                except BaseException as error:
                    exit_code = self._report(error)
                    self._hint(error, name, code)
                if one_shot and os.getpid() == self._pid:
                    try:
                        exit_code = self._end_program() or exit_code
                    except BaseException as error:
                        exit_code = self._report(error) or exit_code
                self._show_figures()
            finally:
                self._disarm()
        except BaseException as error:  # an interrupt during the report
            exit_code = self._report(error)
        if not one_shot:
            self._adopt_loop()
            self._note_what_goes_on()
        return exit_code

    def _execute(self, name: str, code: str) -> None:
        flags: int = self._flags | self.TOP_LEVEL_AWAIT
        try:
            tree: _ast.Module = compile(
                code, name, "exec", flags | self.ONLY_AST, dont_inherit=True
            )
            ends_in_value = (
                tree.body
                and isinstance(tree.body[-1], self._expression)
                and not self._ends_in_semicolon(code, tree.body[-1])
            )
            last = tree.body.pop() if ends_in_value else None
            whole: CodeType = compile(tree, name, "exec", flags, dont_inherit=True)
        except RecursionError:
            # Python 3.9 compiles texts that are too deep to become a tree of objects, and back.
            last, whole = None, compile(code, name, "exec", flags, dont_inherit=True)
        self._flags |= whole.co_flags & self.FUTURE_FLAGS
        flags |= self._flags
        pieces = [whole]
        if last is not None:
            value = self._interactive([last])
            pieces.append(compile(value, name, "single", flags, dont_inherit=True))
        if any(piece.co_flags & self.COROUTINE for piece in pieces):
            self._run_in_loop(pieces)
            return
        try:
            self._resume_tracing()
            for piece in pieces:
                if self._context is None:
                    exec(piece, self._namespace)
                else:
                    self._context.run(exec, piece, self._namespace)
        finally:
            self._suspend_tracing()

    @staticmethod
    def _ends_in_semicolon(code: str, last: _ast.stmt) -> bool:
        """Tell whether `;` follows the last statement, which hides its value."""
        if ";" not in code:
            return False
        lines = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        end = last.end_lineno or 0
        after = "".join([lines[end - 1].encode()[last.end_col_offset :].decode(), *lines[end:]])
        return after.lstrip(" \t\f\\").startswith(";")

    def _import(self, name: str) -> Any:
        """A module of the standard library, whatever lies in the working directory."""
        module = sys.modules.get(name)
        if module is None:
            import importlib

            path = sys.path
            sys.path = list(self._path)
            try:
                module = importlib.import_module(name)
            finally:
                sys.path = path
        return module

    def _remember_source(self, name: str, code: str) -> None:
        # As Python counts lines: a form feed, for one, ends none.
        text = code.replace("\r\n", "\n").replace("\r", "\n")
        lines = [line + "\n" for line in text.split("\n")]
        if text.endswith("\n"):
            lines.pop()
        self._linecache.cache[name] = (len(code), None, lines, name)
        self._sources.append(name)
        if len(self._sources) > self.SOURCES:
            self._linecache.cache.pop(self._sources.pop(0), None)

    # The event loop.

    def _current_loop(self) -> Any:
        asyncio = self._import("asyncio")
        if self._loop is None:
            self._loop = self._made_loop()
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        return self._loop

    def _adopt_loop(self) -> None:
        """Once code has imported asyncio there is a loop for it, current in the main thread.

        A loop that code made by asking for the current one becomes ours, so that the tasks it
        holds run while the session idles.
        """
        asyncio = sys.modules.get("asyncio")
        if asyncio is None or not hasattr(asyncio, "set_event_loop"):
            return
        if self._loop is None and not self._wants_loop and self._made_loop() is None:
            return
        try:
            self._current_loop()
        except Exception as error:
            self._report(error)

    @staticmethod
    def _made_loop() -> Any:
        """The loop that code made by asking for the current one; before Python 3.10 events and
        locks do that, too."""
        policy = getattr(sys.modules.get("asyncio.events"), "_event_loop_policy", None)
        return getattr(getattr(policy, "_local", None), "_loop", None)

    async def _in_turn(self, pieces: list[CodeType]) -> None:
        try:
            self._resume_tracing()
            for piece in pieces:
                if piece.co_flags & self.COROUTINE:
                    await eval(piece, self._namespace)
                else:
                    exec(piece, self._namespace)
        finally:
            self._suspend_tracing()

    def _run_in_loop(self, pieces: list[CodeType]) -> None:
        """Runs code that awaits: the loop runs from its beginning to its end."""
        asyncio = self._import("asyncio")
        loop = self._current_loop()
        if sys.version_info >= (3, 11):  # noqa: UP036  # jails may have an older one
            # A task has a context of its own. This one is that of all code from now on: what a
            # context variable is set to must be there for the next code.
            if self._context is None:
                self._context = self._import("contextvars").copy_context()
            task = loop.create_task(self._in_turn(pieces), context=self._context)
        else:
            task = loop.create_task(self._in_turn(pieces))
        try:
            loop.run_until_complete(task)
        except KeyboardInterrupt:
            if task.done():
                raise
            # It came while the loop waited, or in another task: stop ours where it awaits.
            task.cancel()
            try:
                loop.run_until_complete(task)
            except asyncio.CancelledError as error:
                raise KeyboardInterrupt().with_traceback(error.__traceback__) from None
        except RuntimeError:
            # Code has stopped the loop: ours must not go on in a later execution.
            task.cancel()
            raise

    # What code leaves under way.

    def _note(self, text: str) -> None:
        """Adds a sentence to the result; it is sent with what comes next."""
        self._held += encode_frame({"type": "note", "text": text})

    def _tasks(self) -> list[Any]:
        """Tasks of our loop that are not done."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return []
        return list(sys.modules["asyncio"].all_tasks(loop))

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

    def _note_what_goes_on(self) -> None:
        """Add a note on threads and tasks that outlive their code, once for each."""
        try:
            threads, tasks = self._threads(), self._tasks()
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
                self._note(
                    f"{' and '.join(words)} still under way: "
                    "what is printed there comes with the next result"
                )
        except Exception:  # noqa: S110
            pass  # code may have replaced any of it

    @staticmethod
    def _count_exit_functions() -> int:
        atexit = sys.modules.get("atexit")
        return 0 if atexit is None else atexit._ncallbacks()  # noqa: SLF001

    def _end_program(self) -> int:
        """Do what Python does at the end of a program, since nothing comes after a one-shot.

        Cancel the tasks that are left, as `asyncio.run` does; wait for threads; call the functions
        of `atexit`.

        Returns:
            An exit code if that went wrong, else 0.
        """
        tasks = self._tasks()
        if tasks:
            self._note(
                f"{_counted(len(tasks), 'asyncio task')} cancelled, since the code had ended: "
                "await what has to finish"
            )
            self._cancel(tasks)
        threads = self._threads()
        try:
            if self._thread_count() and "threading" in sys.modules:
                sys.modules["threading"]._shutdown()  # noqa: SLF001
        except KeyboardInterrupt:
            running = sum(thread.is_alive() for thread in threads)
            if not running:
                raise
            self._note(f"the code had ended, but not {_counted(running, 'thread')} that it started")
            return 130
        if self._count_exit_functions() != self._exit_functions:
            sys.modules["atexit"]._run_exitfuncs()  # noqa: SLF001
        return 0

    def _cancel(self, tasks: list[Any]) -> None:
        asyncio, loop = sys.modules["asyncio"], self._loop
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self._report(error)

    # What is shown.

    def _report(self, error: BaseException) -> int:
        """Prints an exception as Python would; returns the exit code it means."""
        try:
            if isinstance(error, SystemExit):
                if error.code is None:
                    return 0
                if isinstance(error.code, int):
                    return error.code & 255
                print(error.code, file=sys.stderr)
                return 1
            if isinstance(error, getattr(sys.modules.get("bdb"), "BdbQuit", ())):
                print(
                    "The debugger ended the code: standard input is empty, so nobody can answer "
                    "its prompt. Leave breakpoint() and pdb out, and print what you want to see.",
                    file=sys.stderr,
                )
                return 1
            self._print_error(error)
        except BaseException as second:
            # The hook or what it needs is broken, e.g. by code's own module `traceback`.
            stderr, sys.stderr = sys.stderr, sys.__stderr__
            try:
                sys.__excepthook__(type(error), error, error.__traceback__)
            except BaseException:
                with contextlib.suppress(BaseException):
                    os.write(2, f"{type(error).__name__} (not printable: {second!r})\n".encode())
            finally:
                sys.stderr = stderr
        return 130 if isinstance(error, KeyboardInterrupt) else 1

    def _hint(self, error: BaseException, name: str, code: str) -> None:
        """Add a note on what to write instead, if the code that failed is not Python."""
        try:
            number = None
            if isinstance(error, SyntaxError) and error.filename == name:
                number = error.lineno
            elif isinstance(error, NameError) and error.__traceback__ is not None:
                entry = error.__traceback__
                if entry.tb_next is None and entry.tb_frame.f_code.co_filename == name:
                    number = entry.tb_lineno
            if number:
                hint = hint_for(code.replace("\r\n", "\n").split("\n")[number - 1])
                if hint:
                    self._note(hint)
        except Exception:  # noqa: S110
            pass  # the error has been told, and code may have replaced what this needs

    def _print_error(self, error: BaseException) -> None:
        self._clean_traceback(error, set())
        sys.last_type, sys.last_value = type(error), error
        sys.last_traceback = error.__traceback__
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        if sys.excepthook is not sys.__excepthook__:
            sys.excepthook(type(error), error, error.__traceback__)
            return
        traceback = self._import("traceback")
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        sys.stderr.write("".join(lines))

    def _clean_traceback(self, error: BaseException, seen: set[int]) -> None:
        """Takes frames of the worker, and of the loop below user code, off a traceback."""
        if id(error) in seen:
            return
        seen.add(id(error))
        frames: list[TracebackType] = []
        entry = error.__traceback__
        while entry is not None:
            frames.append(entry)
            entry = entry.tb_next
        if frames and frames[0].tb_frame.f_code.co_filename in OWN_FILES:
            user = [
                index
                for index, frame in enumerate(frames)
                if frame.tb_frame.f_code.co_filename.startswith("<exec ")
            ]
            if user:
                del frames[: user[0]]
        clean: TracebackType | None = None
        for frame in reversed(frames):
            if frame.tb_frame.f_code.co_filename not in OWN_FILES:
                kind = type(frame)
                clean = kind(clean, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
        error.__traceback__ = clean
        for other in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
            if isinstance(other, BaseException):
                self._clean_traceback(other, seen)

    def _display_hook(self, value: object) -> None:
        if value is not None:
            self._builtins["_"] = None
            self._show(self._bundle(value), hold=True)
            self._builtins["_"] = value

    def display(self, *values: object) -> None:
        """Shows values as rich as they can be shown, in their place among what is printed."""
        for value in values:
            bundle = self._bounded(self._bundle(value))
            text = bundle.get("text/plain")
            if any(kind.startswith("image/") for kind in bundle):
                self._images += 1
                bundle[PLACE] = self._images
                print(f"[image {self._images}]")
                if isinstance(text, str) and not (text[:1] == "<" and text[-1:] == ">"):
                    print(text)  # more than a bare representation: a caption
            elif isinstance(text, str):
                bundle[PLACE] = 0
                print(text)
            if bundle.keys() - {"text/plain", PLACE} and os.getpid() == self._pid:
                self._show(bundle)

    def _show(self, bundle: dict[str, Any], *, hold: bool = False) -> None:
        """
        Args:
            hold: send it with what comes next, which after a trailing expression is the end.
        """
        if os.getpid() != self._pid:
            print(bundle.get("text/plain", ""))
            return
        message = {"type": "display", "data": self._bounded(bundle)}
        if hold and self._get_ident() == self._main_thread:
            self._held += encode_frame(message)
        else:
            self._send(message)

    @staticmethod
    def _bounded(bundle: dict[str, Any]) -> dict[str, Any]:
        """The bundle, or a text in its place if it is larger than what the agent keeps."""
        size = sum(len(str(data)) for data in bundle.values())
        return bundle if size <= DISPLAY_BYTES else {"text/plain": DISPLAY_LEFT_OUT}

    REPRESENTATIONS = (
        ("_repr_html_", "text/html"),
        ("_repr_markdown_", "text/markdown"),
        ("_repr_svg_", "image/svg+xml"),
        ("_repr_png_", "image/png"),
        ("_repr_jpeg_", "image/jpeg"),
        ("_repr_latex_", "text/latex"),
        ("_repr_json_", "application/json"),
    )

    def _bundle(self, value: object) -> dict[str, Any]:
        """The value's representations by MIME type; like IPython's, but asked of the type only."""
        try:
            is_plain = type(value) in (int, float, str, bool)
            text = repr(value) if is_plain else PrettyPrinter().format(value)
        except RecursionError:
            text = repr(value)
        found: dict[str, Any] = {"text/plain": text}
        kind = type(value)
        for method, mime in self.REPRESENTATIONS:
            if callable(getattr(kind, method, None)):
                found[mime] = self._ask(value, method)
        if callable(getattr(kind, "_repr_mimebundle_", None)):
            answer = self._first(self._ask(value, "_repr_mimebundle_", include=None, exclude=None))
            found.update(as_object(answer) or {})
        plain = {str(mime): self._plain(self._first(data)) for mime, data in found.items()}
        return {mime: data for mime, data in plain.items() if data is not None}

    @staticmethod
    def _first(answer: Any) -> Any:
        """The data of an answer that may come with metadata, as a tuple."""
        found: Any = answer
        return found[0] if isinstance(answer, tuple) and answer else found

    def _ask(self, value: object, method: str, **arguments: object) -> Any:
        try:
            return getattr(value, method)(**arguments)
        except NotImplementedError:
            return None
        except Exception as error:
            self._print_error(error)
            return None

    @staticmethod
    def _plain(data: object) -> Any:
        """`data` as it can travel in JSON; None if it can't."""
        if isinstance(data, (bytes, bytearray)):
            import binascii

            return binascii.b2a_base64(data, newline=False).decode()
        try:
            return from_json(to_json(data))  # which are bound before code can replace them
        except (TypeError, ValueError, RecursionError):
            return None

    def _show_figures(self) -> None:
        """Displays and closes matplotlib's open figures, if code has imported it."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or not hasattr(pyplot, "get_fignums"):
            return
        try:
            for number in pyplot.get_fignums():
                figure = pyplot.figure(number)
                png = io.BytesIO()
                try:
                    figure.savefig(png, format="png", bbox_inches="tight")
                finally:
                    pyplot.close(figure)
                self._show({"text/plain": repr(figure), "image/png": self._plain(png.getvalue())})
        except Exception as error:
            self._print_error(error)
