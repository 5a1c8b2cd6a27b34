"""Lines of a result about the rules of its jail."""

from __future__ import annotations

import posixpath
import signal
from collections.abc import Sequence
from functools import partial

from nsm.dataclass import dataclass
from nsmd.denials import lines, reading, wording
from nsmd.denials.evidence import Evidence, Kind
from nsmd.denials.gpus import said_of_gpus
from nsmd.denials.naming import plain
from nsmd.host.paths import has_below
from nsmd.host.threads import BoundedReads
from nsmd.model.policy import Policy
from nsmd.model.values import Environment, LimitEvent, NetworkRule, Outcome, ProjectMount

LOST = "variables were lost"

BASH_GIVES_UP = 2
"""Bash's exit code if it gets no memory; Node ends itself with a signal."""

NODE_GIVES_UP = "\n<--- Last few GCs --->\n"
"""First words of Node if it gets no memory. It may get none for more words, and crash."""

KILLED_BY_SIGBUS = 128 + signal.SIGBUS

MOST_MISSING = 5
"""Largest number of files to look for in the project, for one execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Facts about an execution besides its outcome.

    Attributes:
        code: the code that ran.
        project: project that its session sees.
        network: present network rule; None for that of its policy.
        refused: hosts, with ports, that the session was refused meanwhile.
        keeps_state: its session should outlive it.
        environments: environments that the client can use.
        has_input: it had standard input.
        environment: environment of the session; None for one with the host's programs.
    """

    code: str = ""
    project: ProjectMount | None = None
    network: NetworkRule | None = None
    refused: Sequence[str] = ()
    keeps_state: bool = True
    environments: Sequence[Environment] = ()
    environment: Environment | None = None
    has_input: bool = False


def explain(
    policy: Policy,
    outcome: Outcome,
    events: Sequence[LimitEvent] = (),
    circumstances: Circumstances = Circumstances(),  # noqa: B008  # frozen
) -> tuple[str, ...]:
    """Explain which rule of the jail stopped the code, and what is allowed: no line, one line, or
    one each for something killed, something denied, and a GPU.

    Args:
        policy: policy of the session.
        outcome: outcome of the execution.
        events: limits that the session reached meanwhile.
        circumstances: other facts.
    """
    found = reading.evidence_of(outcome, circumstances.code)
    if circumstances.has_input:
        found = [one for one in found if one.kind != "input"]
    if outcome.exit_code == KILLED_BY_SIGBUS and not found:
        found.append(Evidence(kind="sigbus"))
    memory = [event for event in events if event.kind == "memory"]
    lost = LOST if outcome.interpreter_restarted and circumstances.keeps_state else ""
    notes: list[str] = []
    if memory:
        notes.append(wording.killed(policy, memory[-1], lost))
    elif _ended_itself(outcome, found):
        # It was refused memory; nothing counts that.
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
        here=circumstances.environment,
    )
    if said:
        notes.append(f"policy: {'; '.join(said)}")
    kinds: set[Kind] = {one.kind for one in found}
    failed = outcome.exit_code != 0
    of_gpus = said_of_gpus(policy, kinds, circumstances.environments, failed=failed)
    notes += [f"gpu: {clause}" for clause in of_gpus]
    if circumstances.project is not None:
        missing = [one.subject for one in found if one.kind == "missing"]
        notes += _in_the_project(circumstances.project, missing)
    return tuple(notes)


def _in_the_project(project: ProjectMount, missing: Sequence[str]) -> list[str]:
    """Note on the place in the project of a file that code looked for in the working directory."""
    for path in missing[:MOST_MISSING]:
        try:
            is_there = BoundedReads().read(project.path, partial(has_below, project.path, path))
        except TimeoutError:
            return []
        if is_there:
            place = plain(posixpath.normpath(posixpath.join(project.mount_point, path)), 200)
            return [f"{lines.WORKSPACE} is the working directory; the file is at {place}"]
    return []


def _ended_itself(outcome: Outcome, found: Sequence[Evidence]) -> bool:
    """Return whether the interpreter, and not a program that it ran, ended because
    memory ran out.
    """
    if not outcome.interpreter_restarted or outcome.timed_out or outcome.interrupted:
        return False
    if not any(one.kind == "exhausted" for one in found) and not (
        "SIGSEGV" in outcome.restart_reason and outcome.stderr.startswith(NODE_GIVES_UP)
    ):
        return False
    return "killed by" in outcome.restart_reason or outcome.exit_code == BASH_GIVES_UP
