"""Operations on jobs. `nsm.wire.jobs` has what they answer."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple, TypeAlias

from nsm.wire.decode import Constraint, at_least, between
from nsm.wire.files import PIECE_BYTES, Data, Seconds
from nsm.wire.jobs import JobInfo, JobOutput, StartedJob, WrittenInput
from nsm.wire.operation import operation
from nsm.wire.run import OptionFields, PlaceFields

MAX_KEY_CHARS = 128


def is_key(key: str) -> bool:
    """Return whether a text may be the id of a call."""
    return 1 <= len(key) <= MAX_KEY_CHARS and key.isprintable()


Key: TypeAlias = Annotated[
    str | None, Constraint(is_key, f"1 to {MAX_KEY_CHARS} printable characters")
]
Size: TypeAlias = Annotated[int, between(1, 10_000)]


class JobTerminal(NamedTuple):
    """A terminal for a program."""

    rows: Size
    columns: Size
    term: str | None = None


@operation("run")
def job_start(
    place: PlaceFields,
    options: OptionFields,
    argv: Annotated[tuple[str, ...], Constraint(bool, "a program and its arguments")],
    *,
    cwd: str | None = None,
    environ: Mapping[str, str] = {},  # nobody changes it
    tty: JobTerminal | None = None,
    wait_s: Seconds = 0.0,
) -> StartedJob: ...
@operation("manage", own=True, recorded=None)
def job_read(
    target: str,
    job: str,
    *,
    offset: Annotated[int, at_least(0)] = 0,
    bytes: Annotated[int, between(0, PIECE_BYTES)] = PIECE_BYTES,  # noqa: A002  # on the wire
    wait_s: Seconds = 0.0,
    hold: bool = False,
) -> JobOutput: ...
@operation("manage", own=True, recorded=None)
def job_write(
    target: str,
    job: str,
    data: Data = b"",
    *,
    eof: bool = False,
    wait_s: Seconds = 0.0,
    write_id: Key = None,
) -> WrittenInput: ...
@operation("manage", own=True, key="job", recorded=("target", "job", "signal"))
def job_signal(target: str, job: str, signal: str) -> JobInfo: ...
@operation("manage", own=True, key="job", recorded=("target", "job"))
def job_stop(
    target: str,
    job: str,
    grace_s: Annotated[float | None, between(0, 1e9, "a number of seconds")] = None,
) -> JobInfo: ...
@operation("manage", own=True, key="job", recorded=None)
def job_resize(target: str, job: str, rows: Size, columns: Size) -> JobInfo: ...
@operation("manage", own=True, key="jobs", recorded=None)
def job_list(target: str) -> list[JobInfo]: ...
