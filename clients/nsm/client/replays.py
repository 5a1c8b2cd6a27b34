"""``client.replay(...)`` as steps, which both clients carry out.

A replay has a new session. What that may see and reach depends on where the transcript comes from:
a session of the supervisor lends its project and network, a file lends nothing (`_Rules`).
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from nsm.client.places import DEFAULT, checked_code, place_of
from nsm.client.steps import ask
from nsm.transcripts.comparison import Difference, compare
from nsm.wire.code import RunOptions, kill, run, session_open
from nsm.wire.environments import envs
from nsm.wire.errors import BadRequestError, NsmError, UnknownSessionError
from nsm.wire.inspection import inspect
from nsm.wire.transcripts import OWN_CODE
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeAlias

    from nsm.client.places import Project, ProjectArgument, ProjectCalls
    from nsm.client.steps import Steps
    from nsm.transcripts.document import RecordedExecution, SessionTranscript
    from nsm.wire.code import RunResult
    from nsm.wire.inspection import Inspection
    from nsm.wire.operation import OperationCall
    from nsm.wire.sessions import OpenedSession
    from nsm.wire.transcripts import ExecutionEnd, ExecutionStart

    OnReplayed: TypeAlias = Callable[["ReplayedExecution"], object]

IDLE_S = 60.0
"""Seconds after which the session of a replay ends if its client does not end it."""

SAME, DIFFERS, NOT_COMPARED, SKIPPED = "same", "differs", "not-compared", "skipped"

_UNDO = re.compile(r"# undo the last (?:call|(\d{1,9}) calls)")
"""Code that a transcript has for an undo."""

SHORTEST_LIMIT_S = 0.05
"""Least time for code that was stopped when it was recorded, seconds."""


class ReplaySettings(TypedDict, total=False):
    """Settings of a replay; `nsm.Client.replay` describes them."""

    env: str | None
    until: int | None
    name: str | None
    keep: bool
    project: ProjectArgument
    project_mode: str | None
    network: str | None


class ReplayedExecution(NamedTuple):
    """One execution that was replayed.

    Attributes:
        number: its number in the transcript.
        status: ``same``, ``differs``, ``not-compared`` or ``skipped``.
        why: why it was skipped or not compared, or a remark on the difference; or empty.
        differences: in what it differs.
        code: its code.
    """

    number: int
    status: str
    why: str
    differences: tuple[Difference, ...]
    code: str


class ReplayReport(NamedTuple):
    """Outcome of a replay.

    Attributes:
        session: id of the new session; `name`: its name.
        kept: the new session is still there.
        interrupted: somebody stopped the replay before its end.
        incomplete: number of executions that could not be run, since the transcript lacks part of
            their code.
        same, differs, not_compared, skipped: numbers of executions.
    """

    session: str
    name: str
    env: str
    kept: bool
    interrupted: bool
    incomplete: int
    same: int
    differs: int
    not_compared: int
    skipped: int

    @property
    def agrees(self) -> bool:
        """True if all ran to the same results."""
        return not (self.differs or self.incomplete or self.interrupted)


class _Rules(NamedTuple):
    """Rules of a new session: what it may see and reach."""

    project: ProjectArgument
    mount_point: str | None
    project_mode: str | None
    network: str | None


def replay(
    calls: ProjectCalls,
    transcript: SessionTranscript,
    settings: ReplaySettings,
    *,
    inherit: Iterable[str],
    on_replayed: OnReplayed | None,
) -> Steps[ReplayReport]:
    """Replay a transcript."""
    _check(transcript, settings.get("until"))
    env = yield from _environment(transcript, settings.get("env"))
    rules = yield from _rules(transcript, settings)
    kept = settings.get("keep", False) or settings.get("name") is not None

    def call(project: Project) -> OperationCall[OpenedSession]:
        place = place_of(
            project,
            env=env,
            session=settings.get("name"),
            mount_point=rules.mount_point,
            project_mode=rules.project_mode,
            network=rules.network,
            inherit=inherit,
        )
        return session_open(place, RunOptions(), idle_s=None if kept else IDLE_S)

    opened = yield from calls.in_project(rules.project, rules.project_mode, call)
    going = _Replay(calls, opened, rules)
    done = False
    try:
        yield from going.carry_out(transcript, settings.get("until"), on_replayed)
        done = not going.interrupted
    finally:
        kept = kept and (done or settings.get("name") is not None)
        if not kept:
            with suppress(NsmError):  # it may be gone already
                yield from ask(kill((opened.id,)))
    return going.report(kept=kept)


def _check(transcript: SessionTranscript, until: int | None) -> None:
    """Check that there is something to replay.

    Raises:
        BadRequestError: there is nothing.
    """
    numbers = [execution.start.number for execution in transcript.executions]
    if not numbers:
        raise BadRequestError("The transcript has no executions, so there is nothing to replay.")
    if until is not None and until < numbers[0]:
        raise BadRequestError(
            f"The transcript begins with execution {numbers[0]}; there is none to stop after at "
            f"{until}."
        )


def _environment(transcript: SessionTranscript, wanted: str | None) -> Steps[str]:
    """Choose the environment. A file chooses none but those that have nothing of this user's.

    Raises:
        BadRequestError: it would have to, or the environment is of another interpreter.
    """
    session = transcript.session
    name = wanted or session.env
    rows = yield from ask(envs())
    row = next((row for row in rows if name in (row.name, *row.aliases)), None)
    if wanted is None and transcript.from_file and (row is None or row.source != "preset"):
        raise BadRequestError(
            f"The transcript was made in the environment {name!r}. A file does not choose an "
            "environment that you have set up, since that may have variables of yours.",
            hint="Name the environment: `--env`, or `env` in Python.",
        )
    if row is not None and row.interpreter not in ("", session.interpreter):
        raise BadRequestError(
            f"The transcript is of {session.interpreter}, and the environment {name!r} runs "
            f"{row.interpreter}.",
            hint="`nsm env` lists the environments.",
        )
    return name


def _rules(transcript: SessionTranscript, settings: ReplaySettings) -> Steps[_Rules]:
    """Find what the new session may see and reach: what was asked for, else the same as the
    recorded session if that still lives.
    """
    project = settings.get("project", DEFAULT)
    mode, network = settings.get("project_mode"), settings.get("network")
    mount_point = None
    if not transcript.from_file:
        with suppress(UnknownSessionError):
            seen = yield from ask(inspect(transcript.session.id))
            if seen.policy is not None and seen.session.state != "ended":
                shown = _shown_project(seen)
                if project is DEFAULT:
                    project = seen.session.project
                    if shown is not None:
                        mount_point = str(shown["path"])
                        mode = mode or ("overlay" if shown["mode"] == "cow" else "readonly")
                network = network or _network(seen)
    return _Rules(project, mount_point, mode, network or "off")


def _shown_project(seen: Inspection) -> dict[str, Any] | None:
    mounts: list[dict[str, Any]] = (seen.policy or {}).get("mounts", [])
    source = seen.session.project
    return next((each for each in mounts if source and each.get("source") == source), None)


def _network(seen: Inspection) -> str:
    now = seen.network or {}
    mode = str(now.get("mode", "off"))
    return ",".join(now.get("allow", [])) or "off" if mode == "allow" else mode


class _Replay:
    """Executions of one transcript, one after another in a new session."""

    def __init__(self, calls: ProjectCalls, opened: OpenedSession, rules: _Rules) -> None:
        self._calls = calls
        self._opened = opened
        self._rules = rules
        self._counts: dict[str, int] = dict.fromkeys((SAME, DIFFERS, NOT_COMPARED, SKIPPED), 0)
        self._incomplete = 0
        self.interrupted = False

    def carry_out(
        self, transcript: SessionTranscript, until: int | None, on_replayed: OnReplayed | None
    ) -> Steps[None]:
        """Run all, up to the one with the number `until`."""
        undone = undone_in(
            each for each in transcript.executions if until is None or each.start.number <= until
        )
        for recorded in transcript.executions:
            if until is not None and recorded.start.number > until:
                return
            replayed = yield from self._replay(recorded, undone.get(recorded.start.number, ""))
            if replayed is None:
                self.interrupted = True
                return
            self._counts[replayed.status] += 1
            if on_replayed is not None:
                on_replayed(replayed)

    def report(self, *, kept: bool) -> ReplayReport:
        """Return the outcome."""
        return ReplayReport(
            session=self._opened.id,
            name=self._opened.name,
            env=self._opened.env,
            kept=kept,
            interrupted=self.interrupted,
            incomplete=self._incomplete,
            same=self._counts[SAME],
            differs=self._counts[DIFFERS],
            not_compared=self._counts[NOT_COMPARED],
            skipped=self._counts[SKIPPED],
        )

    def _replay(self, recorded: RecordedExecution, undone: str) -> Steps[ReplayedExecution | None]:
        """Replay one; None if it was interrupted now and not then."""
        start, end = recorded.start, recorded.end
        done = partial(_replayed, start)
        if (why := undone or _why_skipped(recorded)) or end is None:
            self._incomplete += bool(start.code_omitted)
            return done(SKIPPED, why)
        result = yield from self._run(start, _limit_s(end))
        if end.interrupted:
            why = f"it was interrupted after {end.duration_s:.1f} s; here it ran as long at most"
            return done(NOT_COMPARED, why)
        if result.interrupted:
            return None
        # How far code gets until its time is up differs from run to run.
        output = not (end.timed_out and result.timed_out)
        differences = compare(recorded, result, output=output)
        if not differences:
            return done(SAME, "")
        why = "it had standard input, which is not in the transcript" if start.stdin else ""
        return done(DIFFERS, why, differences)

    def _run(self, start: ExecutionStart, limit_s: float | None) -> Steps[RunResult]:
        rules = self._rules

        def call(project: Project) -> OperationCall[RunResult]:
            place = place_of(
                project,
                env=self._opened.env,
                session=self._opened.name,
                mount_point=rules.mount_point,
                project_mode=rules.project_mode,
                must_exist=True,
            )
            code = checked_code(start.code)
            return run(place, RunOptions(limit_s), code, reset=start.reset, argv=start.argv)

        steps = self._calls.in_project(rules.project, rules.project_mode, call, interruptible=True)
        return (yield from steps)


def undone_in(executions: Iterable[RecordedExecution]) -> dict[int, str]:
    """Return why executions that were undone are not run again, by number."""
    undone: dict[int, str] = {}
    standing: list[int] = []
    for each in executions:
        number, asked = each.start.number, _UNDO.fullmatch(each.start.code)
        if asked is None or each.end is None:
            standing.append(number)
            continue
        if each.end.exit_code:
            undone[number] = "it was an undo, and nothing was undone"
            continue
        for taken in standing[-int(asked[1] or 1) :]:
            undone[taken] = f"[{number}] took it back"
        del standing[-int(asked[1] or 1) :]
        undone[number] = "what it took back is not run again"
    return undone


def _why_skipped(recorded: RecordedExecution) -> str:
    """Return why an execution is not run again, or empty."""
    start, end = recorded.start, recorded.end
    if end is None:
        return "it had not ended"
    if end.error is not None:
        return f"it had no result: {end.error.message}"
    if end.interrupted and not end.duration_s:
        return "it was interrupted before it began"
    if start.code.startswith(OWN_CODE):
        return "nsm's own code saved or restored the session"
    if start.code_omitted:
        return f"the transcript lacks {start.code_omitted:,} characters of its code"
    if start.argv_omitted:
        return f"the transcript lacks {start.argv_omitted:,} of its arguments"
    return ""


def _limit_s(end: ExecutionEnd) -> float | None:
    """Time limit of code that was stopped: the time that it had."""
    if end.timed_out or end.interrupted:
        return max(round(end.duration_s, 1), SHORTEST_LIMIT_S)
    return None


def _replayed(
    start: ExecutionStart,
    status: str,
    why: str,
    differences: tuple[Difference, ...] = (),
) -> ReplayedExecution:
    return ReplayedExecution(start.number, status, why, differences, start.code)
