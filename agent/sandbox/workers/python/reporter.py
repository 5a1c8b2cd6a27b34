"""Standard streams of code, frames to the agent, and tracebacks, without frames of the worker and
with hints for lines that are not Python."""

from __future__ import annotations

import _thread
import contextlib
import io
import os
import re
import select
import signal
import sys

from sandbox.framing import encode_frame
from sandbox.linux import set_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Any


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


def open_streams() -> None:
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
    open_stdin(stdin_file())


def stdin_file() -> io.FileIO:
    file = io.FileIO(0, closefd=False)
    file.name = "<stdin>"
    return file


def open_stdin(binary: Any) -> None:
    stream: Any = io.TextIOWrapper(binary, encoding="utf-8", errors="surrogateescape")
    stream.mode = "r"
    sys.stdin = sys.__stdin__ = stream  # type: ignore[misc]


def is_open(stream: Any) -> bool:
    try:
        return stream is not None and not getattr(stream, "closed", False)
    except ValueError:  # its buffer has been detached
        return False


class Outbox:
    """The worker's side of the control socket, for sending."""

    control_fd: int

    def __init__(self) -> None:
        # What a call needs is at hand: code may have replaced it.
        self._lock = _thread.allocate_lock()
        self._get_ident = _thread.get_ident
        self._main_thread = _thread.get_ident()
        self._held = b""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a frame whole: an interrupt in the middle of it waits until after it."""
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
                data = data[os.write(self.control_fd, data) :]

    def note(self, text: str) -> None:
        """Add a sentence to the result; it is sent with what comes next."""
        self._held += encode_frame({"type": "note", "text": text})

    def report_import(self, module: str, seconds: float) -> None:
        """Add the time of an import to the result; it is sent with what comes next."""
        self._held += encode_frame({"type": "imported", "module": module, "seconds": seconds})

    def hold(self, message: Mapping[str, Any]) -> None:
        """Send a frame with what comes next, which after a trailing expression is the end."""
        if self._get_ident() == self._main_thread:
            self._held += encode_frame(message)
        else:
            self.send(message)

    def send_last(self, message: Mapping[str, Any]) -> None:
        """Send what was held and a frame, when no code runs."""
        held, self._held = self._held, b""
        self._write(held + encode_frame(message))


SHELL_COMMANDS = frozenset(
    "apt apt-get bash cat cd chmod conda cp curl docker echo export find git grep head ls make "
    "mkdir mv node npm npx pip pip3 pwd python python3 rm sed sh sudo tail touch uv wget "
    "which".split()
)
"""Names with which lines begin that people type in a shell."""

LONGS = 1 << 63
"""Numbers from minus this on and below this fit into C's type `long`."""

MAGICS = {
    "matplotlib": "leave the line out: figures are shown anyway",
    "timeit": "use timeit.timeit",
    "time": "use time.perf_counter",
    "cd": "use os.chdir",
    "pip": "it would be `python -m pip` in a shell",
    "run": "use runpy.run_path",
    "bash": "run the code in a Bash environment",
    "sh": "run the code in a Bash environment",
}


class Reporter:
    """Prints exceptions as Python would, without frames of its own files."""

    def __init__(self, out: Outbox, load: Callable[[str], Any], own_files: frozenset[str]) -> None:
        self._out = out
        self._load = load  # finds modules of the standard library
        self._own_files = own_files

    def report(self, error: BaseException) -> int:
        """Print an exception as Python would; return the exit code it means."""
        try:
            if isinstance(error, SystemExit):
                return self._exit_code_of(error)
            if isinstance(error, getattr(sys.modules.get("bdb"), "BdbQuit", ())):
                print(
                    "The debugger ended the code: standard input is empty, so nobody can answer "
                    "its prompt. Leave breakpoint() and pdb out, and print what you want to see.",
                    file=sys.stderr,
                )
                return 1
            self.print_error(error)
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

    @staticmethod
    def _exit_code_of(error: SystemExit) -> int:
        """The exit code that Python would end with; prints what is neither a number nor None."""
        code = error.code
        if code is None:
            return 0
        if isinstance(code, int):
            number = int.__index__(code)  # whatever a class of code's own makes of it
            # As Python does with a number that C has no type for: 10**20 is no success.
            return number & 255 if -LONGS <= number < LONGS else 255
        try:
            print(code, file=sys.stderr)
        except (Exception, SystemExit):
            print(f"sys.exit got a {type(code).__name__} that cannot be printed", file=sys.stderr)
        return 1

    def hint(self, error: BaseException, name: str, code: str) -> None:
        """Add a note on what to write instead, if the code that failed is not Python."""
        try:
            number = None
            if isinstance(error, RuntimeError) and LOOP_RUNS.search(str(error)):
                self._out.note(
                    "code with `await` runs in an event loop already: write `await f()` in place "
                    "of `asyncio.run(f())`"
                )
            elif isinstance(error, ImportError) and (error.name or "").startswith("IPython"):
                self._out.note(
                    "`display(...)` is built in here and needs no import: it shows what has a "
                    "`_repr_html_`, `_repr_png_` or the like"
                )
            elif isinstance(error, SyntaxError) and error.filename == name:
                number = error.lineno
            elif isinstance(error, NameError) and error.__traceback__ is not None:
                entry = error.__traceback__
                if entry.tb_next is None and entry.tb_frame.f_code.co_filename == name:
                    number = entry.tb_lineno
            if number:
                hint = hint_for(code.replace("\r\n", "\n").split("\n")[number - 1])
                if hint:
                    self._out.note(hint)
        except Exception:  # noqa: S110
            pass  # the error has been told, and code may have replaced what this needs

    def print_error(self, error: BaseException) -> None:
        self._clean_traceback(error, set())
        sys.last_type, sys.last_value = type(error), error
        sys.last_traceback = error.__traceback__
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        if sys.excepthook is not sys.__excepthook__:
            sys.excepthook(type(error), error, error.__traceback__)
            return
        traceback = self._load("traceback")
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        sys.stderr.write("".join(lines))

    def _clean_traceback(self, error: BaseException, seen: set[int]) -> None:
        """Take frames of the worker, and of the loop below user code, off a traceback."""
        if id(error) in seen:
            return
        seen.add(id(error))
        frames: list[TracebackType] = []
        entry = error.__traceback__
        while entry is not None:
            frames.append(entry)
            entry = entry.tb_next
        if frames and frames[0].tb_frame.f_code.co_filename in self._own_files:
            user = [
                index
                for index, frame in enumerate(frames)
                if frame.tb_frame.f_code.co_filename.startswith("<exec ")
            ]
            if user:
                del frames[: user[0]]
        clean: TracebackType | None = None
        for frame in reversed(frames):
            if frame.tb_frame.f_code.co_filename not in self._own_files:
                kind = type(frame)
                clean = kind(clean, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
        error.__traceback__ = clean
        for other in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
            if isinstance(other, BaseException):
                self._clean_traceback(other, seen)


LOOP_RUNS = re.compile(r"called from a running event loop|event loop is already running")


def hint_for(line: str) -> str:
    """Sentence on what to write instead of a line of IPython or of a shell, or an empty text."""
    line = line.strip()
    short = line if len(line) <= 60 else line[:59] + "\u2026"
    if found := re.match(r"(?:[\w, ]+=\s*)?!\s*(.+)", line):
        return (
            f"`{short}` is IPython syntax: run the command in a Bash environment, or with "
            f"subprocess.run({found[1][:80]!r}, shell=True)"
        )
    if found := re.match(r"(?:[\w, ]+=\s*)?%%?([A-Za-z_]\w*)", line):
        instead = MAGICS.get(found[1], "leave it out, or write it in Python")
        return f"`{short}` is a magic of IPython, which plain Python does not have: {instead}"
    found = re.fullmatch(r"\?{0,2}([A-Za-z_][\w.]*)\?{0,2}", line)
    if found and "?" in line:
        return f"`{short}` is IPython syntax: help({found[1]}) prints the documentation"
    found = re.match(r"([a-z][a-z0-9-]*)(?:\s+[^\s=(]|$)", line)
    if found and found[1] == "cd":
        return f"`{short}` is a shell command: os.chdir changes the directory"
    if found and found[1] in SHELL_COMMANDS:
        return (
            f"`{short}` is a shell command: run it in a Bash environment, or with "
            f"subprocess.run({line[:80]!r}, shell=True)"
        )
    return ""
