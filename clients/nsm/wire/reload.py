"""Answer of the operation `reload`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nsm.wire.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Self, TypeAlias

    OnReload: TypeAlias = Callable[["ReloadReport"], object]


class ProgramUnderWay(NamedTuple):
    """A program of the bridge that runs.

    Attributes:
        program: its name.
        client: who asked for it, as it calls itself.
        scope: whose sessions that has.
    """

    program: str
    client: str
    scope: str

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check one."""
        fields = Fields(wire, "a program that runs")
        return cls(fields.text("program"), fields.text("client"), fields.text("scope"))


class ReloadReport(NamedTuple):
    """Steps that the supervisor takes before it becomes another program.

    Attributes:
        waits_for: programs of the bridge that run, which cannot go on without it.
        waits_s: seconds that it gives them at most; then they are stopped.
    """

    waits_for: tuple[ProgramUnderWay, ...]
    waits_s: float

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `reload`; that of an older supervisor says nothing of them."""
        fields = Fields(wire, "the answer to a reload")
        rows = fields.maps("waits_for") if "waits_for" in wire else ()
        return cls(
            waits_for=tuple(ProgramUnderWay.from_wire(row) for row in rows),
            waits_s=fields.optional("waits_s", fields.number) or 0.0,
        )


def tell(wire: Mapping[str, Any], on_wait: OnReload | None) -> None:
    """Hand an answer on to who wants to know what is waited for, if there is anything."""
    if on_wait is not None and (report := ReloadReport.from_wire(wire)).waits_for:
        on_wait(report)
