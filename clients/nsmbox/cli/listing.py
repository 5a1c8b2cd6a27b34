"""`nsm box --list`: the boxes that have sockets of the supervisor's."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli.options import EXIT_OK, Done
from nsm.cli.render import formats
from nsmbox.protection import stand_ins

REFUSED = ("off", "not-allowed", "port", "address")

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsm.wire.host import BoxRow, BoxUse


def show(*, as_json: bool) -> int:
    """Print them; starts no supervisor."""
    boxes: Sequence[BoxRow] = ()
    with suppress(Done), connection.running() as client:
        boxes = client.boxes.list()
    if as_json:
        terminal.out_json(boxes)
    elif boxes:
        terminal.out(rows(boxes, os.path.expanduser("~")))
    else:
        terminal.out("No boxes.")
    for directory in stand_ins.killed():
        said = stand_ins.lost_with_a_killed_box(directory)
        terminal.note(f"{said}; the next box tells what else it has left")
    return EXIT_OK


def rows(boxes: Sequence[BoxRow], home: str) -> str:
    """One line each, of columns, and why limits are not those of control groups."""
    lines = [
        (
            box.id,
            str(box.pid),
            box.profile,
            _network(box),
            ",".join(box.programs) or "-",
            *_use(box.limits),
            formats.duration(box.age_s),
            formats.below_home(box.directory, home),
        )
        for box in boxes
    ]
    columns = tuple("ID PID PROFILE NETWORK PROGRAMS PROCS MEMORY LIMITS AGE DIRECTORY".split())
    table = formats.table(columns, lines, "PID PROCS MEMORY AGE")
    reasons = dict.fromkeys(
        f"Limits by {box.limits.memory_by}: {formats.visible(box.limits.why)}."
        for box in boxes
        if box.limits is not None and box.limits.why
    )
    return "\n".join([table, *reasons])


def _use(use: BoxUse | None) -> tuple[str, str, str]:
    if use is None:
        return "-", "-", "-"
    return (
        formats.of_limit(use.processes, use.process_limit),
        formats.memory_of_limit(use.memory_bytes, use.memory_limit_bytes),
        use.memory_by,
    )


def _network(box: BoxRow) -> str:
    shown = (",".join(box.allow) or "-") if box.network == "allow" else box.network
    if box.network_problem:
        return f"{shown} ({box.network_problem})"
    refused = sum(count for name, count in box.counters.items() if name in REFUSED)
    return f"{shown} ({refused} refused)" if refused and box.network == "allow" else shown
