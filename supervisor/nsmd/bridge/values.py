"""The nouns of the bridge as frozen values: no behaviour, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from nsmd.model.values import StreamName

Way = Literal["mcp", "http", "control"]
"""How somebody asks: over an attachment, over HTTP, or over the control protocol."""

DEFAULT_TIMEOUT_S = 300.0

OnLine = Callable[[StreamName, str], None]
"""Takes a line of output, without its end, as it comes. It must not block: it stores or drops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Program as one definition file describes it.

    Attributes:
        name: by which it is asked for.
        description: one line, for lists.
        command: absolute path of the program, as it is written but for `~`.
        documentation: the body of the file, Markdown.
        timeout_s: seconds until it is stopped.
        cwd: absolute directory that it works in; None for HOME.
        env: names of the supervisor's own variables that it has.
        max_args: how many arguments it takes at most; None for what there is room for.
        allow_options: arguments may begin with a hyphen.
        source: absolute path of the file.
        line: of its name there, from 1.
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
        line: in it, from 1; None where no line is at fault.
        reason: what was found, and what was expected.
        name: of the program that is missing for it, where that is known.
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
        scope: of its sessions, for the audit.
        way: how it asks.
        peer: process and user id, as the kernel has them; None where unknown.
        granted: names of the programs that it may know and start; None for all.
        writable: absolute directories and files that it can write to: what lies there is not
            started for it.
    """

    client: str
    scope: str
    way: Way
    peer: tuple[int, int] | None = None
    granted: frozenset[str] | None = None
    writable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Outcome of a program that was started.

    Attributes:
        exit_code: None where a signal ended it.
        signal: number of that; None where none did.
        why_stopped: why nsm stopped it; None where it ended by itself.
        stdout, stderr: head and tail of what it wrote, as text; a line says what is left out.
        stdout_omitted, stderr_omitted: bytes that are left out.
        duration_s: from its start to its end.
        left: processes that it left behind, which go on.
        timeout_s: its limit.
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
class Asked:
    """One call, as it is written down.

    Attributes:
        id: of the call; one that a client sends again has the same.
        program: as it was asked for, whatever it is.
        arguments: likewise, as far as they are text.
    """

    id: str
    caller: Caller
    program: str
    arguments: Sequence[str]
