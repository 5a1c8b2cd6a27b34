"""Programs that each run in a fresh interpreter, in a jail that stands: operations and results."""

from typing import Annotated, Any, TypeAlias

from nsm.wire.code import (
    Count,
    Number,
    OptionFields,
    PlaceFields,
    RunResult,
    SessionRef,
    Truncation,
)
from nsm.wire.decode import at_most, between
from nsm.wire.operation import operation
from nsm.wire.tuples import NamedTuple

MAX_AT_ONCE = 64
"""Programs that run at the same time in one session."""

MAX_PROGRAMS = 1000
"""Programs in one request."""

NOT_RUN = 125
"""Exit code of a program that was not run, as of `nsm run`."""


class FreshProgram(NamedTuple):
    """A program to run. Times in seconds.

    Attributes:
        timeout_s: None for the environment's limit.
        argv: path of the file that the code is from, and arguments for it; empty for other code.
    """

    code: str
    timeout_s: Number | None = None
    argv: tuple[str, ...] = ()


class FreshResult(NamedTuple):
    """Result of a program. Fields as in `RunResult`, but for these.

    Attributes:
        number: place of the program among all that were sent under one handle, from 0.
        error: why the program was not run, or did not run to its end, in a sentence; else empty.
    """

    number: int
    stdout: str
    stderr: str
    exit_code: int
    duration_s: float = 0.0
    displays: tuple[dict[str, Any], ...] = ()
    truncated: dict[str, Truncation] = {}  # noqa: RUF012  # nobody changes it
    timed_out: bool = False
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    error: str = ""


class OpenedFresh(NamedTuple):
    """Answer to `fresh_open`.

    Attributes:
        handle: for the other operations, on this connection.
        at_once: number of programs that run at the same time.
    """

    handle: int
    session: SessionRef
    at_once: int


class FreshResults(NamedTuple):
    """Results of programs that have ended, in the order of their ends; each is told once.

    Attributes:
        pending: number of programs that run, or wait for others to end.
        cancelled: Ctrl-C came meanwhile, as the client itself adds.
    """

    results: tuple[FreshResult, ...]
    pending: int
    cancelled: bool = False


Programs: TypeAlias = Annotated[tuple[FreshProgram, ...], at_most(MAX_PROGRAMS, "programs")]


@operation("run")
def run_fresh(
    place: PlaceFields, options: OptionFields, code: str, *, argv: tuple[str, ...] = ()
) -> RunResult:
    """Run code in a fresh interpreter of a session, as one of its programs; its `execution_id` is
    empty, and nothing is sent again. Arguments as of `run`; there is no stream and no input.
    """
    ...


@operation("run")
def fresh_open(
    place: PlaceFields,
    options: OptionFields,
    *,
    at_once: Annotated[int | None, between(1, MAX_AT_ONCE)] = None,
) -> OpenedFresh:
    """Prepare to run programs in a session, each in a fresh interpreter; `at_once` of them at the
    same time, or as many as there are processors.
    """
    ...


@operation("run")
def fresh_next(handle: Count, programs: Programs = (), *, wait: bool = True) -> FreshResults:
    """Run programs. With `wait`, answers when half of those that are pending have ended, or 50 ms
    after the first of them; at once if none is pending.
    """
    ...


@operation("run")
def fresh_close(handle: Count) -> dict[str, Any]:
    """Interrupt programs that run, and run no further ones, as the end of the connection does."""
    ...
