"""Result of one piece of code."""

from collections.abc import Mapping
from typing import Any, NamedTuple

PLACE = "application/vnd.nsm.place+json"
"""MIME type that marks a display whose place in stdout is known. Its data is the number in the line
`[image N]` of stdout, or 0 where stdout has the text of the value."""

_MAX_PLACE = 1_000_000


def split_place(bundle: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
    """A display's representations, and its place if it has one."""
    place = bundle.get(PLACE)
    known = type(place) is int and 0 <= place <= _MAX_PLACE
    return {kind: data for kind, data in bundle.items() if kind != PLACE}, place if known else None


class Truncation(NamedTuple):
    """Amounts that a result leaves out of one stream.

    Attributes:
        omitted_bytes: how many bytes between the head and the tail.
        file: file in the session that holds the stream from its beginning on, or None.
        total_bytes, file_bytes: sizes of the stream, and of what the file has of it; None if
            unknown.
    """

    omitted_bytes: int
    file: str | None
    total_bytes: int | None = None
    file_bytes: int | None = None

    def where(self, file: str) -> str:
        """Say what `file`, as it may be shown, holds of the stream."""
        total, kept = self.total_bytes, self.file_bytes
        if total is None or kept is None:
            return f"its beginning is in {file}"
        if kept >= total:
            return f"all of it is in {file}"
        return f"its first {kept:,} of {total:,} bytes are in {file} (later ones were not kept)"


class SessionRef(NamedTuple):
    """Session that ran the code, or the fresh jail.

    Attributes:
        name: None for a fresh jail that has been thrown away.
        created: this run made the session.
        replaced: why and how long ago an earlier session of this name ended, for people.
    """

    id: str
    name: str | None
    created: bool
    replaced: str | None


class RunResult(NamedTuple):
    """Result of one piece of code. Times in seconds.

    Attributes:
        execution_id: to ask for this result again with `Client.result`.
        stdout, stderr: all that was written, or its head and tail (see `truncated`).
        exit_code: the code's status; 124 after a timeout, 130 after an interrupt.
        displays: displayed values, each a map of MIME type to data (binary data base64);
            `split_place` says which of them stdout shows in their place.
        truncated: for each stream that is not whole, what is missing.
        timed_out, interrupted: why the code ended early.
        interpreter_restarted: the session's variables are lost; `restart_reason` says why.
        waited_s: time spent waiting for other executions of the session.
        timeout_s: the limit that held.
        clamped_from_s: the limit that was asked for, where it was more than allowed; else None.
        notes: rules of the jail that stopped the code, and what is allowed; mostly none.
    """

    execution_id: str
    env: str
    session: SessionRef
    stdout: str
    stderr: str
    exit_code: int
    duration_s: float
    displays: tuple[dict[str, Any], ...]
    truncated: dict[str, Truncation]
    timed_out: bool
    interrupted: bool
    interpreter_restarted: bool
    restart_reason: str
    waited_s: float
    timeout_s: float
    clamped_from_s: float | None
    notes: tuple[str, ...] = ()
