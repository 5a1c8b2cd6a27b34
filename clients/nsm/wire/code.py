"""Code and the sessions that it runs in: operations, results of code, names of languages."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from nsm.wire.decode import Converted, at_least
from nsm.wire.operation import Data, operation
from nsm.wire.sessions import Check, Completions, ForkReport, KillReport, OpenedSession
from nsm.wire.tuples import NamedTuple

PLACE = "application/vnd.nsm.place+json"
"""MIME type that marks a display whose place in stdout is known. Its data is the number in the line
`[image N]` of stdout, or 0 where stdout has the text of the value."""

_MAX_PLACE = 1_000_000


def split_place(bundle: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
    """A display's representations, and its place if it has one."""
    place = bundle.get(PLACE)
    known = type(place) is int and 0 <= place <= _MAX_PLACE
    return {kind: data for kind, data in bundle.items() if kind != PLACE}, place if known else None


class Truncation(NamedTuple):
    """Amounts that a result leaves out of one stream.

    Attributes:
        omitted_bytes: how many bytes between the head and the tail.
        file: file in the session that holds the stream from its beginning on, or None.
        total_bytes, file_bytes: sizes of the stream, and of what the file has of it; None if
            unknown.
    """

    omitted_bytes: int
    file: str | None
    total_bytes: int | None = None
    file_bytes: int | None = None

    def where(self, file: str) -> str:
        """Say what `file`, as it may be shown, holds of the stream."""
        total, kept = self.total_bytes, self.file_bytes
        if total is None or kept is None:
            return f"its beginning is in {file}"
        if kept >= total:
            return f"all of it is in {file}"
        return f"its first {kept:,} of {total:,} bytes are in {file} (later ones were not kept)"


class SessionRef(NamedTuple):
    """Session that ran the code, or the fresh jail.

    Attributes:
        name: None for a fresh jail that has been thrown away.
        created: this run made the session.
        replaced: why and how long ago an earlier session of this name ended, for people.
    """

    id: str
    name: str | None
    created: bool
    replaced: str | None


class RunResult(NamedTuple):
    """Result of one piece of code. Times in seconds.

    Attributes:
        execution_id: to ask for this result again with `Client.result`.
        stdout, stderr: all that was written, or its head and tail (see `truncated`).
        exit_code: the code's status; 124 after a timeout, 130 after an interrupt.
        displays: displayed values, each a map of MIME type to data (binary data base64);
            `split_place` says which of them stdout shows in their place.
        truncated: for each stream that is not whole, what is missing.
        timed_out, interrupted: why the code ended early.
        interpreter_restarted: the session's variables are lost; `restart_reason` says why.
        waited_s: time spent waiting for other executions of the session.
        timeout_s: the limit that held.
        clamped_from_s: the limit that was asked for, where it was more than allowed; else None.
        notes: rules of the jail that stopped the code, and what is allowed; mostly none.
    """

    execution_id: str
    env: str
    session: SessionRef
    stdout: str
    stderr: str
    exit_code: int
    duration_s: float
    displays: tuple[dict[str, Any], ...]
    truncated: dict[str, Truncation]
    timed_out: bool
    interrupted: bool
    interpreter_restarted: bool
    restart_reason: str
    waited_s: float
    timeout_s: float
    clamped_from_s: float | None
    notes: tuple[str, ...] = ()


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        raise ValueError("a number of ordinary size") from None


Number: TypeAlias = Annotated[float, Converted(float, _float)]
Count: TypeAlias = Annotated[int, at_least(0)]


class ProjectPlace(NamedTuple):
    """A directory of the host that code sees.

    Attributes:
        mount_point: its path in the session; None for the same one.
        mode: how code sees it; None for the configured way.
        chosen: a person named it; a live session with another project is refused then.
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
) -> RunResult:
    """Run code in a session, or in a fresh jail. With `stream`, events `output {stream, text,
    skipped?}` come before the answer; with `stdin`, an event `stdin {session, execution_id}`.
    `argv` has the path of the file that the code is from, and arguments for it.
    """
    ...


@operation("manage", recorded=None)
def run_in(target: str, options: OptionFields, code: str) -> RunResult:
    """Run code in a live session of any scope."""
    ...


@operation("manage", own=True)
def undo(
    target: str,
    options: OptionFields,
    calls: Annotated[int, at_least(1, "a number of calls")] = 1,
) -> RunResult:
    """Take back the last calls of a session; `exit_code` is 1 if nothing was undone."""
    ...


@operation("manage", own=True, recorded=None)
def run_write(
    target: str,
    execution_id: str,
    *,
    offset: Count = 0,
    data: Data = b"",
    eof: bool = False,
    broken: bool = False,
) -> dict[str, Any]:
    """Write input of code: `{offset, open}`, how much was taken so far, and whether more is taken.
    `broken` says that the client cannot read the rest; the code is interrupted.
    """
    ...


@operation("run")
def result(execution_id: str) -> RunResult:
    """Return the result of an execution; waits while the code runs."""
    ...


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
) -> OpenedSession:
    """Make a session. `memory_mb` and `idle_s` may be less than what is configured, not more;
    there are at most 16 `labels`. With `ends_with_client` it ends when this connection closes.
    """
    ...


@operation("manage", own=True)
def session_keep(target: str, *, ends_with_client: bool = False) -> dict[str, Any]:
    """Let a session outlive this connection, or end with it (`ends_with_client`): `{id}`."""
    ...


@operation("manage", own=True)
def session_fork(
    target: str,
    names: tuple[str, ...] = (),
    count: Count | None = None,
    *,
    execution_id: str = "",
    again: bool = False,
) -> ForkReport:
    """Copy a running Python or Bash session; it is `fork-refused` if that cannot be done."""
    ...


@operation("read", own=True)
def find(target: str) -> dict[str, Any]:
    """Find a session: `{id, name, scope, project, elsewhere}`. `elsewhere` is true if it has
    another project and only its name matched.
    """
    ...


@operation("read", own=True)
def sessions(*, all: bool = False, stream: bool = False) -> dict[str, Any]:  # noqa: A002
    """List sessions: `{sessions: [SessionRow]}`, with `all` also `ended: [EndedRow]`. With
    `stream`, the rows come before the answer, in events `sessions {sessions}`: one frame has room
    for 6,700 rows.
    """
    ...


@operation("manage", own=True, recorded=("targets", "idle_s", "all", "labels"))
def kill(
    targets: tuple[str, ...] = (),
    *,
    idle_s: Number | None = None,
    all: bool = False,  # noqa: A002  # on the wire
    labels: Labels = {},  # noqa: B006  # nobody changes it
) -> KillReport:
    """End sessions: one of `targets`, those idle for `idle_s`, `all`, or those with all `labels`.
    Forks end with their originals.
    """
    ...


@operation("manage", own=True, recorded=("target",))
def interrupt(target: str, execution_id: str | None = None) -> dict[str, Any]:
    """Interrupt what runs in a session: `{interrupted, session}`."""
    ...


@operation("manage", recorded=None)
def logs(target: str, *, executions: Count | None = None, follow: bool = False) -> dict[str, Any]:
    """Show a transcript in events, then `{id, name, state, end_reason, executions}`."""
    ...


@operation("manage", recorded=None)
def complete(target: str, code: str, cursor: Count) -> Completions:
    """Complete code; positions count characters."""
    ...


@operation("manage", recorded=None)
def check(target: str, code: str) -> Check:
    """Say whether code is complete; always `unknown` but for Node."""
    ...


class Language(NamedTuple):
    """A language, by the name of the interpreter that runs it.

    Attributes:
        spoken: other names that people and models say.
        programs: names of interpreters, as first lines have them (``#!/usr/bin/env python3``).
        suffixes: suffixes of files.
    """

    name: str
    spoken: tuple[str, ...]
    programs: tuple[str, ...]
    suffixes: tuple[str, ...]


LANGUAGES = (
    Language("python", ("py", "python3"), ("python",), (".py",)),
    Language("bash", ("sh", "shell", "zsh"), ("bash", "sh"), (".sh", ".bash")),
    Language(
        "node",
        ("js", "javascript", "mjs", "nodejs", "ts", "typescript"),
        ("node", "nodejs"),
        (".js", ".mjs", ".cjs", ".ts", ".mts", ".cts"),
    ),
)

SPOKEN = {name: language.name for language in LANGUAGES for name in language.spoken}
"""Interpreters by other names of their languages."""


def of_program(program: str) -> str:
    """The language that an interpreter of this name runs; empty if none is known."""
    name = program.rstrip("0123456789.")
    return next((each.name for each in LANGUAGES if name in each.programs), "")


def of_suffix(suffix: str) -> str:
    """The language of files with this suffix, such as ``.py``; empty if none is known."""
    return next((each.name for each in LANGUAGES if suffix in each.suffixes), "")
