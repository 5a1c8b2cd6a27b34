"""Values of the bridge, frozen: no behaviour, no I/O."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from nsm.dataclass import dataclass
from nsm.wire.decode import Constraint, Made, between
from nsmd.model.values import StreamName

Way = Literal["mcp", "http", "control"]
"""Way of a request: over an attachment, over HTTP, or over the control protocol."""

MAX_ARGUMENTS = 1000
"""Largest number of arguments of one call for any program; `max_args` in its definition allows
fewer.
"""

MAX_DESCRIPTION_CHARACTERS = 500
"""Largest description: a line of a list; longer text is documentation."""

DEFAULT_TIMEOUT_S = 300.0

MAX_TIMEOUT_S = 86_400.0
"""A day."""

MAX_VARIABLES = 64

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_CONTROLS = frozenset(("Cc", "Cs", "Zl", "Zp"))


def is_control(character: str) -> bool:
    """Return whether a character must not be shown: a control character, half of one, or a
    separator that ends lines only for YAML and some terminals."""
    return not character.isprintable() and unicodedata.category(character) in _CONTROLS


def _plain(text: str) -> str:
    # YAML's escapes can write characters that the file itself may not have.
    if any(is_control(character) for character in text.strip()):
        raise ValueError("text without control characters")
    if not text.strip():
        raise ValueError("text that is not empty")
    return text.strip()


def _line(text: str) -> str:
    line = _plain(" ".join(text.split()))
    if len(line) > MAX_DESCRIPTION_CHARACTERS:
        raise ValueError(
            f"at most {MAX_DESCRIPTION_CHARACTERS} characters: the rest belongs below the front "
            "matter"
        )
    return line


def _path(text: str) -> str:
    path = _plain(text)
    if not os.path.isabs(path):
        raise ValueError("an absolute path, or `~/...`")
    if ".." in path:
        raise ValueError("a path without `..`")
    return path


_Name = Annotated[
    str,
    Made(str, _plain),
    Constraint(
        lambda name: bool(NAME.fullmatch(name)),
        "1 to 64 lower-case letters, digits, `_` and `-`, a letter or digit first",
    ),
]
_Path = Annotated[str, Made(str, _path)]
_Variable = Annotated[
    str,
    Constraint(
        lambda name: bool(_VARIABLE.fullmatch(name)),
        "the name of a variable (its value is the supervisor's own)",
    ),
]
_Variables = Annotated[
    tuple[_Variable, ...],
    Constraint(
        lambda names: len(names) <= MAX_VARIABLES,
        f"a list of at most {MAX_VARIABLES} names, as [LANG, DEPLOY_TOKEN]",
        early=True,
    ),
]
_Limit = Annotated[
    float,
    "timeout_seconds",
    Constraint(
        lambda seconds: 0 < seconds <= MAX_TIMEOUT_S,
        f"a number of seconds, more than 0 and at most {MAX_TIMEOUT_S:.0f}",
    ),
]

OnLine = Callable[[StreamName, str], None]
"""Receives a line of output, without its end. It must not block: it stores or drops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Program as one definition file describes it: its keys, and where it lies.

    Attributes:
        command: absolute path of the program, as written except for `~`.
        documentation: the body of the file, Markdown.
        cwd: absolute directory that it works in; None for HOME.
        env: names of the supervisor's own variables that it gets.
        max_args: None if only the total size of arguments is limited.
        allow_options: arguments may begin with a hyphen.
        source: absolute path of the file.
        line: line of its name there, from 1.
    """

    name: _Name
    description: Annotated[str, Made(str, _line)]
    command: _Path
    documentation: str
    source: str
    timeout_s: _Limit = DEFAULT_TIMEOUT_S
    cwd: _Path | None = None
    env: _Variables = ()
    max_args: Annotated[int | None, between(0, MAX_ARGUMENTS)] = None
    allow_options: bool = False
    line: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a definition file describes no program, with the line (from 1) and the name of the
    program, if known.
    """

    source: str
    reason: str
    line: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Client that asks for programs.

    Attributes:
        client: name of the client program, as it says itself.
        scope: scope of its sessions, for the audit.
        peer: process and user id, from the kernel; None if unknown.
        granted: names of the programs that it may know and start; None for all.
        writable: absolute directories and files that it can write to: nothing in them is started
            for it.
    """

    client: str
    scope: str
    way: Way
    peer: tuple[int, int] | None = None
    granted: frozenset[str] | None = None
    writable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """Outcome of a program that was started.

    Attributes:
        exit_code, signal: the one that it ended by; else None.
        why_stopped: why nsm stopped it; None if it ended by itself.
        stdout, stderr: head and tail of its output, as text; a line says how much is left out.
        stdout_omitted, stderr_omitted: bytes that are left out.
        left: number of processes that it left behind and that still run.
    """

    exit_code: int | None
    signal: int | None = None
    why_stopped: Literal["timeout", "cancelled", "shutdown"] | None = None
    stdout: str = ""
    stderr: str = ""
    stdout_omitted: int = 0
    stderr_omitted: int = 0
    duration_s: float = 0.0
    left: int = 0
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def succeeded(self) -> bool:
        """True if it ended by itself with exit code 0."""
        return self.exit_code == 0 and self.why_stopped is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One call, as recorded in the ledger."""

    id: str
    caller: Caller
    program: str
    arguments: Sequence[str]
