"""Undo: what it takes, and what having it turned on costs each call.

Two supervisors, one with `undo = 5`. Each call comes 50 ms after the last, when its checkpoint is
made, or at once. Processor time is of all the session's processes, with what is done after the
answer.
"""

from __future__ import annotations

import time
from functools import partial

import nsm
from bench import Bench, connect, run_once
from measure import Comparison, Findings, Target, alternate_all, timed
from private_supervisor import private_supervisor

CONFIGURATION = "[session]\nundo = 5\n"
SESSION = "undo"
CALL = "x = x + 1"
PAUSE_S = 0.05
"""Between a call and the next one, which finds the checkpoint made."""

COUNTED_CALLS = 50
WITHOUT = "the same without undo"


def measure(bench: Bench) -> Findings:
    """One supervisor with undo, and one without."""
    with (
        private_supervisor("nsm-bench-", CONFIGURATION) as variables,
        connect(variables) as undoing,
        bench.client() as plain,
    ):
        for client in (undoing, plain):
            run_once(client, "x = 0", session=SESSION)
        on, off = partial(timed_calls, undoing), partial(timed_calls, plain)
        taken = alternate_all([on, off, partial(timed_undo, undoing)], rounds=bench.rounds)
        later_on, soon_on = zip(*taken[0], strict=True)
        later_off, soon_off = zip(*taken[1], strict=True)
        undone = [own for own, _ in taken[2]]
        yield Comparison(
            name="undo of the last call",
            peer="a call in a live session",
            pairs=tuple(zip(undone, later_off, strict=True)),
            unit="ms",
            target=Target(bound="≤", value=2),
        )
        yield Comparison(
            name="a call 50 ms after the last, with undo",
            peer=WITHOUT,
            pairs=tuple(zip(later_on, later_off, strict=True)),
            unit="ms",
            target=Target(bound="≤", value=1.15),
        )
        yield Comparison(
            name="a call right after the last, with undo",
            peer=WITHOUT,
            pairs=tuple(zip(soon_on, soon_off, strict=True)),
            unit="ms",
        )
        spent = alternate_all(
            [partial(processor_ms, client) for client in (undoing, plain)],
            rounds=bench.some_rounds(0.25),
        )
        yield Comparison(
            name="processor time in the session for a call, with undo",
            peer=WITHOUT,
            pairs=tuple(zip(spent[0], spent[1], strict=True)),
            unit="ms",
        )
        for client in (undoing, plain):
            client.kill([SESSION])


def timed_calls(client: nsm.Client) -> tuple[float, float]:
    """Milliseconds of a call after a pause, and of one right after it."""
    time.sleep(PAUSE_S)
    later = timed(lambda: run_once(client, CALL, session=SESSION))
    return later, timed(lambda: run_once(client, CALL, session=SESSION))


def timed_undo(client: nsm.Client) -> tuple[float, float]:
    """Milliseconds of an undo after a pause; twice, as `timed_calls` has two."""
    time.sleep(PAUSE_S)
    taken = timed(lambda: undo(client))
    return taken, taken


def undo(client: nsm.Client) -> None:
    """Take back the last call."""
    result = client.undo(SESSION)
    assert result.exit_code == 0, result


def processor_ms(client: nsm.Client) -> float:
    """Processor time of the session for a call, with what is done after its answer."""
    before_s = session_s(client)
    for _ in range(COUNTED_CALLS):
        run_once(client, CALL, session=SESSION)
        time.sleep(PAUSE_S)
    return (session_s(client) - before_s) * 1000 / COUNTED_CALLS


def session_s(client: nsm.Client) -> float:
    """Processor time of the session so far, seconds."""
    [row] = [row for row in client.sessions() if row.name == SESSION]
    assert row.cpu_s is not None, row
    return row.cpu_s
