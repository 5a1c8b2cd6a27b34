"""Programs of the bridge, as the operations `bridge_...` answer. Few programs ask."""

from typing import NamedTuple

from nsm.wire.operation import operation


class ProgramRow(NamedTuple):
    """One program that may be started.

    Attributes:
        timeout_s: seconds until it is stopped.
        max_args: how many arguments it takes at most; None for what there is room for.
        allow_options: arguments may begin with a hyphen.
        command: absolute path of it; None for who may only start it, as the rest.
        cwd: absolute directory that it works in; None for HOME.
        env: names of the variables of the supervisor that it has.
        source: absolute path of the file that describes it.
        unset: those of `env` that the supervisor does not have.
    """

    name: str
    description: str
    timeout_s: float
    max_args: int | None
    allow_options: bool
    command: str | None
    cwd: str | None
    env: tuple[str, ...] = ()
    source: str | None = None
    unset: tuple[str, ...] = ()


class ProgramProblem(NamedTuple):
    """Why a definition file describes no program.

    Attributes:
        source: absolute path of the file.
        line: in it, from 1; None where no line is at fault.
        reason: what was found, and what was expected.
        name: name of the program that is missing because of it, if known.
    """

    source: str
    line: int | None
    reason: str
    name: str | None


class ProgramsReport(NamedTuple):
    """Programs that a client may start.

    Attributes:
        enabled: the bridge is on (``[bridge] enabled``).
        programs: sorted by name.
        problems: files that describe none; empty for who may only start programs.
    """

    enabled: bool
    programs: tuple[ProgramRow, ...]
    problems: tuple[ProgramProblem, ...]


class ProgramHelp(NamedTuple):
    """A program's documentation.

    Attributes:
        documentation: the body of its definition file, Markdown.
    """

    program: ProgramRow
    documentation: str


class ProgramResult(NamedTuple):
    """Outcome of a program that was started. Times in seconds.

    Attributes:
        call_id: id of the call, also in `nsm bridge audit`.
        exit_code: None where a signal ended it.
        signal: number of that; None where none did.
        why_stopped: ``timeout``, ``cancelled`` or ``shutdown`` where nsm stopped it; None where it
            ended by itself.
        stdout, stderr: all that it wrote, or head and tail of that.
        stdout_omitted, stderr_omitted: bytes that these leave out.
        timeout_s: the limit that held.
        left: processes that it left behind, which go on.
    """

    call_id: str
    program: str
    exit_code: int | None
    signal: int | None
    why_stopped: str | None
    stdout: str
    stderr: str
    stdout_omitted: int
    stderr_omitted: int
    duration_s: float
    timeout_s: float
    left: int

    @property
    def succeeded(self) -> bool:
        """True if it ended by itself with exit code 0."""
        return self.exit_code == 0 and self.why_stopped is None


class BridgeStatus(NamedTuple):
    """The bridge to programs of the host.

    Attributes:
        enabled: there is one.
        programs: how many there are.
        wrong: how many files describe none, see `nsm bridge check`.
        running: calls that are under way.
        audit: path of the file that they are written down in.
        problem: why that can't be written now, and nothing starts; empty where it can.
    """

    enabled: bool
    programs: int
    wrong: int
    running: int
    audit: str
    problem: str


@operation("bridge")
def bridge_programs() -> ProgramsReport: ...
@operation("bridge")
def bridge_help(program: object = None) -> ProgramHelp: ...
@operation("bridge")
def bridge_run(
    program: object = None,
    arguments: object = None,
    *,
    call_id: object = None,
    again: object = None,
    stream: object = None,
) -> ProgramResult: ...
