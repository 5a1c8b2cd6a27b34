"""Events of the supervisor as lines of the audit log.

An execution is one line, written when it ended. A long one also has a line at its beginning, so
that no end of the supervisor hides it. Other operations of people and programs have a line if they
change something.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from nsm.wire.fresh import NOT_RUN
from nsmd.agent_link.frames import JobFacts
from nsmd.audit.journal import Journal, Make, line_of
from nsmd.model.events import EventKind, SupervisorEvent
from nsmd.model.settings import AuditSettings
from nsmd.model.values import ClientIdentity, RunOutcome
from nsmd.sessions.execution import Execution, word_of
from nsmd.sessions.fresh import ClientPrograms, FreshOutcome
from nsmd.sessions.session import Session

MAX_LISTED = 50
"""Largest number of items of a list among an operation's arguments."""

PASSED_ON: frozenset[EventKind] = frozenset(
    (
        "memory_pressure",
        "configuration_reloaded",
        "draining",
        "restarted",
        "box_opened",
        "box_ended",
        "port_opened",
        "port_closed",
        "secret_granted",
        "secret_used",
        "secret_refused",
        "secret_revoked",
    )
)
"""Events that are recorded with all their facts."""

RECORDED: frozenset[EventKind] = frozenset(
    (
        *PASSED_ON,
        "execution_started",
        "execution_finished",
        "job_started",
        "job_ended",
        "fresh_finished",
        "session_claimed",
        "session_ended",
        "session_taken_up",
        "operation",
    )
)
"""Events that a recorder listens to."""

_MAX_BEGUN = 100_000


class Recorder:
    """A listener of events, which puts them into a journal."""

    def __init__(self, journal: Journal, settings: AuditSettings) -> None:
        self.journal = journal
        self._settings = settings
        self._begun: dict[Execution, tuple[float, str]] = {}
        self._untold: set[Execution] = set()
        journal.gather = self._take_untold

    def __repr__(self) -> str:
        return f"<Recorder of {self.journal!r}, {len(self._begun)} executions run>"

    def configure(self, settings: AuditSettings) -> None:
        """Use other settings from now on."""
        self._settings = settings
        file = self.journal.file
        file.max_bytes, file.keep = settings.max_mb << 20, settings.keep

    def facts(self) -> dict[str, Any]:
        """Facts for `nsm status`."""
        journal = self.journal
        return {
            "enabled": self._settings.enabled,
            "path": journal.file.path,
            "written": journal.written,
            "dropped": journal.dropped,
            "problem": journal.problem,
        }

    def __call__(self, event: SupervisorEvent) -> None:
        if not self._settings.enabled:
            return
        subject: Any = event.subject
        match event.kind:
            case "execution_started":
                if len(self._begun) < _MAX_BEGUN:
                    # Long requests lose their code with the answer.
                    self._begun[subject] = self.journal.wall(), subject.request.code
                    self._untold.add(subject)
                    self.journal.wake()
            case "execution_finished":
                self._execution_finished(subject)
            case "job_started":
                session, started = subject
                facts = _job_facts(session, started.job) | _client_facts(started.client)
                self.say("job_started", facts, started.command)
            case "job_ended":
                session, job = subject
                self.say("job_ended", {**_job_facts(session, job), **_job_outcome(job)})
            case "fresh_finished":
                self._fresh_finished(*subject)
            case "session_claimed":
                if not subject.taken_up:  # else it was recorded when it began
                    self._session_started(subject)
            case "session_ended":
                self._session_ended(subject)
            case "session_taken_up":
                facts = {**_session_facts(subject), "restarts": subject.taken_up}
                self.say("session_taken_up", facts)
            case "operation":
                self._operation(event)
            case kind if kind in PASSED_ON:
                self.say(kind, _filled({"session": event.session, **event.facts}))
            case _:
                pass

    def say(self, event: str, facts: Mapping[str, Any], code: str | None = None) -> None:
        """Add a line with the present time. `code` is executed code, if it is still known."""
        if self._settings.enabled:
            facts = {"event": event, **facts}
            make = partial(_line_with, self.journal.wall(), facts, code, self._settings.code)
            self.journal.put(make, len(code or ""))

    # Executions.

    def _take_untold(self) -> Iterator[Make]:
        untold, self._untold = self._untold, set()
        for execution in untold:
            begun_s, code = self._begun[execution]
            facts = {"event": "execution_started", **_execution_facts(execution)}
            yield partial(_line_with, begun_s, facts, code, self._settings.code)

    def _execution_finished(self, execution: Execution) -> None:
        answer, began = execution.answer, execution.sent_s is not None
        own = execution.request.client.peer is not None  # else an earlier supervisor recorded it
        # Only the agent knows the code that an earlier one sent, and nobody has checked that: the
        # line of the beginning has the hash.
        known = execution.request.code or None if own else None
        begun_s, code = self._begun.pop(execution, (None, known))
        self._untold.discard(execution)
        facts = _execution_facts(execution)
        facts["outcome"] = execution.outcome
        if not began and execution.outcome in ("interrupted", "lost"):
            facts["outcome"] = "not-run"
        if isinstance(answer, RunOutcome):
            facts["exit_code"] = answer.outcome.exit_code
            facts["duration_s"] = round(answer.outcome.duration_s, 6)
            if answer.limit_events:
                facts["limits"] = [event.kind for event in answer.limit_events]
        elif answer is not None:
            facts["error"], facts["why"] = answer.code, answer.message
        if not own and execution.session.taken_up:
            facts["taken_up"] = True
        if begun_s is not None:
            facts["elapsed_s"] = round(self.journal.wall() - begun_s, 6)
        self.say("execution", facts, code)

    def _fresh_finished(self, run: ClientPrograms, results: Sequence[FreshOutcome]) -> None:
        common = {**_session_facts(run.session), **_client_facts(run.client)}
        for program, outcome, error, _ in results:
            facts: dict[str, Any] = {
                **common,
                "outcome": word_of(outcome),
                "exit_code": outcome.exit_code,
                "duration_s": round(outcome.duration_s, 6),
            }
            if error:
                facts |= {
                    "outcome": "not-run" if outcome.exit_code == NOT_RUN else "lost",
                    "why": error,
                }
            self.say("fresh", facts, program.program.code)

    # Other events.

    def _session_started(self, session: Session) -> None:
        project, rule = session.spec.project, session.network.rule
        self.say(
            "session_started",
            {
                **_session_facts(session),
                **_filled(
                    {
                        "project": project.path if project is not None else None,
                        "project_mode": project.mode if project is not None else None,
                        "network": rule.mode,
                        "allow": list(rule.allow),
                    }
                ),
            },
        )

    def _session_ended(self, session: Session) -> None:
        if session.tenancy is None:  # a spare that nobody took
            return
        counts = {"executions": session.runs.count, "programs": session.transcript.programs}
        facts = {**_session_facts(session), "reason": session.end_reason, **counts}
        self.say("session_ended", facts)

    def _operation(self, event: SupervisorEvent) -> None:
        facts = dict(event.facts)
        name, client = facts.pop("op"), cast("ClientIdentity", event.subject)
        arguments = cast("Mapping[str, Any]", facts.pop("arguments"))
        if name == "net" and arguments.get("action", "list") == "list":
            return
        told = {key: _shown(value) for key, value in arguments.items()}
        self.say(
            "operation", {"operation": name, **_client_facts(client), "arguments": told, **facts}
        )


def _line_with(at_s: float, facts: Mapping[str, Any], code: str | None, whole: bool) -> bytes:
    """Make a line with the hash of code, in the thread that writes it; and with the code itself if
    `whole`.
    """
    if code is None:
        return line_of(at_s, facts)
    data = code.encode("utf-8", "surrogatepass")
    about = {"code_sha256": hashlib.sha256(data).hexdigest(), "code_bytes": len(data)}
    return line_of(at_s, {**facts, **about, **({"code": code} if whole else {})})


def _filled(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Remove facts with empty values."""
    return {key: value for key, value in facts.items() if value not in (None, "", [], ())}


def _client_facts(client: ClientIdentity) -> dict[str, Any]:
    facts: dict[str, Any] = {"client": client.name, "scope": client.scope}
    if client.peer is not None:
        facts["pid"], facts["uid"] = client.peer
    return facts


def _session_facts(session: Session) -> dict[str, Any]:
    facts: dict[str, Any] = {"session": session.id, "name": session.name}
    if (tenancy := session.tenancy) is not None:
        facts["client"], facts["scope"] = tenancy.client, tenancy.scope
    facts["env"] = session.spec.environment.name
    return facts


def _execution_facts(execution: Execution) -> dict[str, Any]:
    session = execution.session
    return {
        "execution": execution.id,
        "session": session.id,
        "name": session.name,
        "env": execution.origin.env,
        **_client_facts(execution.request.client),
    }


def _job_facts(session: Session, job: JobFacts) -> dict[str, Any]:
    return {
        "job": job.job,
        "session": session.id,
        "name": session.name,
        "env": session.spec.environment.name,
    }


def _job_outcome(job: JobFacts) -> dict[str, Any]:
    return {
        "outcome": job.outcome,
        "exit_code": job.exit_code,
        "duration_s": job.duration_s,
    }


def _shown(value: object) -> object:
    """An argument as a short JSON value."""
    match value:
        case bytes():
            return value.decode(errors="backslashreplace")
        case str():
            return value[:4096]
        case list():
            items = cast("list[object]", value)
            shown = [_shown(item) for item in items[:MAX_LISTED]]
            return shown if len(items) <= MAX_LISTED else [*shown, f"and {len(items)} in all"]
        case dict():
            row = cast("dict[str, object]", value)
            return _shown(row["path"]) if "path" in row else str(row)[:200]
        case _:
            return value
