"""nsm: jailed, pre-warmed Python, Bash and Node sessions, kept by one supervisor per user.

Example::

    import nsm

    with nsm.Client() as client:
        print(client.run("print(6 * 7)", env="python").stdout)

The package:

    client/         the clients: blocking, async, and a sandbox for threads
    wire/           the control protocol, without I/O
    transcripts/    transcripts as values: files, comparison, notebooks
    hosts/          sessions on other machines, over OpenSSH
    startup/        connect to a supervisor; start one where none listens
    shim/           `nsm-mcp`, the pipe between an MCP client and the supervisor
    cli/            the command `nsm`
    jail/           parts of jails that sessions and boxes have in common
    changes.py      `Changes`: what sessions have changed in projects that are copied on write
    setup/          `nsm setup`: nsm in the files of coding agents
    saves/          `Saves`: what is in a session, in a file, and a session made of it
    http/           a small HTTP server, of the supervisor too
    integrations/   adapters for agent frameworks, and `nsm e2b serve`
    autorun/        files that make the host run something, for boxes and `nsm apply`
    below.py        files below a directory with untrusted content
    git.py          git, run as the user on repositories that others may have written
    paths.py        where the socket, state and configuration are
    shortage.py     errors of a machine that is short of something for a moment
    checks.py       rows of `nsm doctor` and of `nsm box --check`
    dataclass.py    `dataclass` that costs little while modules are imported
    jsonlines.py    lines of JSON-RPC: bytes in, lines out
    _version.py     version of the distribution, and of the program with its commit

Public are the names below, `nsm.changes`, `nsm.saves`, `nsm.paths` and `nsm.wire`; `nsmbox` and the
integrations use a few more (tests/structure/test_imports.py has the lists).

Everything below is loaded when it is first used: the shim and `nsm ps` start in the time that
importing the rest would take.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` itself takes 8 ms to import; checkers know this name
if TYPE_CHECKING:
    from nsm._version import __version__
    from nsm.client.asynchronous import AsyncClient
    from nsm.client.blocking import Client
    from nsm.client.environments import PackageArguments
    from nsm.client.fresh import AsyncFreshMap, FreshMap
    from nsm.client.jobs import AsyncJob, Job, JobResult, ProgramSettings
    from nsm.client.places import RunSettings
    from nsm.client.replays import ReplayedExecution, ReplayReport
    from nsm.client.sandbox import AsyncSandbox, Sandbox, SandboxSettings
    from nsm.client.session_files import AsyncChangeWatch, AsyncSessionFiles
    from nsm.client.shared_sandbox import CommandResult, SharedSandbox
    from nsm.transcripts.document import SessionTranscript, read_transcript
    from nsm.wire.code import RunResult
    from nsm.wire.environments import EnvironmentRow
    from nsm.wire.errors import NotRunningError, NsmError
    from nsm.wire.files import (
        Directory,
        FileEntry,
        FileEvent,
        FileEvents,
        FileInfo,
        Skipped,
        TreeReport,
    )
    from nsm.wire.fresh import FreshProgram, FreshResult
    from nsm.wire.host import PortRow, ProgramHelp, ProgramResult, ProgramRow, ProgramsReport
    from nsm.wire.inspection import Inspection, NetworkDecision, NetworkReport
    from nsm.wire.jobs import JobChunk, JobInfo, JobOutput
    from nsm.wire.sessions import Check, Completions, KillReport, SessionRow
    from nsm.wire.status import Status
    from nsm.wire.telemetry import PoolReport
    from nsm.wire.transcripts import (
        EndedRow,
        ExecutionEnd,
        ExecutionStart,
        FreshRun,
        JobEnd,
        JobStart,
        LogEnd,
        OutputPiece,
        SessionStart,
    )

__all__ = [
    "AsyncChangeWatch",
    "AsyncClient",
    "AsyncFreshMap",
    "AsyncJob",
    "AsyncSandbox",
    "AsyncSessionFiles",
    "Check",
    "Client",
    "CommandResult",
    "Completions",
    "Directory",
    "EndedRow",
    "EnvironmentRow",
    "ExecutionEnd",
    "ExecutionStart",
    "FileEntry",
    "FileEvent",
    "FileEvents",
    "FileInfo",
    "FreshMap",
    "FreshProgram",
    "FreshResult",
    "FreshRun",
    "Inspection",
    "Job",
    "JobChunk",
    "JobEnd",
    "JobInfo",
    "JobOutput",
    "JobResult",
    "JobStart",
    "KillReport",
    "LogEnd",
    "NetworkDecision",
    "NetworkReport",
    "NotRunningError",
    "NsmError",
    "OutputPiece",
    "PackageArguments",
    "PoolReport",
    "PortRow",
    "ProgramHelp",
    "ProgramResult",
    "ProgramRow",
    "ProgramSettings",
    "ProgramsReport",
    "ReplayReport",
    "ReplayedExecution",
    "RunResult",
    "RunSettings",
    "Sandbox",
    "SandboxSettings",
    "SessionRow",
    "SessionStart",
    "SessionTranscript",
    "SharedSandbox",
    "Skipped",
    "Status",
    "TreeReport",
    "__version__",
    "read_transcript",
]


def __getattr__(name: str) -> object:
    match name:
        case "Client":
            module = "nsm.client.blocking"
        case "AsyncClient":
            module = "nsm.client.asynchronous"
        case "NsmError" | "NotRunningError":
            module = "nsm.wire.errors"
        case "RunResult":
            module = "nsm.wire.code"
        case "KillReport" | "SessionRow":
            module = "nsm.wire.sessions"
        case "EnvironmentRow":
            module = "nsm.wire.environments"
        case "Status":
            module = "nsm.wire.status"
        case "AsyncSandbox" | "Sandbox" | "SandboxSettings":
            module = "nsm.client.sandbox"
        case "AsyncChangeWatch" | "AsyncSessionFiles":
            module = "nsm.client.session_files"
        case "PackageArguments":
            module = "nsm.client.environments"
        case "RunSettings":
            module = "nsm.client.places"
        case "AsyncJob" | "Job" | "JobResult" | "ProgramSettings":
            module = "nsm.client.jobs"
        case "ReplayedExecution" | "ReplayReport":
            module = "nsm.client.replays"
        case "CommandResult" | "SharedSandbox":
            module = "nsm.client.shared_sandbox"
        case "SessionTranscript" | "read_transcript":
            module = "nsm.transcripts.document"
        case "JobChunk" | "JobInfo" | "JobOutput":
            module = "nsm.wire.jobs"
        case "Inspection":
            module = "nsm.wire.inspection"
        case "NetworkDecision" | "NetworkReport":
            module = "nsm.wire.inspection"
        case "PortRow":
            module = "nsm.wire.host"
        case "ProgramHelp" | "ProgramResult" | "ProgramRow" | "ProgramsReport":
            module = "nsm.wire.host"
        case "PoolReport":
            module = "nsm.wire.telemetry"
        case "Check" | "Completions":
            module = "nsm.wire.sessions"
        case (
            "Directory"
            | "FileEntry"
            | "FileEvent"
            | "FileEvents"
            | "FileInfo"
            | "Skipped"
            | "TreeReport"
        ):
            module = "nsm.wire.files"
        case (
            "EndedRow"
            | "ExecutionEnd"
            | "ExecutionStart"
            | "FreshRun"
            | "JobEnd"
            | "JobStart"
            | "LogEnd"
            | "OutputPiece"
            | "SessionStart"
        ):
            module = "nsm.wire.transcripts"
        case "FreshProgram" | "FreshResult":
            module = "nsm.wire.fresh"
        case "AsyncFreshMap" | "FreshMap":
            module = "nsm.client.fresh"
        case "__version__":
            module = "nsm._version"
        case _:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
    import importlib  # noqa: PLC0415  # see above

    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return __all__
