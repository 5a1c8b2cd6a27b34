"""Live sessions as rows, and what they answer besides results of code. `nsm ps` needs no more."""

from typing import Literal, TypeAlias

from nsm.wire.errors import ErrorField
from nsm.wire.tuples import NamedTuple

FORKED_FROM = "forked-from"
"""Label of a live fork: id of its original."""


class PortAddress(NamedTuple):
    """A port of a session that is open on the host, and where to connect to it."""

    port: int
    address: str


class SessionRow(NamedTuple):
    """One live session, as `nsm ps` shows it.

    Attributes:
        name: None for a one-shot.
        client: the program it belongs to; `scope`: the name space of its name.
        project: host directory that it sees, or None.
        age_s, idle_s, cpu_s: seconds; `memory_bytes`: about what it shares with nothing else.
        state: ``starting``, ``idle``, ``running``, ``ending`` or ``ended``; ``unreadable`` if it
            lives on and this version of nsm cannot use it: times and counts are 0 then.
        executions: what it has run, with programs in fresh interpreters.
        pid: the jail's first process, as the host numbers it.
        limited_by: mechanism of its memory limit: ``cgroup``, ``watchdog`` or ``rlimit``; None
            before it has a jail.
        processes: in the jail, None where unknown; `queued`: executions that wait for their turn.
        running_s: for how long its execution has been running; None where none does.
        taken_up: how many restarts of the supervisor it has outlived.
        outdated: its interpreter, libraries or preloaded modules have changed on disk meanwhile.
        checkpoints: earlier states that undo can go back to, as its agent said last.
        ports: its ports that are open on the host.
        labels: what its client calls it.
        gpu_memory_bytes, gpu_percent: its memory on GPUs, and its share of their time in the last
            second; None without a GPU, or if unknown.
    """

    id: str
    name: str | None
    env: str
    client: str
    scope: str
    project: str | None
    state: str
    age_s: float
    idle_s: float
    executions: int
    memory_bytes: int | None
    cpu_s: float | None
    pid: int
    limited_by: str | None = None
    processes: int | None = None
    running_s: float | None = None
    queued: int = 0
    taken_up: int = 0
    outdated: bool = False
    checkpoints: int = 0
    ports: tuple[PortAddress, ...] = ()
    labels: dict[str, str] = {}  # noqa: RUF012  # nobody changes it
    gpu_memory_bytes: int | None = None
    gpu_percent: float | None = None


class KilledSession(NamedTuple):
    """A session that was ended.

    Attributes:
        fork_of: id of the session that it was a fork of, with which it ends; empty for none.
    """

    id: str
    name: str | None
    fork_of: str = ""


class KillError(NamedTuple):
    """A target that was not ended, and why."""

    target: str
    error: ErrorField


class KillReport(NamedTuple):
    """Outcome for each target of `kill`."""

    killed: tuple[KilledSession, ...]
    errors: tuple[KillError, ...]


class ForkRow(NamedTuple):
    """A fork of a running session."""

    id: str
    name: str


class ForkReport(NamedTuple):
    """Forks that were made of a running session.

    Attributes:
        closed: what the original has and they have not, such as pipes, connections and programs.
        copied_bytes: size of the files that each of them got.
        stood_s: seconds for which the original stood still.
    """

    forks: tuple[ForkRow, ...]
    closed: tuple[str, ...] = ()
    copied_bytes: int = 0
    stood_s: float = 0.0


class OpenedSession(NamedTuple):
    """A session that was made."""

    id: str
    name: str
    env: str
    labels: dict[str, str] = {}  # noqa: RUF012  # nobody changes it


CheckStatus: TypeAlias = Literal["complete", "incomplete", "invalid", "unknown"]


class Completions(NamedTuple):
    """Completions that fit at the cursor.

    Attributes:
        start, end: the part of the code that a match replaces, in characters (code points).
        matches: at most a few hundred.
        available: False where the interpreter is busy or not up; `matches` is empty then.
    """

    start: int
    end: int
    matches: tuple[str, ...]
    available: bool


class Check(NamedTuple):
    """Answer to the question whether code is complete, which a prompt asks when Enter is pressed.

    Attributes:
        status: ``complete``: it can be run; ``incomplete``: more lines have to come; ``invalid``:
            no further line makes it right; ``unknown``: it cannot be told now.
        indent: white space that the next line may begin with.
    """

    status: CheckStatus
    indent: str
