"""Checks of whether what somebody has typed is a whole input, and how the next line is indented.

Python and Bash are parsed here, by the host's own; only Node has to be asked in its session.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import warnings
from codeop import CommandCompiler

from nsm import paths
from nsm.wire.sessions import Check, CheckStatus

MAX_CHARS = 64 * 1024
"""Largest text that is looked at. Nobody who types a longer one waits for an answer."""

MAX_INDENT = 200
"""Characters of a suggested indentation."""

BASH_S = 1.0
"""Time limit for Bash, which takes some milliseconds."""

_BASH = ("--norc", "--noprofile", "-O", "extglob", "-n")

_BASH_UNFINISHED = re.compile(
    rb"bash: line \d+: (syntax error: unexpected end of file|unexpected EOF while looking for"
    rb"|unexpected token `EOF')"
)

_BASH_HERE = re.compile(rb"bash: line \d+: warning: here-document .*delimited by end-of-file")

_SIMPLE_STATEMENTS = (
    *(ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete, ast.Raise, ast.Assert),
    *(ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Pass, ast.Break, ast.Continue),
)

UNKNOWN = Check("unknown", "")


def check_python(code: str) -> Check:
    """Check Python, which is never run.

    A block is complete with the blank line that ends it, as at Python's own prompt; several
    statements at once are fine.
    """
    if len(code) > MAX_CHARS:
        return UNKNOWN
    code = code.removeprefix("\ufeff")
    compiler = CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if compiler(code, "<input>", "exec") is None:
                return _incomplete(code, in_text=_ends_in_text(code))
            flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            tree = compile(code, "<input>", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError):  # or NUL, a lone surrogate, a large number
        return Check("invalid", "")
    except (RecursionError, MemoryError):
        return UNKNOWN
    assert isinstance(tree, ast.Module)
    is_block = bool(tree.body) and not isinstance(tree.body[-1], _SIMPLE_STATEMENTS)
    if is_block and code.rpartition("\n")[2].strip():
        return _incomplete(code)
    return Check("complete", "")


def _ends_in_text(code: str) -> bool:
    """Return whether unfinished Python ends inside a string."""
    try:
        compile(code, "<input>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        return "triple-quoted" in str(error.msg)
    return False


def check_bash(code: str) -> Check:
    """Have the host's Bash parse code, which is never run."""
    program = shutil.which("bash", path=paths.search_path())
    if program is None or len(code) > MAX_CHARS:
        return UNKNOWN
    try:
        # A minimal environment: BASH_ENV would be run, and messages must not be translated.
        done = subprocess.run(
            ["bash", *_BASH],
            executable=program,
            input=code.encode("utf-8", "replace"),
            env={"LC_ALL": "C.UTF-8"},
            cwd="/",
            capture_output=True,
            timeout=BASH_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    lines = [line for line in done.stderr.split(b"\n") if line.startswith(b"bash: line ")]
    errors = [line for line in lines if not _BASH_HERE.match(line)]
    here = len(errors) < len(lines)
    if done.returncode == 0:
        last = code.rpartition("\n")[2]
        open_line = (len(last) - len(last.rstrip("\\"))) % 2 == 1
        continued = open_line and not last.lstrip().startswith("#")
        return _incomplete(code, in_text=here) if here or continued else Check("complete", "")
    if done.returncode not in {1, 2} or not errors:
        return UNKNOWN
    if not _BASH_UNFINISHED.match(errors[0]):
        return Check("invalid", "")
    return _incomplete(code, in_text=here or b"looking for matching" in errors[0])


def with_indent(status: CheckStatus, code: str) -> Check:
    """Complete what Node says of code, which may end inside a template."""
    if status != "incomplete":
        return Check(status, "")
    return _incomplete(code, in_text=code.count("`") % 2 == 1)


def _incomplete(code: str, *, in_text: bool = False) -> Check:
    """Suggest an indentation for the line that is to follow.

    That of the last line; deeper after what opens a block or bracket, less deep after what leaves
    one. It is a suggestion, which whoever types will see.
    """
    if in_text:
        return Check("incomplete", "")
    *before, last = code.rstrip().split("\n")
    indent = _indent_of(last)
    if re.search(r"([:{(\[]|\b(then|do|else|in)|=>)$", re.sub(r"\s#.*", "", last).rstrip()):
        used = {_indent_of(line) for line in before} | {indent}
        unit = "\t" if "\t" in indent else min(used - {""}, key=len, default=" " * 4)
        indent += unit
    elif re.match(r"\s+(return|raise|pass|break|continue)\b", last):
        above = [_indent_of(line) for line in before if line.strip()]
        indent = next((i for i in reversed(above) if len(i) < len(indent)), "")
    return Check("incomplete", indent[:MAX_INDENT])


def _indent_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]
