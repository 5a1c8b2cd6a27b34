"""The answer to `envs`: what there is to run in. `nsm ps` does without."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from nsm.wire.fields import Fields


class EnvironmentRow(NamedTuple):
    """One environment, or a reason why one is missing.

    Attributes:
        name: empty where something is the matter with all of a source.
        interpreter: empty where it is not known.
        problem: why it cannot be used, for people; None when `available`.
        source: where it comes from, e.g. ``preset``.
        program: the interpreter's path in the jail; empty when unavailable.
        timeout_s: default and upper limit of one run, seconds.
        memory_mb: memory limit of a session, MiB.
        preload: Python modules that its sessions find imported already.
        not_preloaded: those that could not be imported, each with the reason.
        keeps_state: whether it has sessions.
        cold_start: why its last session was not forked from a template; None if it was.
        aliases: other names that it answers to.
        only_for: for whom it is, for people; None if for everyone.
        hides: where others of that name come from, which it stands in place of.
    """

    name: str
    interpreter: str
    description: str
    available: bool
    problem: str | None
    source: str
    program: str
    timeout_s: float
    memory_mb: int
    preload: tuple[str, ...]
    keeps_state: bool
    cold_start: str | None
    aliases: tuple[str, ...]
    only_for: str | None
    hides: tuple[str, ...]
    not_preloaded: tuple[str, ...] = ()

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check one row of the answer to `envs`."""
        row = Fields(wire, "an environment row")
        return cls(
            name=row.text("name"),
            interpreter=row.text("interpreter"),
            description=row.text("description"),
            available=row.flag("available"),
            problem=row.optional("problem", row.text),
            source=row.text("source"),
            program=row.text("program"),
            timeout_s=row.number("timeout_s"),
            memory_mb=row.integer("memory_mb"),
            preload=row.texts("preload"),
            keeps_state=row.flag("keeps_state"),
            cold_start=row.optional("cold_start", row.text),
            aliases=row.texts("aliases"),
            only_for=row.optional("only_for", row.text),
            hides=row.texts("hides"),
            not_preloaded=row.optional("not_preloaded", row.texts) or (),
        )
