"""Trial of the program that a supervisor will become, while the supervisor still runs.

After the exec there is no way back. So the installed program is run first: it loads all that it
needs to serve, reads the configuration and all records that it would get, and ends.

Its standard input is a JSON object: `handover` is the version of the handover's format, `records`
a list of names and records. It prints its version, and then, in a line of JSON, why it could not
use which of them: `{"unreadable": {NAME: WHY}}`. Programs before 0.3.0 print the version only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence

import trio

from nsm.dataclass import dataclass
from nsm.wire import decode as decoding
from nsmd.fdstore import handover, records
from nsmd.fdstore.store import TRY_OPTION, Refill

TRY_TIMEOUT_S = 60.0
"""Time for the trial, which takes half a second; a machine that swaps, or is emulated, needs
longer.
"""

_MAX_SAID_CHARS = 2000


class SuccessorError(Exception):
    """The program would not start; the message has its own words."""


@dataclass(frozen=True, slots=True)
class SuccessorAnswer:
    """Answer of the next program.

    Attributes:
        version: its version.
        unreadable: why it cannot use entries of the descriptor store, by name; None if it is too
            old to tell.
    """

    version: str
    unreadable: Mapping[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessorQuestion:
    """Entries that the next program would get, as it reads them."""

    handover: int
    records: tuple[tuple[str, str], ...]


def question_of(text: str) -> SuccessorQuestion | None:
    """Read what a supervisor asks its next program; None if it asks nothing.

    Raises:
        ValueError: it is no question.
    """
    return decoding.decode(SuccessorQuestion, json.loads(text)) if text.strip() else None


def answer_of(unreadable: Mapping[str, str]) -> str:
    """Answer the question of a supervisor, in a line."""
    return json.dumps({"unreadable": dict(unreadable)})


def _kept_records(refill: Refill) -> Iterator[tuple[str, str]]:
    for name, descriptors in refill():
        for data in filter(None, map(records.read_file, descriptors)):
            if records.is_record(data):
                yield name, data.decode("ascii", "replace")


async def try_successor(command: Sequence[str], refill: Refill = tuple) -> SuccessorAnswer:
    """Run the next program without letting it serve.

    Args:
        command: command that will be executed.
        refill: yields what it would take over.

    Raises:
        SuccessorError: it does not start, or not in time.

    Cancellation: ends it.
    """
    question = {"handover": handover.VERSION, "records": list(_kept_records(refill))}
    said = None
    try:
        with trio.move_on_after(TRY_TIMEOUT_S):
            said = await trio.run_process(
                [*command, TRY_OPTION],
                stdin=json.dumps(question).encode(),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                cwd="/",
                env=os.environ,
            )
    except OSError as error:
        raise SuccessorError(f"{command[0]} can't be started: {error.strerror}") from error
    if said is None:
        raise SuccessorError(f"it has not loaded within {TRY_TIMEOUT_S:g} s")
    if said.returncode != 0:
        words = said.stderr.decode(errors="replace").strip()[-_MAX_SAID_CHARS:]
        raise SuccessorError(words or f"it ends with {said.returncode}")
    version, _, rest = said.stdout.decode(errors="replace").strip().partition("\n")
    return SuccessorAnswer(version, _unreadable(rest))


def _unreadable(text: str) -> Mapping[str, str] | None:
    try:
        return decoding.decode(dict[str, dict[str, str]], json.loads(text)).get("unreadable")
    except ValueError:
        return None
