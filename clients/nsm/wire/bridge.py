"""Programs of the bridge, as the operations `bridge_...` answer. Few programs ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nsm.wire.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


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
    env: tuple[str, ...]
    source: str | None
    unset: tuple[str, ...] = ()

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check one row of the answer to `bridge_programs`."""
        row = Fields(wire, "a program of the bridge")
        return cls(
            name=row.text("name"),
            description=row.text("description"),
            timeout_s=row.number("timeout_s"),
            max_args=row.optional("max_args", row.integer),
            allow_options=row.flag("allow_options"),
            command=row.optional("command", row.text),
            cwd=row.optional("cwd", row.text),
            env=row.optional("env", row.texts) or (),
            source=row.optional("source", row.text),
            unset=row.optional("unset", row.texts) or (),
        )


class ProgramProblem(NamedTuple):
    """Why a definition file describes no program.

    Attributes:
        source: absolute path of the file.
        line: in it, from 1; None where no line is at fault.
        reason: what was found, and what was expected.
        name: of the program that is missing for it, where that is known.
    """

    source: str
    line: int | None
    reason: str
    name: str | None

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check one of the answer's problems."""
        row = Fields(wire, "a problem of the bridge")
        return cls(
            source=row.text("source"),
            line=row.optional("line", row.integer),
            reason=row.text("reason"),
            name=row.optional("name", row.text),
        )


class ProgramsReport(NamedTuple):
    """Programs that a client may start.

    Attributes:
        enabled: whether there is a bridge: ``[bridge] enabled``.
        programs: sorted by name.
        problems: files that describe none; empty for who may only start programs.
    """

    enabled: bool
    programs: tuple[ProgramRow, ...]
    problems: tuple[ProgramProblem, ...]

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `bridge_programs`."""
        report = Fields(wire, "the programs of the bridge")
        return cls(
            enabled=report.flag("enabled"),
            programs=tuple(ProgramRow.from_wire(row) for row in report.maps("programs")),
            problems=tuple(ProgramProblem.from_wire(row) for row in report.maps("problems")),
        )

    def to_plain(self) -> dict[str, Any]:
        """As plain values, e.g. for JSON."""
        return {
            "enabled": self.enabled,
            "programs": [row._asdict() for row in self.programs],
            "problems": [row._asdict() for row in self.problems],
        }


class ProgramHelp(NamedTuple):
    """A program's documentation.

    Attributes:
        documentation: the body of its definition file, Markdown.
    """

    program: ProgramRow
    documentation: str

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `bridge_help`."""
        fields = Fields(wire, "a program's documentation")
        return cls(ProgramRow.from_wire(fields.map("program")), fields.text("documentation"))

    def to_plain(self) -> dict[str, Any]:
        """As plain values, e.g. for JSON."""
        return {"program": self.program._asdict(), "documentation": self.documentation}


class ProgramResult(NamedTuple):
    """Outcome of a program that was started. Times in seconds.

    Attributes:
        call_id: of the call, in `nsm bridge audit` as well.
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

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `bridge_run`."""
        run = Fields(wire, "a program's result")
        return cls(
            call_id=run.text("call_id"),
            program=run.text("program"),
            exit_code=run.optional("exit_code", run.integer),
            signal=run.optional("signal", run.integer),
            why_stopped=run.optional("why_stopped", run.text),
            stdout=run.text("stdout"),
            stderr=run.text("stderr"),
            stdout_omitted=run.integer("stdout_omitted"),
            stderr_omitted=run.integer("stderr_omitted"),
            duration_s=run.number("duration_s"),
            timeout_s=run.number("timeout_s"),
            left=run.integer("left"),
        )


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

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any] | None) -> Self | None:
        """Check that part of a supervisor's status; None where an older one does not tell."""
        if wire is None:
            return None
        bridge = Fields(wire, "the status of the bridge")
        return cls(
            enabled=bridge.flag("enabled"),
            programs=bridge.integer("programs"),
            wrong=bridge.integer("wrong"),
            running=bridge.integer("running"),
            audit=bridge.text("audit"),
            problem=bridge.text("problem"),
        )
