"""The lines that a result has about the rules of its jail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsmd.denials import reading, wording
from nsmd.denials.evidence import Evidence
from nsmd.policy import Policy
from nsmd.values import Environment, LimitEvent, NetworkRule, Outcome, ProjectMount

LOST = "variables were lost"

BASH_GIVES_UP = 2
"""Its exit code where it gets no memory; Node ends itself with a signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What is known of an execution beside its outcome.

    Attributes:
        code: what was run.
        project: what its session sees of the host's files.
        network: what it may reach now; None for what its policy says.
        refused: hosts, with ports, that the session was refused meanwhile.
        keeps_state: its session was to outlive it.
        environments: in which the client can run code.
    """

    code: str = ""
    project: ProjectMount | None = None
    network: NetworkRule | None = None
    refused: Sequence[str] = ()
    keeps_state: bool = True
    environments: Sequence[Environment] = ()


def explain(
    policy: Policy,
    outcome: Outcome,
    events: Sequence[LimitEvent] = (),
    circumstances: Circumstances = Circumstances(),
) -> tuple[str, ...]:
    """Which rule of the jail stopped the code, and what is allowed: no line, one, or one for what
    was killed and one for what was denied.

    Args:
        policy: of the session.
        outcome: of the execution.
        events: limits that the session reached meanwhile.
        circumstances: what else is known.
    """
    found = reading.evidence_of(outcome, circumstances.code)
    memory = [event for event in events if event.kind == "memory"]
    lost = LOST if outcome.interpreter_restarted and circumstances.keeps_state else ""
    notes: list[str] = []
    if memory:
        notes.append(wording.killed(policy, memory[-1], lost))
    elif _ended_itself(outcome, found):
        # Because it was refused memory; nobody counted that.
        limit = LimitEvent(
            kind="memory",
            limit=policy.limits.memory_mb << 20,
            enforced_by=policy.limits.memory_by,
            what="",
        )
        notes.append(wording.killed(policy, limit, lost))
        found = [one for one in found if one.kind not in ("memory", "array", "exhausted")]
    said = wording.clauses(
        policy,
        found,
        project=circumstances.project,
        network=circumstances.network or policy.network,
        refused=circumstances.refused,
        events=events,
        environments=circumstances.environments,
    )
    if said:
        notes.append(f"policy: {'; '.join(said)}")
    return tuple(notes)


def _ended_itself(outcome: Outcome, found: Sequence[Evidence]) -> bool:
    """Whether the interpreter, not a program that it ran, ended for want of memory."""
    if not outcome.interpreter_restarted or outcome.timed_out or outcome.interrupted:
        return False
    if not any(one.kind == "exhausted" for one in found):
        return False
    return "killed by" in outcome.restart_reason or outcome.exit_code == BASH_GIVES_UP
