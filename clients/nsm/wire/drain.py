"""Answer of the operation `drain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nsm.wire.answers import read

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from nsm.wire.messages import Event

    OnDrain: TypeAlias = Callable[["DrainProgress"], object]


class DrainProgress(NamedTuple):
    """How a drain comes along.

    Attributes:
        left: executions that run or are queued.
        interrupted: executions that were interrupted at the deadline.
        remaining_s: seconds until then; None without one.
    """

    left: int
    interrupted: int
    remaining_s: float | None


class DrainReport(NamedTuple):
    """Outcome of a drain.

    Attributes:
        drained: nothing runs, and nothing will until the drain is taken back.
        cancelled: it was taken back, and new work is taken.
        left: executions that still run, where nobody waited for them.
        interrupted: executions that were interrupted at the deadline.
        sessions: number of kept sessions.
    """

    drained: bool
    cancelled: bool
    left: int
    interrupted: int
    sessions: int


def drain_arguments(timeout_s: float | None) -> dict[str, Any]:
    """The arguments of `drain`; without a number, nothing is interrupted."""
    return {} if timeout_s is None else {"timeout_s": timeout_s}


def progress_to(on_progress: OnDrain | None) -> Callable[[Event], None]:
    """A callback for events that hands progress on."""

    def on_event(event: Event) -> None:
        if on_progress is not None and event.event == "progress":
            on_progress(read(DrainProgress, event.data))

    return on_event
