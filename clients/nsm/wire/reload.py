"""Answer of the operation `reload`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nsm.wire.answers import read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeAlias

    OnReload: TypeAlias = Callable[["ReloadReport"], object]


class ProgramUnderWay(NamedTuple):
    """A program of the bridge that runs.

    Attributes:
        program: its name.
        client: client that asked for it, by its own name.
        scope: whose sessions that has.
    """

    program: str
    client: str
    scope: str


class ReloadReport(NamedTuple):
    """Steps that the supervisor takes before it becomes another program.

    Attributes:
        waits_for: programs of the bridge that run, which cannot go on without it.
        waits_s: seconds that it gives them at most; then they are stopped.
    """

    waits_for: tuple[ProgramUnderWay, ...]
    waits_s: float


def tell(wire: Mapping[str, Any], on_wait: OnReload | None) -> None:
    """Hand an answer on to who wants to know what is waited for, if there is anything."""
    if on_wait is not None and (report := read(ReloadReport, wire)).waits_for:
        on_wait(report)
