"""The worker: runs what the agent sends, one piece of code after another."""

from __future__ import annotations

import _ast
import _socket
import _warnings
import builtins
import contextlib
import faulthandler
import io
import os
import re
import select
import signal
import sys
from types import ModuleType

from sandbox.framing import READ_BYTES, MessageReader, encode_frame
from sandbox.limits import apply_limits
from sandbox.linux import dup_high, identity_of, set_handler, set_variables
from sandbox.shared_page import INTERRUPT, SharedPage
from sandbox.workers.python.completion import PythonCompleter
from sandbox.workers.python.displayer import Displayer, Shows
from sandbox.workers.python.event_loop import COROUTINE, EventLoop, Unfinished
from sandbox.workers.python.freezer import freeze_worker
from sandbox.workers.python.library import (
    ImportTimer,
    Library,
    Tracing,
    find_modules_anew,
    run_fork_steps,
    set_arguments,
    steps_of_fork,
)
from sandbox.workers.python.reporter import (
    Outbox,
    Reporter,
    is_open,
    open_stdin,
    open_streams,
    stdin_file,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType
    from typing import Any, NoReturn

    from sandbox.workers.python.freezer import Thawed


DISARM_ATTEMPTS = 100
"""Interrupts that may come while the Python worker puts its own handler in place."""

REHEARSALS = 16
"""After about as many, Python has adapted code to what it comes across there (PEP 659)."""

ROOM_FOR_ONE = _socket.CMSG_SPACE(4)
"""Room for one descriptor that comes with a message."""

NO_SHOW: Any = re.compile("FigureCanvas.* is non-interactive")


def run_worker(
    worker: PythonWorker | None, control_fd: int = -1, page: SharedPage | None = None
) -> NoReturn:
    """Run code from `control_fd` until end-of-file, in a worker made before a fork or a new one;
    without a page, in a fork of a process that `prepare_forks` has prepared."""
    try:
        worker = worker or PythonWorker()
        if page is None:
            worker.begin_as_fork()
        else:
            worker.begin(control_fd, page)
        worker.serve()
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        os._exit(1)


def _own_files() -> frozenset[str]:
    """Files that the agent's code says it is from: one in a bundle, else many."""
    files = {_own_files.__code__.co_filename}
    modules = [each for name, each in sys.modules.items() if f"{name}.".startswith("sandbox.")]
    files.update(str(each.__file__) for each in modules)
    return frozenset(files)


OWN_FILES = _own_files()
"""Found before any fork: looking through all modules there would copy the memory of their names."""


class PythonWorker:
    """The interpreter's side: runs what the agent sends in a `__main__` of its own.

    Everything here shares a process with user code, so nothing is defended against it; what must
    hold against hostile code is the agent's business.

    It can be made before a fork, in a process whose descriptors 0 to 2 are of the same kinds: until
    `begin` it has no descriptor and nothing else that belongs to one process. The process that
    makes it has the `__main__` and the streams of user code from then on.

    Args:
        fork_hooks: arguments of `os.register_at_fork`; these did not run around its fork.
    """

    FUTURE_FLAGS = 0xFFF0000
    TOP_LEVEL_AWAIT = 0x2000
    ONLY_AST = 0x400
    SOURCES = 500
    """Executions whose source text is kept for tracebacks and `inspect`."""

    _pid: int
    _control_fd: int
    _control: _socket.socket
    _page: SharedPage
    _standard_fds: tuple[tuple[int, int], ...]
    _private: Mapping[int, tuple[int, int]]

    def __init__(self, fork_hooks: Sequence[Mapping[str, Callable[[], object]]] = ()) -> None:
        import linecache

        # What a call needs is at hand: code may have replaced it.
        self._expression, self._interactive = _ast.Expr, _ast.Interactive
        self._linecache = linecache
        self._fork_hooks = fork_hooks
        self._fork_steps = steps_of_fork(fork_hooks)
        self._reader = MessageReader()
        self._poll = select.poll()
        self._sources: list[str] = []
        self._flags: int = 0
        self._handler: Any = signal.default_int_handler
        self._ignoring = self._ignore  # one object, so that `is` can find it again
        self._agent_module = sys.modules.get("__main__")  # its globals live as long as this does
        module = ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = module
        self._namespace = module.__dict__
        self._builtins = builtins.__dict__
        self._out = Outbox()
        library = Library()
        self._reporter = Reporter(self._out, library.load, OWN_FILES)
        self._displayer = Displayer(self._out, self._reporter, self._builtins)
        self._builtins["display"] = self._displayer.display
        open_streams()
        sys.argv = [""]
        sys.displayhook = self._displayer.display_hook
        self._silence_show()
        self._tracing = Tracing(OWN_FILES)
        self._loop = EventLoop(library, self._reporter, self._tracing, self._namespace)
        self._unfinished = Unfinished(self._out, self._reporter, self._loop)
        self._import_timer = ImportTimer(self._out, Shows(self._displayer).imported)
        self._passed: list[int] = []
        self._has_run_code = self._is_forked = False
        self._before: tuple[Any, Any] | None = None
        find_modules_anew()

    def begin(self, control_fd: int, page: SharedPage) -> None:
        """Begin in the process that runs code or forks for that: open descriptors, set signal
        handlers."""
        self._pid = self._displayer.pid = os.getpid()
        self._page = self._loop.page = page
        self._control_fd = self._out.control_fd = control_fd
        self._control = _socket.socket(fileno=control_fd)
        self._standard_fds = tuple((fd, dup_high(fd)) for fd in (0, 1, 2))
        self._know_private()
        self._show_descriptors()
        self._poll.register(control_fd, select.POLLIN)
        set_handler(signal.SIGINT, self._ignoring)
        set_handler(INTERRUPT, self._interrupt)
        for hook in self._fork_hooks:
            os.register_at_fork(**hook)
        os.register_at_fork(after_in_child=self._after_fork)
        self._import_timer.is_on = True
        faulthandler.enable(2)

    def begin_as_fork(self) -> None:
        """Begin in a fork of the process that was prepared."""
        self._pid = self._displayer.pid = os.getpid()
        self._know_private()

    def _know_private(self) -> None:
        private = (self._control_fd, *(saved for _, saved in self._standard_fds))
        self._private = {fd: identity_of(os.fstat(fd)) for fd in private}

    @staticmethod
    def _silence_show() -> None:
        """Figures are displayed anyway, so matplotlib's warning that it can't show them is wrong.

        The list is that of the `warnings` module, which is not imported for this.
        """
        _warnings.filters.insert(0, ("ignore", NO_SHOW, UserWarning, None, 0))

    def prepare_forks(self, control_fd: int, page: SharedPage) -> Sequence[int]:
        """Begin in a process whose forks go on with `begin_as_fork`, and go through the steps of a
        program: what Python and the linker remember of these is there in each fork. Return the
        private descriptors, which a fork has to put its own in the place of."""
        self.begin(control_fd, page)
        for _ in range(REHEARSALS):
            self._rehearse("print()\nNone", one_shot=True)
        return tuple(self._private)

    def serve(self) -> NoReturn:
        """Run what the agent sends, one piece after another."""
        # Not before: where the agent runs, nothing is to be imported from code's directory.
        sys.path.insert(0, "")
        run_fork_steps(self._fork_steps)
        random = sys.modules.get("numpy.random")
        if random is not None:  # a fork of a template would share the stream with its siblings
            random.seed()
        while True:
            message = self._reader.next_message()
            if message is None:
                self._wait()
            elif message["type"] == "limits":
                apply_limits(message["limits"])
            elif message["type"] == "variables":
                set_variables(message["variables"])
            elif message["type"] == "complete":
                self._complete(message)
            elif message["type"] == "checkpoint":
                thawed = freeze_worker(self._passed.pop(0), self._private)
                if thawed is not None:
                    self._thaw(thawed)
                elif not self._poll.poll(0) and sys.gettrace() is sys.getprofile() is None:
                    self._rehearse()
            elif message["type"] == "fork":
                self._fork(message["id"])
            elif message["type"] == "run":
                set_arguments(message.get("argv"), self._namespace)
                given = {key: message[key] for key in ("one_shot", "stdin") if key in message}
                exit_code = self._run(message["id"], message["code"], **given)
                if os.getpid() != self._pid:
                    os._exit(exit_code)  # code forked and its child got to the end
                if not self._is_intact():
                    os._exit(exit_code)  # nobody can be told: the exit status says it
                done = {"type": "done", "id": message["id"], "token": message["token"]}
                self._out.send_last({**done, "exit_code": exit_code})

    def _rehearse(self, code: str = "None\nNone", *, one_shot: bool = False) -> None:
        """Go through the steps of a call, without effect. Memory that is shared with a fork is
        copied when it is first written to: so this happens now, and not in the next call.
        """
        reader = MessageReader()
        reader.receive_data(encode_frame({"type": "run", "id": 0, "code": code}))
        while (message := reader.next_message()) is not None:
            if self._has_run_code:
                find_modules_anew()
            self._run(0, message["code"], one_shot=one_shot)
            if self._is_intact():
                encode_frame({"type": "done", "id": 0})

    def _fork(self, number: int) -> None:
        """Fork for a tracer, which carries the child into a session of its own before it runs.

        The child is dead when the agent is told, or the tracer has let it go elsewhere.
        """
        answer: dict[str, Any] = {}
        identity = identity_of(os.fstat(self._control_fd))
        try:
            self._is_forked = True
            try:
                pid = os.fork()
            finally:
                self._is_forked = False
            if pid == 0:
                if identity_of(os.fstat(self._control_fd)) == identity:
                    os._exit(1)  # nobody has carried it
                self._begin_as_fork()
                return
            with contextlib.suppress(ChildProcessError):  # code waits for all its children
                os.waitpid(pid, 0)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        self._out.send({"type": "answer", "id": number, **answer})

    def _show_descriptors(self) -> None:
        self._page.show_descriptors((self._control_fd, *(fd for _, fd in self._standard_fds)))

    def _begin_as_fork(self) -> None:
        """Begin in the child that a tracer has carried into a session of its own.

        The tracer has put this session's descriptors and page in the place of the original's.
        """
        self._begin_anew()
        random = sys.modules.get("numpy.random")
        if random is not None:  # Python's own does so itself
            random.seed()

    def _complete(self, message: Mapping[str, Any]) -> None:
        answer: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            completer = PythonCompleter(self._namespace, self._builtins)
            prefix, matches = completer.complete(message["before"], message["next"])
            answer = {"prefix": prefix, "matches": matches}
        self._out.send({"type": "answer", "id": message["id"], **answer})

    def _wait(self) -> None:
        """Take more bytes from the agent; the event loop, if there is one, runs meanwhile."""
        if self._loop.wait_for(self._control_fd) and not self._poll.poll(0):
            return
        data, parts, _, _ = self._control.recvmsg(READ_BYTES, ROOM_FOR_ONE)
        if not data:
            os._exit(0)
        for _, _, packed in parts:
            self._passed.append(int.from_bytes(packed, sys.byteorder))
        self._reader.receive_data(data)

    def _is_intact(self) -> bool:
        try:
            for fd, known in self._private.items():
                if identity_of(os.fstat(fd)) != known:
                    return False
        except OSError:
            return False
        return True

    def _after_fork(self) -> None:
        """Let go, in a child that user code has forked, of what is the agent's."""
        if self._is_forked:
            return
        self._control.detach()
        for fd in self._private:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _thaw(self, thawed: Thawed) -> None:
        """Go on as the worker, in a checkpoint that was woken."""
        control_fd, stdout, stderr, page_fd = thawed.descriptors
        self._page.unmap()  # it is of the worker that this is a copy of
        self._page = self._loop.page = SharedPage(page_fd)
        os.close(page_fd)
        stdin = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        places = [self._control_fd, *(saved for _, saved in self._standard_fds)]
        for index, fd in enumerate((control_fd, stdin, stdout, stderr)):
            try:
                os.dup2(fd, places[index], inheritable=False)
                os.close(fd)
            except OSError:  # code has set a limit below that number
                os.set_inheritable(fd, False)
                places[index] = fd
        self._control_fd = self._out.control_fd = places[0]
        self._standard_fds = tuple(enumerate(places[1:]))
        self._control = _socket.socket(fileno=self._control_fd)
        self._begin_anew()
        for note in thawed.notes():
            self._out.note(note)
        number, token = thawed.order["id"], thawed.order["token"]
        self._out.send_last({"type": "done", "id": number, "token": token, "exit_code": 0})

    def _begin_anew(self) -> None:
        """Begin in a copy of the process, whose private descriptors are its own."""
        self._know_private()
        self._show_descriptors()
        self._restore_descriptors()
        self._pid = self._displayer.pid = os.getpid()
        self._reader = MessageReader()
        self._poll = select.poll()
        self._poll.register(self._control_fd, select.POLLIN)
        self._loop.renew()

    def _restore_descriptors(self) -> None:
        for fd, saved in self._standard_fds:
            os.dup2(saved, fd)
        for name in ("stdin", "stdout", "stderr"):
            if not is_open(getattr(sys, name, None)):
                if not is_open(getattr(sys, f"__{name}__", None)):
                    open_streams()
                setattr(sys, name, getattr(sys, f"__{name}__"))

    def _open_input(self, path: str) -> None:
        """Have the code's standard input come from a path, until `_close_input`."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(fd, 0)
        os.close(fd)
        self._before = sys.stdin, sys.__stdin__
        open_stdin(io.BufferedReader(stdin_file()))

    def _close_input(self) -> None:
        """Have it empty again, and forget what was read of it."""
        if self._before is not None:
            os.dup2(self._standard_fds[0][1], 0)
            (sys.stdin, sys.__stdin__), self._before = self._before, None  # type: ignore[misc]

    def _ignore(self, *_: object) -> None:
        """Handle an interrupt that comes when no code runs."""

    def _interrupt(self, _number: int, frame: Any) -> None:
        """Do what SIGINT would do if nobody outside of Python ignored it.

        The agent's word for it waits in the control socket; without, it is a signal of code's own.
        """
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and self._poll.poll(0):
            handler(signal.SIGINT, frame)

    def _arm(self, number: int) -> None:
        """Let interrupts reach the code from now on."""
        set_handler(signal.SIGINT, self._handler)
        self._page.interruptible = number
        if self._page.awaited == number:  # one has come too early
            self._out.send({"type": "started", "id": number})

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

    def _run(self, number: int, code: str, *, one_shot: bool = False, stdin: str = "") -> int:
        """Run a piece of code; return its exit code. Never raises."""
        name = f"<exec {number}>"
        code = code.removeprefix("\ufeff")  # as a file's would be
        self._loop.is_wanted = self._loop.is_wanted or "asyncio" in code
        try:
            if number:  # else it is the rehearsal, of which nothing stays
                self._remember_source(name, code)
                if self._has_run_code:
                    self._namespace.pop("__warningregistry__", None)
                    find_modules_anew()
                self._has_run_code = True
        except Exception:  # noqa: S110
            pass  # all this belongs to code, and may be anything
        exit_code = 1
        self._displayer.begin()
        try:
            try:
                self._restore_descriptors()
                if stdin:
                    self._open_input(stdin)
                self._arm(number)
                try:
                    self._execute(name, code)
                    exit_code = 0
                except BaseException as error:
                    exit_code = self._reporter.report(error)
                    self._reporter.hint(error, name, code)
                if one_shot and os.getpid() == self._pid:
                    try:
                        ended = self._unfinished.end_program(self._displayer.show_figures)
                        exit_code = ended or exit_code
                    except BaseException as error:
                        exit_code = self._reporter.report(error) or exit_code
                self._displayer.show_figures()
            finally:
                self._disarm()
        except BaseException as error:  # an interrupt during the report
            exit_code = self._reporter.report(error)
        if not one_shot:
            self._close_input()
            self._loop.adopt()
            self._unfinished.note()
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
        if whole.co_flags & COROUTINE or pieces[-1].co_flags & COROUTINE:
            self._loop.run(pieces)
            return
        try:
            self._tracing.resume()
            for piece in pieces:
                if self._loop.context is None:
                    exec(piece, self._namespace)
                else:
                    self._loop.context.run(exec, piece, self._namespace)
        finally:
            self._tracing.suspend()

    @staticmethod
    def _ends_in_semicolon(code: str, last: _ast.stmt) -> bool:
        """Tell whether `;` follows the last statement, which hides its value."""
        if ";" not in code:
            return False
        lines = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        end = last.end_lineno or 0
        after = "".join([lines[end - 1].encode()[last.end_col_offset :].decode(), *lines[end:]])
        return after.lstrip(" \t\f\\").startswith(";")

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
