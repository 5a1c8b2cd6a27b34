"""Checks whether a text is a whole input, each in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys

from sandbox.framing import READ_BYTES
from sandbox.limits import MAX_REPLY_BYTES
from sandbox.linux import DEFAULT_ACTION, PR_SET_PDEATHSIG, prctl, restore_signals, set_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


CHECK_BYTES = 256 * 1024 * 1024
"""Memory of one; 64 KiB of text in a compiler take much less."""


MAX_INDENT = 200
"""Characters of a suggested indentation."""


class InputCheck:
    """A child process that says whether a text is a whole input, by parsing it.

    A process of its own, since parsers have texts on which they crash or take for ever; it is
    also there while code runs. The text is never run.

    Args:
        interpreter: `python` or `bash`.
        program: path of that interpreter.
        agent_file: path of the agent's program, for a Python that is not the agent's own.

    Raises:
        OSError: no process, descriptor or memory is left.
    """

    STATUSES = ("complete", "incomplete", "invalid")
    BASH = ("--norc", "--noprofile", "-O", "extglob", "-n")
    BASH_UNFINISHED = (
        rb"bash: line \d+: (syntax error: unexpected end of file|unexpected EOF while looking for"
        rb"|unexpected token `EOF')"
    )
    BASH_HERE = rb"bash: line \d+: warning: here-document .*delimited by end-of-file"

    def __init__(self, interpreter: str, program: str, code: str, agent_file: str) -> None:
        self._interpreter = interpreter
        self._code = code
        self._agent_file = agent_file
        with contextlib.ExitStack() as undo:
            text_fd = os.memfd_create("code", os.MFD_CLOEXEC)
            undo.callback(os.close, text_fd)
            with open(text_fd, "wb", closefd=False) as text:
                text.write(code.encode("utf-8", "replace"))
            os.lseek(text_fd, 0, os.SEEK_SET)
            self._answer_fd = os.memfd_create("answer", os.MFD_CLOEXEC)
            undo.callback(os.close, self._answer_fd)
            parent = os.getpid()
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    self._become_child(text_fd, program, parent)
                finally:
                    os._exit(126)
            undo.pop_all()
            os.close(text_fd)

    def _become_child(self, text_fd: int, program: str, parent: int) -> None:
        import resource

        os.setsid()
        signal.set_wakeup_fd(-1)
        set_handler(signal.SIGCHLD, DEFAULT_ACTION)
        restore_signals()
        if parent != 1:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        errors = self._answer_fd if self._interpreter == "bash" else null
        for target, source in enumerate((text_fd, self._answer_fd, errors)):
            os.dup2(source, target)
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        for kind, most in (
            (resource.RLIMIT_CPU, 2),
            (resource.RLIMIT_DATA, CHECK_BYTES),
            (resource.RLIMIT_FSIZE, MAX_REPLY_BYTES),
            (resource.RLIMIT_CORE, 0),
        ):
            hard = resource.getrlimit(kind)[1]
            limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (limit, limit))
        if self._interpreter == "bash":
            # A minimal environment: BASH_ENV would be run, and messages must not be translated.
            os.execve(program, ["bash", *self.BASH], {"LC_ALL": "C.UTF-8"})
        if program == sys.executable:
            answer_check()
        else:
            os.execve(program, [program, "-I", "-S", self._agent_file, "--check"], dict(os.environ))

    def finish(self, wait_status: int) -> tuple[str, str]:
        """Read the answer of the ended child: the status, and the next line's indentation."""
        size = os.fstat(self._answer_fd).st_size
        said = os.pread(self._answer_fd, min(size, READ_BYTES), 0)
        os.close(self._answer_fd)
        exit_code = os.WEXITSTATUS(wait_status) if os.WIFEXITED(wait_status) else -1
        if self._interpreter == "bash":
            status, in_text = self._of_bash(exit_code, said)
        else:
            status, _, rest = said.decode("utf-8", "replace").strip().partition(" ")
            in_text = bool(rest)
            if exit_code != 0:
                status = ""
        if status not in self.STATUSES:
            return "unknown", ""
        indent = suggest_indent(self._code) if status == "incomplete" and not in_text else ""
        return status, indent

    def _of_bash(self, exit_code: int, said: bytes) -> tuple[str, bool]:
        """The status, and whether the text ends inside a quote or a here-document."""
        lines = [line for line in said.split(b"\n") if line.startswith(b"bash: line ")]
        errors = [line for line in lines if not re.match(self.BASH_HERE, line)]
        here = len(errors) < len(lines)
        if exit_code == 0:
            last = self._code.rpartition("\n")[2]
            open_line = (len(last) - len(last.rstrip("\\"))) % 2 == 1
            continued = open_line and not last.lstrip().startswith("#")
            return ("incomplete" if here or continued else "complete"), here
        if exit_code in {1, 2} and errors:
            quoted = b"looking for matching" in errors[0]
            unfinished = re.match(self.BASH_UNFINISHED, errors[0])
            return ("incomplete" if unfinished else "invalid"), here or quoted
        return "", False


def suggest_indent(code: str) -> str:
    """Indentation of the line that is to follow `code`, which is not whole yet.

    That of its last line; deeper after what opens a block or bracket, less deep after what leaves
    one. It is a suggestion, which whoever types will see.
    """
    *before, last = code.rstrip().split("\n")
    indent = _indent_of(last)
    if re.search(r"([:{(\[]|\b(then|do|else|in)|=>)$", re.sub(r"\s#.*", "", last).rstrip()):
        used = {_indent_of(line) for line in before} | {indent}
        unit = "\t" if "\t" in indent else min(used - {""}, key=len, default=" " * 4)
        indent += unit
    elif re.match(r"\s+(return|raise|pass|break|continue)\b", last):
        above = [_indent_of(line) for line in before if line.strip()]
        indent = next((i for i in reversed(above) if len(i) < len(indent)), "")
    return indent[:MAX_INDENT]


def _indent_of(line: str) -> str:
    return re.match(r"[ \t]*", line)[0]  # type: ignore[index]


def answer_check() -> NoReturn:
    """Read a text from descriptor 0 and write what Python says of it to descriptor 1."""
    import warnings

    warnings.simplefilter("ignore")
    with open(0, "rb") as file:
        code = file.read().decode("utf-8", "replace")
    try:
        answer = check_python(code.removeprefix("\ufeff"))
    except (RecursionError, MemoryError):
        answer = "unknown"
    os.write(1, answer.encode())
    os._exit(0)


PENDING_DEDENT = 0x200

PENDING_INPUT = 0x4000 if sys.version_info >= (3, 11) else 0

TOP_LEVEL_AWAIT = 0x2000

ONLY_AST = 0x400

SIMPLE_STATEMENTS = frozenset(
    "Expr Assign AugAssign AnnAssign TypeAlias Delete Raise Assert Import ImportFrom Global "
    "Nonlocal Pass Break Continue Return".split()
)


def check_python(code: str) -> str:
    """`complete`, `incomplete`, `invalid`; `incomplete text` if it ends inside a string.

    A block is complete with the blank line that ends it, as at Python's own prompt; several
    statements at once are fine.
    """
    try:
        tree = compile(code, "<input>", "exec", TOP_LEVEL_AWAIT | ONLY_AST, dont_inherit=True)
        compile(tree, "<input>", "exec", TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        if not _is_unfinished(code):
            return "invalid"
        return "incomplete text" if "triple-quoted" in str(error.msg) else "incomplete"
    except (ValueError, OverflowError):  # NUL, a lone surrogate, a number that is too large
        return "invalid"
    is_block = bool(tree.body) and type(tree.body[-1]).__name__ not in SIMPLE_STATEMENTS
    return "incomplete" if is_block and code.rpartition("\n")[2].strip() else "complete"


def _is_unfinished(code: str) -> bool:
    """Return whether a text that Python refuses could become valid with more text after it."""
    errors: list[tuple[str, int | None]] = []
    for more in ("", "\n\n"):
        try:
            flags = TOP_LEVEL_AWAIT | ONLY_AST | PENDING_DEDENT | PENDING_INPUT
            compile(code + more, "<input>", "exec", flags, dont_inherit=True)
        except SyntaxError as error:
            errors.append((str(error.msg), error.lineno))
    if PENDING_INPUT:
        return bool(errors) and errors[0][0] == "incomplete input"
    # Before 3.11 it shows in where the error is: at the end, wherever that may be.
    return len(set(errors)) > 1 or any("was never closed" in text for text, _ in errors)
