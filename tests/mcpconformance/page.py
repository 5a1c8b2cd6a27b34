"""The results of MCP's conformance suite and clients: their data, and the page made from it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pages
from mcpconformance.suite import FAILED, NOT_APPLICABLE, PASSED, WARNED, Verdict

HEAD = """\
# Conformance

These are the results of MCP's own conformance suite, and of MCP's own clients, with nsm. `make
conformance` runs them and writes `docs/data/conformance.json`. It needs npm.

Most scenarios of the suite call tools, resources and prompts of its own test server. They are *not
applicable* to nsm, which has none of these. The number behind *passed* counts the checks that
succeeded. *warned* means that nsm does not follow a recommendation ("should") of the protocol. The
suite cannot send a token, so its requests go through a forwarder that adds one to each request.

Each of the other clients has one session over stdio (`nsm-mcp`) and one over HTTP, in the revisions
that it speaks. It lists the tools, runs code, starts a bridge program, makes three calls at once
and cancels one. The Inspector's command line makes a new connection for each call, and cancels
none.

"""


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
        verdicts: revision -> scenarios, in the order of the suite's set.
        sessions: of the other clients.
    """

    suite: str
    verdicts: Mapping[str, Sequence[Verdict]] = field(default_factory=dict[str, Sequence[Verdict]])
    sessions: Sequence[Session] = ()


def page() -> str:
    """Return the whole page."""
    return HEAD + tables(read()) + "\n"


def read() -> Results:
    """Read the results that are kept."""
    kept = pages.read("conformance")
    return Results(
        suite=kept["suite"],
        verdicts={
            revision: [Verdict(**verdict) for verdict in verdicts]
            for revision, verdicts in kept["verdicts"].items()
        },
        sessions=[Session(**session) for session in kept["sessions"]],
    )


def write(results: Results) -> None:
    """Keep results."""
    pages.keep("conformance", dataclasses.asdict(results))


def failures(results: Results) -> list[str]:
    """List the failures, one line for each; empty if there are none."""
    found = [
        f"{revision} {verdict.scenario}: {verdict.note}"
        for revision, verdicts in results.verdicts.items()
        for verdict in verdicts
        if verdict.outcome == FAILED
    ]
    for session in results.sessions:
        told = f"{session.client}, {session.way}, {session.revision}"
        found += [f"{told}: {fault}" for fault in session.faults]
    return found


def tables(results: Results) -> str:
    """All of it as Markdown."""
    parts = [f"`@modelcontextprotocol/conformance` {results.suite}.", summary(results)]
    for revision, verdicts in results.verdicts.items():
        parts += [f"## Revision {revision}", _scenarios(verdicts)]
    parts += ["## Other clients", _sessions(results.sessions)]
    return "\n\n".join(parts)


def summary(results: Results) -> str:
    """How many scenarios came out how."""
    lines = [
        "| revision | passed | warned | failed | not applicable | checks that succeeded |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for revision, verdicts in results.verdicts.items():
        count = Counter(verdict.outcome for verdict in verdicts)
        outcomes = " | ".join(str(count[each]) for each in (PASSED, WARNED, FAILED, NOT_APPLICABLE))
        checks = sum(verdict.succeeded for verdict in verdicts)
        lines.append(f"| {revision} | {outcomes} | {checks} |")
    return "\n".join(lines)


def _scenarios(verdicts: Sequence[Verdict]) -> str:
    lines = ["| scenario | |", "| --- | --- |"]
    for verdict in verdicts:
        if verdict.outcome == NOT_APPLICABLE:
            continue
        unscored = f" (not scored: {verdict.unscored})" if verdict.unscored else ""
        lines.append(f"| `{verdict.scenario}`{unscored} | {_cell(verdict)} |")
    return "\n".join(lines)


def _cell(verdict: Verdict) -> str:
    note = _plain(verdict.note)
    if verdict.outcome == PASSED:
        text = f"passed ({verdict.succeeded})"
        return f"{text}; {note}" if note else text
    shown = f"**{verdict.outcome}**" if verdict.outcome == FAILED else verdict.outcome
    return f"{shown}: {note}"


def _sessions(sessions: Sequence[Session]) -> str:
    lines = ["| client | over | revision | |", "| --- | --- | --- | --- |"]
    for session in sessions:
        outcome = "passed" if not session.faults else f"**failed**: {'; '.join(session.faults)}"
        lines.append(
            f"| {session.client} | {session.way} | {session.revision} | {_plain(outcome)} |"
        )
    return "\n".join(lines)


def _plain(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")
