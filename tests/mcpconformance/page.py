"""The results of MCP's conformance suite and clients: their data, and the page made from it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pages
from mcpconformance.suite import Required
from mcpconformance.verdicts import FAILED, NOT_APPLICABLE, PASSED, WARNED, Verdict

NSM, FRONT = "nsm", "its HTTP front, the suite's own server"
"""The columns: nsm as it is, and what lies between a client and its tools, with other tools."""

HEAD = """\
# Conformance

These are the results of MCP's own conformance suite, and of MCP's own clients, with nsm. `make
conformance` runs them and writes `docs/data/conformance.json`. It needs npm.

Most scenarios of the suite call tools, resources and prompts that only its own test server has. So
the suite runs twice for each revision of the protocol:

- against nsm as it is; such a scenario is *not applicable* there;
- against nsm's HTTP front (listener, token, checks of `Host` and `Origin`, limits, session
  manager), with a server behind it that has what the suite needs.

The number behind *passed* counts the checks that succeeded. *warned* means that nsm does not follow
a recommendation ("should") of the protocol. The suite cannot send a token, so its requests go
through a forwarder that adds one to each request.

Each of the other clients has one session over stdio (`nsm-mcp`) and one over HTTP, in the revisions
that it speaks. It lists the tools, runs code, starts a bridge program, makes three calls at once
and cancels one. The Inspector's command line makes a new connection for each call, and cancels
none.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One scenario of one revision.

    Attributes:
        verdicts: of NSM and FRONT.
    """

    required: Required
    verdicts: Mapping[str, Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One client's session.

    Attributes:
        client: its name and version.
        way: `stdio` or `HTTP`.
        revision: of the protocol.
        faults: what went wrong; empty where nothing did.
    """

    client: str
    way: str
    revision: str
    faults: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Everything that one run has found.

    Attributes:
        suite: version of the suite.
        rows: revision -> scenarios, in the order of the suite's set.
        sessions: of the other clients.
    """

    suite: str
    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict[str, Sequence[Row]])
    sessions: Sequence[Session] = ()


def page() -> str:
    """Return the whole page."""
    return HEAD + tables(read()) + "\n"


def read() -> Results:
    """Read the results that are kept."""
    kept = pages.read("conformance")
    rows = {revision: [_row(**row) for row in rows] for revision, rows in kept["rows"].items()}
    sessions = [Session(**session) for session in kept["sessions"]]
    return Results(suite=kept["suite"], rows=rows, sessions=sessions)


def write(results: Results) -> None:
    """Keep results."""
    pages.keep("conformance", dataclasses.asdict(results))


def _row(required: dict[str, str], verdicts: dict[str, dict[str, Any]]) -> Row:
    return Row(
        required=Required(**required),
        verdicts={server: Verdict(**verdict) for server, verdict in verdicts.items()},
    )


def failures(results: Results) -> list[str]:
    """List the failures, one line for each; empty if there are none."""
    found = [
        f"{revision} {row.required.name}, {column}: {verdict.note}"
        for revision, rows in results.rows.items()
        for row in rows
        for column, verdict in row.verdicts.items()
        if verdict.outcome == FAILED
    ]
    for session in results.sessions:
        told = f"{session.client}, {session.way}, {session.revision}"
        found += [f"{told}: {fault}" for fault in session.faults]
    return found


def tables(results: Results) -> str:
    """All of it as Markdown."""
    parts = [f"`@modelcontextprotocol/conformance` {results.suite}.", summary(results)]
    for revision, rows in results.rows.items():
        parts += [f"## Revision {revision}", *_revision(rows)]
    parts += ["## Other clients", _sessions(results.sessions)]
    return "\n\n".join(parts)


def summary(results: Results) -> str:
    """How many scenarios came out how."""
    lines = [
        "| revision | server | passed | warned | failed | not applicable | checks that succeeded |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for revision, rows in results.rows.items():
        for column in (NSM, FRONT):
            verdicts = [row.verdicts[column] for row in rows]
            count = Counter(verdict.outcome for verdict in verdicts)
            checks = sum(verdict.succeeded for verdict in verdicts)
            lines.append(
                f"| {revision} | {column} | {count[PASSED]} | {count[WARNED]} | {count[FAILED]} "
                f"| {count[NOT_APPLICABLE]} | {checks} |"
            )
    return "\n".join(lines)


def _revision(rows: Sequence[Row]) -> list[str]:
    lines = [
        f"| scenario | {NSM} | {FRONT} |",
        "| --- | --- | --- |",
    ]
    for row in rows:
        unscored = row.required.unscored
        name = f"`{row.required.name}`" + (f" (not scored: {unscored})" if unscored else "")
        cells = " | ".join(_cell(row.verdicts[column]) for column in (NSM, FRONT))
        lines.append(f"| {name} | {cells} |")
    return ["\n".join(lines)]


def _cell(verdict: Verdict) -> str:
    note = verdict.note.replace("\n", " ").replace("|", "\\|")
    if verdict.outcome == PASSED:
        text = f"passed ({verdict.succeeded})"
        return f"{text}; {note}" if note else text
    shown = f"**{verdict.outcome}**" if verdict.outcome == FAILED else verdict.outcome
    return f"{shown}: {note}"


def _sessions(sessions: Sequence[Session]) -> str:
    lines = ["| client | over | revision | |", "| --- | --- | --- | --- |"]
    for session in sessions:
        outcome = "passed" if not session.faults else f"**failed**: {'; '.join(session.faults)}"
        outcome = outcome.replace("\n", " ").replace("|", "\\|")
        lines.append(f"| {session.client} | {session.way} | {session.revision} | {outcome} |")
    return "\n".join(lines)
