"""Programs of the host that a box is to start: whether the bridge has them, said in time.

Whether one is started is the supervisor's to say, at each call. What is said here is for people:
which name it does not know, and which program is of no use in this box, or of more than they think.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nsm.checks import HostCheck, fail, ok, warn
from nsmbox.model.plan import BoxError
from nsmbox.protection.secrets import printable, within

if TYPE_CHECKING:
    from nsm.wire.host import ProgramProblem, ProgramRow, ProgramsReport
    from nsmbox.model.plan import Plan

_OFF = "`[bridge] enabled = true` in config.toml turns it on; then `nsm reload --config`."


def look(plan: Plan, *, client: str) -> tuple[str, ...]:
    """Make sure that the bridge has the programs of a plan."""
    refuse_without_supervisor()
    report = _asked(client)
    check(plan.programs, report)
    return tuple(notes(plan, report.programs))


def check(names: Sequence[str], report: ProgramsReport) -> None:
    """
    Raises:
        BoxError: not all of these can be had.
    """
    if not report.enabled:
        raise BoxError(
            f"the box may start {', '.join(names)} on the host, and the bridge is off",
            hint=_OFF,
        )
    known = [row.name for row in report.programs]
    missing = [name for name in names if name not in known]
    if not missing:
        return
    # All of them at once: whoever is told of one only starts the box once for each.
    wrong = {problem.name: problem for problem in reversed(report.problems)}
    said = [_useless(wrong[name]) for name in missing if name in wrong]
    absent = [repr(name) for name in missing if name not in wrong]
    if absent:
        word = "program" if len(absent) == 1 else "programs"
        listed = ", ".join(known) or "none"
        said.append(f"{word} {', '.join(absent)} not found. Available: {listed}")
    hints = [
        "Correct it; `nsm bridge check` checks all of them." if len(absent) < len(missing) else "",
        "`nsm bridge ls` shows them; see docs/how-to/bridge.md." if absent else "",
    ]
    raise BoxError("; ".join(said), hint=" ".join(filter(None, hints)))


def _useless(problem: ProgramProblem) -> str:
    line = "" if problem.line is None else f":{problem.line}"
    return (
        f"the definition of program {problem.name!r} has a mistake: {problem.source}{line}: "
        f"{problem.reason}"
    )


def notes(plan: Plan, rows: Sequence[ProgramRow]) -> Iterator[str]:
    """List the notes for people about a plan's programs."""
    for row in rows:
        if row.name not in plan.programs:
            continue
        command, works = row.command or "/", os.path.realpath(row.cwd or "/")
        for place in plan.writable:
            if within(command, place) or within(os.path.realpath(command), place):
                yield (
                    f"{row.name} is not started for this box: it lies in {printable(place)}, where "
                    "the box could have written it."
                )
            elif within(works, place):
                yield (
                    f"{row.name} works in {printable(works)}: what it reads there, the box may "
                    "have written."
                )


def refuse_without_supervisor() -> None:
    """
    Raises:
        BoxError: this is a system for which there is none.
    """
    if sys.platform == "darwin":
        raise BoxError(
            "the box may start programs of the host, which needs nsm's supervisor, and that is for "
            "Linux alone",
            hint="Start it without: `nsm box --bridge ''`, or take `bridge` out of [box].",
        )


def row(names: Sequence[str], *, running: bool, client: str) -> HostCheck:
    """Make the row of `--check` about them."""
    try:
        refuse_without_supervisor()
        if not running:
            return warn(
                f"{', '.join(names)}: not looked for without a supervisor",
                "`nsm bridge check` looks at the definitions without one.",
            )
        check(names, _asked(client, start=False))
    except BoxError as error:
        return fail(error.message, error.hint)
    return ok(f"of the host: {', '.join(names)}")


def _asked(client: str, *, start: bool = True) -> ProgramsReport:
    """
    Raises:
        BoxError: nobody answers.
    """
    from nsm import Client  # noqa: PLC0415  # each way loads what it needs
    from nsm.wire.errors import NsmError  # noqa: PLC0415

    try:
        with Client(host="", name=client, autostart=start) as connected:
            return connected.bridge.programs()
    except (NsmError, OSError) as error:
        told = error.message if isinstance(error, NsmError) else str(error)
        raise BoxError(
            f"the box may start programs of the host, which the supervisor does: {told}",
            hint=error.hint if isinstance(error, NsmError) else "`nsm doctor` tells more.",
        ) from error
