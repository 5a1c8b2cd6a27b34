"""Values of the bridge, frozen: no behaviour, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from nsm.dataclass import dataclass
from nsmd.model.values import StreamName

Way = Literal["mcp", "http", "control"]
"""Way of a request: over an attachment, over HTTP, or over the control protocol."""

DEFAULT_TIMEOUT_S = 300.0

OnLine = Callable[[StreamName, str], None]
"""Receives a line of output, without its end. It must not block: it stores or drops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Program as one definition file describes it.

    Attributes:
        name: name for requests.
        description: one line, for lists.
        command: absolute path of the program, as written except for `~`.
        documentation: the body of the file, Markdown.
        timeout_s: time limit in seconds.
        cwd: absolute directory that it works in; None for HOME.
        env: names of the supervisor's own variables that it gets.
        max_args: largest number of arguments; None if only their total size is limited.
        allow_options: arguments may begin with a hyphen.
        source: absolute path of the file.
        line: line of its name there, from 1.
    """

    name: str
    description: str
    command: str
    documentation: str
    source: str
    timeout_s: float = DEFAULT_TIMEOUT_S
    cwd: str | None = None
    env: tuple[str, ...] = ()
    max_args: int | None = None
    allow_options: bool = False
    line: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a definition file describes no program.

    Attributes:
        source: absolute path of the file.
        line: line in it, from 1; None if the problem is in no single line.
        reason: what was found, and what was expected.
        name: name of the program that is missing because of it, if known.
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
        way: way of the request.
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
        exit_code: exit code; None if a signal ended it.
        signal: number of that signal; else None.
        why_stopped: why nsm stopped it; None if it ended by itself.
        stdout, stderr: head and tail of its output, as text; a line says how much is left out.
        stdout_omitted, stderr_omitted: bytes that are left out.
        duration_s: seconds from its start to its end.
        left: number of processes that it left behind and that still run.
        timeout_s: its time limit.
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
    """One call, as recorded in the ledger.

    Attributes:
        id: id of the call; a repeated call has the same.
        program: requested name, valid or not.
        arguments: requested arguments, as far as they are text.
    """

    id: str
    caller: Caller
    program: str
    arguments: Sequence[str]
