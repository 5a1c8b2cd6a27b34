"""The answer to `inspect`: all that is known of one session. Checked as in `nsm.wire.results`."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from nsm.wire.results import Fields, SessionRow


class Inspection(NamedTuple):
    """One live session.

    Attributes:
        session: its row of `nsm ps`.
        policy: its rules, as in `/run/nsm/policy.json` (docs/policy.md), with host paths as
            `source`; None before it has a jail.
        network: what it may reach at this moment, and what it has tried; None where unknown.
        confinement: what keeps its limits, as it was read back, and what it has; None likewise.
        kernel: what the kernel says of the jail's first process; None where there is none.
        contradictions: where the kernel does not say what the policy promises, for people.
    """

    session: SessionRow
    policy: dict[str, Any] | None
    network: dict[str, Any] | None
    confinement: dict[str, Any] | None
    kernel: dict[str, Any] | None
    contradictions: tuple[str, ...]

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `inspect`."""
        fields = Fields(wire, "a session in detail")
        return cls(
            session=SessionRow.from_wire(fields.map("session")),
            policy=fields.optional("policy", fields.map),
            network=fields.optional("network", fields.map),
            confinement=fields.optional("confinement", fields.map),
            kernel=fields.optional("kernel", fields.map),
            contradictions=fields.texts("contradictions"),
        )

    def to_plain(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return {
            **self._asdict(),
            "session": self.session._asdict(),
            "contradictions": list(self.contradictions),
        }
