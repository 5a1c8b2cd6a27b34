"""Operations on code and on sessions, and where and how code runs. `nsm ps` needs none of it."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias

from nsm.wire.decode import Made, at_least
from nsm.wire.files import Data
from nsm.wire.live import ForkReport, KillReport
from nsm.wire.operation import operation
from nsm.wire.results import RunResult
from nsm.wire.sandbox import OpenedSession
from nsm.wire.sessions import Check, Completions


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        raise ValueError("a number of ordinary size") from None


Number: TypeAlias = Annotated[float, Made(float, _float)]
Count: TypeAlias = Annotated[int, at_least(0)]


class ProjectPlace(NamedTuple):
    """A directory of the host that code sees.

    Attributes:
        mount_point: its path in the session; None for the same one.
        mode: how code sees it; None for the configured way.
        chosen: the user named it, so that a session with another one is none.
    """

    path: str
    mount_point: str | None = None
    mode: str | None = None
    chosen: bool = False


class NetworkRequest(NamedTuple):
    """Network of code: ``off``, ``full``, or ``allow`` with patterns of hosts."""

    mode: str
    allow: tuple[str, ...] = ()


class Place(NamedTuple):
    """Session in which something runs, or how one is to be made.

    Attributes:
        env: empty for the supervisor to choose, by session, configuration and `language`.
        session: its name; ``new`` for a fresh one; None for a session that is thrown away.
        must_exist: the session has to be there.
        no_project: the user said that code sees none.
        variables: those that a project's shell passes on, as `Hello.inherit` asks for.
    """

    env: str = ""
    language: str = ""
    session: str | None = None
    must_exist: bool = False
    project: ProjectPlace | None = None
    no_project: bool = False
    network: NetworkRequest | None = None
    secrets: tuple[str, ...] | None = None
    variables: Mapping[str, Any] = {}  # nobody changes it


class RunOptions(NamedTuple):
    """Options of a run, and of what its client hears of it.

    Attributes:
        again: it was sent before under `execution_id`, over a connection that was lost; `sent_to`
            is the instance of the only supervisor that may have it.
        stream: output is sent while it is made; as bytes with `bytes`, which need not be UTF-8.
        stdin: standard input follows by `run_write`; else it is empty.
    """

    timeout_s: Number | None = None
    execution_id: str | None = None
    again: bool = False
    sent_to: str = ""
    stream: bool = False
    stdin: bool = False
    bytes: bool = False


PlaceFields: TypeAlias = Annotated[Place, ""]
OptionFields: TypeAlias = Annotated[RunOptions, ""]
Labels: TypeAlias = Mapping[str, str]


@operation("run")
def run(
    place: PlaceFields,
    options: OptionFields,
    code: str,
    *,
    reset: bool = False,
    argv: tuple[str, ...] = (),
) -> RunResult: ...
@operation("manage", recorded=None)
def run_in(target: str, options: OptionFields, code: str) -> RunResult: ...
@operation("manage", own=True)
def undo(
    target: str,
    options: OptionFields,
    calls: Annotated[int, at_least(1, "a number of calls")] = 1,
) -> RunResult: ...
@operation("manage", own=True, recorded=None)
def run_write(
    target: str,
    execution_id: str,
    *,
    offset: Count = 0,
    data: Data = b"",
    eof: bool = False,
    broken: bool = False,
) -> dict[str, Any]: ...
@operation("run")
def result(execution_id: str) -> RunResult: ...
@operation("run")
def session_open(
    place: PlaceFields,
    options: OptionFields,
    *,
    idle_s: Number | None = None,
    labels: Labels = {},  # noqa: B006  # nobody changes it
    environ: Labels = {},  # noqa: B006
    memory_mb: Count | None = None,
    ends_with_client: bool = False,
) -> OpenedSession: ...
@operation("manage", own=True)
def session_keep(target: str, *, ends_with_client: bool = False) -> dict[str, Any]: ...
@operation("manage", own=True)
def session_fork(
    target: str,
    names: tuple[str, ...] = (),
    count: Count | None = None,
    *,
    execution_id: str = "",
    again: bool = False,
) -> ForkReport: ...
@operation("read", own=True)
def find(target: str) -> dict[str, Any]: ...
@operation("read", own=True)
def sessions(*, all: bool = False, stream: bool = False) -> dict[str, Any]: ...  # noqa: A002
@operation("manage", own=True, recorded=("targets", "idle_s", "all", "labels"))
def kill(
    targets: tuple[str, ...] = (),
    *,
    idle_s: Number | None = None,
    all: bool = False,  # noqa: A002  # on the wire
    labels: Labels = {},  # noqa: B006  # nobody changes it
) -> KillReport: ...
@operation("manage", own=True, recorded=("target",))
def interrupt(target: str) -> dict[str, Any]: ...
@operation("manage", recorded=None)
def logs(
    target: str, *, executions: Count | None = None, follow: bool = False
) -> dict[str, Any]: ...
@operation("manage", recorded=None)
def complete(target: str, code: str, cursor: Count) -> Completions: ...
@operation("manage", recorded=None)
def check(target: str, code: str) -> Check: ...
